"""Peer with a trusted curator: InterpretML's DP-EBM on the pooled records."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path

import numpy as np

NAME = "DP-EBM, pooled"
DELTA = 1e-5


def is_installed() -> bool:
    """Return whether InterpretML is there."""
    return importlib.util.find_spec("interpret") is not None


def curator_accuracy(split: Path, epsilon: float) -> float:
    """Return the test accuracy of a DP-EBM on the records of all sites of a split.

    Nori et al., Accuracy, Interpretability, and Differential Privacy via Explainable Boosting (ICML
    2021), with the package's defaults. It is given the public bounds of the columns, and which of
    them are categories. It draws anew in each call: it has no seed under privacy.
    """
    from interpret.privacy import DPExplainableBoostingClassifier

    stored = split.with_name(f"{split.stem}-ebm-{epsilon:g}.txt")
    if stored.exists():
        return float(stored.read_text(encoding="utf-8"))
    with np.load(split) as data:
        x, y, x_test, y_test = (data[name] for name in ("x", "y", "x_test", "y_test"))
    kinds = ["nominal" if {*np.unique(column)} <= {0.0, 1.0} else "continuous" for column in x.T]
    model = DPExplainableBoostingClassifier(
        feature_types=kinds,
        epsilon=epsilon,
        delta=DELTA,
        privacy_bounds=np.array([[-1.0, 1.0]] * x.shape[1]),
        n_jobs=1,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        accuracy = float((model.fit(x, y).predict(x_test) == y_test).mean())
    stored.write_text(f"{accuracy}\n", encoding="utf-8")
    return accuracy

"""``hdpfl reproduce denoise``: steps that filter the aggregate, beside the product's."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hdpfl_flower.data.datasets import Dataset, load_dataset
from hdpfl_flower.models.task import Records, Task
from studies.advise.records import DATA_DIR, pooled_mnist
from studies.framework.study import Findings, GridStudy, Options, Setting

HIDDEN = 64
SITES, RECORDS = 10, 600
OWN = "studies.denoise.steps"

Floats = npt.NDArray[Any]


@cache
def features() -> Dataset:
    """Return pooled MNIST as the 64 hidden units of a network of scikit-learn's digits."""
    from sklearn.neural_network import MLPClassifier

    data, public = pooled_mnist(), load_dataset("digits", "").train
    grown = _grown(public.features.reshape(-1, 8, 8))
    body = MLPClassifier((HIDDEN,), tol=1e-3, random_state=1).fit(grown, public.targets)

    def read(records: Records) -> Records:
        inputs = _unit(records.features)
        hidden = np.maximum(inputs @ body.coefs_[0] + body.intercepts_[0], 0)
        return Records(_unit(hidden).astype(np.float32) * 3, records.targets)

    task = Task.classification((HIDDEN,), data.task.outputs)
    return Dataset(task, read(data.train), read(data.test) if data.test else None, None)


def _grown(images: Floats) -> Floats:
    """Return 8 × 8 images as 14 × 14 ones of unit length, with an edge as MNIST's."""
    from scipy.ndimage import zoom

    grown = zoom(images, (1, 1.25, 1.25), order=1)
    padded: Floats = np.pad(grown, ((0, 0), (2, 2), (2, 2))).reshape(len(images), -1)
    return _unit(padded)


def _unit(rows: Floats) -> Floats:
    moved: Floats = rows - rows.min(axis=1, keepdims=True)
    moved /= np.maximum(np.linalg.norm(moved, axis=1, keepdims=True), 1e-6)
    return moved


def _column(label: str, function: str, partition: str, epsilons: str) -> Setting:
    width = {"pooled_mnist": 196, "features": HIDDEN}[function]
    module = "studies.advise.records" if function == "pooled_mnist" else __name__
    return Setting(
        label,
        {
            "dataset": f"{module}:{function}",
            "task": f"classification shape={width} classes=10",
            "partition": f"{partition}:{RECORDS}",
            "epsilons": epsilons,
        },
        sites=SITES,
    )


@dataclass(frozen=True, kw_only=True)
class DenoiseStudy(GridStudy):
    """Grid study over pooled MNIST."""

    def conduct(self, options: Options, folder: Path) -> Findings:
        """Name the folder of MNIST, then run the grid."""
        os.environ.setdefault(DATA_DIR, options.data_dir)
        return super().conduct(options, folder)


DENOISE = DenoiseStudy(
    name="denoise",
    title="Server steps that denoise, beside the product's",
    source="ours, after arXiv:2601.09166 and 2410.03883",
    minutes=10,
    base={"batch-sizes": "150", "delta": 1e-4, "rounds": 24, "stack": True, "local-steps": 4},
    rows=(
        Setting("mmse", {"strategy": "mmse"}),
        Setting("tail", {"strategy": "mmse", "average": "tail"}),
        Setting("momentum", {"strategy": "mmse+momentum", "server-learning-rate": 0.1}),
        Setting("adam .01", {"strategy": "mmse+adam"}),
        Setting("adam .03", {"strategy": "mmse+adam", "server-learning-rate": 0.03}),
        Setting("Fisher", {"strategy": f"{OWN}:Preconditioned"}),
        Setting("Kalman", {"strategy": f"{OWN}:Filtered"}),
    ),
    columns=(
        _column("Dist4", "pooled_mnist", "iid", "dist4"),
        _column("≤ 3 labels", "pooled_mnist", "pathological:3", "dist4"),
        _column("features ε .5", "features", "iid", "0.5"),
        _column("features ε 2", "features", "iid", "2"),
    ),
    quick_columns=("features ε 2",),
    noises=("pld",),
    rates=(0.3, 1.0, 3.0, 10.0),
    quick_rates=(1.0,),
    picture="columns",
)
"""The study of two filters as strategies of a file, which a run names ``module:Class``."""

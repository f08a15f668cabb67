"""How large a federation is, and how good the constant predictor: public facts of public data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hdpfl_flower.data.datasets import load_dataset
from hdpfl_flower.models.constant import constant_outputs
from hdpfl_flower.models.evaluation import measures


@dataclass(frozen=True)
class Sizes:
    """Facts of a federation.

    Attributes:
        sites: their number.
        records: of all sites, a record a unit.
        least: of a site.
        median: over the sites.
        most: of a site.
        measure: of the constant predictor: ``accuracy``, ``mse`` or, for survival, ``loss``.
        constant: that measure on the test records. The predictor is the training records' shares of
            the classes, their mean, or their share of events in each interval.
        loss: of the constant predictor on the test records; in nats but for a regression.
    """

    sites: int
    records: int
    least: int
    median: float
    most: int
    measure: str
    constant: float
    loss: float


def sizes_of(name: str, data_dir: str = "") -> Sizes:
    """Return the sizes of a federation.

    Args:
        name: of the data set.
        data_dir: folder of the data sets that no package has.

    Raises:
        HDPFLError: as ``load_dataset``.
    """
    data = load_dataset(name, data_dir)
    task, test = data.task, data.test
    if data.owners is None or data.test_owners is None or test is None:
        raise ValueError(f"'{name}' has no owners")
    counts = np.bincount(np.concatenate([data.owners, data.test_owners]))
    outputs = constant_outputs(task, data.train.targets)
    found = measures(task, np.tile(outputs, (len(test), 1)), test.targets)
    measure = "accuracy" if task.classes else "loss" if task.intervals else "mse"
    return Sizes(
        len(counts),
        int(counts.sum()),
        int(counts.min()),
        float(np.median(counts)),
        int(counts.max()),
        measure,
        found[measure],
        found["loss"],
    )

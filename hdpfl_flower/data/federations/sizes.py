"""How large a federation is, and how good the constant predictor: public facts of public data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hdpfl_flower.data.datasets import load_dataset


@dataclass(frozen=True)
class Sizes:
    """Facts of a federation.

    Attributes:
        sites: their number.
        records: of all sites, a record a unit.
        least: of a site.
        median: over the sites.
        most: of a site.
        constant: accuracy on the test records of the class that most training records have.
        log_loss: of the training records' shares of the classes, on the test records, in nats.
    """

    sites: int
    records: int
    least: int
    median: float
    most: int
    constant: float
    log_loss: float


def sizes_of(name: str) -> Sizes:
    """Return the sizes of a federation with classes.

    Raises:
        HDPFLError: as ``load_dataset``.
    """
    data = load_dataset(name, "")
    train, test = data.train, data.test
    if data.owners is None or data.test_owners is None or test is None:
        raise ValueError(f"'{name}' has no owners")
    counts = np.bincount(np.concatenate([data.owners, data.test_owners]))
    seen = np.bincount(train.targets.astype(np.int64), minlength=data.task.classes)
    shares = seen / seen.sum()
    wanted = test.targets.astype(np.int64)
    return Sizes(
        len(counts),
        int(counts.sum()),
        int(counts.min()),
        float(np.median(counts)),
        int(counts.max()),
        float(np.mean(wanted == shares.argmax())),
        float(-np.mean(np.log(shares[wanted]))),
    )

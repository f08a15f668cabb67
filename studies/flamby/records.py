"""FLamby's records of four heart hospitals: selection, split, scaling.

FLamby (du Terrail et al., NeurIPS 2022, datasets and benchmarks) leaves out the three columns that
most hospitals lack, then every record with a missing cell. Chest pain and ECG become a feature for
each value but the first. A zero of cholesterol stands for "not measured"; it is a number there, and
so it is here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hdpfl_flower.data.datasets import HOSPITALS
from hdpfl_flower.data.schema import NumberColumn, Schema
from hdpfl_flower.data.table_reader import Wanted, load_table
from hdpfl_flower.errors import DataError
from hdpfl_flower.models.task import Records, Task
from studies.natural.federation import Split

Floats = npt.NDArray[np.float64]
SITE, PUBLIC = "site", "public"
"""Scalings: each hospital's training statistics, or the schema's bounds."""
LEFT_OUT = ("slope", "ca", "thal")
TRAIN_SHARE = 0.66
SPLIT_SEED = 43
"""Seed of FLamby's split; others begin at :data:`OTHER_SEED`."""
OTHER_SEED = 1000


@dataclass(frozen=True, repr=False)
class Hospital:
    """Unscaled records of a hospital.

    Attributes:
        numbers: the ten columns that stay, shape ``(n, 10)``.
        targets: 1 for disease, shape ``(n,)``.
    """

    numbers: Floats
    targets: npt.NDArray[np.int64]


@dataclass(frozen=True, repr=False)
class Halves:
    """Positions of a hospital's training and test records."""

    train: npt.NDArray[np.int64]
    test: npt.NDArray[np.int64]


def read_hospitals(data_dir: str) -> list[Hospital]:
    """Return FLamby's 740 records.

    Raises:
        DataError: a file is missing, or holds no such table.
    """
    schema = Schema.load("heart")
    return [_read(path, schema) for path in _files(data_dir)]


def halves(hospital: Hospital, seed: int) -> Halves:
    """Return a 66 % / 34 % split, by label with more than two each."""
    from sklearn.model_selection import train_test_split

    counts = np.bincount(hospital.targets, minlength=2)
    train, test = train_test_split(
        np.arange(len(hospital.targets)),
        train_size=TRAIN_SHARE,
        test_size=1 - TRAIN_SHARE,
        random_state=seed,
        stratify=hospital.targets if counts.min() > 2 else None,
    )
    # In the order of the file: the order of records does not show the split.
    return Halves(np.sort(train), np.sort(test))


def split_of(hospitals: list[Hospital], seed: int, scaling: str) -> Split:
    """Return FLamby's or another split, with 13 features per record.

    Args:
        hospitals: the records.
        seed: of the split.
        scaling: ``site``: less the mean of the hospital's training records, over their deviation
            (n − 1) plus 1e-9, which no ε covers; ``public``: to [-1, 1], numbers from the bounds
            of the schema ``heart``, clipped.
    """
    trains: list[Records] = []
    tests: list[Records] = []
    for hospital in hospitals:
        parts, encoded = halves(hospital, seed), _encode(hospital.numbers, scaling)
        if scaling == SITE:
            own = encoded[parts.train]
            encoded = (encoded - own.mean(0)) / (own.std(0, ddof=1) + 1e-9)
        for rows, chosen in ((trains, parts.train), (tests, parts.test)):
            features = encoded[chosen].astype(np.float32)
            rows.append(Records(features, hospital.targets[chosen]))
    return Split(
        Task.classification((trains[0].features.shape[1],), 2),
        *_together(trains),
        *_together(tests),
    )


def _read(path: Path, schema: Schema) -> Hospital:
    names = [c.name for c in schema.columns if c.name not in LEFT_OUT] + [schema.label.column]
    wanted = [Wanted((name,), f"column '{name}' of the heart data") for name in names]
    try:
        table = load_table(path, "csv", wanted)
    except DataError as error:
        known = ",".join(HOSPITALS)
        raise DataError(
            f"{path}: {error}; 'data-dir' must hold heart/processed.{{{known}}}.data (or "
            f"{{{known}}}/data.csv)"
        ) from None
    cells = np.stack([table.columns[one].cells().numbers for one in wanted], axis=1)
    whole = cells[~np.isnan(cells).any(1)]
    return Hospital(whole[:, :-1], (whole[:, -1] > 0).astype(np.int64))


def _encode(numbers: Floats, scaling: str) -> Floats:
    """Return the 13 features of each record, shape ``(n, 13)``."""
    schema, features = Schema.load("heart"), []
    columns = [column for column in schema.columns if column.name not in LEFT_OUT]
    for column, values in zip(columns, numbers.T, strict=True):
        if isinstance(column, NumberColumn):
            features.append(column.scale(values) if scaling == PUBLIC else values)
            continue
        # For two categories, 0 and 1, only the second, as FLamby encodes.
        for choice in column.categories[1:]:
            chosen = (values == float(choice[0])).astype(np.float64)
            features.append(2 * chosen - 1 if scaling == PUBLIC else chosen)
    return np.stack(features, axis=1)


def _together(parts: list[Records]) -> tuple[Records, npt.NDArray[np.int64]]:
    records = Records(
        np.concatenate([part.features for part in parts]),
        np.concatenate([part.targets for part in parts]),
    )
    return records, np.repeat(np.arange(len(parts)), [len(part) for part in parts])


def _files(data_dir: str) -> list[Path]:
    if not data_dir:
        raise DataError("'data-dir' is empty; set it to the folder that holds heart/")
    folder = Path(data_dir).expanduser()
    files = [folder / "heart" / f"processed.{hospital}.data" for hospital in HOSPITALS]
    if not files[0].exists():
        files = [folder / hospital / "data.csv" for hospital in HOSPITALS]
    return files

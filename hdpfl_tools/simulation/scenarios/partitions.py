"""Splits of a data set over simulated sites, by seed.

The splits by label are flwr-datasets' own partitioners. The others are one line of NumPy each (its
``IidPartitioner`` and ``SizePartitioner`` cut in file order and leave the shuffling to a data set
of the Hugging Face hub) and avoid that library's two seconds of import.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hdpfl_flower.errors import DataError, TermsError
from hdpfl_flower.system.extras import extra
from hdpfl_tools.simulation.datasets import load_dataset
from hdpfl_tools.simulation.own_data.dataset import OwnSource, load_own_dataset

if TYPE_CHECKING:
    from flwr_datasets.partitioner import Partitioner

Labels = npt.NDArray[np.int64] | npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]

_WRITTEN = {
    "contiguous": "contiguous",
    "iid": "iid, or iid:RECORDS with a whole number of at least 1",
    "natural": "natural",
    "sizes": "sizes:WEIGHT:WEIGHT… with one weight above 0 for each site",
    "dirichlet": "dirichlet:ALPHA or dirichlet:ALPHA:RECORDS with ALPHA above 0 and a whole "
    "number RECORDS of at least 1",
    "pathological": "pathological:CLASSES or pathological:CLASSES:RECORDS with whole numbers "
    "of at least 1",
    "shards": "shards:NUMBER with a whole number of at least 1",
    "alone": "alone:CLASS:RECORDS with whole numbers: CLASS of at least 0 and RECORDS of at "
    "least 2",
}
"""All splits and their notation."""
_BY_CLASS = ("dirichlet", "pathological", "shards", "alone")


def split(labels: Labels, owners: Rows | None, num_sites: int, spec: str, seed: int) -> list[Rows]:
    """Return the rows of each site: disjoint, ascending, not empty.

    Args:
        labels: targets of the records, shape ``(n,)``; integer classes if the split is by label.
        owners: natural owner of each record, 0 … ``num_sites`` − 1, or None.
        num_sites: number of sites.
        spec: one of

            * ``contiguous``: blocks in file order, their sizes within 1 of each other.
            * ``iid``: the same after a shuffle.
            * ``iid:RECORDS``: after a shuffle, exactly that many records for each site. Those that
              no site gets are left out.
            * ``sizes:W:W:…``: after a shuffle, a share W/ΣW of the records for each site.
            * ``natural``: each owner is a site.
            * ``dirichlet:ALPHA``: each class is dealt out in shares drawn from Dirichlet(ALPHA).
              With ``:RECORDS`` that many records per site on average are dealt out, drawn
              without order; the others are left out.
            * ``pathological:CLASSES``: exactly that many classes a site; its first class is site
              modulo classes, the rest are drawn. Classes that no site has are left out. With
              ``:RECORDS`` each site takes that many of its records, drawn by the seed.
            * ``shards:NUMBER``: sorted by label and cut into NUMBER equal shards a site, which are
              drawn without order. The rest of an uneven cut, fewer than NUMBER × sites
              records, is left out.
            * ``alone:CLASS:RECORDS``: that many records for each site, drawn without order. Half of
              those of site 0, rounded down, are of CLASS, which no other site has; the rest of
              CLASS is left out.
        seed: seed of the draw; NumPy's global generator is neither read nor moved.

    Raises:
        TermsError: ``spec`` is no split, or its numbers are out of range.
        DataError: the data do not allow this split: too few records, no classes, no natural owners.
        InstallationError: flwr-datasets, which splits by label, is not installed.
    """
    name, *arguments = spec.strip().split(":")
    if name not in _WRITTEN:
        raise TermsError(f"'partition' is '{spec}'; write {'; '.join(_WRITTEN.values())}")
    if not 1 <= num_sites <= len(labels):
        raise DataError(
            f"'partition': {len(labels)} records cannot be split over {num_sites} sites; run at "
            "least 1 site, and at most as many sites as there are records"
        )
    if name in ("contiguous", "iid", "natural", "sizes"):
        parts = _plain(name, arguments, owners, len(labels), num_sites, seed)
    elif name == "alone":
        parts = _alone(arguments, labels, num_sites, seed)
    else:
        parts = _by_label(name, arguments, labels, num_sites, seed)
    parts = [np.sort(rows).astype(np.int64, copy=False) for rows in parts]
    if not all(len(rows) for rows in parts):
        raise DataError(_too_uneven(spec, num_sites))
    return parts


@lru_cache(maxsize=16)
def rows_of_sites(
    dataset: str,
    data_dir: str,
    partition: str,
    seed: int,
    number: int,
    source: OwnSource | None = None,
) -> tuple[Rows, ...]:
    """Return each simulated site's training rows, by :func:`split`.

    Sites and server both call it. The arrays are the same objects for the same arguments; do not
    write into them.

    Args:
        dataset: its name.
        data_dir: folder of the data sets.
        partition: the split.
        seed: of the draw.
        number: of sites.
        source: source of a user's own ``dataset``; None for others.

    Raises:
        TermsError, DataError, ModelError: as :func:`split` and ``load_dataset`` do.
    """
    data = load_dataset(dataset, data_dir) if source is None else load_own_dataset(source)
    if data.task.intervals and partition.strip().split(":")[0] in _BY_CLASS:
        # Their targets are also integers, two per time interval.
        _refuse_no_classes(partition.strip().split(":")[0], np.empty(0, np.float32))
    return tuple(split(data.train.targets, data.owners, number, partition, seed))


def _plain(
    name: str, arguments: list[str], owners: Rows | None, count: int, num_sites: int, seed: int
) -> list[Rows]:
    """Return a split that does not read labels."""
    if name == "sizes":
        weights = np.array(_numbers(name, arguments, float, lambda w: 0 < w < math.inf, num_sites))
        # Rounding the running total keeps every size within one record of its share.
        cuts = np.rint(np.cumsum(weights / weights.sum()) * count).astype(np.int64)
        return np.split(_generator(seed).permutation(count), cuts[:-1])
    if name == "iid" and arguments:
        records = _numbers(name, arguments, int, lambda number: number >= 1, 1)[0]
        return _equal(records, f"iid:{records}", count, num_sites, seed)
    _numbers(name, arguments, float, lambda _: True, 0)
    if name == "natural":
        return _natural(owners, num_sites)
    rows = np.arange(count) if name == "contiguous" else _generator(seed).permutation(count)
    return np.array_split(rows, num_sites)


def _equal(records: int, spec: str, count: int, num_sites: int, seed: int) -> list[Rows]:
    """Return ``records`` rows for each site, drawn without order."""
    if records * num_sites > count:
        raise DataError(
            f"'partition' is '{spec}': {num_sites} sites of {records} records need "
            f"{records * num_sites} records, and the data set has {count}; ask for at most "
            f"{count // num_sites} a site, or run fewer sites"
        )
    return np.split(_generator(seed).permutation(count)[: records * num_sites], num_sites)


def _natural(owners: Rows | None, num_sites: int) -> list[Rows]:
    if owners is None:
        raise DataError(
            "'partition' is 'natural', but this data set has no natural owners; choose another "
            "split, or the data set heart"
        )
    if (number := int(owners.max()) + 1) != num_sites:
        raise DataError(
            f"'partition' is 'natural': the data set has {number} owners, not {num_sites}; run "
            f"{number} sites"
        )
    return [np.flatnonzero(owners == owner) for owner in range(num_sites)]


def _by_label(
    name: str, arguments: list[str], labels: Labels, num_sites: int, seed: int
) -> list[Rows]:
    """Return a split by one of flwr-datasets' partitioners."""
    counts = 2 if name in ("pathological", "dirichlet") and len(arguments) == 2 else 1
    number, *records = (
        _numbers(name, arguments, float, lambda alpha: 0 < alpha < math.inf, counts)
        if name == "dirichlet"
        else _numbers(name, arguments, int, lambda count: count >= 1, counts)
    )
    _refuse_no_classes(name, labels)
    rows = np.arange(len(labels))
    if name == "dirichlet" and records:
        if not (records[0] >= 1 and records[0].is_integer()):
            raise _wrong(name, arguments)
        rows = np.concatenate(
            _equal(int(records[0]), ":".join([name, *arguments]), len(labels), num_sites, seed)
        )
        rows.sort()
    labels = labels[rows]
    classes = len(np.unique(labels))
    if name == "pathological" and number > classes:
        raise DataError(
            f"'partition' asks for {number} classes for each site, and the data set has "
            f"{classes}; ask for at most {classes}"
        )
    if name == "shards" and number * num_sites > len(labels):
        raise DataError(_too_uneven(f"shards:{number}", num_sites))

    with extra("simulation", f"'partition' = '{name}'"):
        from flwr_datasets import partitioner as library

    settings: dict[str, Any] = {
        "num_partitions": num_sites,
        "partition_by": "label",
        # Unshuffled parts: `split` sorts the rows of each site anyway.
        "shuffle": False,
        "seed": int(_generator(seed).integers(2**63)),
    }
    partitioner: Partitioner
    if name == "dirichlet":
        # The library draws again, up to ten times, while a site has no record.
        partitioner = library.DirichletPartitioner(alpha=number, min_partition_size=1, **settings)
    elif name == "pathological":
        partitioner = library.PathologicalPartitioner(
            num_classes_per_partition=number,
            class_assignment_mode="first-deterministic",
            **settings,
        )
    else:
        partitioner = library.ShardPartitioner(num_shards_per_partition=number, **settings)
    try:
        with warnings.catch_warnings():
            # It warns of every repeated draw, and pyarrow of an option passed to it.
            warnings.simplefilter("ignore")
            partitioner.dataset = _table_of(labels, rows)
            parts = [
                partitioner.load_partition(site).with_format("numpy")["row"][:]
                for site in range(num_sites)
            ]
    except ValueError as error:
        raise DataError(_too_uneven(f"{name}:{number}", num_sites)) from error
    return _thinned(parts, records[0], seed) if records and name == "pathological" else parts


def _table_of(labels: Labels, rows: Rows) -> Any:
    """Return a table of labels and rows with cheap selections.

    The selections have no fingerprint of their own.

    The library's own table names a selection by a hash of its indices, taken one by one: two thirds
    of the time of a split. No code here looks a selection up by its name.
    """
    from datasets import Dataset

    class SelectionTable(Dataset):  # type: ignore[misc]
        def select(self, indices: Any, **more: Any) -> Any:
            return super().select(indices, **{"new_fingerprint": "selection", **more})

    return SelectionTable.from_dict({"label": labels, "row": rows})


def _alone(arguments: list[str], labels: Labels, num_sites: int, seed: int) -> list[Rows]:
    """Return a random split in which only site 0 holds a class."""
    label, records = _numbers("alone", arguments, int, lambda number: number >= 0, 2)
    if records < 2:
        raise _wrong("alone", arguments)
    _refuse_no_classes("alone", labels)
    generator = _generator(seed)
    of_class, others = (
        generator.permutation(np.flatnonzero(c)) for c in (labels == label, labels != label)
    )
    # Site 0 takes RECORDS // 2 of its class, and correspondingly fewer of the others.
    most = min(2 * len(of_class) + 1, 2 * len(others) // (2 * num_sites - 1))
    if records > most:
        raise DataError(
            f"'partition' is 'alone:{label}:{records}': the data set has {len(of_class)} "
            f"records of class {label} and {len(others)} of other classes; "
            + (
                f"ask for at most {most} records for each site"
                if most > 1
                else "choose a class of the data set"
            )
        )
    rest = others[: num_sites * records - records // 2]
    return [
        np.concatenate([of_class[: records // 2], rest[: records - records // 2]]),
        *np.split(rest[records - records // 2 :], max(1, num_sites - 1))[: num_sites - 1],
    ]


def _thinned(parts: list[Rows], records: int, seed: int) -> list[Rows]:
    """Return ``records`` rows of each part, drawn without order."""
    if (least := min(map(len, parts))) < records:
        raise DataError(
            f"'partition' asks for {records} records for each site, and a site has fewer "
            f"records of its classes; ask for at most {least}"
        )
    generator = _generator(seed)
    return [generator.permutation(rows)[:records] for rows in parts]


def _numbers(
    name: str,
    arguments: list[str],
    kind: Callable[[str], Any],
    valid: Callable[[Any], bool],
    count: int,
) -> list[Any]:
    """Return the numbers after a split's name.

    Raises:
        TermsError: not ``count`` numbers of this ``kind``, or one that is not ``valid``.
    """
    try:
        numbers = [kind(text) for text in arguments]
    except ValueError:
        numbers = []
    if len(numbers) != count or len(arguments) != count or not all(map(valid, numbers)):
        raise _wrong(name, arguments)
    return numbers


def _wrong(name: str, arguments: list[str]) -> TermsError:
    """Return the error for wrong numbers of a split."""
    return TermsError(f"'partition' is '{':'.join([name, *arguments])}'; write {_WRITTEN[name]}")


def _refuse_no_classes(name: str, labels: Labels) -> None:
    if not np.issubdtype(labels.dtype, np.integer):
        raise DataError(
            f"'partition' is '{name}', which splits by class, but the targets of this data set "
            "are not classes; choose contiguous, iid, sizes or natural"
        )


def _generator(seed: int) -> np.random.Generator:
    return np.random.default_rng([seed, *b"partition"])


def _too_uneven(spec: str, num_sites: int) -> str:
    return (
        f"'partition' '{spec}' leaves one of {num_sites} sites without records; run fewer sites, "
        "or choose a more even split (a larger ALPHA, fewer CLASSES or SHARDS, closer weights)"
    )

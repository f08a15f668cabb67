"""Records of simulated sites: a data set, split and changed by group."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.data.run_task import task_of
from hdpfl_flower.errors import TermsError
from hdpfl_flower.models.task import Records
from hdpfl_flower.releases.of_run import final_kinds
from hdpfl_flower.work.backbone import Backbone
from hdpfl_tools.simulation.own_data.dataset import (
    OwnSource,
    load_own_dataset,
    own_source,
    read_dataset,
)
from hdpfl_tools.simulation.scenarios.budgets import draw_batch_sizes
from hdpfl_tools.simulation.scenarios.groups import parse_groups, seen_by
from hdpfl_tools.simulation.scenarios.partitions import rows_of_sites

_TEST_EVERY = 5


@dataclass(frozen=True)
class RecordSource:
    """Source of the simulated sites' records.

    Attributes:
        dataset: its name.
        data_dir: folder of its files.
        partition: how it is split over the sites.
        groups: of sites with changed records; empty: none.
        seed: of the split.
        sites: their number.
        own_data: a user's file or module; None: ``dataset`` is ours.
        backbone: that reads the records first, if any.
    """

    dataset: str
    data_dir: str
    partition: str
    groups: str
    seed: int
    sites: int
    own_data: OwnSource | None
    backbone: Backbone | None


def source_of(config: RunConfig, number: int) -> RecordSource:
    """Return the source of the records of ``number`` sites; raises ``TermsError``."""
    simulation, dataset, backbone = config.simulation, config.terms.dataset, config.terms.backbone
    if simulation.groups and backbone:
        raise TermsError(
            "run config: 'groups' changes the stored records, but a 'backbone' has read them "
            "before; leave one of them out"
        )
    return RecordSource(
        dataset,
        simulation.data_dir,
        simulation.partition,
        simulation.groups,
        simulation.seed,
        number,
        own_source(config.terms),
        backbone,
    )


class SplitRecords:
    """Records of each simulated site, loaded at first use.

    Attributes:
        rows: of each site in the data set.
    """

    def __init__(self, source: RecordSource) -> None:
        """Split the source; raises ``TermsError`` or ``DataError`` where it cannot be."""
        dataset, data_dir, own_data = source.dataset, source.data_dir, source.own_data
        # Groups that the task cannot have are refused before its files are looked for.
        task = task_of(dataset) if own_data is None else load_own_dataset(own_data).task
        self._groups = parse_groups(source.groups, task) if source.groups else None
        self._sites = source.sites
        if self._groups:
            self._groups.of_site(0, self._sites)  # refuses groups of other sizes
        self._data = read_dataset(dataset, data_dir, own_data, source.backbone)
        self.rows = rows_of_sites(
            dataset, data_dir, source.partition, source.seed, source.sites, own_data
        )
        self._taken: dict[int, Records] = {}

    def __getitem__(self, site: int) -> Records:
        """Return the records of a site."""
        if site not in self._taken:
            records, groups = self._data.train.take(self.rows[site]), self._groups
            group = groups.of_site(site, self._sites) if groups else 0
            self._taken[site] = seen_by(records, groups, group, self._data.task)
        return self._taken[site]


@lru_cache(maxsize=2)
def split_records(source: RecordSource) -> SplitRecords:
    """Return the records of each site."""
    return SplitRecords(source)


class Sizes(NamedTuple):
    """Sizes that decide each site's steps, int64, shape ``(number,)``.

    Attributes:
        records: to train on.
        batch_size: expected.
    """

    records: npt.NDArray[np.int64]
    batch_size: npt.NDArray[np.int64]


def _tested_at_sites(config: RunConfig) -> bool:
    return config.terms.evaluation == "sites" or bool(final_kinds(config.terms))


def sizes_of(config: RunConfig, number: int) -> Sizes:
    """Return the sizes of all ``number`` sites."""
    tested, batch_sizes = _tested_at_sites(config), config.simulation.batch_sizes
    return _sizes(tested, batch_sizes, source_of(config, number))


@lru_cache(maxsize=8)
def _sizes(tested: bool, batch_sizes: str, source: RecordSource) -> Sizes:
    records = np.array([len(rows) for rows in split_records(source).rows])
    records -= records // _TEST_EVERY if tested else 0
    batch_size = np.minimum(draw_batch_sizes(batch_sizes, source.sites, source.seed), records)
    return Sizes(records, batch_size)


def simulated_records(config: RunConfig, index: int, number: int) -> tuple[Records, Records | None]:
    """Return (training, test) records of simulated site ``index``.

    A site of a group sees its part as its group does (``groups``, split before that by the data
    set's own labels). Where the terms test at the sites, every fifth record is for that; or for
    the histogram of scores.
    """
    records = split_records(source_of(config, number))[index]
    if not _tested_at_sites(config):
        return records, None
    # By position, not by chance: a site has the same test records under every strategy.
    tests = np.arange(len(records)) % _TEST_EVERY == _TEST_EVERY - 1
    return records.take(np.flatnonzero(~tests)), records.take(np.flatnonzero(tests))

"""Simulated sites: drawn terms, seeded noise, no protection of anyone.

A node is simulated only where its profile has ``[simulation]``, or where it has no profile and
runs under Ray or in process. A deployed node without a profile refuses.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from flwr.app import Context

from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.server_terms import ServerTerms
from hdpfl_flower.config.settings import Value
from hdpfl_flower.config.simulation_terms import SimulationTerms
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.datasets import task_of
from hdpfl_flower.data.own_data.dataset import (
    OwnSource,
    load_own_dataset,
    own_source,
    read_dataset,
)
from hdpfl_flower.errors import Declined, Reason, TermsError
from hdpfl_flower.ledger.ledger import Reservation
from hdpfl_flower.models.networks import is_user_code
from hdpfl_flower.models.task import Records
from hdpfl_flower.scenarios.budgets import draw_batch_sizes, draw_epsilons
from hdpfl_flower.scenarios.groups import parse_groups, seen_by
from hdpfl_flower.scenarios.partitions import rows_of_sites
from hdpfl_flower.system.paths import available_cores, runs_dir
from hdpfl_flower.work.backbone import Backbone

_TEST_EVERY = 5


Trained = dict[tuple[str, str], npt.NDArray[np.float32]]
"""Ends of local SGD, or noisy updates, shape ``(d,)``, by request digest and purpose."""

Taken = dict[tuple[str, str], Reservation]
"""Reserved, unsealed releases, by request digest and purpose."""


class InProcessContext(Context):
    """Context of a simulated node in the server's own process.

    Attributes:
        ledger_in_file: whether its ledger outlives the process, however that ends.
        asked: facts that the run's strategy reads; None: all that the profile discloses. Its noise
            takes a search for each site, which is made for a strategy that reads it.
    """

    ledger_in_file = False
    asked: frozenset[str] | None = None

    @property
    def trained(self) -> Trained:
        """Work that ``in_process.py`` did for the node's next message."""
        trained: Trained = self.__dict__.setdefault("_trained", {})
        return trained

    @property
    def taken(self) -> Taken:
        """Reservation of ``in_process.py`` for the node's next message."""
        taken: Taken = self.__dict__.setdefault("_taken", {})
        return taken


def may_draw(context: Context) -> bool:
    """Return whether a node is simulated: in process or under Ray.

    Neither the server nor a configuration file can make it so.
    """
    if isinstance(context, InProcessContext):
        return True
    ray = sys.modules.get("ray")
    return bool(ray and ray.is_initialized())


def node_index(context: Context) -> tuple[int, int]:
    """Return (partition, number of partitions) of a simulated node.

    Raises:
        Declined: the node's configuration does not say.
    """
    index = context.node_config.get("partition-id")
    number = context.node_config.get("num-partitions")
    # type(…), not isinstance: True is an int, too.
    if type(index) is not int or type(number) is not int or not 0 <= index < number:
        raise Declined(
            Reason.OTHER, "simulation: the node config needs 'partition-id' and 'num-partitions'"
        )
    return index, number


def simulated_config(context: Context, terms: RunTerms) -> RunConfig:
    """Return the run config of a simulated node with its message's terms.

    The sources of the run's draws, and the folder of the runs, are not in a message: the node reads
    them from the run config that Flower, or the grid in this process, passes to it.

    Raises:
        TermsError: they are wrong.
    """
    drawing_keys = SimulationTerms.keys()
    drawn = tuple((key, value) for key, value in context.run_config.items() if key in drawing_keys)
    runs = str(context.run_config.get("runs-dir", ""))
    return RunConfig(terms, ServerTerms(**{"runs-dir": runs}), _simulation(drawn))


@lru_cache(maxsize=64)
def _simulation(drawn: tuple[tuple[str, Value], ...]) -> SimulationTerms:
    return SimulationTerms.parse(dict(drawn))


def draw_profile(config: RunConfig, index: int, number: int) -> Profile:
    """Return the seeded profile of simulated site ``index`` of ``number``."""
    terms, sizes = config.terms, _sizes_of(config, number)
    return _profile(
        (float(_epsilons_of(config, number)[index]), terms.delta),
        (int(sizes.batch_size[index]), int(sizes.records[index])),
        config.simulation.torch_threads or _actor_cpus(),
        config.simulation.seed,
        # A simulated site runs on the machine of the model's author.
        terms.model if is_user_code(terms.model) else "",
        terms.noise == "server",
    )


@lru_cache(maxsize=16384)
def _profile(
    epsilon_and_delta: tuple[float, float],
    batch_size_and_records: tuple[int, int],
    threads: int,
    seed: int,
    model: str,
    trusts_server: bool,
) -> Profile:
    (epsilon, delta), (batch_size, records) = epsilon_and_delta, batch_size_and_records
    budget = {"epsilon": epsilon, "delta": delta}
    return Profile.parse(
        {
            "budget": budget,
            "run": budget,
            "training": {
                "batch-size": batch_size,
                "declared-records": records,
                "torch-threads": threads,
            },
            "simulation": {"seed": seed},
            "policy": {"models": [model] if model else []},
            "trust-server": trusts_server,
            "disclose": [
                "batch-size",
                "declared-records",
                "epsilon",
                "noise-std",
                "metrics",
                "personal-metrics",
            ],
        },
        "simulated profile",
    )


def check_draws(config: RunConfig, number: int) -> None:
    """Refuse draws impossible for ``number`` sites, before a round.

    Their profiles differ by ε and sizes alone: those with the extremes are drawn here, and the
    others when their sites are first asked.

    Raises:
        TermsError, DataError, ModelError, ProfileError: a draw of the configuration is not there,
            or makes no profile.
    """
    sizes = _sizes_of(config, number)
    drawn = (sizes.records, sizes.batch_size, _epsilons_of(config, number))
    for index in {int(end) for values in drawn for end in (values.argmin(), values.argmax())}:
        draw_profile(config, index, number)


def simulated_records(config: RunConfig, index: int, number: int) -> tuple[Records, Records | None]:
    """Return (training, test) records of simulated site ``index``.

    A site of a group sees its part as its group does (``groups``, split before that by the data
    set's own labels). Where the terms test at the sites, every fifth record is for that; or for
    the histogram of scores.
    """
    records = _parts(*_source_of(config, number))[index]
    if not _tested_at_sites(config):
        return records, None
    # By position, not by chance: a site has the same test records under every strategy.
    tests = np.arange(len(records)) % _TEST_EVERY == _TEST_EVERY - 1
    return records.take(np.flatnonzero(~tests)), records.take(np.flatnonzero(tests))


def simulated_ledger(config: RunConfig, index: int) -> Path:
    """Return the path of a simulated site's ledger."""
    return (
        runs_dir(config.server.runs_dir)
        / config.terms.run_id
        / "sites"
        / str(index)
        / "ledger.sqlite"
    )


def nominal_noise(profile: Profile, terms: RunTerms) -> Callable[[int], float] | None:
    """Return the formula of the paper that ``calibration`` names: rounds → noise multiplier.

    Its steps are K·N/b a round, not rounded up, as the papers' code counts them. None where the
    terms name no paper, or the site is no simulation.
    """
    from hdpfl_flower.scenarios.paper_formulas import pfa_multiplier, robust_hdp_multiplier

    if terms.calibration == "pld" or not profile.simulated:
        return None
    training = profile.training
    multiplier = robust_hdp_multiplier if terms.calibration == "robust-hdp" else pfa_multiplier
    epsilon = min(profile.run.epsilon, terms.epsilon_cap or math.inf)
    sampling_prob = training.batch_size / training.declared_records
    a_round = terms.local_steps or (
        terms.local_epochs * training.declared_records / training.batch_size
    )

    def formula(rounds: int) -> float:
        return multiplier(epsilon, profile.run.delta, sampling_prob, rounds * a_round)

    return formula


_Source = tuple[str, str, str, str, int, int, OwnSource | None, Backbone | None]
"""Data set, folder, split, groups, seed, sites, own data set's name, backbone."""
_epsilons = lru_cache(maxsize=8)(draw_epsilons)


def _epsilons_of(config: RunConfig, number: int) -> npt.NDArray[np.float64]:
    """Return every site's ε, shape ``(number,)``."""
    spec = config.terms.simulated_epsilon or config.simulation.epsilons
    return _epsilons(spec, number, config.simulation.seed)


def _source_of(config: RunConfig, number: int) -> _Source:
    simulation, dataset, backbone = config.simulation, config.terms.dataset, config.terms.backbone
    if simulation.groups and backbone:
        raise TermsError(
            "run config: 'groups' changes records as they are stored, and a 'backbone' reads them "
            "before; leave one of them out"
        )
    source = own_source(config.terms)
    return (
        dataset,
        simulation.data_dir,
        simulation.partition,
        simulation.groups,
        simulation.seed,
        number,
        source,
        backbone,
    )


class _Parts:
    """Records of each simulated site, loaded at first use."""

    def __init__(self, source: _Source) -> None:
        dataset, data_dir, partition, spec, seed, self.number, own_data, backbone = source
        # Groups that the task cannot have are refused before its files are looked for.
        task = task_of(dataset) if own_data is None else load_own_dataset(own_data).task
        self._groups = parse_groups(spec, task) if spec else None
        if self._groups:
            self._groups.of_site(0, self.number)  # refuses groups of other sizes
        self._data = read_dataset(dataset, data_dir, own_data, backbone)
        self.rows = rows_of_sites(dataset, data_dir, partition, seed, self.number, own_data)
        self._taken: dict[int, Records] = {}

    def __getitem__(self, site: int) -> Records:
        if site not in self._taken:
            records, groups = self._data.train.take(self.rows[site]), self._groups
            group = groups.of_site(site, self.number) if groups else 0
            self._taken[site] = seen_by(records, groups, group, self._data.task)
        return self._taken[site]


@lru_cache(maxsize=2)
def _parts(*source: *_Source) -> _Parts:
    return _Parts(source)


class _Sizes(NamedTuple):
    """Sizes that decide each site's steps, int64, shape ``(number,)``.

    Attributes:
        records: to train on.
        batch_size: expected.
    """

    records: npt.NDArray[np.int64]
    batch_size: npt.NDArray[np.int64]


def _tested_at_sites(config: RunConfig) -> bool:
    return config.terms.evaluation == "sites" or config.terms.sends_scores


def _sizes_of(config: RunConfig, number: int) -> _Sizes:
    return _sizes(
        _tested_at_sites(config), config.simulation.batch_sizes, *_source_of(config, number)
    )


@lru_cache(maxsize=8)
def _sizes(tested: bool, batch_sizes: str, *source: *_Source) -> _Sizes:
    records = np.array([len(rows) for rows in _parts(*source).rows])
    records -= records // _TEST_EVERY if tested else 0
    batch_size = np.minimum(draw_batch_sizes(batch_sizes, source[5], source[4]), records)
    return _Sizes(records, batch_size)


def _actor_cpus() -> int:
    """Return the CPUs of this Ray actor, or of this process."""
    ray = sys.modules.get("ray")
    if ray and ray.is_initialized():
        assigned = ray.get_runtime_context().get_assigned_resources()
        return max(1, int(assigned.get("CPU", 1)))
    return available_cores()

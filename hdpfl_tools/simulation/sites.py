"""Simulated sites: drawn terms, seeded noise, no protection of anyone.

A node is simulated only where its profile has ``[simulation]``, or where it has no profile and
runs under Ray or in process. A deployed node without a profile refuses.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from flwr.app import Context

from client_app.after_run.personal_model import personal_model_file
from client_app.site.personal_state import kept_state_path
from client_app.site.site import Site, SiteContext, check_no_own_dataset
from client_app.training.ditto import kept_personal_path
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.server_terms import ServerTerms
from hdpfl_flower.config.settings import Value
from hdpfl_flower.config.simulation_terms import SimulationTerms
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.run_task import task_of
from hdpfl_flower.errors import Declined, Reason, TermsError
from hdpfl_flower.ledger.ledger import Ledger, Reservation
from hdpfl_flower.ledger.withdrawals import account_at, withdrawn_by
from hdpfl_flower.models.networks import is_user_code
from hdpfl_flower.models.site_records import SiteRecords
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.privacy.noise import ReleaseStreams
from hdpfl_flower.system.paths import available_cores, runs_dir
from hdpfl_flower.work.backbone import Backbone
from hdpfl_tools.simulation.in_memory_ledger import SimulatedLedger
from hdpfl_tools.simulation.own_data.dataset import (
    OwnSource,
    load_own_dataset,
    own_source,
    read_dataset,
)
from hdpfl_tools.simulation.scenarios.budgets import draw_batch_sizes, draw_epsilons
from hdpfl_tools.simulation.scenarios.groups import parse_groups, seen_by
from hdpfl_tools.simulation.scenarios.partitions import rows_of_sites

_TEST_EVERY = 5


Trained = dict[tuple[str, str], npt.NDArray[np.float32]]
"""Ends of local SGD, or noisy updates, shape ``(d,)``, by request digest and purpose."""

Taken = dict[tuple[str, str], Reservation]
"""Reserved, unsealed releases, by request digest and purpose."""


class InProcessContext(SiteContext):
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
        """Work that ``stacked.py`` did for the node's next message."""
        trained: Trained = self.__dict__.setdefault("_trained", {})
        return trained

    @property
    def taken(self) -> Taken:
        """Reservation of ``stacked.py`` for the node's next message."""
        taken: Taken = self.__dict__.setdefault("_taken", {})
        return taken

    def open_site(self, terms: RunTerms, profile: Profile | None) -> Site:
        """Return the site of this node, drawn where it has no profile."""
        return open_simulated(self, terms, profile)


@dataclass(frozen=True, repr=False)
class SimulatedSite(Site):
    """A site of a simulation: drawn, seeded, with a ledger in its run's folder.

    Attributes:
        index: its partition and the number of partitions.
        config: source of its draws, and the folder of its run.
        node: its context, if it lives in the server's own process; else None.
    """

    index: tuple[int, int] = (0, 1)
    config: RunConfig = field(default_factory=RunConfig)
    node: InProcessContext | None = field(default=None, compare=False)

    @property
    def simulated(self) -> bool:
        """Return True: the noise comes from a seed."""
        return True

    @property
    def in_process(self) -> bool:
        """Whether the ledger is in memory."""
        return self.node is not None and not self.node.ledger_in_file

    @property
    def partition(self) -> int | None:
        """Number of the site, from 0."""
        return self.index[0]

    @property
    def state_folder(self) -> Path | None:
        """Folder of the site's own files: the profile's, or that of its ledger."""
        return super().state_folder or simulated_ledger(self.config, self.index[0]).parent

    def tells(self, fact: str) -> bool:
        """Return whether the run's strategy reads a fact."""
        return self.node is None or self.node.asked is None or fact in self.node.asked

    def trained(self, digest: str, purpose: str) -> npt.NDArray[np.float32] | None:
        """Return the result of stacked training, once."""
        return self.node.trained.pop((digest, purpose), None) if self.node else None

    def reserved(self, digest: str, kind: str) -> Reservation | bytes | None:
        """Return the release that stacked training has reserved, once."""
        return self.node.taken.pop((digest, kind), None) if self.node else None

    def nominal_noise(self) -> Callable[[int], float] | None:
        """Return the formula of the paper that ``calibration`` names."""
        return nominal_noise(self.profile, self.terms)

    @cached_property
    def ledger(self) -> Ledger:
        """The site's ledger, verified; raises ``LedgerError`` where it cannot be used."""
        budget, path = self.profile.budget, simulated_ledger(self.config, self.index[0])
        opened = _ledger_in_memory if self.in_process else _ledger_in_file
        return opened(path, budget.epsilon, budget.delta)

    def streams(self, server_round: int, kind: str) -> ReleaseStreams:
        """Return the seeded randomness of a release."""
        if self.profile.simulation is None:
            return super().streams(server_round, kind)
        seed = self.profile.simulation.seed
        return ReleaseStreams.simulated(seed, str(self.index[0]), server_round, kind)

    @cached_property
    def _records(self) -> SiteRecords:
        if self.profile.data is not None:
            return self._embedded()
        return SiteRecords(*simulated_records(self.config, *self.index))  # read by any backbone

    def _stored(self, task: Task) -> SiteRecords:
        """Return the records of ``[data]``, read anew for each message.

        Raises:
            DataError: as ``read_site_data``.
            LedgerError: the profile's ledger cannot say which units withdrew.
        """
        source, paths = self.profile.data, self.profile.ledger
        if source is None:
            raise Declined(Reason.PROFILE, "[data] is missing; say where the site's records lie")
        from hdpfl_tools.tables.site_data import stored_site_data

        if paths is not None:
            own = source
            source = source.without(lambda: withdrawn_by(account_at(paths), own, paths.path))
        return stored_site_data(source, task, self.terms.schema_text)


def open_simulated(context: Context, terms: RunTerms, profile: Profile | None) -> Site:
    """Return the site of a simulated node; arguments and errors as ``open_site``.

    A node is simulated where its profile has ``[simulation]``, and where it has none and runs in
    process or under Ray. A node of a simulation may have the profile of an operator, too.
    """
    node = context if isinstance(context, InProcessContext) else None
    if node is None and not _under_ray():
        check_no_own_dataset(terms)
    if profile is not None and not profile.simulated:
        return Site(profile, terms, context.state)
    index, config = node_index(context), simulated_config(context, terms)
    if profile is None:
        profile = draw_profile(config, *index)
    return SimulatedSite(profile, terms, context.state, index, config, node)


def _under_ray() -> bool:
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


def simulated_state_path(config: RunConfig, index: int) -> Path:
    """Return the path of a simulated site's personal state."""
    return kept_state_path(simulated_ledger(config, index).parent, config.terms)


def simulated_personal_path(config: RunConfig, index: int) -> Path:
    """Return the path of a simulated site's second model."""
    return kept_personal_path(simulated_ledger(config, index).parent, config.terms)


def simulated_model_path(config: RunConfig, index: int) -> Path:
    """Return the path of a simulated site's personal model."""
    return personal_model_file(simulated_ledger(config, index).parent, config.terms.run_id)


def nominal_noise(profile: Profile, terms: RunTerms) -> Callable[[int], float] | None:
    """Return the formula of the paper that ``calibration`` names: rounds → noise multiplier.

    Its steps are K·N/b a round, not rounded up, as the papers' code counts them. None where the
    terms name no paper, or the site is no simulation.
    """
    from hdpfl_tools.simulation.scenarios.paper_formulas import (
        pfa_multiplier,
        robust_hdp_multiplier,
    )

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
    if _under_ray():
        assigned = sys.modules["ray"].get_runtime_context().get_assigned_resources()
        return max(1, int(assigned.get("CPU", 1)))
    return available_cores()


_LEDGERS: dict[Path, Ledger] = {}
_OPEN_FILES = 128
"""Ledgers that an actor of a simulation of thousands keeps open; the one used longest ago is closed
first."""


def _ledger_in_memory(path: Path, epsilon: float, delta: float) -> Ledger:
    """Return the ledger of a site in this process; ``path`` gets it from :func:`close_ledgers`."""
    if path not in _LEDGERS:
        _LEDGERS[path] = SimulatedLedger(path, epsilon, delta)
    return _LEDGERS[path]


def _ledger_in_file(path: Path, epsilon: float, delta: float) -> Ledger:
    """Return the ledger at ``path``, made if missing; kept open."""
    if path not in _LEDGERS:
        if path.is_file():
            _LEDGERS[path] = Ledger(path, durable=False)
            if not _LEDGERS[path].account().cap_epsilon:  # a crash between its file and its cap
                _LEDGERS[path].raise_cap(epsilon, delta)
        else:
            _LEDGERS[path] = Ledger.create(path, epsilon, delta, durable=False)
    # Popped and put back, so that dicts' order is that of the last use: the first one is closed.
    _LEDGERS[path] = ledger = _LEDGERS.pop(path)
    while len(_LEDGERS) > _OPEN_FILES:
        _LEDGERS.pop(next(iter(_LEDGERS))).close()
    return ledger


def close_ledgers() -> None:
    """Close the open ledgers of simulated sites, with files for those in memory."""
    while _LEDGERS:
        _LEDGERS.popitem()[1].close()

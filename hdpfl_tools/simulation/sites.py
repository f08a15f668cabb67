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
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Context

from client_app.after_run.personal_model import personal_model_file
from client_app.site.site import Site, SiteContext, check_no_own_dataset, data_of
from client_app.training.ditto import kept_personal_path
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.server_terms import ServerTerms
from hdpfl_flower.config.settings import Value
from hdpfl_flower.config.simulation_terms import SimulationTerms
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import Declined, Reason
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.ledger.site_ledger import Reservation
from hdpfl_flower.models.networks import is_user_code
from hdpfl_flower.models.task import SiteRecords, Task
from hdpfl_flower.privacy.accounting import account_by
from hdpfl_flower.privacy.noise import ReleaseStreams
from hdpfl_flower.system.devices import available_cores
from hdpfl_flower.system.paths import runs_dir
from hdpfl_tools.simulation.drawn_records import simulated_records, sizes_of
from hdpfl_tools.simulation.in_memory_ledger import SimulatedLedger
from hdpfl_tools.simulation.scenarios.budgets import draw_epsilons
from hdpfl_tools.tables.withdrawals import account_at, withdrawn_by


def by_arrays(interval: float) -> Any:
    """Return the accountant of simulations on a grid of this width."""
    from hdpfl_tools.measures.pld import GridAccountant

    return GridAccountant(interval)


account_by(by_arrays)  # thousands of sites plan in this process

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
        """Work that ``stacked_sites.py`` did for the node's next message."""
        trained: Trained = self.__dict__.setdefault("_trained", {})
        return trained

    @property
    def taken(self) -> Taken:
        """Reservation of ``stacked_sites.py`` for the node's next message."""
        taken: Taken = self.__dict__.setdefault("_taken", {})
        return taken

    def open_site(self, terms: RunTerms, profile: Profile | None) -> Site:
        """Return the site of this node, drawn where it has no profile."""
        return open_simulated(self, terms, profile)


@dataclass(frozen=True)
class Place:
    """Place of a site among the partitions of a data set.

    Attributes:
        index: its partition, from 0.
        number: of partitions.
    """

    index: int
    number: int


@dataclass(frozen=True, repr=False)
class SimulatedSite(Site):
    """A site of a simulation: drawn, seeded, with a ledger in its run's folder.

    Attributes:
        place: its partition, among others.
        config: source of its draws, and the folder of its run.
        node: its context, if it lives in the server's own process; else None.
    """

    place: Place = Place(0, 1)
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
        return self.place.index

    @property
    def state_folder(self) -> Path | None:
        """Folder of the site's own files: the profile's, or that of its ledger."""
        return super().state_folder or simulated_ledger(self.config, self.place.index).parent

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
        budget, path = self.profile.budget, simulated_ledger(self.config, self.place.index)
        opened = _ledger_in_memory if self.in_process else _ledger_in_file
        return opened(path, budget.epsilon, budget.delta)

    def streams(self, server_round: int, kind: str) -> ReleaseStreams:
        """Return the seeded randomness of a release."""
        if self.profile.simulation is None:
            return super().streams(server_round, kind)
        seed = self.profile.simulation.seed
        return ReleaseStreams.simulated(seed, str(self.place.index), server_round, kind)

    @cached_property
    def _records(self) -> SiteRecords:
        if self.profile.data is not None:
            return self._embedded()
        records = SiteRecords(
            *simulated_records(self.config, self.place.index, self.place.number)
        )  # read by any backbone
        return records.embedded(self.task) if self.terms.scales else records

    def _stored(self, task: Task) -> SiteRecords:
        """Return the records of ``[data]``, read anew for each message.

        Raises:
            DataError: as ``read_site_data``.
            LedgerError: the profile's ledger cannot say which units withdrew.
        """
        source, paths = data_of(self.profile), self.profile.ledger
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
    place, config = place_of(context), simulated_config(context, terms)
    if profile is None:
        profile = draw_profile(config, place.index, place.number)
    return SimulatedSite(profile, terms, context.state, place, config, node)


def _under_ray() -> bool:
    ray = sys.modules.get("ray")
    return bool(ray and ray.is_initialized())


def place_of(context: Context) -> Place:
    """Return the place of a simulated node.

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
    return Place(index, number)


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
    terms, sizes = config.terms, sizes_of(config, number)
    return _profile(
        _Draw(
            epsilon=float(_epsilons_of(config, number)[index]),
            delta=terms.delta,
            batch_size=int(sizes.batch_size[index]),
            records=int(sizes.records[index]),
            threads=config.simulation.torch_threads or _actor_cpus(),
            seed=config.simulation.seed,
            # A simulated site runs on the machine of the model's author.
            model=terms.model if is_user_code(terms.model) else "",
            trusts_server=not terms.source.site_plans,
        )
    )


@dataclass(frozen=True)
class _Draw:
    """Values of a simulated site's profile.

    Attributes:
        epsilon: of its budget and run.
        delta: likewise.
        batch_size: expected.
        records: declared.
        threads: of PyTorch.
        seed: of its noise.
        model: of a user, which it runs; empty: one of ours.
        trusts_server: with updates without noise.
    """

    epsilon: float
    delta: float
    batch_size: int
    records: int
    threads: int
    seed: int
    model: str
    trusts_server: bool


@lru_cache(maxsize=16384)
def _profile(draw: _Draw) -> Profile:
    budget = {"epsilon": draw.epsilon, "delta": draw.delta}
    return Profile.parse(
        {
            "budget": budget,
            "run": budget,
            "training": {
                "batch-size": draw.batch_size,
                "declared-records": draw.records,
                "torch-threads": draw.threads,
            },
            "simulation": {"seed": draw.seed},
            "policy": {"models": [draw.model] if draw.model else []},
            "trust-server": draw.trusts_server,
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
    sizes = sizes_of(config, number)
    drawn = (sizes.records, sizes.batch_size, _epsilons_of(config, number))
    for index in {int(end) for values in drawn for end in (values.argmin(), values.argmax())}:
        draw_profile(config, index, number)


def simulated_ledger(config: RunConfig, index: int) -> Path:
    """Return the path of a simulated site's ledger."""
    return (
        runs_dir(config.server.runs_dir)
        / config.terms.run_id
        / "sites"
        / str(index)
        / "ledger.sqlite"
    )


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


_epsilons = lru_cache(maxsize=8)(draw_epsilons)


def _epsilons_of(config: RunConfig, number: int) -> npt.NDArray[np.float64]:
    """Return every site's ε, shape ``(number,)``."""
    spec = config.terms.simulated_epsilon or config.simulation.epsilons
    return _epsilons(spec, number, config.simulation.seed)


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

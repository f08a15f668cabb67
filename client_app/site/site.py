"""Who this node is: its profile, its ledger, its records. Opened anew for every message."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import Context, RecordDict

from client_app.site.simulated import (
    InProcessContext,
    Trained,
    draw_profile,
    may_draw,
    node_index,
    simulated_ledger,
    simulated_records,
)
from hdpfl_flower.ledger.account import FrozenPlan
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.datasets import task_for
from hdpfl_flower.errors import Declined
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.privacy.plan import Plan, check_unchanged, make_plan
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.ledger.in_memory import SimulatedLedger
from hdpfl_flower.models.task import Records

if TYPE_CHECKING:
    from hdpfl_flower.privacy.noise import ReleaseStreams


@dataclass(frozen=True, repr=False)
class Site:
    """A site, ready to answer one message.

    Attributes:
        profile: its private terms.
        terms: the public terms of the run it is asked about.
        index: its partition and the number of partitions, if simulated; else None.
        memory: what the node keeps from message to message of a run, as long as it is up.
        in_process: whether it lives in the server's own process, its ledger in memory.
        trained: local SGD that such a process has done already; empty anywhere else.
    """

    profile: Profile
    terms: RunTerms
    index: tuple[int, int] | None
    memory: RecordDict = field(default_factory=RecordDict, compare=False)
    in_process: bool = False
    trained: Trained = field(default_factory=dict, compare=False)

    @property
    def simulated(self) -> bool:
        """Whether noise comes from a seed."""
        return self.index is not None

    @property
    def ledger(self) -> Ledger:
        """The site's ledger, verified; raises ``LedgerError`` where it cannot be used."""
        if self.index is not None:
            budget = self.profile.budget
            path = simulated_ledger(self.terms, self.index[0])
            opened = _ledger_in_memory if self.in_process else _ledger_in_file
            return opened(path, budget.epsilon, budget.delta)
        if self.profile.ledger is None:
            raise Declined("profile: [ledger] is missing; a site without a ledger releases nothing")
        return Ledger(self.profile.ledger.path, self.profile.ledger.anchor)

    def plan(self, ledger: Ledger) -> tuple[Plan, FrozenPlan]:
        """Return the plan of this run: as it was frozen, or made now, not charged yet.

        Raises:
            Declined: the terms differ from those that were frozen.
            AccountingError: no noise can pay for the terms.
        """
        frozen = ledger.frozen_plan(self.terms.run_id)
        if frozen is not None:
            plan = Plan.from_json(frozen.plan)
            check_unchanged(RunTerms.from_json(frozen.terms), self.terms, plan)
            return plan, frozen
        plan = make_plan(self.profile, self.terms)
        return plan, FrozenPlan(plan.to_json(), self.terms.to_json(), plan.epsilon, plan.delta)

    def streams(self, server_round: int, kind: str) -> ReleaseStreams:
        """Return fresh randomness for one release; from the seed in a simulation alone."""
        from hdpfl_flower.privacy.noise import ReleaseStreams

        if self.profile.simulation is not None and self.index is not None:
            seed, site = self.profile.simulation.seed, str(self.index[0])
            return ReleaseStreams.simulated(seed, site, server_round, kind)
        return ReleaseStreams.fresh()

    def training_records(self) -> Records:
        """Return the records to train on; raises ``DataError`` where the source cannot be read."""
        return self._records()[0]

    def test_records(self) -> Records | None:
        """Return the records that the profile holds out of training, if any."""
        return self._records()[1]

    def _records(self) -> tuple[Records, Records | None]:
        if self.profile.data is not None:
            from hdpfl_flower.data.site_data import read_site_data

            task = task_for(self.terms)
            data = read_site_data(self.profile.data, task, self.terms.schema_text)
            return data.train, data.test
        if self.index is not None:
            return simulated_records(self.terms, *self.index)
        raise Declined("profile: [data] is missing; say where the site's records lie")


def open_site(context: Context, terms: RunTerms) -> Site:
    """Return the site that this node is, for the terms of one message.

    The profile is the file that ``profile`` in the node's configuration names.

    Raises:
        ProfileError: the file is missing or wrong.
        Declined: there is no profile, and this is not a simulation.
    """
    path = context.node_config.get("profile")
    if isinstance(path, str):
        profile = Profile.load(Path(path).expanduser())
        where = node_index(context) if profile.simulated else None
        return _at(context, profile, terms, where)
    if not may_draw(context):
        raise Declined("the node config names no 'profile': a deployed site needs one")
    index, number = node_index(context)
    return _at(context, _drawn(terms, index, number), terms, (index, number))


def _at(context: Context, profile: Profile, terms: RunTerms, index: tuple[int, int] | None) -> Site:
    if isinstance(context, InProcessContext):
        in_memory = not context.ledger_in_file
        return Site(profile, terms, index, context.state, in_memory, context.trained)
    return Site(profile, terms, index, context.state)


@lru_cache(maxsize=4096)
def _drawn(terms: RunTerms, index: int, number: int) -> Profile:
    return draw_profile(terms, index, number)


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
    """Return the ledger at ``path``, made where it is not there; kept open in this process."""
    if path not in _LEDGERS:
        if path.is_file():
            _LEDGERS[path] = Ledger(path, durable=False)
        else:
            _LEDGERS[path] = Ledger.create(path, epsilon, delta, durable=False)
    _LEDGERS[path] = ledger = _LEDGERS.pop(path)
    while len(_LEDGERS) > _OPEN_FILES:
        _LEDGERS.pop(next(iter(_LEDGERS))).close()
    return ledger


def close_ledgers() -> None:
    """Close what simulated sites left open in this process; those in memory get their files."""
    while _LEDGERS:
        _LEDGERS.popitem()[1].close()

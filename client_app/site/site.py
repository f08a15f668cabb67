"""A site opened for one message: profile, task, ledger, plan, records.

Each is read where it is first needed and kept until the message is answered, so that one message
parses the profile once, reads the records once and verifies the ledger once.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, Context, RecordDict

from client_app.site.prepared_records import records_of_run
from hdpfl_flower.config.data_source import DataSource
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.data.stated_task import is_own
from hdpfl_flower.errors import Declined, InstallationError, Reason, WireError
from hdpfl_flower.ledger.account import ChargedPlan, Request
from hdpfl_flower.ledger.site_ledger import Reservation, SiteLedger
from hdpfl_flower.models.networks import Arrays, layout_of, megabytes_of
from hdpfl_flower.models.parts import select
from hdpfl_flower.models.task import Records, SiteRecords, Task
from hdpfl_flower.privacy.plan import Plan, make_plan
from hdpfl_flower.privacy.policy import check_unchanged
from hdpfl_flower.releases.base import ReleaseKind
from hdpfl_flower.releases.rounds import ClippedUpdate
from hdpfl_flower.system.printable import site_log
from hdpfl_flower.system.tools import tool
from hdpfl_flower.wire import Instructions

if TYPE_CHECKING:
    from hdpfl_flower.privacy.noise import ReleaseStreams


log = site_log()
MOST_ARRAYS, MOST_DIMENSIONS, MOST_NAME = 100_000, 8, 500
"""Arrays of a message, dimensions of one, and characters of a name or type."""


@dataclass(frozen=True)
class PaidPlan:
    """Plan of a run, and the same as the ledger charges it."""

    plan: Plan
    charged: ChargedPlan


class Sealed(NamedTuple):
    """A sealed payload, which may be sent.

    Attributes:
        payload: the sealed bytes.
        replayed: whether an earlier message had them sealed, so that no work was done for this one.
    """

    payload: bytes
    replayed: bool


@dataclass(frozen=True, repr=False)
class Site:
    """A site, opened for one message and closed with it: here the operator's.

    A simulation has sites of its own (``hdpfl_tools/simulation/sites.py``).

    Attributes:
        profile: its private terms.
        terms: the public terms of the run it is asked about.
        memory: of the node, from message to message of a run, as long as it is up.
    """

    profile: Profile
    terms: RunTerms
    memory: RecordDict = field(default_factory=RecordDict, compare=False)

    @property
    def simulated(self) -> bool:
        """Whether noise comes from a seed."""
        return False

    @property
    def in_process(self) -> bool:
        """Whether the site lives in the server's own process."""
        return False

    @property
    def partition(self) -> int | None:
        """Number of a simulated site; else None."""
        return None

    @property
    def state_folder(self) -> Path | None:
        """Folder of the models and states that stay at the site, if any."""
        return self.profile.state.path if self.profile.state else None

    def tells(self, fact: str) -> bool:
        """Return whether a disclosed fact is asked for; a deployed site cannot know."""
        del fact
        return True

    def trained(self, digest: str, purpose: str) -> npt.NDArray[np.float32] | None:
        """Return the result of training that is done already; only simulations have some."""
        del digest, purpose
        return None

    def reserved(self, digest: str, kind: str) -> Reservation | bytes | None:
        """Return a release that is reserved already; only simulations have some."""
        del digest, kind
        return None

    def nominal_noise(self) -> Callable[[int], float] | None:
        """Return a paper's formula of the noise; None: the plan's own search."""
        return None

    @cached_property
    def task(self) -> Task:
        """Task of the run; raises ``DataError`` for a wrong schema."""
        return task_for(self.terms)

    @cached_property
    def layout(self) -> Arrays:
        """Names and shapes of the sent part; raises as :func:`allowed_layout`."""
        whole = allowed_layout(self.profile, self.terms.model, self.task)
        return select(whole, self.terms.model, self.task, self.terms.work.sent_part)

    @cached_property
    def ledger(self) -> SiteLedger:
        """The site's ledger, verified; raises ``LedgerError`` where it cannot be used."""
        if self.profile.ledger is None:
            raise Declined(
                Reason.PROFILE, "[ledger] is missing; a site without a ledger releases nothing"
            )
        return SiteLedger(self.profile.ledger.path, self.profile.ledger.anchor)

    @cached_property
    def paid_plan(self) -> PaidPlan:
        """Plan of this run: frozen in the ledger, or made now.

        Raises:
            Declined: the terms differ from those that were frozen.
            AccountingError: no noise can pay for the terms.
        """
        # The frozen plan first: a profile edited in mid-run must not change the charge.
        frozen = self.ledger.frozen_plan(self.terms.run_id)
        if frozen is not None:
            plan = frozen.read()
            check_unchanged(frozen.read_terms(), self.terms, plan)
            return PaidPlan(plan, frozen)
        plan = make_plan(self.profile, self.terms, nominal_noise=self.nominal_noise())
        charged = ChargedPlan(plan.to_json(), self.terms.to_json(), plan.epsilon, plan.delta)
        return PaidPlan(plan, charged)

    def release(
        self,
        instructions: Instructions,
        kind: ReleaseKind,
        work: Callable[[], bytes],
        exact: int = 0,
    ) -> Sealed:
        """Reserve, work, seal; return the payload, now safe to send.

        Args:
            instructions: the request.
            kind: of the release.
            work: makes the payload.
            exact: answers without noise that it holds.
        """
        # In a simulation that trains its sites together, reserved for this very request already.
        taken: Reservation | bytes | None = self.reserved(instructions.digest, kind.release)
        if taken is None:
            taken = self.reserve(instructions, kind, exact)
        # The same request was sealed before: the same bytes, so that two noises cannot be averaged.
        if isinstance(taken, bytes):
            return Sealed(taken, replayed=True)
        with taken:
            # Sealed before it can be sent: a repeated request finds these very bytes.
            payload = taken.seal(work())
        # Before Flower sends the reply: "sent" means handed over, not arrived.
        if kind.is_sent:
            key = (instructions.terms.run_id, instructions.server_round, kind.release)
            self.ledger.mark_sent(key)
        return Sealed(payload, replayed=False)

    def reserve(
        self, instructions: Instructions, kind: ReleaseKind, exact: int = 0
    ) -> Reservation | bytes:
        """Charge and reserve a release; arguments as :meth:`release`.

        Returns:
            The reservation, or the payload that the same request sealed before.

        Raises:
            Declined: the ledger refuses.
            LedgerError: it cannot be written.
        """
        profile, run_id = self.profile, instructions.terms.run_id
        paid_plan = self.paid_plan if kind.is_covered else None
        declared = profile.run.epsilon if kind.release == ClippedUpdate.release else None
        if not self.simulated and (lost := self.ledger.broken_off()) is not None:
            log.warning(
                "the work on round %d broke off, because its process was killed or the disk was "
                "full; nothing of it left",
                lost[1],
            )
        request = Request(
            run_id, instructions.server_round, kind.release, instructions.digest, declared, exact
        )
        # Charged and reserved before the work. A crash from here to the seal makes the release
        # LOST: it stays taken, and nothing of it has left. Only a seeded simulation does it again,
        # with the same noise.
        return self.ledger.reserve(
            request,
            paid_plan.charged if paid_plan else None,
            max_runs=profile.policy.runs,
            max_releases=paid_plan.plan.paid(kind.release)
            if paid_plan
            else kind.most(instructions.terms),
            max_exact=math.inf if self.simulated else profile.budget.exact_answers,
            cap=(profile.budget.epsilon, profile.budget.delta),
            again=self.simulated,
        )

    def streams(self, server_round: int, kind: str) -> ReleaseStreams:
        """Return fresh randomness of a release; seeded only in simulations."""
        from hdpfl_flower.privacy.noise import ReleaseStreams

        del server_round, kind
        # Keys of the operating system, new for each release: a deployed ClientApp is a new process
        # a message, where a seeded generator would repeat its noise.
        return ReleaseStreams.fresh()

    def training_records(self) -> Records:
        """Return the records to train on; raises ``DataError`` where none can be read."""
        return self._records.train

    def training_units(self) -> Records:
        """Return the records of DP-SGD, one a unit: with ``records-per-unit`` several in each."""
        return self._records.train if self._records.units is None else self._records.units

    def test_records(self) -> Records | None:
        """Return the records that the profile holds out of training, if any."""
        return self._records.test

    @cached_property
    def _records(self) -> SiteRecords:
        return self._embedded()

    def _embedded(self) -> SiteRecords:
        """Return the records of ``[data]`` as the run's model reads them."""
        task = self.task
        if task.embedding and self.profile.state:
            from client_app.site.remembered import Remembered

            remembered = Remembered(task.embedding, self.memory, self.profile.state.path)
            task = replace(task, embedding=remembered)
        return self._stored(task).embedded(task)

    def _stored(self, task: Task) -> SiteRecords:
        """Return the records as they are stored, before any backbone."""
        return records_of_run(self.profile, data_of(self.profile), self.terms, task, self.ledger)


def data_of(profile: Profile) -> DataSource:
    """Return the place of the site's records; declines where the profile names none."""
    if profile.data is None:
        raise Declined(Reason.PROFILE, "[data] is missing; say where the site's records lie")
    return profile.data


def check_sizes(content: RecordDict, profile: Profile | None) -> None:
    """Refuse arrays beyond a model's number or size, unread.

    The operator may not have consented to the run so far.

    Raises:
        Declined: the arrays are larger than the policy allows.
        WireError: there are too many, or a name or a shape is too long.
    """
    records = (item for item in content.values() if isinstance(item, ArrayRecord))
    arrays = [item for record in records for item in record.items()]
    if len(arrays) > MOST_ARRAYS or any(
        max(len(name), len(array.dtype), len(array.stype)) > MOST_NAME
        or len(array.shape) > MOST_DIMENSIONS
        for name, array in arrays
    ):
        raise WireError("message: too many arrays, or a name or a shape is too long")
    if profile is not None:
        check_payload(profile, sum(len(array.data) for _, array in arrays) / 1e6)


def check_payload(profile: Profile, megabytes: float) -> None:
    """Decline a model of more megabytes than the policy allows."""
    if megabytes > profile.policy.max_payload_mb:
        raise Declined(Reason.POLICY, "the model is larger than 'policy.max-payload-mb'")


def allowed_layout(profile: Profile, spec: str, task: Task) -> Arrays:
    """Return names and shapes of a named model, without its memory.

    Every network of a site is built after this: the terms are the server's text.

    Args:
        profile: the site's.
        spec: the model, see ``networks.build_model``.
        task: shapes and loss.

    Raises:
        Declined: the model is larger than the policy allows.
        ModelError: no model of that name can be built.
    """
    # Before a network is built: a server's text must not make a site allocate gigabytes.
    check_payload(profile, megabytes_of(spec, task))
    return layout_of(spec, task)


class SiteContext(Context, ABC):
    """Context of a node that brings its site, as a simulation's does."""

    @abstractmethod
    def open_site(self, terms: RunTerms, profile: Profile | None) -> Site:
        """Return the site; arguments and errors as :func:`open_site`."""


def open_site(context: Context, terms: RunTerms, profile: Profile | None) -> Site:
    """Return the site that this node is, for the terms of one message.

    Args:
        context: Flower's, of the node.
        terms: of the message.
        profile: as ``node_profile`` returns it; where it is None, a simulation draws one.

    Raises:
        Declined: there is no profile, or the terms name a user's own data set, and this is no
            simulation.
    """
    if isinstance(context, SiteContext):
        return context.open_site(terms, profile)
    # Neither the server nor a configuration file can start Ray here.
    ray = sys.modules.get("ray")
    under_ray = bool(ray and ray.is_initialized())
    if under_ray or (profile is not None and profile.simulated):
        try:
            simulation = tool("simulation.sites")
        except InstallationError as reason:
            raise Declined(Reason.OTHER, f"a simulated site: {reason}") from None
        site: Site = simulation.open_simulated(context, terms, profile)
        return site
    if profile is None:
        raise Declined(
            Reason.OTHER, "the node config names no 'profile', but a deployed site needs one"
        )
    check_no_own_dataset(terms)
    return Site(profile, terms, context.state)


def check_no_own_dataset(terms: RunTerms) -> None:
    """Decline terms that name a user's own data set.

    Raises:
        Declined: the terms are a server's text: no path of theirs is opened, no module imported.
    """
    if is_own(terms.dataset):
        raise Declined(
            Reason.POLICY,
            "'dataset' names a file or a module, but only a simulation in process or under Ray "
            "reads one; a deployed run must set 'dataset' to site",
        )

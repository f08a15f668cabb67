"""A site opened for one message: profile, task, ledger, plan, records.

Each is read where it is first needed and kept until the message is answered, so that one message
parses the profile once, reads the records once and verifies the ledger once.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict

from client_app.site.simulated import (
    InProcessContext,
    Taken,
    Trained,
    draw_profile,
    may_draw,
    node_index,
    nominal_noise,
    simulated_config,
    simulated_ledger,
    simulated_records,
)
from hdpfl_flower.config.data_source import NOBODY, Withdrawn
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.datasets import task_for
from hdpfl_flower.data.stated_task import is_own
from hdpfl_flower.errors import Declined, Reason, WireError
from hdpfl_flower.ledger.account import ChargedPlan
from hdpfl_flower.ledger.in_memory import SimulatedLedger
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.ledger.withdrawals import account_at, withdrawn_by
from hdpfl_flower.models.networks import Arrays, layout_of, megabytes_of
from hdpfl_flower.models.parts import select
from hdpfl_flower.models.task import Embedding, Records, Task
from hdpfl_flower.privacy.plan import Plan, make_plan
from hdpfl_flower.privacy.policy import check_unchanged
from hdpfl_flower.system.files import replace_file

if TYPE_CHECKING:
    from hdpfl_flower.privacy.noise import ReleaseStreams


TOO_LARGE = "the model is larger than 'policy.max-payload-mb'"
_KEY, _NONCE = "hdpfl.backbone", 12
MOST_ARRAYS, MOST_DIMENSIONS, MOST_NAME = 100_000, 8, 500
"""Arrays of a message, dimensions of one, and characters of a name or type."""


@dataclass(frozen=True, repr=False)
class Site:
    """A site, opened for one message and closed with it.

    Attributes:
        profile: its private terms.
        terms: the public terms of the run it is asked about.
        index: its partition and the number of partitions, if simulated; else None.
        memory: of the node, from message to message of a run, as long as it is up.
        in_process: whether it lives in the server's own process, its ledger in memory.
        config: source of a simulated site's draws, and the folder of its run; else None.
        trained: local training that the server's process has done already; empty anywhere else.
        taken: releases that it has reserved for that training; empty anywhere else.
        asked: facts that the strategy reads in the server's process; None: all disclosed ones.
    """

    profile: Profile
    terms: RunTerms
    index: tuple[int, int] | None
    memory: RecordDict = field(default_factory=RecordDict, compare=False)
    in_process: bool = False
    config: RunConfig | None = None
    trained: Trained = field(default_factory=dict, compare=False)
    taken: Taken = field(default_factory=dict, compare=False)
    asked: frozenset[str] | None = None

    @property
    def simulated(self) -> bool:
        """Whether noise comes from a seed."""
        return self.index is not None

    @cached_property
    def task(self) -> Task:
        """Task of the run; raises ``DataError`` for a wrong schema."""
        return task_for(self.terms)

    @cached_property
    def layout(self) -> Arrays:
        """Names and shapes of the sent part; raises as :func:`allowed_layout`."""
        whole = allowed_layout(self.profile, self.terms.model, self.task)
        return select(whole, self.terms.model, self.task, self.terms.sent_part)

    @cached_property
    def ledger(self) -> Ledger:
        """The site's ledger, verified; raises ``LedgerError`` where it cannot be used."""
        if self.index is not None and self.config is not None:
            budget = self.profile.budget
            path = simulated_ledger(self.config, self.index[0])
            opened = _ledger_in_memory if self.in_process else _ledger_in_file
            return opened(path, budget.epsilon, budget.delta)
        if self.profile.ledger is None:
            raise Declined(
                Reason.PROFILE, "[ledger] is missing; a site without a ledger releases nothing"
            )
        return Ledger(self.profile.ledger.path, self.profile.ledger.anchor)

    @cached_property
    def plan(self) -> tuple[Plan, ChargedPlan]:
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
            return plan, frozen
        plan = make_plan(
            self.profile,
            self.terms,
            nominal_noise=nominal_noise(self.profile, self.terms),
        )
        return plan, ChargedPlan(plan.to_json(), self.terms.to_json(), plan.epsilon, plan.delta)

    def streams(self, server_round: int, kind: str) -> ReleaseStreams:
        """Return fresh randomness of a release; seeded only in simulations."""
        from hdpfl_flower.privacy.noise import ReleaseStreams

        if self.profile.simulation is not None and self.index is not None:
            seed, site = self.profile.simulation.seed, str(self.index[0])
            return ReleaseStreams.simulated(seed, site, server_round, kind)
        # Keys of the operating system, new for each release: a deployed ClientApp is a new process
        # a message, where a seeded generator would repeat its noise.
        return ReleaseStreams.fresh()

    def _withdrawn(self) -> Withdrawn:
        """Return the units that withdrew by the ledger that the profile names."""
        data, paths = self.profile.data, self.profile.ledger
        if data is None or paths is None:
            return NOBODY
        # A simulated site has a ledger of its own, and heeds the site's.
        account = account_at(paths) if self.simulated else self.ledger.account()
        return withdrawn_by(account, data, paths.path)

    def training_records(self) -> Records:
        """Return the records to train on; raises ``DataError`` where the source cannot be read."""
        return self._records[0]

    def training_units(self) -> Records:
        """Return the records of DP-SGD, one a unit: with ``records-per-unit`` several in each."""
        return self._records[2]

    def test_records(self) -> Records | None:
        """Return the records that the profile holds out of training, if any."""
        return self._records[1]

    @cached_property
    def _records(self) -> tuple[Records, Records | None, Records]:
        if self.profile.data is not None:
            from hdpfl_flower.data.site_data import read_site_data

            task = self.task
            if task.embedding and self.profile.state:
                remembered = Remembered(task.embedding, self.memory, self.profile.state.path)
                task = replace(task, embedding=remembered)
            source = self.profile.data.without(self._withdrawn)
            data = read_site_data(source, task, self.terms.schema_text)
            return data.train, data.test, data.train if data.units is None else data.units
        if self.index is not None and self.config is not None:
            train, test = simulated_records(self.config, *self.index)
            return train, test, train
        raise Declined(Reason.PROFILE, "[data] is missing; say where the site's records lie")


@dataclass(frozen=True, eq=False)
class Remembered:
    """Embedding with outputs that a site keeps, encrypted, from message to message of a run.

    They are private data like the records. Their file lies in the state folder; its key is in the
    node's memory alone and ends with it. Flower's process has the key and not the folder.
    """

    embedding: Embedding
    memory: RecordDict
    folder: Path

    @property
    def records(self) -> Task:
        """The task of the records themselves."""
        return self.embedding.records

    def __call__(self, features: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the outputs for n records: those stored, if they are of these records."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if not len(features):
            return self.embedding(features)
        stored = self.memory.setdefault(_KEY, ConfigRecord({"key": os.urandom(32)}))
        cipher, file = AESGCM(cast("bytes", stored["key"])), self.folder / "backbone.bin"
        digest = sha256(repr(self.embedding).encode() + features.tobytes()).digest()
        try:
            sealed = file.read_bytes()
            plain = cipher.decrypt(sealed[:_NONCE], sealed[_NONCE:], digest)
            return np.frombuffer(plain, np.float32).reshape(len(features), -1).copy()
        except (OSError, InvalidTag, ValueError):  # none, of another run or other records, cut off
            outputs, nonce = self.embedding(features), os.urandom(_NONCE)
        with contextlib.suppress(OSError):  # a full disk: computed anew at the next message
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            replace_file(file, nonce + cipher.encrypt(nonce, outputs.tobytes(), digest))
        return outputs


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
    sent = sum(len(array.data) for _, array in arrays)
    if profile is not None and sent > profile.policy.max_payload_mb * 1e6:
        raise Declined(Reason.POLICY, TOO_LARGE)


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
    if megabytes_of(spec, task) > profile.policy.max_payload_mb:
        raise Declined(Reason.POLICY, TOO_LARGE)
    return layout_of(spec, task)


def node_profile(context: Context) -> Profile | None:
    """Return the profile that the node's configuration names, if any.

    Raises:
        ProfileError: the file is missing or wrong.
    """
    path = context.node_config.get("profile")
    return Profile.load(Path(path).expanduser()) if isinstance(path, str) else None


def open_site(context: Context, terms: RunTerms, profile: Profile | None) -> Site:
    """Return the site that this node is, for the terms of one message.

    Args:
        context: Flower's, of the node.
        terms: of the message.
        profile: as :func:`node_profile` returns it; where it is None, that of a simulated site is
            drawn.

    Raises:
        Declined: there is no profile, or the terms name a user's own data set, and this is no
            simulation in process or under Ray.
    """
    if is_own(terms.dataset) and not may_draw(context):
        # The terms are a server's text: no path of theirs is opened here, no module imported.
        raise Declined(
            Reason.POLICY,
            "'dataset' names a file or a module, which only a simulation in process or under Ray "
            "reads; a deployed run sets 'dataset' to site",
        )
    if profile is not None:
        if not profile.simulated:
            return _at(context, profile, terms, None)
        return _at(context, profile, terms, node_index(context), simulated_config(context, terms))
    if not may_draw(context):
        raise Declined(
            Reason.OTHER, "the node config names no 'profile': a deployed site needs one"
        )
    index, number = node_index(context)
    config = simulated_config(context, terms)
    profile = draw_profile(config, index, number)
    return _at(context, profile, terms, (index, number), config)


def _at(
    context: Context,
    profile: Profile,
    terms: RunTerms,
    index: tuple[int, int] | None,
    config: RunConfig | None = None,
) -> Site:
    if isinstance(context, InProcessContext):
        return Site(
            profile,
            terms,
            index,
            context.state,
            not context.ledger_in_file,
            config,
            context.trained,
            context.taken,
            context.asked,
        )
    return Site(profile, terms, index, context.state, config=config)


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

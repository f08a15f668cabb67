"""The audit of personal parts: canaries through whole rounds of every rule, and its own state.

Here a canary is alone in a hidden unit of its own: record i has the one feature xᵢ = 2¹³, the
server's hidden layer is relu(x − ½), and the target is far off. Its clipped gradient, of norm C in
whatever a step trains, lies in the weight of its unit (body), in that unit's weight of the last
layer (head), or in both. Where the body stays at the site, it lies in the weights on its feature. A
rule's release is what the site sends, and what it may show: its own part of the model, and what it
tunes at the end. The score of a canary is the move of all that along its gradient.

A mask is a release too. It is no Gaussian one: there a canary is guessed to be in where its
coordinate was kept, and the bound on ε is that of guesses. For the published mask, that of clean
weights, the server's model has weights between those of a canary that took part and of one that did
not, and only the support is looked at.

All batches are full (q = 1); the code is that of a site's round, from the message's model to the
encoded update, with records and a plan of the audit's own. Its state lies in a folder that is
removed afterwards.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from client_app.after_run.personal_model import assemble
from client_app.releases.tuning import tune
from client_app.site.personal_state import load_state, personal_state_path
from client_app.site.site import PaidPlan, Site
from client_app.training.trainer import Trainer
from client_app.work import local_work
from client_app.work.base import LocalWork
from client_app.work.parted import PartedWork
from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.profile import Profile, Training
from hdpfl_flower.config.tables_of_terms import tables_of
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import AccountingError
from hdpfl_flower.ledger.account import ChargedPlan
from hdpfl_flower.models.networks import Arrays, flatten, layout_of
from hdpfl_flower.models.parts import select
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.privacy.audit import guesses_of
from hdpfl_flower.privacy.noise import ReleaseStreams
from hdpfl_flower.privacy.plan import Plan, make_plan
from hdpfl_flower.system.devices import available_cores
from hdpfl_flower.wire import Instructions, WireError
from hdpfl_tools.site.audit import CLIP_NORM, DELTA, Finding, _Advance, _threads

Vector = npt.NDArray[np.float32]
Scores = npt.NDArray[np.float64]

EPSILON = 4.0
"""The claim of every row: at 1 guesses show little, and at 8 perfect ones barely refute."""
WIDTH, RELEASES = 500, 9
"""Canaries of a release, and releases; the first one sets the cut, the others are judged."""
ROUNDS, STEPS, TUNING = 2, 2, 12
"""Steps of the tuning outweigh those of the rounds: a fault of theirs alone must show."""
PUBLISHED = "dsu-published"
RULES: Mapping[str, Mapping[str, Any]] = {
    "fedper": {"work": {"kind": "joint"}},
    "fedper, body": {"work": {"kind": "joint", "stays": "body"}},
    "fedrep": {"work": {"kind": "alternate"}},
    "fedbabu": {"work": {"kind": "frozen"}, "after": {"tuning": {"steps": TUNING}}},
    "ppsgd": {"work": {"kind": "offset"}},
    "ppsgd, head": {"work": {"kind": "offset", "of": "head"}},
    "tuning, head": {"after": {"tuning": {"steps": TUNING}}},
    "tuning, all": {"after": {"tuning": {"steps": TUNING, "part": "all"}}},
    **{
        f"dsu, {mask}": {"work": {"kind": "alternate", "mask": mask}}
        for mask in ("noisy-updates", "charged-top-k", "random", "global-magnitude")
    },
    PUBLISHED: {"work": {"kind": "alternate", "mask": "published"}},
}
"""What each rule makes of the terms; ``dsu-published`` is the one that must be refuted."""
_LENGTH, _TARGET, _STEP = 2.0**13, 2.0**20, 2.0**-20
"""As in :mod:`hdpfl_tools.site.audit`: small steps keep the gradients far above C."""


@dataclass(frozen=True, repr=False)
class AuditedSite(Site):
    """A site whose records, task and plan are the audit's own; nothing of it touches a ledger.

    Attributes:
        records: made up.
        audited: the plan that its rounds follow.
        learns: their task.
        draw: makes the randomness of each release; fresh from the system by default.
        seeded: whether it passes for a site of a simulation.
    """

    records: Records | None = None
    audited: Plan | None = None
    learns: Task | None = None
    draw: Callable[[], ReleaseStreams] = field(default=ReleaseStreams.fresh)
    seeded: bool = False

    @property
    def simulated(self) -> bool:
        """Whether parts are allowed that a real site refuses."""
        return self.seeded

    @cached_property
    def task(self) -> Task:
        """What the records are for."""
        return _given(self.learns)

    @cached_property
    def paid_plan(self) -> PaidPlan:
        """The audit's plan; nothing is charged."""
        plan = _given(self.audited)
        charged = ChargedPlan(plan.to_json(), self.terms.to_json(), plan.epsilon, plan.delta)
        return PaidPlan(plan, charged)

    def training_records(self) -> Records:
        """Return the made-up records."""
        return _given(self.records)

    training_units = training_records

    def test_records(self) -> Records:
        """Return the same: what is measured once a run is measured of them."""
        return _given(self.records)

    def streams(self, server_round: int, kind: str) -> ReleaseStreams:
        """Return new randomness, in place of a simulated site's seed too."""
        del server_round, kind
        return self.draw()

    def over(self, records: Records) -> AuditedSite:
        """Return the site with these records."""
        return replace(self, records=records)

    def round(
        self, model: Arrays, server_round: int, plan: Plan | None = None, *, store: bool = True
    ) -> Vector:
        """Return what a round sends, decoded, shape ``(d,)``.

        Args:
            model: the whole model of the server; only what is shared of it is sent to the site.
            server_round: from 1.
            plan: another plan than the site's own.
            store: whether its own part goes on from this round in the next one.

        Raises:
            AccountingError: a released number is not finite.
        """
        terms = self.terms
        shared = server_wire.write_model(
            select(model, terms.model, self.task, terms.work.sent_part)
        )
        trainer = Trainer(self, Instructions(terms, server_round, shared, "", ""))
        try:
            sent = wire.read_sealed(trainer.run(plan or self.paid_plan.plan))
        except WireError:
            raise AccountingError("audit: a released number is not finite") from None
        if store:
            trainer.keep(replayed=False, plan=plan or self.paid_plan.plan)
        return sent


def personal_terms(run: RunTerms) -> RunTerms | None:
    """Return the terms of the canaries' run whose parts are those of ``run``; None without any."""
    names = {name for rule in RULES.values() for name in rule}
    own = {name: getattr(run, name) for name in names}
    plain = RunTerms()
    if all(value == getattr(plain, name) for name, value in own.items()):
        return None
    return plain.updated(**own)


def attack_rule(
    rule: str,
    training: Training,
    *,
    terms: RunTerms | None = None,
    releases: int = RELEASES,
    advance: _Advance = lambda: None,
) -> Finding:
    """Return what canaries show of a rule's rounds, of its state and of its tuning.

    Args:
        rule: a name of :data:`RULES`, or any with ``terms``.
        training: with the engine's device and the threads.
        terms: those of :func:`personal_terms`.
        releases: at least two; every one is a run of ``ROUNDS`` rounds.
        advance: called after each.

    Raises:
        AccountingError: a released number is not finite.
        ModelError: the device is not there.
    """
    asked = terms or RunTerms().updated(**RULES[rule])
    published = asked.work.reads_clean_weights
    asked = asked.updated(
        model=f"mlp:{WIDTH}", rounds=ROUNDS, local_steps=STEPS, clip_norm=CLIP_NORM,
        learning_rate=_STEP * WIDTH / CLIP_NORM, evaluation="none",
        after={kind: {**table, "steps": TUNING} for kind, table in tables_of(asked.after).items()},
        **({"work": {**RULES[PUBLISHED]["work"], "share": 1 / (WIDTH + 2)}} if published else {}),
    )  # fmt: skip
    members = np.random.default_rng().random((releases, WIDTH)) < 0.5  # seeded by the system
    scores, plan = np.zeros((releases, WIDTH)), None
    with _threads(training.torch_threads or available_cores()):
        for release, taken in enumerate(members):
            with own_site(asked, TASK, training, EPSILON) as site:
                scores[release] = _release(site.over(_records(taken, _signs(_whole(site)))))
                plan = site.paid_plan.plan
            advance()
    # The first release sets the cut, and is not judged by it.
    first, taken = scores[0], members[0]
    cut = float(first[taken].mean() + first[~taken].mean()) / 2
    evidence = guesses_of(scores[1:], members[1:], cut, gaussian=not published)
    return Finding(rule, _given(plan), evidence, scores[1:].size, WIDTH)


TASK = Task((WIDTH + 1,), 1, "squared")
"""One feature more than canaries: the weights on it can be of any size."""


@contextmanager
def own_site(
    terms: RunTerms,
    task: Task,
    training: Training,
    epsilon: float,
    batch_size: int = WIDTH,
    declared: int = WIDTH,
) -> Iterator[AuditedSite]:
    """Open a site of the audit's, its plan calibrated as any run's; its folder is removed after.

    Args:
        terms: of its run.
        task: what its records are for.
        training: with the device, the engine and the threads.
        epsilon: the claim.
        batch_size: the expected one.
        declared: records; q is the quotient of both.
    """
    budget = {"epsilon": epsilon, "delta": DELTA}
    published = terms.work.reads_clean_weights
    with tempfile.TemporaryDirectory() as folder:
        fields: dict[str, Any] = {
            "budget": budget, "run": budget, "state": {"path": folder},
            "training": {
                "batch-size": batch_size, "declared-records": declared,
                "device": training.device, "torch-threads": training.torch_threads,
            },
            # Only a simulation runs the published mask.
            **({"simulation": {"seed": 0}} if published else {}),
        }  # fmt: skip
        profile = Profile.parse(fields)
        yield AuditedSite(
            profile, terms,
            audited=make_plan(profile, terms), learns=task, seeded=bool(published),
        )  # fmt: skip


def _release(site: AuditedSite) -> Scores:
    """Return the score of each canary from all that the site sends, and all it may show."""
    model, terms = hostile_model(site), site.terms
    shared = select(model, terms.model, site.task, terms.work.sent_part)
    work = local_work(terms, site.task, len(flatten(shared)))
    moved, kept = np.zeros(work.size), np.zeros(WIDTH)
    for server_round in range(1, terms.rounds + 1):
        before = _own_part(site, work)
        sent = np.zeros(work.size, np.float32)
        sent[work.sent] = site.round(model, server_round)
        moved += sent
        if isinstance(work, PartedWork):
            moved[work.own] += _own_part(site, work) - before
        kept += _layers(sent)[0].diagonal() != 0
    if terms.work.reads_clean_weights:
        return kept  # the support alone
    plan = site.paid_plan.plan
    if plan.cost_of("tuning") is not None:
        moved += wire.read_sealed(tune(site, plan, assemble(site, shared, terms.rounds)))
    body, head = (moves * way for moves, way in zip(_layers(moved), _ways(site), strict=True))
    scores: Scores = body.sum(0) + head
    return scores + kept * _STEP / 2 if not terms.work.sends_every_coordinate else scores


def hostile_model(site: AuditedSite) -> Arrays:
    """Return the server's whole model: a hidden unit a canary, and no way from one to another."""
    weights = np.eye(WIDTH, WIDTH + 1, dtype=np.float32)
    if site.terms.work.reads_clean_weights:
        # As many weights as the mask keeps, between those of members and of the others.
        weights[:, WIDTH] = 1 + _STEP / 2
    arrays = (
        weights,
        np.full(WIDTH, -0.5, np.float32),
        np.ones((1, WIDTH), np.float32),
        np.zeros(1, np.float32),
    )
    return dict(zip(layout_of(site.terms.model, site.task), arrays, strict=True))


def _whole(site: AuditedSite) -> Vector:
    """Return the model that the first round begins from, shape ``(D,)``."""
    terms = site.terms
    shared = flatten(select(hostile_model(site), terms.model, site.task, terms.work.sent_part))
    work = local_work(terms, site.task, len(shared))
    return work.whole(shared, work.first())


def _ways(site: AuditedSite) -> tuple[Scores, Scores]:
    """Return the direction in which each canary moves the weights on its feature, and its head's.

    Shapes ``(WIDTH, WIDTH)``, a column a canary, and ``(WIDTH,)``.
    """
    whole = _whole(site)
    (weights, head), biases = _layers(whole), whole[_BIASES]
    active = weights * _LENGTH + biases[:, None] > 0
    body = np.where(active, head[:, None] * _signs(whole), 0.0).astype(np.float64)
    if site.terms.work.own_part == "body":
        # Its own body is not the server's: canaries share hidden units, but no weights on features.
        return body / np.linalg.norm(body, axis=0), np.zeros(WIDTH)
    lengths = np.abs(body.sum(0))
    if _trains_jointly(site.terms):
        norms = np.sqrt(lengths**2 + 1)
        return body / norms, _signs(whole) / norms
    return body / lengths, _signs(whole)


def _trains_jointly(terms: RunTerms) -> bool:
    """Return whether steps train head and body under one clip norm."""
    return terms.work.kind not in ("alternate", "frozen")


_BIASES = slice(WIDTH * (WIDTH + 1), WIDTH * (WIDTH + 2))


def _layers(whole: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return the weights on the canaries' features, ``(units, canaries)``, and those of the head.

    The flat model is the first layer's weights row by row, its biases, the head's weights and bias.
    """
    weights = whole[: _BIASES.start].reshape(WIDTH, WIDTH + 1)[:, :WIDTH]
    return weights, whole[_BIASES.stop : _BIASES.stop + WIDTH]


def _signs(whole: Vector) -> Scores:
    """Return the signs of the canaries' targets: every canary moves its own weight up."""
    signs: Scores = np.where(_layers(whole)[1] < 0, -1.0, 1.0)
    return signs


def _own_part(site: AuditedSite, work: LocalWork) -> Vector:
    """Return the site's own part: as stored, or that which every site begins with."""
    part = load_state(personal_state_path(site)).part
    return work.first() if part is None else part


def _records(members: npt.NDArray[np.bool_], signs: Scores) -> Records:
    """Return the canaries that take part, of ``WIDTH``."""
    places = np.flatnonzero(members)
    features = np.zeros((len(places), WIDTH + 1), np.float32)
    features[np.arange(len(places)), places] = _LENGTH
    return Records(features, (_TARGET * signs[places]).astype(np.float32))


_Given = TypeVar("_Given")


def _given(value: _Given | None) -> _Given:
    if value is None:
        raise RuntimeError("audit: a site without records")
    return value

"""The audit of personal parts, continued: a few hundred records with and without one of them.

Three attacks. The *support* of an update under the published mask of DP-pFedDSU, in the setting of
its experiments (Poisson batches, an honest server, one round): the weights on features that only
one record has are what the server sent, so that without that record the mask keeps exactly the
largest of them, and any other order shows it. And the *head* of FedRep: a record that is in the
batches of the head alone; where the head is noisy, the body's update is hardly moved by it, and
where it was trained without noise, the gradients of all others show it. And the *prior*: its noisy
counts, or its noisy sum of residuals, judged by the share of ε that the plan says they cost; the
noisy histogram of scores and the first message likewise.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from client_app.releases import half_of
from hdpfl_flower import wire
from hdpfl_flower.config.profile import Training
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.record_moments import record_sum
from hdpfl_flower.measures.score_cells import count_cells
from hdpfl_flower.models.evaluation import predict_apart
from hdpfl_flower.models.networks import Arrays, arrays_of, build_model
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.privacy.audit import evidence_of, guesses_of
from hdpfl_flower.privacy.noise import RandomStream, ReleaseStreams
from hdpfl_flower.releases import asked_kind
from hdpfl_flower.releases.moments import Moments
from hdpfl_flower.releases.prior import Prior
from hdpfl_flower.releases.scores import Scores
from hdpfl_flower.system.devices import available_cores
from hdpfl_tools.site.audit import CLIP_NORM, Finding, _Advance, _threads
from tests.client_app.audits.personal import PUBLISHED, RULES, AuditedSite, own_site

RELEASES = 300
"""Releases with or without the one record, by a coin of their own."""
SUPPORT_EPSILON, HEAD_EPSILON = 1.0, 8.0
"""The claims: perfect guesses of so few prove little above 2, and a shift of some C shows best
beside little noise."""
MEASURED, _SHARE = 1_500, 0.5
"""Releases of a prior, which train nothing, and its share of ε."""
IMAGES = Task((196,), 10, "softmax")
RECORDS, BATCH, STEPS, LABELS = 300, 60, 5, 5
"""The setting of the published mask: 14 × 14 pixels, q = 0.2, five steps of the body."""
_EDGE = 16
"""Pixels at the end that are 0 in every record but one, as those at the edge of an image."""
REMOVED = 10
"""Records that are removed, one after another, to see whether the support changes."""
_POINTS, _OTHERS = Task((13,), 4, "softmax"), 30
PRIORS = _POINTS, Task((13,), 1, "squared")
"""Classes have counts, a regression the sum of its residuals."""
_SCALE, _RATE = 10.0, 10.0
"""What the hostile server scales the body by, and the learning rate."""
_SEARCHED = [(seed, zeros) for seed in range(4) for zeros in range(13, 17)]
"""Generators of points, and how many of the others have label 0: near a balance of both."""


def attack_support(
    training: Training, *, rule: str = PUBLISHED, advance: _Advance = lambda: None
) -> Finding:
    """Return what the support of one round's update shows of one record, under Poisson batches.

    Args:
        training: with the engine's device and the threads.
        rule: a name of :data:`tests.client_app.audits.personal.RULES`, with a mask.
        advance: called at the end.

    Raises:
        ModelError: the device is not there.
    """
    members = np.random.default_rng().random((1, RELEASES)) < 0.5  # seeded by the system
    scores = np.zeros((1, RELEASES))
    ordinary = images(np.random.default_rng(0), RECORDS - 1)
    one = _joined(ordinary, _edge_image())
    terms, start = _support_terms(rule, STEPS), _model("mlp:32", IMAGES)
    with (
        _threads(training.torch_threads or available_cores()),
        own_site(terms, IMAGES, training, SUPPORT_EPSILON, BATCH, RECORDS) as site,
    ):
        plan = site.paid_plan.plan
        for release, member in enumerate(members[0]):
            kept = support(site.over(one if member else ordinary), start)
            scores[0, release] = _out_of_order(kept, start)
    advance()
    # Without the record no weight is out of order.
    evidence = guesses_of(scores, members, 0.5, gaussian=False)
    return Finding(f"{rule}, support", plan, evidence, RELEASES, RECORDS)


def support(site: AuditedSite, start: Arrays) -> npt.NDArray[np.bool_]:
    """Return which shared coordinates a first round moves, shape ``(d,)``: those of the mask."""
    kept: npt.NDArray[np.bool_] = site.round(start, 1, store=False) != 0
    return kept


def images(generator: np.random.Generator, count: int) -> Records:
    """Return made-up images of five labels: a pattern a label, and noise; 0 at the edge."""
    patterns = generator.random((LABELS, IMAGES.input_shape[0])) < 0.3
    targets = generator.integers(0, LABELS, count)
    noise = generator.normal(0, 0.2, (count, IMAGES.input_shape[0]))
    features = np.clip(patterns[targets] + noise, 0, 1)
    features[:, -_EDGE:] = 0
    return Records(features.astype(np.float32), targets)


def _edge_image() -> Records:
    """Return the one record: it is white at the edge, and black everywhere else."""
    features = np.zeros((1, IMAGES.input_shape[0]), np.float32)
    features[:, -_EDGE:] = 1
    return Records(features, np.zeros(1, np.int64))


def _joined(records: Records, more: Records) -> Records:
    return Records(
        np.concatenate([records.features, more.features]),
        np.concatenate([records.targets, more.targets]),
    )


def _model(spec: str, task: Task) -> Arrays:
    return arrays_of(build_model(spec, task, seed=1))


def _support_terms(rule: str, steps: int) -> RunTerms:
    return RunTerms().updated(
        **{**RULES[rule], "work": {**RULES[rule]["work"], "own-steps": 1}},
        model="mlp:32", rounds=1, local_steps=steps + 1, clip_norm=1.0, learning_rate=1.0,
        evaluation="none",
    )  # fmt: skip


def _out_of_order(kept: npt.NDArray[np.bool_], start: Arrays) -> int:
    """Return how many weights on the edge's pixels no mask of the largest ones explains."""
    first = next(iter(start.values()))
    sizes = np.abs(first[:, -_EDGE:]).ravel()
    own = kept[: first.size].reshape(first.shape)[:, -_EDGE:].ravel()[np.argsort(-sizes)]
    # The least number of mistakes over all cuts: dropped before the cut, kept after it.
    dropped = np.concatenate([[0], np.cumsum(~own)])
    late = own.sum() - np.concatenate([[0], np.cumsum(own)])
    return int((dropped + late).min())


def attack_head(training: Training, *, advance: _Advance = lambda: None) -> Finding:
    """Return what FedRep's shared update shows of a record in the batches of the head alone.

    Raises:
        ModelError: the device is not there.
        AccountingError: a released number is not finite.
    """
    members = np.random.default_rng().random((1, RELEASES)) < 0.5  # seeded by the system
    scores = np.zeros((1, RELEASES))
    terms = RunTerms().updated(
        **RULES["fedrep"], model="mlp:8", rounds=1, local_steps=2, clip_norm=CLIP_NORM,
        learning_rate=_RATE, evaluation="none",
    )  # fmt: skip
    with (
        _threads(training.torch_threads or available_cores()),
        own_site(terms, _POINTS, training, HEAD_EPSILON, _OTHERS + 1, _OTHERS + 1) as opened,
    ):
        site = replace(opened, draw=_outside)
        plan = site.paid_plan.plan
        start, records, way = _worst(site)
        for release, member in enumerate(members[0]):
            scores[0, release] = (
                site.over(_with(records, member)).round(start, 1, store=False) @ way
            )
    advance()
    return Finding(
        "fedrep, outside the batch", plan, evidence_of(scores, members), RELEASES, _OTHERS + 1
    )


def attack_prior(task: Task, training: Training, *, advance: _Advance = lambda: None) -> Finding:
    """Return what the one release of a personal prior shows of one record.

    Args:
        task: with classes: counts of labels; a regression: the sum of residuals.
        training: with the engine's device and the threads.
        advance: called at the end.

    Raises:
        AccountingError: a released number is not finite.
    """
    members = np.random.default_rng().random((1, MEASURED)) < 0.5  # seeded by the system
    scores = np.zeros((1, MEASURED))
    # The last record has the first label, or a residual beyond the bound under a model of zeros.
    classes = bool(task.classes)
    targets = np.array([1, 1, 0]) if classes else np.array([0, 0, 1e6], np.float32)
    records = Records(np.zeros((3, *task.input_shape), np.float32), targets)
    terms = RunTerms().updated(
        model="logreg",
        rounds=1,
        local_steps=1,
        after={"prior": {"share": _SHARE}},
        evaluation="none",
    )
    with own_site(terms, task, training, HEAD_EPSILON, _OTHERS, _OTHERS) as site:
        plan, model = site.paid_plan.plan, _model("logreg", task)
        zeros = None if classes else {n: np.zeros_like(array) for n, array in model.items()}
        for release, member in enumerate(members[0]):
            sealed = half_of(Prior).prepare(site.over(_with(records, member)), plan, zeros)()
            scores[0, release] = wire.read_sealed(sealed)[0]
    advance()
    kind = "counts" if classes else "residuals"
    paid = replace(plan, epsilon=_SHARE * plan.epsilon)
    return Finding(f"prior, {kind}", paid, evidence_of(scores, members), MEASURED, len(records))


def attack_scores(training: Training, *, advance: _Advance = lambda: None) -> Finding:
    """Return what the run's one histogram of scores shows of one record that is held out.

    Raises:
        AccountingError: a released number is not finite.
    """
    members = np.random.default_rng().random((1, MEASURED)) < 0.5  # seeded by the system
    scores, task = np.zeros((1, MEASURED)), Task.classification((13,), 2)
    records = Records(np.zeros((3, 13), np.float32), np.array([1, 1, 0]))
    terms = RunTerms().updated(
        model="logreg",
        rounds=1,
        local_steps=1,
        after={"scores": {"share": _SHARE}},
        evaluation="none",
    )
    with own_site(terms, task, training, HEAD_EPSILON, _OTHERS, _OTHERS) as site:
        plan, model = site.paid_plan.plan, _model("logreg", task)
        outputs = predict_apart("logreg", task, model, records.features)
        place = count_cells(task, outputs[2:], records.targets[2:].astype(np.int64)).argmax()
        for release, member in enumerate(members[0]):
            sealed = half_of(Scores).prepare(site.over(_with(records, member)), plan, model)()
            scores[0, release] = wire.read_sealed(sealed)[place]
    advance()
    paid = replace(plan, epsilon=_SHARE * plan.epsilon)
    return Finding("scores", paid, evidence_of(scores, members), MEASURED, len(records))


def attack_first(content: str, training: Training) -> Finding:
    """Return what a run's one first message shows of one record, along its whole vector.

    Args:
        content: ``scales`` or ``table``.
        training: with the threads.

    Raises:
        AccountingError: a released number is not finite.
    """
    members = np.random.default_rng().random((1, MEASURED)) < 0.5  # seeded by the system
    scores, task = np.zeros((1, MEASURED)), Task.classification((13,), 2)
    records = Records(np.ones((3, 13), np.float32), np.array([1, 1, 0]))
    asks = {"first": {"moments": {"share": _SHARE, "content": content}}}
    terms = RunTerms().updated(model="logreg", rounds=1, local_steps=1, evaluation="none", **asks)
    kind = asked_kind(terms, Moments)
    if kind is None:
        raise RuntimeError("audit: no first message is asked for")
    layout = kind.layout(terms, task)
    line = record_sum(layout, records) - record_sum(layout, _with(records, last=False))
    with own_site(terms, task, training, HEAD_EPSILON, _OTHERS, _OTHERS) as site:
        plan = site.paid_plan.plan
        for release, member in enumerate(members[0]):
            sealed = half_of(Moments).prepare(site.over(_with(records, member)), plan, None)()
            scores[0, release] = wire.read_sealed(sealed) @ line
    paid = replace(plan, epsilon=_SHARE * plan.epsilon)
    return Finding(f"first, {content}", paid, evidence_of(scores, members), MEASURED, len(records))


def _worst(site: AuditedSite) -> tuple[Arrays, Records, npt.NDArray[np.float64]]:
    """Return a model and records of which the last moves the un-noised body most, and its way.

    All records are the same point, half of them with another label: what the last one adds to the
    head decides which half has a gradient left.
    """
    found, worst = 0.0, None
    clean = replace(site.paid_plan.plan, noise_multiplier=0.0)
    start = {n: array * np.float32(_SCALE) for n, array in _model("mlp:8", _POINTS).items()}
    for seed, zeros in _SEARCHED:
        point = np.random.default_rng(seed).normal(size=(1, 13)).astype(np.float32)
        labels = (np.arange(_OTHERS + 1) >= zeros).astype(np.int64)
        labels[-1] = 0
        records = Records(np.repeat(point, _OTHERS + 1, axis=0), labels)
        ends = [
            site.over(_with(records, one)).round(start, 1, clean, store=False)
            for one in (True, False)
        ]
        moved = (ends[0] - ends[1]).astype(np.float64)
        length = float(np.linalg.norm(moved))
        if length > found:
            found, worst = length, (records, moved / length)
    if worst is None:
        raise RuntimeError("audit: no record moves the body through the head")
    return start, *worst


def _with(records: Records, last: bool) -> Records:
    return records if last else records.take(np.arange(len(records) - 1))


class _Outside(RandomStream):
    """Batches of FedRep's two steps: everybody trains the head, and all but the last the body."""

    def __init__(self, key: bytes) -> None:
        super().__init__(key)
        self._steps = 0

    def bernoulli(self, count: int, probability: float) -> npt.NDArray[np.int64]:
        """Return the rows of a step's batch; those of the body are the first ``_OTHERS``."""
        del probability
        self._steps += 1
        return np.arange(count if self._steps == 1 else _OTHERS)


def _outside() -> ReleaseStreams:
    fresh = ReleaseStreams.fresh()
    return ReleaseStreams(_Outside(fresh.sampling.bytes(32)), fresh.noise)

"""Guard ``content``: each site's head rows, judged with public records.

Norms, distances and votes do not find poison that is quiet and well-formed, and under label skew
they mistake honest sites for it. Whatever its labels, honest training never moves records of class
a towards class c, nor lowers a's score on them (``head_content.py``). So each site is judged by
itself, from sums over its uploads: of the last one (ρ = 0), of the recent ones (S ← ρS + rows,
ρ = .7) and of all (ρ = 1).

- **Poison.** A content beyond ``TOLERANCE`` of the site's largest one on the wrong side of 0, by
  more standard errors than noise explains. Of sums alone that the public means explain: records of
  another distribution (turned images) have no content in them, nor have the later steps of a model
  that has learned the means.
- **Undone.** Rows against the contrast of the classes: the site undoes the teaching of its classes.
- **Idle.** A site with rows that move far less than the quieter sites' in as many steps would take
  the weight of a strategy that trusts quiet updates, and stop the learning. Where steps are known.

These are suspicion: ``max-liars`` bounds how many are refused over a run, and never half of a
round. A refusal stays. Beside that, the steps of a site that moves far more than the others are
shortened, and no site counts for more than ``QUIETEST`` times as precise as the one that is
quietest but for those that may still lie.

Thresholds: with Gaussian noise and honest training that no tolerance misjudges, a run refuses any
honest site with probability below ``FALSE_ALARMS``: a union over windows, rounds, sites and pairs,
half of it for contents, a quarter each for the contrast and for idleness. The noise is estimated:
quantiles are Student's, of as many degrees of freedom as silent sums were seen at least.

Known limits: f liars that mirror the f quietest sites are resolved only down to about 1/√(t·P) of
a step, P the summed precision of the rest and t the rounds. Labels changed within a
plausible mixture cannot be told from honest ones without trusted records. Poison in a network's
body, or beside the classes' means, is bounded by its length alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from hdpfl_flower.estimators.softmax_head import Head
from hdpfl_flower.linalg.threads import one_thread
from strategies.guards.head_content import (
    PublicMeans,
    content_scores,
    copies_of,
    fit_to_public,
    head_rows,
)

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.float32]

FALSE_ALARMS = 1e-3
"""Chance of any honest site's refusal by noise alone, per run."""
WINDOWS = (0.0, 0.7, 1.0)
"""Decay ρ of the sums: last upload, about three, all."""
TOLERANCE = 0.5
"""Share τ of a site's largest content below which it is the linear model's error. Honest sites of
MNIST at ε = 100 had .26 to .46 of iid, 3, 2 labels and Dirichlet .3 splits in one upload, and at
most .32 over all; one of 2 labels of the digits, tested independently, more than .35. Of three that
label 7 as 1 it was .75 to 1, of flipped labels 1."""
FOREIGN = 0.3
"""Ratio of squared lengths beside and along the class means that marks another distribution: .03 to
.14 for honest sites, .04 to .17 for liars by label, .5 to 1.7 for turned images."""
SURE = 3.0
"""Standard errors of that ratio against the guard's suspicion."""
AGAINST = 0.1
"""Tolerated share of a site's length against the contrast: honest sites, turned images among them,
have none; flipped labels .2, a colluders' min-max .19, reversed signs .9."""
IDLE, LONG = 0.4, 3.0
"""Length along the means per step, over the median of the quieter half: honest .57 to 2.8, one
label a site included."""
WIDEST = 10.0
"""Greatest ratio between two sites' unknown numbers of steps."""
QUIETEST = 4.0
"""Greatest precision of a site, relative to the (f + 1)-th quietest."""

POISON = "guard: content, its labels do not fit its records"
UNDONE = "guard: content, it undoes what its classes teach"
STANDS = "guard: content, its update hardly moves the model"
REASONS = (POISON, UNDONE, STANDS)
"""Permanent reasons for refusal of a site."""


@dataclass(frozen=True)
class ContentState:
    """Sums over uploads: m sites, w windows, c classes.

    Attributes:
        places: site → its place in the arrays of m rows.
        content: Y, shape ``(m, w, c, c)``.
        content_noise: the variances of Y[·, a], shape ``(m, w, c)``.
        against: −⟨rows, contrast⟩, shape ``(m, w)``.
        noise: the variances of a coordinate of the summed rows, shape ``(m, w)``.
        rows: S, the sums of the head rows, shape ``(m, w, c, inputs + 1)``.
        steps: the sum of the rounds' local steps, shape ``(m,)``.
        uploads: shape ``(m,)``.
        refused: 0, or 1 + the index of the reason in ``REASONS``, shape ``(m,)``.
    """

    places: dict[str, int] = field(default_factory=dict)
    content: Floats = field(default_factory=lambda: np.zeros((0, 0, 0, 0)))
    content_noise: Floats = field(default_factory=lambda: np.zeros((0, 0, 0)))
    against: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    noise: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    rows: Floats = field(default_factory=lambda: np.zeros((0, 0, 0, 0)))
    steps: Floats = field(default_factory=lambda: np.zeros(0))
    uploads: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    refused: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    def with_places(self, sites: Sequence[str], classes: int, width: int) -> ContentState:
        """Return a state with places for ``sites`` too; its arrays are copies."""
        places = dict(self.places)
        for site in sites:
            places.setdefault(site, len(places))
        m, w = len(places), len(WINDOWS)
        shapes = {
            "content": (m, w, classes, classes),
            "content_noise": (m, w, classes),
            "against": (m, w),
            "noise": (m, w),
            "rows": (m, w, classes, width),
            "steps": (m,),
            "uploads": (m,),
            "refused": (m,),
        }
        grown = {}
        for name, shape in shapes.items():
            former = getattr(self, name)
            grown[name] = np.zeros(shape, former.dtype)
            if len(former):
                grown[name][: len(former)] = former
        return replace(self, places=places, **grown)


@dataclass(frozen=True)
class Content:
    """Inputs of the content verdict of a run.

    Attributes:
        max_liars: f, sites refused at most over the run.
        rounds: of the run, for the thresholds.
    """

    max_liars: int
    rounds: int


@dataclass(frozen=True)
class Uploads:
    """A round's updates, a site a row.

    Attributes:
        sites: names that stay the same over the run.
        updates: float32, shape ``(n, d)``.
        noise: σ̂² of a coordinate of each, shape ``(n,)``; infinite: not known, and not judged.
        steps: local steps of each, shape ``(n,)``, NaN where not known; None: all unknown.
    """

    sites: Sequence[str]
    updates: Rows
    noise: Floats
    steps: Floats | None = None


@dataclass(frozen=True)
class _Lengths:
    """Bounds on the length of honest sites' sums, shape ``(n,)`` each.

    Attributes:
        least: NaN where nothing is known.
        usual: likewise infinite.
    """

    least: Floats
    usual: Floats


@dataclass(frozen=True)
class Judgement:
    """The result of a round's :func:`judge_content`.

    Attributes:
        state: after the round.
        refused: site → why.
        factors: of each update, 1 for nearly all, shape ``(n,)``.
        scores: the largest evidence against each site, over its threshold, shape ``(n,)``.
        fits: whether the public means explain a site's rows of all rounds, shape ``(n,)``.
    """

    state: ContentState
    refused: dict[str, str]
    factors: Floats
    scores: Floats
    fits: npt.NDArray[np.bool_]


def alarm_level(tests: float, freedom: float) -> float:
    """Return the level that t-distributed numbers exceed by that chance.

    Args:
        tests: how many numbers share ``FALSE_ALARMS``, in parts of it.
        freedom: degrees of freedom of the variance that they are divided by.

    Rounded up to hundredths. Over 200 rounds of 20 sites, 3 windows, 100 pairs of classes:

    >>> alarm_level(2 * 3 * 200 * 20 * 100, 1e6), alarm_level(4 * 3 * 200 * 20, 1e6)
    (6.14, 5.49)
    >>> alarm_level(2 * 3 * 200 * 20 * 100, 785)
    6.22
    """
    from scipy.special import stdtrit

    return math.ceil(-100 * float(stdtrit(freedom, FALSE_ALARMS / tests))) / 100


def bounded_precision(variances: Floats, suspects: int) -> Floats:
    """Return noise variances, none below 1/``QUIETEST`` of the (suspects + 1)-th least one.

    Of n sites less than half are suspects: where more lie, none of the others is a measure.

    >>> bounded_precision(np.array([1.0, 8.0, 16.0, 20.0]), 1)
    array([ 2.,  8., 16., 20.])
    """
    finite = np.sort(variances[np.isfinite(variances)])
    if not len(finite):
        return variances
    least = finite[min(suspects, (len(finite) - 1) // 2)] / QUIETEST
    bounded: Floats = np.maximum(variances, least)
    return bounded


def judge_content(
    state: ContentState, uploads: Uploads, head: Head, public: PublicMeans, settings: Content
) -> Judgement:
    """Return state, refused sites with reasons, and step limits.

    Args:
        state: after the last round, at first empty; not changed.
        uploads: of the round.
        head: where the last layer lies.
        public: public records under the round's model.
        settings: see there.

    Guarantees:
        At most ``settings.max_liars`` sites are refused over the run, and less than half of a
        round. A refusal stays.
    """
    sites, noise = uploads.sites, uploads.noise
    rows = head_rows(uploads.updates, head)
    after = state.with_places(sites, rows.shape[1], rows.shape[2])
    places = np.array([after.places[site] for site in sites])
    measured = np.isfinite(noise) & (noise > 0)
    steps = np.full(len(sites), np.nan) if uploads.steps is None else uploads.steps
    with one_thread():
        _add(after, places[measured], rows[measured], noise[measured] / copies_of(head), public)
        after.steps[places[measured]] += steps[measured]
        of_round = _RoundContent(after, places, head, public, settings)
        scores, reasons = of_round.scores()
    scores[~measured] = 0
    before = [int(after.refused[i]) for i in places]
    refused = {s: REASONS[r - 1] for s, r in zip(sites, before, strict=True) if r}
    left = settings.max_liars - int(np.count_nonzero(after.refused))
    left = min(left, (len(sites) - 1) // 2 - len(refused))
    for i in np.argsort(-scores, kind="stable"):
        if left > 0 and scores[i] > 1 and sites[i] not in refused:
            after.refused[places[i]] = 1 + reasons[i]
            refused[sites[i]] = REASONS[reasons[i]]
            left -= 1
    return Judgement(after, refused, of_round.factors(), scores, of_round.fit.fits)


def _add(
    state: ContentState, places: Ints, rows: Floats, noise: Floats, public: PublicMeans
) -> None:
    """Add a round's rows to the sums; ``state`` is changed in place."""
    content = rows @ public.inverse
    against = -np.sum(rows * public.contrast, axis=(1, 2))
    for window, decay in enumerate(WINDOWS):
        for sums, new, factor in (
            (state.content, content, decay),
            (state.content_noise, noise[:, None] * public.noise, decay**2),
            (state.against, against, decay),
            (state.noise, noise, decay**2),
            (state.rows, rows, decay),
        ):
            sums[places, window] = factor * sums[places, window] + new
    state.uploads[places] += 1


class _RoundContent:
    """One round's sites, by their sums up to it."""

    def __init__(
        self, state: ContentState, places: Ints, head: Head, public: PublicMeans, settings: Content
    ) -> None:
        self.state, self.at, self.public, self.settings = state, places, public, settings
        self.copies = copies_of(head)
        fits = [
            fit_to_public(
                state.rows[places, window],
                state.noise[places, window],
                public,
                FOREIGN,
                SURE,
                self.copies,
            )
            for window in range(len(WINDOWS))
        ]
        # Judged in each window alone: late in a run honest steps lie beside the means, too.
        self.explained, self.fit = np.stack([fit.fits for fit in fits], axis=1), fits[-1]
        # The standard deviation of a coordinate of the summed rows, and of how many of them the
        # length along the means is.
        self.chance = np.sqrt(state.noise[places, -1] * self.copies)
        self.free = head.classes * public.span.shape[1]
        self.freedom = _freedom(head, state.uploads[places])
        self.expected = self._expected()

    def scores(self) -> tuple[Floats, Ints]:
        """Return the greatest evidence against each site, relative to its level, and the reason."""
        state, places = self.state, self.at
        tests = len(WINDOWS) * self.settings.rounds * len(state.places)
        pairs = state.content.shape[-1] ** 2
        poison = content_scores(
            state.content[places], np.maximum(state.content_noise[places], _TINY), TOLERANCE
        ).max(axis=(2, 3))
        explained = np.linalg.norm(state.content[places] @ self.public.means, axis=(2, 3))
        spread = np.sqrt(np.maximum(state.noise[places] * self.copies, _TINY))
        undone = ((state.against[places] - AGAINST * explained) / spread).max(axis=1)
        level = np.array([alarm_level(4 * tests, freedom) for freedom in self.freedom])
        higher = np.array([alarm_level(2 * tests * pairs, freedom) for freedom in self.freedom])
        # Of noise alone the length has mean below √free, and exceeds it by z with a probability
        # below that of a normal number: it is a Lipschitz function of it.
        room = self.chance * (math.sqrt(self.free) + level)
        short = IDLE * self.expected.least - self.fit.explained
        evidence = np.stack(
            [
                np.where(self.explained, poison, 0.0).max(axis=1) / higher,
                undone / level,
                np.nan_to_num(short / np.maximum(room, _TINY), nan=0.0),
            ]
        )
        return np.maximum(evidence.max(axis=0), 0), evidence.argmax(axis=0)

    def factors(self) -> Floats:
        """Return factors that shorten long updates to the usual length."""
        least, usual = self._length(-SURE), self.expected.usual
        factors: Floats = np.ones(len(least))
        long = least > LONG * usual
        factors[long] = usual[long] / least[long]
        return factors

    def _expected(self) -> _Lengths:
        """Return bounds on the length of honest sites' sums.

        By the median of the quieter half of the sites: a step of theirs times the site's steps, or
        the median site's steps where these are fewer, or more: later steps add less. NaN and
        infinite where nothing is known.
        """
        state, places = self.state, self.at
        steps, uploads = state.steps[places], np.maximum(state.uploads[places], 1)
        judged = (state.refused[places] == 0) & (state.noise[places, -1] > 0)
        has_steps = np.isfinite(steps) & (steps > 0)
        if 2 * has_steps.sum() >= len(places):
            judged &= has_steps
        else:
            has_steps = np.zeros(len(places), np.bool_)
        counts = np.where(has_steps, steps, uploads)
        if judged.sum() < _FEWEST:
            return _Lengths(np.full(len(places), np.nan), np.full(len(places), np.inf))
        a_step = self.chance / counts
        quiet = judged & (a_step <= np.median(a_step[judged]))
        least = np.median(self._length(-SURE)[quiet] / counts[quiet])
        most = np.median(self._length(SURE)[quiet] / counts[quiet])
        usual = np.median(counts[judged] / uploads[judged]) * uploads
        low = np.where(has_steps, least * np.minimum(counts, usual), np.nan)
        high = most * np.maximum(counts, usual) * np.where(has_steps, 1.0, WIDEST)
        return _Lengths(low, high)

    def _length(self, sure: float) -> Floats:
        """Return noise-free lengths of the sums, moved by so many standard errors."""
        free, noise = self.free, self.chance**2
        square = self.fit.explained**2
        doubt = np.sqrt(2 * free * noise**2 + 4 * noise * square)
        lengths: Floats = np.sqrt(np.maximum(square - free * noise + sure * doubt, 0))
        return lengths


_TINY = float(np.finfo(np.float64).tiny)
_FEWEST = 4
"""Least number of sites for a verdict on unusual length."""


def _freedom(head: Head, uploads: Ints) -> Floats:
    """Return a lower bound on the noise estimates' degrees of freedom, ``(n,)``.

    Of the silent sums so far, one an input and upload. A logit has none: there are the differences
    of its uploads, of which m have the worth of 2m/3.
    """
    inputs = head.inputs + 1
    if head.classes == 1:
        return np.maximum(inputs * (uploads - 1) * 2 / 3, 1.0)
    return np.maximum(inputs * uploads, 1).astype(np.float64)

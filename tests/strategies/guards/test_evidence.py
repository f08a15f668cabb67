"""The evidence guard: every attack is found, and nobody is refused where nobody lies.

Sites are drawn as at Dist2 of the Robust-HDP paper: noise that differs fortyfold, a signal far
below it, and fewer coordinates than a real model, so that it is fast.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import chi2

from hdpfl_flower.estimators.softmax_head import Head
from strategies.core.strategy_state import save_state
from strategies.guards.bounds import REPEATS
from strategies.guards.evidence import (
    AGAINST,
    ALIKE,
    STRENGTH,
    Evidence,
    EvidenceState,
    alarm_at_once,
    alarm_level,
    weigh_evidence,
)
from strategies.guards.proof import QUIET, SHARED

Rows = npt.NDArray[np.float32]
N, CLASSES, INPUTS = 20, 10, 199
D = CLASSES * (INPUTS + 1)
HEAD = Head(0, CLASSES, INPUTS)
LIARS = (3, 7)
ROUNDS = 12
TERMS = Evidence(max_liars=2, rounds=ROUNDS)
EMPTY = EvidenceState()


class Federation:
    """Rounds of honest updates: ``clean[i]`` in one direction, and noise of each site's own."""

    def __init__(self, seed: int, n: int = N, signal: float = 20.0, fading: float = 0.9) -> None:
        self.generator = np.random.default_rng(seed)
        self.stds = 10 ** self.generator.uniform(-2.6, -1, n)
        self.ratios = self.generator.uniform(0.4, 1.6, n) * signal
        self.n, self.fading = n, fading

    def rounds(self, count: int = ROUNDS) -> Iterator[tuple[Rows, Rows]]:
        """Yield (clean, honest) of each round, each shape (n, d); the signal fades."""
        for t in range(count):
            layer = self.generator.standard_normal((CLASSES, INPUTS + 1))
            layer -= layer.mean(0)  # a softmax layer's gradient adds up to 0 over the classes
            step = np.concatenate([layer[:, :-1].ravel(), layer[:, -1]])
            step /= np.linalg.norm(step)
            clean = (self.stds * self.ratios * self.fading**t)[:, None] * step
            noise = self.stds[:, None] * self.generator.standard_normal((self.n, D))
            yield clean.astype(np.float32), (clean + noise).astype(np.float32)


Lie = Callable[[Rows, Rows, np.random.Generator], dict[int, Rows]]
"""(clean, honest, generator) → the liars' rows."""


def minus(factor: float) -> Lie:
    return lambda clean, honest, generator: {i: -factor * clean[i] for i in LIARS}


def hidden(factor: float) -> Lie:
    return lambda clean, honest, generator: {i: honest[i] - (factor + 1) * clean[i] for i in LIARS}


def jittered(plain: Callable[[Rows, Rows], Rows]) -> Lie:
    def lie(clean: Rows, honest: Rows, generator: np.random.Generator) -> dict[int, Rows]:
        leader = plain(clean, honest)
        jitter = generator.standard_normal((len(LIARS), D)).astype(np.float32)
        return {
            i: leader * (1 + np.float32(1e-3) * row) for i, row in zip(LIARS, jitter, strict=True)
        }

    return lie


LIES: dict[str, tuple[Lie, set[str]]] = {
    "minus-1": (minus(1), {AGAINST}),
    "minus-5": (minus(5), {AGAINST}),
    "minus-50": (minus(50), {AGAINST}),
    "minus-5 hidden": (hidden(5), {AGAINST}),
    "minus-1 hidden": (hidden(1), {AGAINST}),
    "minus-5 jittered": (jittered(lambda c, _: -5 * c[3]), {AGAINST}),
    "one hidden minus-5, jittered": (jittered(lambda c, u: u[3] - 6 * c[3]), {SHARED, AGAINST}),
    "one honest update, jittered": (jittered(lambda _, u: u[3]), {SHARED, ALIKE}),
    "one constant, jittered": (
        jittered(lambda _, u: np.full(D, np.std(u[3]), np.float32)),
        {SHARED, ALIKE, AGAINST}),
    "tiny": (lambda c, u, _: {i: 1e-3 * u[i] for i in LIARS}, {STRENGTH}),
    "amplified": (lambda c, u, _: {i: np.float32(5e3) * c[i] for i in LIARS}, {STRENGTH}),
}  # fmt: skip


def run(
    federation: Federation, lie: Lie | None = None, head: Head | None = HEAD,
    terms: Evidence = TERMS, count: int = ROUNDS,
) -> list[dict[str, str]]:  # fmt: skip
    """Return each round's refusals."""
    state = EMPTY
    refusals = []
    names = [f"site-{i}" for i in range(federation.n)]
    for clean, honest in federation.rounds(count):
        for i, row in (lie(clean, honest, federation.generator) if lie else {}).items():
            honest[i] = row
        state, refused, _ = weigh_evidence(state, names, honest, terms, head)
        refusals.append(refused)
    return refusals


@pytest.mark.parametrize("head", [HEAD, None], ids=["head", "no head"])
@pytest.mark.parametrize("name", LIES)
def test_both_liars_are_refused_in_the_end_and_nobody_else_ever(
    name: str, head: Head | None
) -> None:
    lie, reasons = LIES[name]
    refusals = run(Federation(1), lie, head, count=6)
    assert set(refusals[-1]) == {"site-3", "site-7"}
    assert set().union(*refusals) == {"site-3", "site-7"}
    assert set(refusals[-1].values()) <= reasons - ({ALIKE} if head else {SHARED})


@pytest.mark.parametrize("name", ["minus-5", "minus-50", "minus-5 hidden", "minus-5 jittered"])
def test_what_ruins_a_model_in_one_round_is_refused_in_the_first(name: str) -> None:
    assert set(run(Federation(2), LIES[name][0], count=1)[0]) == {"site-3", "site-7"}


def test_a_weak_lie_is_found_by_evidence_over_rounds() -> None:
    """No round shows enough by itself, and 12 do."""
    federation = Federation(3, signal=5, fading=1.0)
    federation.ratios[list(LIARS)] = 6.0
    refusals = run(federation, hidden(1))
    assert not any(refusals[:2])
    assert set().union(*refusals) == {"site-3", "site-7"}


def test_colluders_cannot_vouch_for_each_other() -> None:
    """Two quiet updates without noise agree √d times as well as noise does; the honest barely."""
    refusals = run(Federation(14, signal=3, fading=1.0), minus(1), count=6)
    assert set(refusals[-1]) == {"site-3", "site-7"}


def test_the_refused_have_no_vote() -> None:
    """The others' alignment is what it were if the liars had never been asked."""
    names = [str(i) for i in range(N)]
    clean, honest = next(Federation(15).rounds())
    honest[list(LIARS)] = -5 * clean[list(LIARS)]
    _, refused, gauges = weigh_evidence(EMPTY, names, honest, TERMS, HEAD)
    assert set(refused) == {"3", "7"}
    rest = [i for i in range(N) if i not in LIARS]
    _, _, alone = weigh_evidence(EMPTY, [names[i] for i in rest], honest[rest], TERMS, HEAD)
    np.testing.assert_allclose(gauges["alignment"][rest], alone["alignment"], rtol=1e-9)


def test_a_site_that_turns_is_found() -> None:
    """Rounds of good behaviour buy nothing: a CUSUM forgets what speaks for a site."""
    state, federation = EMPTY, Federation(4, signal=8, fading=1.0)
    names = [str(i) for i in range(N)]
    for t, (clean, honest) in enumerate(federation.rounds()):
        if t >= 5:
            honest[3] -= 2 * clean[3]
        state, refused, _ = weigh_evidence(state, names, honest, TERMS, HEAD)
        assert set(refused) <= {"3"}
        assert t >= 5 or not refused
    assert refused


@pytest.mark.parametrize("head", [HEAD, None], ids=["head", "no head"])
def test_nobody_is_refused_where_nobody_lies(head: Head | None) -> None:
    for seed, signal in enumerate((20.0, 20.0, 5.0, 60.0)):
        assert not any(run(Federation(10 + seed, signal=signal), head=head))


def alarms(generator: np.random.Generator, copies: int, runs: int) -> int:
    """Return how many runs of pure noise, honest sites' worst case, refuse anyone."""
    found = 0
    for _ in range(runs):
        state = EMPTY
        for _ in range(ROUNDS):
            noise = generator.standard_normal((N, 240 // copies)).astype(np.float32)
            rows = np.repeat(noise, copies, axis=1)
            state, refused, _ = weigh_evidence(state, [str(i) for i in range(N)], rows, TERMS)
        found += bool(refused)
    return found


def test_pure_noise_alarms_no_more_often_than_stated_and_more_at_a_wrong_scale() -> None:
    """25 runs × 1e-3 = .025 alarms at most: 3 or more by chance 3e-6.

    Repeated coordinates, of which the guard counts 8 for one, spread z by √8.
    """
    assert alarms(np.random.default_rng(5), 1, 25) <= 2
    assert alarms(np.random.default_rng(5), 8, 8) > 2


def test_the_alignment_of_pure_noise_has_variance_one() -> None:
    """χ² of 300 independent rounds, 1e-5 a side; a z too wide or narrow by 1.3 is rejected."""
    generator, z = np.random.default_rng(6), []
    for _ in range(300):
        rows = generator.standard_normal((8, 300)).astype(np.float32)
        names = [str(i) for i in range(8)]
        z.append(weigh_evidence(EMPTY, names, rows, TERMS)[2]["alignment"][0])
    total = float(np.sum(np.square(z)))
    low, high = chi2.ppf([1e-5, 1 - 1e-5], 300)
    assert low < total < high
    assert not low < total * 1.3**2 < high
    assert not low < total / 1.3**2 < high


def test_the_level_of_alarm() -> None:
    """n·T·e^(−2h) and n·T·Φ(z) are half of 1e-3 each."""
    assert 20 * 12 * np.exp(-2 * alarm_level(20, 12)) == pytest.approx(5e-4)
    assert 20 * 12 * NormalDist().cdf(alarm_at_once(20, 12)) == pytest.approx(5e-4)


def test_no_more_than_max_liars_are_refused_and_the_loudest_first() -> None:
    for most in (0, 1):
        for lie in (minus(5), LIES["tiny"][0]):
            refusals = run(Federation(7), lie, terms=Evidence(most, ROUNDS), count=3)
            assert [len(refused) for refused in refusals] == [most] * 3


def test_five_sites_hold_two_liars_who_turn_one_after_the_other() -> None:
    """The second is one of four; that one of five went before takes nothing off the majority."""
    federation, state = Federation(16, 5, signal=40), EMPTY
    for t, (clean, honest) in enumerate(federation.rounds(4)):
        for i in (1, 3)[: 1 + t // 2]:
            honest[i] -= 6 * clean[i]
        state, refused, _ = weigh_evidence(state, list("abcde"), honest, TERMS, HEAD)
    assert set(refused) == {"b", "d"}


def test_a_minority_cannot_be_told_among_three() -> None:
    """Of three who came, one may be refused; of two, none; of four, not two that are alike."""
    federation = Federation(8, 3, signal=40)
    clean, honest = next(federation.rounds())
    honest[1] = -5 * clean[1]
    terms = Evidence(2, ROUNDS)
    _, refused, _ = weigh_evidence(EMPTY, ["a", "b", "c"], honest, terms, HEAD)
    assert set(refused) <= {"b"}
    _, refused, _ = weigh_evidence(EMPTY, ["a", "b"], honest[:2], terms, HEAD)
    assert refused == {}
    (_, before), (clean, honest) = Federation(8, 20, signal=40).rounds(2)
    names = [str(i) for i in range(20)]
    state, _, _ = weigh_evidence(EMPTY, names, before, terms, HEAD)
    other = np.float32(np.sqrt(3)) * np.roll(clean[0], 1)
    honest[1:3] = (other - clean[0]) / 2, (-other - clean[0]) / 2  # each against both others
    _, refused, _ = weigh_evidence(state, names[:3], honest[:3], terms)
    assert list(refused.values()) == [AGAINST]  # one of those who came, however many are known
    _, honest = next(Federation(8, 4).rounds())
    honest[1] = honest[0] * np.float32(1.001)
    assert (
        weigh_evidence(EMPTY, ["a", "b", "c", "d"], honest, terms)[1] == {}
    )  # likeness: suspicion
    found = weigh_evidence(EMPTY, ["a", "b", "c", "d"], honest, terms, HEAD)[1]
    assert found == {"a": SHARED, "b": SHARED}  # shared noise: proof


def test_who_hardly_changes_its_upload_is_refused_though_it_jitters() -> None:
    federation = Federation(9)
    state = EMPTY
    names = [str(i) for i in range(N)]
    for t, (_, honest) in enumerate(federation.rounds(4)):
        if t == 0:
            first = honest[5].copy()
        jitter = federation.generator.standard_normal(D).astype(np.float32)
        honest[5] = first * (1 + np.float32(1e-3) * jitter)
        state, refused, _ = weigh_evidence(state, names, honest, TERMS, HEAD)
        assert refused == ({"5": REPEATS} if t else {})


@pytest.mark.parametrize("head", [HEAD, None], ids=["head", "no head"])
def test_less_noise_than_the_floor_is_refused(head: Head | None) -> None:
    """An honest site exactly at the floor passes, by the stated 5 standard deviations."""
    federation = Federation(10)
    federation.stds = np.full(N, 0.01)
    floor = Evidence(2, ROUNDS, noise_floor=0.01)
    for _, honest in federation.rounds(4):
        honest[4] *= np.float32(0.5)
        _, refused, _ = weigh_evidence(EMPTY, [str(i) for i in range(N)], honest, floor, head)
        assert refused == {"4": QUIET}


def test_sites_come_and_go_and_the_refused_stay_refused() -> None:
    federation, state = Federation(11), EMPTY
    turns = ([3, 7, 0, 1, 2, 4, 5], range(N), [2, 3, 7, 12], [7, 3])
    for t, ((clean, honest), turn) in enumerate(zip(federation.rounds(4), turns, strict=True)):
        rows = list(turn)
        honest[[3, 7]] = -5 * clean[[3, 7]] * np.array([[1], [1.1]], np.float32)
        before = copy.deepcopy(state)
        kept = honest.copy()
        new, refused, gauges = weigh_evidence(
            state, [str(i) for i in rows], honest[rows], TERMS, HEAD
        )
        assert set(refused) == {"3", "7"}, t
        assert gauges["evidence"].shape == gauges["alignment"].shape == (len(rows),)
        np.testing.assert_array_equal(honest, kept)
        assert saved(state) == saved(before), "the state before was changed"
        state = new
    assert list(state.places) == [str(i) for i in turns[0]] + [
        str(i) for i in range(N) if i not in turns[0]
    ]
    assert state.proof.sketches.keys() == state.places.keys()
    assert np.isfinite(state.votes).all()
    assert np.isfinite(state.gains).all()


def saved(state: EvidenceState) -> tuple[str, dict[str, bytes]]:
    """Return what a checkpoint stores of ``state``."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    facts = json.dumps(save_state(state, arrays))
    return facts, {name: array.tobytes() for name, array in arrays.items()}

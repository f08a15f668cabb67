"""The content guard: poison is found, honest sites of any labels stay, thresholds are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from hdpfl_flower.estimators.softmax_head import Head
from strategies.guards import content
from strategies.guards.content import (
    POISON,
    STANDS,
    UNDONE,
    Content,
    ContentState,
    Judgement,
    Uploads,
    bounded_precision,
    judge_content,
)
from strategies.guards.head_content import Fit, PublicMeans, fit_to_public, public_means

Rows = npt.NDArray[np.float32]
N, CLASSES, INPUTS, ROUNDS, RECORDS = 10, 4, 40, 8, 60
HEAD = Head(0, CLASSES, INPUTS)
SIGMA = 0.02
TERMS = Content(max_liars=2, rounds=ROUNDS)
SITES = [f"site-{i}" for i in range(N)]
MIDDLES = 1 + np.random.default_rng(0).standard_normal((CLASSES, INPUTS))
LIARS = ("site-3", "site-7")


def records(
    generator: np.random.Generator, labels: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    return MIDDLES[labels] + 0.5 * generator.standard_normal((len(labels), INPUTS))


def means() -> PublicMeans:
    labels = np.arange(400) % CLASSES
    found = public_means(
        records(np.random.default_rng(1), labels).astype(np.float32), labels, CLASSES
    )
    assert found is not None
    return found


PUBLIC = means()
Lie = Callable[[npt.NDArray[np.float64], npt.NDArray[np.int64]], npt.NDArray[np.float64]]


def learnt(features: npt.NDArray[np.float64], labels: npt.NDArray[np.int64]) -> Any:
    """Return the rows of a step of mean gradients, shape ``(classes, inputs + 1)``."""
    x = np.concatenate([features, np.ones((len(features), 1))], axis=1)
    return (np.eye(CLASSES)[labels] - 1 / CLASSES).T @ x / len(x)


LIES: dict[str, Lie] = {
    "honest": learnt,
    "one label more": lambda x, y: learnt(x, np.where(y == 2, 1, y)),
    "all labels": lambda x, y: learnt(x, (y + 1) % CLASSES),
    "reversed": lambda x, y: -learnt(x, y),
    "little against": lambda x, y: -0.2 * learnt(x, y),
    "idle": lambda x, y: 0.1 * learnt(x, y),
    "inflated": lambda x, y: 5 * learnt(x, y),
}


def rounds(
    lie: str, seed: int = 1, sigma: float = SIGMA, held: int = CLASSES, turned: bool = False
) -> Iterator[Rows]:
    """Yield the updates of each round: ``held`` labels a site, the lie of the liars among them."""
    generator = np.random.default_rng(seed)
    order = np.random.default_rng(9).permutation(INPUTS)
    for _ in range(ROUNDS):
        rows = []
        for i, site in enumerate(SITES):
            labels = (i + np.arange(RECORDS) % held) % CLASSES
            x = records(generator, labels)
            if turned and i % 2:
                x = x[:, order]
            update = LIES[lie if site in LIARS else "honest"](x, labels)
            update = update + sigma * generator.standard_normal(update.shape)
            rows.append(np.concatenate([update[:, :-1].ravel(), update[:, -1]]))
        yield np.array(rows, np.float32)


def uploads(updates: Rows, sigma: float = SIGMA, **more: Any) -> Uploads:
    more = {"steps": np.full(len(updates), 10.0)} | more
    return Uploads(SITES[: len(updates)], updates, np.full(len(updates), sigma**2), **more)


def judged(lie: str, terms: Content = TERMS, sigma: float = SIGMA, **more: Any) -> list[Judgement]:
    state, found = ContentState(), []
    for updates in rounds(lie, sigma=sigma, **more):
        found.append(judge_content(state, uploads(updates, sigma), HEAD, PUBLIC, terms))
        state = found[-1].state
    return found


@pytest.mark.parametrize(
    ("lie", "why"),
    [
        ("one label more", POISON),
        ("all labels", POISON),
        ("reversed", UNDONE),
        ("little against", UNDONE),
        ("idle", STANDS),
    ],
)
def test_liars_are_refused_and_nobody_else(lie: str, why: str) -> None:
    assert judged(lie)[-1].refused == dict.fromkeys(LIARS, why)


def test_a_lie_below_the_noise_of_a_round_is_found_by_the_sums() -> None:
    found = judged("one label more", sigma=0.21)
    assert found[0].refused == {}
    assert found[-1].refused == dict.fromkeys(LIARS, POISON)


@pytest.mark.parametrize("held", [1, 2, CLASSES])
@pytest.mark.parametrize("sigma", [1e-4, SIGMA, 1.0])
def test_honest_sites_stay_whatever_labels_they_hold(held: int, sigma: float) -> None:
    for found in judged("honest", held=held, sigma=sigma):
        assert found.refused == {}
        assert found.factors.tolist() == [1.0] * N
        assert found.scores.max() < 1


def test_no_more_than_max_liars_are_refused_and_the_worst_first() -> None:
    (first, *_) = rounds("reversed")
    first[0] = 3 * first[3]
    found = judge_content(ContentState(), uploads(first), HEAD, PUBLIC, Content(1, ROUNDS))
    assert found.refused == {"site-0": UNDONE}
    again = judge_content(found.state, uploads(first), HEAD, PUBLIC, Content(1, ROUNDS))
    assert again.refused == {"site-0": UNDONE}


def test_never_half_of_a_round_is_refused() -> None:
    (first, *_) = rounds("honest")
    found = judge_content(ContentState(), uploads(-first), HEAD, PUBLIC, Content(N, ROUNDS))
    assert len(found.refused) == (N - 1) // 2


def test_without_known_steps_nobody_is_idle_and_ten_times_the_steps_are_no_inflation() -> None:
    (idle, *_) = rounds("idle")
    (longer, *_) = rounds("inflated")
    for updates in (idle, longer):
        found = judge_content(ContentState(), uploads(updates, steps=None), HEAD, PUBLIC, TERMS)
        assert found.refused == {}
        assert found.factors.tolist() == [1.0] * N


@pytest.mark.parametrize(("stated", "least", "most"), [(1.0, 0, 8), (0.7, 12, 12)])
def test_noise_alone_refuses_as_seldom_as_stated(
    monkeypatch: pytest.MonkeyPatch, stated: float, least: int, most: int
) -> None:
    """At a level for half a site a run; where the noise is stated too small, in every run.

    Of 12 runs at most 6 are expected, by the union, and 9 or more have a chance of .07 at that.
    """
    monkeypatch.setattr(content, "FALSE_ALARMS", 0.5)
    monkeypatch.setattr(content, "TOLERANCE", 0.0)
    monkeypatch.setattr(content, "fit_to_public", explained)
    runs = 0
    for seed in range(12):
        generator, state, worst = np.random.default_rng(seed), ContentState(), 0.0
        for _ in range(ROUNDS):
            rows = SIGMA * generator.standard_normal((N, CLASSES * (INPUTS + 1)))
            given = uploads(rows.astype(np.float32), stated * SIGMA)
            found = judge_content(state, given, HEAD, PUBLIC, Content(0, ROUNDS))
            state, worst = found.state, max(worst, float(found.scores.max()))
        runs += worst > 1
    assert least <= runs <= most


def explained(*given: Any) -> Fit:
    """Return that public means explain everybody, as they never do noise alone."""
    found = fit_to_public(*given)
    return Fit(found.explained, np.ones_like(found.fits))


def test_nobody_is_believed_to_be_far_quieter_than_those_who_may_not_lie() -> None:
    variances = np.array([1e-6, 1e-6, 1.0, 2.0, 3.0, np.inf])
    assert bounded_precision(variances, 2).tolist() == [0.25, 0.25, 1.0, 2.0, 3.0, np.inf]
    assert bounded_precision(variances, 0).tolist() == variances.tolist()
    assert bounded_precision(variances[:2], 5).tolist() == [1e-6, 1e-6]
    assert bounded_precision(np.full(2, np.inf), 1).tolist() == [np.inf] * 2

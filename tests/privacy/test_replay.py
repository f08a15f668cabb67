"""D and D ± one record look the same to the server, under every model and engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hdpfl_flower import wire
from tests.client_app.messages import ask_with_offset
from tests.privacy.conftest import Play
from tests.privacy.replay import Observed, Rows, check_neighbours, check_noise, observe, same
from tests.privacy.sites import DECLARED, digits, make_site, terms_of, with_one_more, without

SMALL = [
    ("logreg", "linear"), ("logreg", "bookkeeping"), ("logreg", "vmap"), ("logreg", "opacus"),
    ("mlp:16", "bookkeeping"), ("mlp:16", "vmap"), ("mlp:16", "opacus"),
    ("cnn", "bookkeeping"), ("cnn", "vmap"), ("cnn", "opacus"),
    ("tests.privacy.nets:layer_norm", "vmap"), ("tests.privacy.nets:layer_norm", "opacus"),
]  # fmt: skip
LARGE = [("resnet18", engine) for engine in ("bookkeeping", "vmap")]
CASES = [*SMALL, *(pytest.param(*case, marks=pytest.mark.slow) for case in LARGE)]
REMOVED = 5


def keep(rows: Rows) -> Rows:
    """Return the rows of a batch that the row to be removed is always in."""
    return np.union1d(rows, [REMOVED])


def drop(rows: Rows) -> Rows:
    """Return the rows of a batch after row ``REMOVED`` was taken out of the data."""
    kept = rows[rows != REMOVED]
    return kept - (kept > REMOVED)


def join(rows: Rows) -> Rows:
    """Return the rows of a batch that the new last record is always in."""
    return np.append(rows, DECLARED)


@pytest.mark.parametrize(("model", "engine"), CASES)
def test_one_record_less_changes_sums_alone(play: Play, model: str, engine: str) -> None:
    records = digits(DECLARED)
    fewer = without(records, REMOVED)
    few: dict[str, Any] = {"rounds": 1, "local-steps": 1}
    terms = terms_of(model, **(few if (model, engine) in LARGE else {}))
    play(terms, records, fewer, rows=keep, rows_of=drop, engine=engine)


@pytest.mark.parametrize("engine", ["linear", "vmap"])
def test_under_an_offset_one_record_changes_sums_alone(tmp_path: Path, engine: str) -> None:
    """Of the same rows and noise: the noisy sums that follow an offset hide a record as well."""
    records, terms = digits(DECLARED), terms_of()
    first = observe(
        make_site(tmp_path / "one", records, engine=engine), terms, rows_of=keep,
        ask=ask_with_offset,
    )  # fmt: skip
    site = make_site(tmp_path / "other", without(records, REMOVED), engine=engine)
    check_neighbours(first, observe(site, terms, first, drop, ask_with_offset))
    check_noise(first, terms.clip_norm)


@pytest.mark.parametrize(
    "value", [0.0, 1.0, 1e30, 3e38, 1e-30, np.nan, np.inf], ids=lambda value: f"{value:g}"
)
@pytest.mark.parametrize(
    ("model", "engine"), [("logreg", "linear"), ("cnn", "bookkeeping"), ("cnn", "vmap"),
                          ("mlp:16", "opacus")]
)  # fmt: skip
def test_an_added_record_is_arbitrary(play: Play, model: str, engine: str, value: float) -> None:
    """A huge record moves its own share of the sum and nothing else; no number, no record."""
    records = digits(DECLARED)
    more = with_one_more(records, np.float32(value))
    rows_of = join if np.isfinite(value) else same
    play(terms_of(model), records, more, rows_of=rows_of, engine=engine)


@pytest.mark.parametrize("target", [10, -1, 99])
def test_a_label_that_the_task_does_not_know_tells_nothing(play: Play, target: int) -> None:
    """The site reads it, so the record is not in the data at all: no code, no shape, no word."""
    records = digits(DECLARED)
    _, other = play(terms_of(), records, with_one_more(records, np.float32(0.5), target))
    assert {step.count for step in other.steps} == {DECLARED}


@pytest.mark.parametrize("count", [0, 1, 5 * DECLARED])
def test_the_number_of_records_is_no_public_quantity(tmp_path: Path, count: int) -> None:
    """Any number of neighbours away, the public quantities are still those of the profile."""
    terms = terms_of()
    first = observe(make_site(tmp_path / "one", digits(DECLARED)), terms)
    empty = lambda rows: rows[:0]  # noqa: E731
    other = observe(make_site(tmp_path / "other", digits(count)), terms, first, empty)
    assert other.replies == first.replies
    assert other.ledger == first.ledger
    assert other.plan == first.plan
    assert [s.probability for s in other.steps] == [s.probability for s in first.steps]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Observed:
    profile = make_site(tmp_path_factory.mktemp("watched") / "site", digits(DECLARED))
    return observe(profile, terms_of("mlp:16"))


def test_the_noise_is_that_of_the_plan_that_was_charged(watched: Observed) -> None:
    check_noise(watched, terms_of().clip_norm)


@pytest.mark.parametrize("mutant", ["2/3", "3/2", "a silent step", "the same in two steps",
                                    "the same in two layers"])  # fmt: skip
def test_the_check_of_noise_rejects_other_noise(watched: Observed, mutant: str) -> None:
    std = watched.plan.noise_multiplier * terms_of().clip_norm
    noise = [(s.noisy - s.total) / std for s in watched.steps]
    half = len(noise[0]) // 2
    changed = {
        "2/3": [n * 2 / 3 for n in noise],
        "3/2": [n * 3 / 2 for n in noise],
        "a silent step": [noise[0] * 0, *noise[1:]],
        "the same in two steps": [noise[1], *noise[1:]],
        "the same in two layers": [np.concatenate([n[:half], n[: len(n) - half]]) for n in noise],
    }[mutant]
    steps = [
        replace(step, noisy=step.total + std * n)
        for step, n in zip(watched.steps, changed, strict=True)
    ]
    with pytest.raises(AssertionError):
        check_noise(replace(watched, steps=steps), terms_of().clip_norm)


def test_an_empty_batch_is_noised_like_any_other(tmp_path: Path) -> None:
    """q = 1/48 over two rounds of 48 steps: a third of the batches is empty."""
    profile = make_site(tmp_path / "site", digits(DECLARED), batch=1)
    observed = observe(profile, terms_of())
    assert any(len(step.rows) == 0 for step in observed.steps)
    assert len(observed.steps) == sum(steps.count for steps in observed.plan.steps) == 96
    check_noise(observed, terms_of().clip_norm)


def test_a_round_moves_by_its_noisy_sums_over_the_constant_divisor(tmp_path: Path) -> None:
    """θ ← θ − (η/b)·Σ noisy sums, whatever the batches were."""
    terms = terms_of()
    observed = observe(make_site(tmp_path / "site", digits(DECLARED)), terms)
    count = observed.plan.steps[0].count
    total = np.sum([step.noisy.astype(float) for step in observed.steps[:count]], axis=0)
    expected = -terms.learning_rate / observed.plan.divisor * total
    reply = observed.replies[0]["ArrayRecord update.update"]
    assert isinstance(reply, tuple)
    assert reply[:2] == ("float32", expected.shape)
    update = np.frombuffer(reply[3][-4 * expected.size :], np.float32)
    # float32 steps: `count` roundings of numbers as large as the model and the update
    largest = np.abs(expected).max() + 1
    np.testing.assert_allclose(update, expected, atol=2 * count * largest * 2.0**-24, rtol=0)


def test_what_the_server_sees_is_what_wire_lists(watched: Observed) -> None:
    update, _, joined, metrics, finished = watched.replies
    assert set(update) == {"ArrayRecord update", "ArrayRecord update.update"}
    assert joined == finished == {"MetricRecord site": 0}
    assert metrics == {"code": wire.DECLINED, "reason": "declined"}

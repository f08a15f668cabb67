"""MMSE averaging: its weights from the formula, and what they do where others fail."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.estimators.client_bias import differences, least_error_weights
from hdpfl_flower.estimators.departure import Departure
from hdpfl_flower.estimators.softmax_head import Head
from hdpfl_flower.monitoring.influence import Influence
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import Outcome, RoundUpdates
from hdpfl_flower.weighting import least_error
from hdpfl_flower.weighting.by_records import stretches, weighted_rows
from server_app.run.rounds import round_facts
from strategies import make_kernel
from strategies.core.round_messages import RoundReport
from strategies.noise_aware.mmse import MMSE, OneWeightMMSE

N, CLASSES, INPUTS = 12, 5, 99
SIZE = CLASSES * (INPUTS + 1)
HEAD = Head(0, CLASSES, INPUTS)
R = 40
NOISE = np.array([0.3, 0.5, 0.5, 0.7, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0]) / 10
STEPS = np.array([5.0, 10.0] * 6)
RECORDS = 100 * STEPS


def rule(kind: type[MMSE] = MMSE) -> MMSE:
    return kind(RunConfig.parse({"strategy": "mmse", "rounds": R}))


def head_rows(rows: np.ndarray) -> np.ndarray:
    """The rows of every class, (n, classes, inputs + 1)."""
    weights = rows[:, : CLASSES * INPUTS].reshape(len(rows), CLASSES, INPUTS)
    return np.concatenate([weights, rows[:, CLASSES * INPUTS :, None]], axis=2)


def flat(rows: np.ndarray) -> np.ndarray:
    weights = rows[:, :, :-1].reshape(len(rows), -1)
    return np.concatenate([weights, rows[:, :, -1]], axis=1).astype(np.float32)


def signals(alone: float = 1.0) -> np.ndarray:
    """Of every client and class, (n, classes, inputs + 1), a local step; classes sum to 0.

    All clients share labels 1 to 4; client 11, one of the noisiest, alone holds label 0.
    """
    generator = np.random.default_rng(4)
    means = generator.standard_normal((CLASSES, INPUTS + 1)) / 20
    held = np.zeros((N, CLASSES))
    held[:, 1:] = generator.dirichlet(np.ones(CLASSES - 1), N)
    held[11] = [alone, *held[11, 1:] * (1 - alone)]
    return (held - held.mean(axis=1, keepdims=True))[:, :, None] * means


def drawn(server_round: int, wanted: np.ndarray | None = None) -> RoundUpdates:
    wanted = signals() if wanted is None else wanted
    noise = np.random.default_rng(server_round).standard_normal(wanted.shape)
    rows = flat(STEPS[:, None, None] * wanted + NOISE[:, None, None] * noise)
    facts = {"batch-size": RECORDS / STEPS, "declared-records": RECORDS}
    return RoundUpdates(server_round, tuple(map(str, range(N))), rows, facts, HEAD)


def run_of(strategy: MMSE, rounds: int, change=lambda updates: updates) -> tuple[object, Outcome]:
    state, outcome = strategy.initial_state(), None
    for server_round in range(1, rounds + 1):
        updates = change(drawn(server_round))
        state, outcome = strategy.combine(state, updates, RandomStream(bytes(32)))
        state = strategy.after_step(state, outcome)
    return state, outcome


ODD_NOISE = np.append(np.full(17, 1.0), np.full(3, 0.03))


def drawn_odd(server_round: int) -> RoundUpdates:
    """Seventeen noisy clients agree, three quiet ones are 1.3 away, over all rows alike."""
    away = np.random.default_rng(1).standard_normal(SIZE)
    generator = np.random.default_rng([7, server_round])
    rows = np.outer(ODD_NOISE < 1, 1.3 * away / np.linalg.norm(away))
    rows += ODD_NOISE[:, None] * generator.standard_normal(rows.shape)
    return RoundUpdates(server_round, tuple(map(str, range(20))), rows.astype(np.float32), {}, HEAD)


@pytest.mark.parametrize("odd", [False, True])
def test_each_row_has_the_weights_of_the_formula(odd: bool) -> None:
    """Sums, noise, target and departure by hand, from every upload.

    The server's rate is .5, and each step makes earlier moves shorter by a tenth.
    """
    rounds, rate, past = 8, 0.5, 0.9
    steps = np.ones(20) if odd else STEPS
    target = np.full(20, 1 / 20) if odd else RECORDS / RECORDS.sum()
    strategy, sizes = rule(), np.full(CLASSES, INPUTS + 1)
    state, sums, noises, departure, kept = strategy.initial_state(), 0, 0, None, np.ones(6)
    for server_round in range(1, rounds + 1):
        updates = drawn_odd(server_round) if odd else drawn(server_round)
        state, outcome = strategy.combine(state, updates, RandomStream(bytes(32)))
        moved = replace(outcome, gauges={"server_rate": rate, "past_scale": past})
        state = strategy.after_step(state, moved)
        uploads = head_rows(updates.updates.astype(np.float64)) / steps[:, None, None]
        noise = outcome.gauges["noise_std"] ** 2 / steps**2
        sums, noises = sums + uploads, noises + noise
        rows, seen = [], 0
        for row in range(CLASSES):
            differ = differences(sums[:, row], np.full(len(steps), server_round), noises)
            seen += differ.factors.shape[1]
            counted = differ.times(least_error.CURVATURE * R)
            rows.append(least_error_weights(target, counted, (INPUTS + 1) * noise))
        shares, middle = np.array(rows), steps.mean()
        apart = middle * np.einsum("ri,irj->rj", shares - target, uploads)
        of_noise = middle**2 * noise
        now = Departure(
            flat(apart[None])[0],
            np.append(sizes * ((shares - target) ** 2 @ of_noise), 0),  # there is no rest
            np.append(sizes * (target**2 @ of_noise), 0),
            np.append(sizes * (shares**2 @ of_noise), 0),
            {},
        )
        # The rate of round 1 is not known before its step: then 1, which moves no share.
        before, first = departure, departure is None
        of_test = now if first else departure.plus(now.scaled(rate))
        departure = now.scaled(rate) if first else departure.scaled(past).plus(now.scaled(rate))
        last, kept = kept, of_test.shares(list(stretches(HEAD, SIZE)), R)
        if before is not None:
            change = (kept - last)[:CLASSES, None, None] * head_rows(before.total[None])[0][:, None]
            expected = flat(change.transpose(1, 0, 2))[0]
            np.testing.assert_allclose(outcome.revision.move, expected, rtol=1e-2, atol=1e-4)
            assert outcome.revision.noise_after == pytest.approx(before.noise_at(kept), rel=1e-3)
    found = outcome.row_weights
    assert (kept.mean() < 0.5) == odd and (seen == 0) == odd
    for row in range(CLASSES):
        of_updates = steps.mean() * (target + kept[row] * (rows[row] - target)) / steps
        np.testing.assert_allclose(
            found.scales[row] * found.shares[row], of_updates, rtol=1e-3, atol=1e-5
        )
    np.testing.assert_array_equal(outcome.update, weighted_rows(found, updates.updates))
    np.testing.assert_allclose(outcome.gauges["target"], target)
    assert outcome.gauges["kept_departure"] == pytest.approx(kept.mean(), abs=1e-4)


@pytest.mark.parametrize("asked", [20, 5])
def test_a_model_that_odd_quiet_clients_moved_is_taken_back(asked: int) -> None:
    """By the noise alone all is theirs; three of twenty are .15, three of five .6 of the target.

    With five a round two of the seventeen others take turns, as no round shows alone. At the end
    the model is where the target's weights would have taken it, but for a twentieth of the
    difference.
    """
    strategy = rule()
    state, model, by_target, by_least, parts = strategy.initial_state(), 0, 0, 0, []
    for server_round in range(1, 41):
        everyone = drawn_odd(server_round)
        turn = [2 * server_round % 17, (2 * server_round + 1) % 17]
        chosen = list(range(20)) if asked == 20 else [*turn, 17, 18, 19]
        sites, rows = tuple(everyone.sites[i] for i in chosen), everyone.updates[chosen]
        updates = RoundUpdates(server_round, sites, rows, {}, HEAD)
        state, outcome = strategy.combine(state, updates, RandomStream(bytes(32)))
        state = strategy.after_step(state, outcome)
        model = model + outcome.update + (outcome.revision.move if outcome.revision else 0)
        by_target, by_least = by_target + rows.mean(axis=0), by_least + rows[-3:].mean(axis=0)
        parts.append(outcome.row_weights.shares[:CLASSES, -3:].sum(axis=1))
    assert np.min(parts[0]) > 0.9
    assert np.max(parts[-1]) == pytest.approx(3 / asked, abs=0.02)
    assert np.linalg.norm(model - by_target) < 0.05 * np.linalg.norm(by_least - by_target)


def test_the_journal_has_the_shares_of_the_model_that_is() -> None:
    """One coordinate a client, in which it alone moves: the model shows its coefficient."""
    keys = {"strategy": "mmse", "rounds": 12, "learning-rate": "auto"}
    kernel, mark = make_kernel(RunConfig.parse(keys)), np.float32(1e-3)
    strategy, state, step_state = kernel.strategy, kernel.state, kernel.step_state
    model, influence, scales = np.zeros(SIZE), Influence(), []
    for server_round in range(1, 13):
        updates = replace(drawn_odd(server_round), head=None)
        updates.updates[:, :20] = mark * np.eye(20)
        state, outcome = strategy.combine(state, updates, RandomStream(bytes(32)))
        step_state, moved = kernel.step.move(step_state, outcome, updates)
        state = strategy.after_step(state, moved)
        model = model + moved.update
        scales.append(moved.gauges["past_scale"])
        kernel.report = RoundReport(server_round, list(updates.sites), 0, outcome=moved)
        kernel.report.accepted = list(updates.sites)
        if moved.revision:
            kernel.report.taken_back = dict(moved.revision.taken_back)
        influence.add(round_facts(kernel.report, 20))
    assert min(scales) < 0.9 and outcome.gauges["kept_departure"] < 0.5
    np.testing.assert_allclose(list(influence.models[0].values()), model[:20] / mark, rtol=1e-3)


def test_a_noisy_client_keeps_the_label_that_it_alone_holds():
    """In that row alone; one weight for each client cannot do that."""
    _, by_row = run_of(rule(), 30)
    _, one = run_of(rule(OneWeightMMSE), 30)
    shares = by_row.row_weights.shares * by_row.row_weights.scales[:, None] * STEPS
    target = STEPS.mean() * RECORDS / RECORDS.sum()
    assert shares[0, 11] > 0.6 * target[11]
    assert np.median(shares[1:, 11]) < 0.5 * shares[0, 11]
    assert one.row_weights is None


def test_who_overstates_its_records_gains_ten_times_the_median_at_most():
    """And one that does not disclose them makes the target equal for all."""

    def target(records: np.ndarray) -> np.ndarray:
        facts = {"batch-size": RECORDS / STEPS, "declared-records": records}
        strategy = rule()
        updates = replace(drawn(1), disclosed=facts)
        return strategy.combine(strategy.initial_state(), updates, RandomStream(bytes(32)))[
            1
        ].gauges["target"]

    lying = RECORDS.copy()
    lying[3] = 1e9
    assert target(lying)[3] / np.median(target(lying)) <= 10 + 1e-9
    hidden = RECORDS.copy()
    hidden[3] = np.nan
    np.testing.assert_allclose(target(hidden), 1 / N)

"""The rate that the server finds: its equations, what it does not depend on, what it is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import TermsError
from hdpfl_flower.linalg.anderson import mixing_weights
from hdpfl_flower.updates import Outcome, Revision, RoundUpdates
from strategies import make_kernel
from strategies.server_step.found import FoundRate, change
from strategies.server_step.mixing_gate import ALARM, is_better
from strategies.server_step.step import ServerStep

ROUNDS, SIZE = 8, 400


def config_of(**keys: Any) -> RunConfig:
    keys = {"strategy": "fedavg", "rounds": ROUNDS, "learning-rate": "auto", **keys}
    return RunConfig.parse(keys)


def walk(step: ServerStep, start: np.ndarray, delta_at: Any) -> tuple[np.ndarray, list[float]]:
    """Return the last model and each round's rate, where the aggregate at x is ``delta_at(x)``."""
    state, x, rates = step.initial_state(), start, []
    for server_round in range(1, ROUNDS + 1):
        delta = delta_at(x).astype(np.float32)
        updates = RoundUpdates(server_round, ("a",), delta[None])
        state, moved = step.move(state, Outcome(delta, np.ones(1)), updates)
        rates.append(float(moved.gauges.get("server_rate", 1.0)))
        x = x + moved.update.astype(np.float64)
    return x, rates


def test_the_rates_are_those_of_the_equations() -> None:
    rng = np.random.default_rng(1)
    signal = rng.standard_normal(SIZE)
    rows = [(signal + rng.standard_normal(SIZE)).astype(np.float32) for _ in range(ROUNDS)]
    rows[2] = -rows[2]  # an overshoot: the rate falls in round 3 and in round 4
    rows[1] /= 2  # what becomes smaller leaves the rate, what becomes larger lowers it
    rows[3] *= 3
    queue = list(rows)
    _, rates = walk(make_kernel(config_of()).step, np.zeros(SIZE), lambda _: queue.pop(0))
    exact = [row.astype(np.float64) for row in rows]
    squares = [row @ row for row in exact]
    log, expected = math.log(1.25 * SIZE**0.25 / math.sqrt(ROUNDS)), []
    for t in range(1, ROUNDS + 1):
        if 1 < t <= ROUNDS // 2 + 1:
            now, last = exact[t - 1], exact[t - 2]
            kappa = now @ last / np.linalg.norm(now) / np.linalg.norm(last)
            log += 2 * kappa * max(0, 1 - 4 / (kappa**2 * SIZE))
        # 8 rounds: held to round 5, then 3/4, 2/4 and 1/4 of it.
        size = math.sqrt(max(squares[0], np.mean(squares[:t])))
        expected.append(math.exp(log) / size * {6: 3 / 4, 7: 2 / 4, 8: 1 / 4}.get(t, 1))
    assert rates == pytest.approx(expected, rel=1e-9)
    assert rates[2] < rates[1] > rates[3]


def test_noise_alone_moves_the_rate_in_one_round_of_twenty() -> None:
    """The cosine of two noises is N(0, 1/d) nearly: beyond 2/√d in 4.6 % of the draws."""
    rng, draws = np.random.default_rng(2), 4000
    noise = rng.standard_normal((draws + 1, 100))
    unit = noise / np.linalg.norm(noise, axis=1, keepdims=True)
    moves = [change(float(k), 100) for k in np.sum(unit[1:] * unit[:-1], axis=1)]
    moved = np.count_nonzero(moves)
    # Five standard deviations of a binomial: a false alarm in two million.
    assert abs(moved - 0.046 * draws) < 5 * math.sqrt(0.046 * draws)


def test_on_a_noisy_quadratic_it_ends_near_where_the_best_rate_does() -> None:
    """f = ½ xᵀHx, curvatures over two orders; the best of 12 rates a factor of √2 apart."""
    for unit in (0.1, 1.0, 10.0):
        curvature = unit * np.geomspace(0.02, 2, SIZE)
        ends = {}
        for name in ("auto", *(2 ** (j / 2) / unit for j in range(-8, 4))):
            given = {} if name == "auto" else {"learning-rate": 1, "server-learning-rate": name}
            noise = 0.1 * unit * np.random.default_rng(4).standard_normal((ROUNDS, SIZE))
            rounds = iter(noise)
            x, _ = walk(
                make_kernel(config_of(**given)).step,
                np.ones(SIZE),
                lambda x, h=curvature, e=rounds: next(e) - h * x,
            )
            ends[name] = float(curvature @ x**2)
        found = ends.pop("auto")
        assert found < 1.5 * min(ends.values())
        assert found < ends[2**-3 / unit]  # a rate a factor of 8 below the scale does worse


def test_the_steps_grow_a_hundredfold_at_most() -> None:
    """Updates that always agree, as those of a strategy that hides its memory."""
    step, update = make_kernel(config_of(rounds=60)).step, np.ones(SIZE, np.float32)
    state, rates = step.initial_state(), []
    for t in range(1, 32):
        updates = RoundUpdates(t, ("a",), update[None])
        state, moved = step.move(state, Outcome(update, np.ones(1)), updates)
        rates.append(float(moved.gauges["server_rate"]))
    assert max(rates) == pytest.approx(100 * rates[0])


def test_a_model_revised_is_where_the_new_weights_would_have_taken_it() -> None:
    """Noise of the target is three times as long: so are the steps, were they not scaled."""
    lengths = np.array([[0.5], [1], [1], [1]], np.float32)  # the first is not the longest
    own = lengths * np.eye(SIZE, dtype=np.float32)[:4]
    target = 3 * lengths * np.eye(SIZE, dtype=np.float32)[4:8]

    def walk_of(rows: np.ndarray, revised_in: int) -> tuple[np.ndarray, list[float], list[Any]]:
        step = make_kernel(config_of()).step
        state, model, rates, pasts = step.initial_state(), np.zeros(SIZE, np.float32), [], []
        for t, row in enumerate(rows, start=1):
            revision = None
            if t == revised_in:
                apart = sum(r * (b - a) for r, a, b in zip(rates, own, target, strict=False))
                squares = sum((r * k) ** 2 for r, k in zip(rates, lengths[:, 0], strict=False))
                energies = [float(squares), float(9 * squares)]
                revision = Revision(apart, *energies)
            updates = RoundUpdates(t, ("a",), row[None])
            outcome = Outcome(row, np.ones(1), revision=revision)
            state, moved = step.move(state, outcome, updates)
            model += moved.update
            rates.append(float(moved.gauges["server_rate"]))
            pasts.append(moved.gauges["past_scale"])
        return model, rates, pasts

    found, rates, pasts = walk_of(np.concatenate([own[:3], target[3:]]), revised_in=4)
    expected, wanted, _ = walk_of(target, revised_in=0)
    assert pasts == pytest.approx([1, 1, 1, 1 / 3])
    assert rates[-1] == pytest.approx(wanted[-1]) and rates[0] == pytest.approx(3 * wanted[0])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


# --- the key --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"strategy": "fedavg+adam"}, r"leave out '\+adam'"),
        ({"strategy": "fedavg+momentum"}, r"leave out '\+momentum'"),
        ({"server-schedule": "sqrt"}, "leave out 'server-schedule'"),
        ({"clip-norm": "wide"}, "'clip-norm'"),
    ],
    ids=str,
)
def test_what_a_found_rate_does_not_go_with_is_refused(keys: dict[str, Any], words: str) -> None:
    """A rate that is demanded; ``auto`` alone falls back."""
    with pytest.raises(TermsError, match=words):
        make_kernel(config_of(**{"server-learning-rate": "found", **keys}))


@pytest.mark.parametrize(
    ("keys", "rate"),
    [
        ({"server-learning-rate": 2.0}, 0.1),
        ({"server-schedule": "sqrt", "clip-norm": 4.0}, 0.025),
        ({"strategy": "fedavg+adam", "clip-norm": 0.5}, 0.2),
        ({"strategy": "fedavg+momentum", "noise": "client", "clip-norm": 4.0}, 0.1),
        ({"strategy": "fedpi"}, 0.1),
        ({"strategy": "scaffold"}, 0.1),
        ({"strategy": "mr-mtl"}, 0.1),
        ({"strategy": "ifca", "choice": {"kind": "gaussian", "times": 1}, "ifca.clusters": 2}, 0.1),
        ({"strategy": "ditto"}, 0.1),
        ({"strategy": "fedper", "model": "mlp:4"}, 0.1),
        ({"after": {"shrink": {"scale": 0.05}}}, 0.1),
        ({"guard": "content"}, 0.1),
        ({"work": {"kind": "plain", "pull": 5}}, 0.1),
    ],
    ids=str,
)
def test_without_an_estimate_the_rate_is_the_default(keys: dict[str, Any], rate: float) -> None:
    """Not a word of it is an error, and the server's rate is what it is without."""
    config = {"strategy": "fedavg", "rounds": ROUNDS, **keys}
    default = make_kernel(RunConfig.parse(config))
    stated = make_kernel(RunConfig.parse({**config, "learning-rate": rate}))
    assert default.terms == stated.terms
    assert default.server == stated.server
    assert type(default.step) is type(stated.step) is not FoundRate


# --- the gate of Anderson mixing: closed where it averages noise, open where it extrapolates


D = 2_000


def opens(residuals: np.ndarray, noise: float) -> bool:
    gram = residuals @ residuals.T
    weights = mixing_weights(gram, 1e-10)
    return is_better(gram, np.full(len(gram), noise), weights, residuals.shape[1])


@pytest.mark.parametrize("strength", [0.0, 1.0, 100.0, 1e4, 1e6])
def test_of_a_constant_signal_no_weights_are_better(strength: float) -> None:
    """At most ``ALARM`` a round, also where the signal is a million times the noise."""
    generator, rounds, d = np.random.default_rng(11), 2_000, 300
    signal = np.sqrt(strength / d) * np.ones(d)
    found = sum(
        opens(signal + generator.standard_normal((4, d)) / np.sqrt(d), 1.0) for _ in range(rounds)
    )
    assert found <= binom.ppf(1 - 1e-6, rounds, ALARM)


def decaying(noise: float, rate: float = 0.9, seed: int = 1) -> np.ndarray:
    """Return residuals of a map that contracts by ``rate``, of size 1 at first, with noise."""
    generator = np.random.default_rng(seed)
    signal = generator.standard_normal(D) / np.sqrt(D)
    steps = rate ** np.arange(3)[:, None] * signal
    return steps + np.sqrt(noise / D) * generator.standard_normal((3, D))


@pytest.mark.parametrize("seed", range(20))
def test_a_decaying_signal_is_extrapolated_where_it_is_clear_of_the_noise(seed: int) -> None:
    assert opens(decaying(1e-3, seed=seed), 1e-3)
    assert not opens(decaying(1.0, seed=seed), 1.0)
    assert opens(decaying(0.0, seed=seed), 0.0)

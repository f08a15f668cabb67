"""Server steps against their papers' equations, beside guards, schedules and reported models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hdpfl_flower import server_wire
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import TermsError
from hdpfl_flower.updates import Outcome, Revision, RoundUpdates
from strategies import SERVER_STEPS, make_kernel, make_strategy
from strategies.server_step.adaptive import BLOCK
from strategies.server_step.schedule import read_schedule
from strategies.server_step.step import ServerStep

SITES = ("a", "b", "c")


def config_of(**keys: Any) -> RunConfig:
    return RunConfig.parse({"strategy": "fedavg", "rounds": 10, **keys})


def steps_of(step: ServerStep, deltas: np.ndarray) -> np.ndarray:
    """Return what the model moves by in each round, shape ``(rounds, d)``."""
    state, moves = step.initial_state(), []
    for server_round, delta in enumerate(deltas, start=1):
        updates = RoundUpdates(server_round, SITES, np.zeros((3, len(delta)), np.float32))
        outcome = Outcome(delta.astype(np.float32), np.full(3, 1 / 3))
        state, moved = step.move(state, outcome, updates)
        moves.append(moved.update)
    return np.array(moves, dtype=np.float64)


DELTAS = np.random.default_rng(5).standard_normal((6, BLOCK + 7)) * np.geomspace(1e-3, 1, BLOCK + 7)


# --- each against its equations, coordinate by coordinate ----------------------------------------


def test_momentum_is_fedavgms() -> None:
    keys = {"server-learning-rate": 0.5, "momentum.beta": 0.8}
    found = steps_of(SERVER_STEPS["momentum"](config_of(**keys)), DELTAS)
    m, expected = 0.0, []
    for delta in DELTAS.astype(np.float32).astype(np.float64):
        m = 0.8 * m + delta
        expected.append(0.5 * m)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["adam", "yogi"])
def test_adam_and_yogi_are_algorithm_2(name: str) -> None:
    keys = {"server-learning-rate": 0.3, "adam.tau": 0.02}
    found = steps_of(SERVER_STEPS[name](config_of(**keys)), DELTAS)
    m, v, expected = 0.0, 0.02**2, []
    for delta in DELTAS.astype(np.float32).astype(np.float64):
        m = 0.9 * m + 0.1 * delta
        square = delta**2
        v = 0.99 * v + 0.01 * square if name == "adam" else v - 0.01 * square * np.sign(v - square)
        expected.append(0.3 * m / (np.sqrt(v) + 0.02))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("beta", [None, 0.0, 0.8])
def test_a_revision_leaves_nothing_of_what_it_takes_back(beta: float | None) -> None:
    """Once momentum is over, the model is where the other aggregates would have taken it."""
    keys = {"server-learning-rate": 0.5} | ({} if beta is None else {"momentum.beta": beta})
    kind = ServerStep if beta is None else SERVER_STEPS["momentum"]
    first, other = np.random.default_rng(6).standard_normal((2, 3, 20)).astype(np.float32)
    rest = np.zeros((60, 20), np.float32)

    def end(rows: np.ndarray, revision: Revision | None) -> np.ndarray:
        step = kind(config_of(**keys))
        state, model = step.initial_state(), np.zeros(20)
        for t, row in enumerate([*rows, *rest], start=1):
            updates = RoundUpdates(t, SITES, np.zeros((3, 20), np.float32))
            past = revision if t == len(rows) + 1 else None
            state, moved = step.move(state, Outcome(row, np.full(3, 1 / 3), revision=past), updates)
            model = model + moved.update
        return model

    revision = Revision(np.float32(0.5) * (other - first).sum(axis=0), 1.0, 1.0)
    np.testing.assert_allclose(end(first, revision), end(other, None), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("text", "factors"),
    [
        ("constant", [1, 1, 1, 1]),
        ("linear", [1, 3 / 4, 2 / 4, 1 / 4]),
        ("log", [1, 1 / (np.log10(2) + 1), 1 / (np.log10(3) + 1), 1 / (np.log10(4) + 1)]),
        ("sqrt", [1, 2**-0.5, 3**-0.5, 1 / 2]),
        ("inverse", [1, 1 / 2, 1 / 3, 1 / 4]),
        ("halved:3", [1, 1, 1, 1 / 2]),
    ],
)
def test_schedules(text: str, factors: list[float]) -> None:
    schedule = read_schedule(text, 4, "server-schedule")
    assert [schedule(t) for t in (1, 2, 3, 4)] == pytest.approx(factors, rel=1e-12)
    keys = {"server-learning-rate": 2.0, "server-schedule": text, "rounds": 4}
    assert ServerStep(config_of(**keys)).rate(4) == pytest.approx(2 * factors[3])


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"server-learning-rate": 0}, "'server-learning-rate' must be a number above 0"),
        ({"server-learning-rate": float("nan")}, "'server-learning-rate' must be a number above 0"),
        ({"server-learning-rate": 1e-40}, "'server-learning-rate' must be a number above 0, from"),
        ({"server-learning-rate": 1e7}, "'server-learning-rate' must be a number above 0, from"),
        ({"server-schedule": "halved:0"}, "'server-schedule' must be one of constant, .*halved:T"),
        ({"server-schedule": "cosine"}, "'server-schedule' must be one of constant"),
        ({"server-schedule": "halved:1", "rounds": 40}, "'halved:1' reaches 0 before round 40"),
        ({"average": "median"}, "'average' must be 'none', 'tail'"),
        ({"strategy": "fedavg+adam", "adam.tau": 0}, r"'adam\.tau'"),
        ({"strategy": "fedavg+adam", "momentum.beta": 0.5}, r"'momentum\.beta' is a setting of"),
        ({"fedhdp.server-learning-rate": 0.5}, "'server-learning-rate' outside of any table"),
    ],
    ids=str,
)
def test_a_wrong_key_is_refused_by_name(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(TermsError, match=words):
        make_strategy(config_of(**keys))


# --- the reported model ---------------------------------------------------------------------------


def reported_after(models: np.ndarray, ahead: np.ndarray | None = None, **keys: Any) -> np.ndarray:
    kernel = make_kernel(config_of(rounds=len(models), **keys))
    for server_round, model in enumerate(models, start=1):
        kernel.reported.add(server_round, model, ahead)
    record = server_wire.write_model({"w": models[-1]})
    return server_wire.read_own(kernel.reported.record(record))["w"]


MODELS = np.random.default_rng(3).standard_normal((5, 9)).astype(np.float32)


@pytest.mark.parametrize(
    ("keys", "weights"),
    [
        ({"average": "ergodic"}, [0.2, 0.2, 0.2, 0.2, 0.2]),
        ({"average": "tail"}, [0, 0, 1 / 3, 1 / 3, 1 / 3]),
        ({"average": "ema"}, [0.4096, 0.1024, 0.128, 0.16, 0.2]),
    ],
    ids=str,
)
def test_averages(keys: dict[str, Any], weights: list[float]) -> None:
    expected = np.array(weights) @ MODELS.astype(np.float64)
    np.testing.assert_allclose(reported_after(MODELS, **keys), expected, rtol=2e-7, atol=1e-7)
    ahead = np.float32(0.25) * np.ones(9, np.float32)
    found = reported_after(MODELS, ahead, **keys)
    np.testing.assert_allclose(found, expected + 0.25, rtol=1e-6, atol=1e-6)

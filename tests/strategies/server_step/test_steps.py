"""Server steps against their papers' equations, beside guards, schedules and reported models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord

from hdpfl_flower import wire
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import HDPFLError, StrategyError, TermsError
from hdpfl_flower.estimators.softmax_head import Head
from hdpfl_flower.updates import Outcome, Revision, RoundUpdates
from strategies import SERVER_STEPS, check_strategy, make_strategy
from strategies.composition import KEYS_REFUSED, REFUSED
from strategies.core.checks import check_outcome
from strategies.guards.proof import SHARED
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


def test_the_plain_step_is_the_aggregate_itself() -> None:
    outcome = Outcome(np.ones(4, np.float32), np.full(3, 1 / 3))
    updates = RoundUpdates(1, SITES, np.zeros((3, 4), np.float32))
    assert ServerStep(config_of()).move(None, outcome, updates)[1] is outcome


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
    keys = {"server-learning-rate": 0.3, "adam.beta-1": 0.7, "adam.beta-2": 0.9}
    found = steps_of(SERVER_STEPS[name](config_of(**keys, **{"adam.tau": 0.02})), DELTAS)
    m, v, expected = 0.0, 0.02**2, []
    for delta in DELTAS.astype(np.float32).astype(np.float64):
        m = 0.7 * m + 0.3 * delta
        square = delta**2
        v = 0.9 * v + 0.1 * square if name == "adam" else v - 0.1 * square * np.sign(v - square)
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


@pytest.mark.parametrize("name", ["adam", "yogi", "anderson"])
def test_a_step_with_rates_of_its_own_revises_nothing(name: str) -> None:
    step = SERVER_STEPS[name](config_of(strategy=f"fedavg+{name}"))
    outcome = Outcome(np.ones(8, np.float32), np.full(3, 1 / 3))
    updates = RoundUpdates(1, SITES, np.ones((3, 8), np.float32))
    revised = replace(outcome, revision=Revision(np.ones(8, np.float32), 1.0, 2.0))
    moves = [step.move(step.initial_state(), one, updates)[1] for one in (outcome, revised)]
    np.testing.assert_array_equal(moves[0].update, moves[1].update)


def test_a_revision_of_another_shape_is_refused() -> None:
    outcome = Outcome(np.ones(8, np.float32), np.full(3, 1 / 3))
    updates = RoundUpdates(1, SITES, np.ones((3, 8), np.float32))
    with pytest.raises(StrategyError, match="a revision of another shape"):
        check_outcome(
            replace(outcome, revision=Revision(np.ones(7, np.float32), 1.0, 1.0)), updates
        )


def test_the_step_of_auto_is_one_but_of_a_rate_per_coordinate() -> None:
    assert SERVER_STEPS["momentum"](config_of()).rate(1) == 1
    assert SERVER_STEPS["adam"](config_of()).rate(1) == 0.01
    assert SERVER_STEPS["adam"](config_of(**{"server-learning-rate": 1})).rate(1) == 1


@pytest.mark.parametrize("name", SERVER_STEPS)
def test_a_reported_model_stays_as_far_from_the_broadcast_one(name: str) -> None:
    """A strategy of one's own may report another model: a step moves both."""
    step = SERVER_STEPS[name](config_of(strategy=f"fedavg+{name}"))
    update = np.linspace(-1, 1, 8, dtype=np.float32)
    outcome = Outcome(update, np.full(3, 1 / 3), reported=update + np.float32(0.5))
    updates = RoundUpdates(1, SITES, np.stack([update] * 3))
    moved = step.move(step.initial_state(), outcome, updates)[1]
    assert moved.reported is not None
    np.testing.assert_allclose(moved.reported - moved.update, 0.5, rtol=1e-6)


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
        ({"server-learning-rate": -1.0}, "'server-learning-rate' must be a number above 0"),
        ({"server-learning-rate": float("nan")}, "'server-learning-rate' must be a number above 0"),
        ({"server-learning-rate": 1e-40}, "'server-learning-rate' must be a number above 0, from"),
        ({"server-learning-rate": 1e7}, "'server-learning-rate' must be a number above 0, from"),
        ({"server-schedule": "halved:0"}, "'server-schedule' must be one of constant, .*halved:T"),
        ({"server-schedule": "cosine"}, "'server-schedule' must be one of constant"),
        ({"server-schedule": "halved:1", "rounds": 40}, "'halved:1' reaches 0 before round 40"),
        ({"average": "median"}, "'average' must be 'none', 'tail'"),
        ({"average-tail": 0}, "'average-tail'"),
        ({"average-decay": 1.0}, "'average-decay'"),
        ({"strategy": "fedavg+adam", "adam.beta-2": 1.0}, r"'adam\.beta-2'"),
        ({"strategy": "fedavg+adam", "adam.tau": 0}, r"'adam\.tau'"),
        ({"strategy": "fedavg+adam", "momentum.beta": 0.5}, r"'momentum\.beta' is a setting of"),
        ({"fedhdp.server-learning-rate": 0.5}, "'server-learning-rate' outside of any table"),
    ],
    ids=str,
)
def test_a_wrong_key_is_refused_by_name(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(TermsError, match=words):
        make_strategy(config_of(**keys))


# --- which parts go together ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["fedavg+momentum", "mmse+adam", "robust-hdp+pfa+yogi", "fedhdp+momentum"],
)
def test_a_step_goes_with_any_weights(name: str) -> None:
    strategy = make_strategy(config_of(strategy=name))
    assert strategy.name == name
    assert type(strategy.step) is SERVER_STEPS[name.rpartition("+")[2]]


def test_every_refusal_of_the_table_is_one() -> None:
    """An example a row: a rule that refuses nothing would be a claim of the documentation alone."""
    examples = {
        "fedavg+pfa+r-dpcfl": "one projection, clustering",
        "fedavg+momentum+adam": "one server step",
        "pfa+r-dpcfl": "'pfa' projects by itself",
        "ifca+pfa": "'ifca' has several models by itself",
        "fedhdp+ifca": "'fedhdp' is more than weights",
        "fedpi+pfa": "'fedpi' splits by itself",
        "robust-hdp+fedpi": "'robust-hdp' weighs by the updates",
        "fedsplit+momentum": "would move their mean and leave them behind",
        "fedhdp+scaffold": "'fedhdp' clips, mixes and noises levels",
        "scaffold+anderson": "'anderson' needs noise",
        "r-dpcfl+adam": "a server step has no past of theirs",
    }
    found = set()
    for name, words in examples.items():
        with pytest.raises(StrategyError, match=words) as raised:
            check_strategy(name)
        found |= {r.what for r in REFUSED if r.why.split("'")[-1][:20] in str(raised.value)}
    assert found == {refusal.what for refusal in REFUSED}


def test_every_key_of_the_table_is_refused() -> None:
    ifca = {"strategy": "ifca", "choice": "gaussian times=1", "ifca.clusters": 2}
    examples: dict[str, dict[str, Any]] = {
        "is the rate of one model": {**ifca, "server-learning-rate": "found"},
        "an upload counts in two": {"strategy": "scaffold", "server-learning-rate": "found"},
        "steps one model": {"strategy": "fedpi", "server-learning-rate": "found"},
        "'average' is of one model": {**ifca, "average": "tail"},
        "'anderson' reads the noise": {"strategy": "fedhdp+anderson", "noise": "server"},
        "'guard' compares or bounds steps": {"strategy": "fedpi", "guard": "cap"},
        "beside one global model": {"strategy": "fedpi", "second": "kept pull=0.1"},
        "'noise' must be 'records'": {"strategy": "scaffold", "noise": "client"},
        "'guard' must be 'none'": {"strategy": "mmse+scaffold", "guard": "cap"},
        "moves the whole model": {"strategy": "fedper+scaffold", "model": "mlp:8"},
        "'first-batch' of 'work'": {"strategy": "scaffold", "work": "auto first-batch=full"},
        "have no one global path": {"strategy": "local", "after": "shrink"},
        "makes no weighted sum": {"strategy": "trimmed-mean+scaffold"},
    }
    for words, keys in examples.items():
        with pytest.raises(TermsError, match=words):
            make_strategy(config_of(**keys))
    assert len(examples) == len(KEYS_REFUSED)


def test_a_rate_moves_every_model_of_several() -> None:
    step = ServerStep(config_of(**{"server-learning-rate": 0.5}))
    outcome = Outcome(np.ones((2, 4), np.float32), np.ones(2), group=np.array([0, 1]))
    updates = RoundUpdates(1, ("a", "b"), np.ones((2, 4), np.float32))
    assert (step.move(step.initial_state(), outcome, updates)[1].update == 0.5).all()


# --- beside guards --------------------------------------------------------------------------------


def test_what_a_refused_site_put_in_is_taken_out_at_the_rates_of_its_rounds() -> None:
    """The sum of all the model's moves does not hold the refused site's part any more."""
    keys = {"guard": "content", "server-learning-rate": 2.0, "server-schedule": "inverse"}
    strategy = make_strategy(config_of(**keys))
    guard, step = strategy.guard, strategy.step
    guard._public.head = Head(2, 2, 2)
    rows = np.eye(3, 8, dtype=np.float32)
    moved = np.zeros(8)
    for server_round in (1, 2, 3):
        some = SITES if server_round < 3 else SITES[:2]
        kept = RoundUpdates(server_round, some, rows[: len(some)])
        weights = np.full(len(some), 1 / len(some))
        guard._gauges = {"content": np.arange(len(some), dtype=np.float64)}
        guard.refused = {} if server_round < 3 else {"c": SHARED}
        outcome = Outcome(weights @ rows[: len(some)], weights)
        rate = step.rate(server_round)
        outcome = guard.reweigh(
            replace(outcome, update=outcome.update.astype(np.float32)), kept, rate
        )
        moved += step.move(step.initial_state(), outcome, kept)[1].update
    assert abs(moved[2]) < 1e-6


def test_nothing_is_taken_out_after_a_step_that_is_not_linear() -> None:
    for name, takes in {"fedavg+momentum": True, "fedavg+adam": False, "fedavg": True}.items():
        guard = make_strategy(config_of(strategy=name, guard="content")).guard
        assert guard._takes_back == takes


# --- the reported model ---------------------------------------------------------------------------


def reported_after(models: np.ndarray, ahead: np.ndarray | None = None, **keys: Any) -> np.ndarray:
    strategy = make_strategy(config_of(rounds=len(models), **keys))
    for server_round, model in enumerate(models, start=1):
        strategy.reported.add(server_round, model, ahead)
    record = wire.write_model({"w": models[-1]})
    return wire.read_own(strategy.reported.record(record))["w"]


MODELS = np.random.default_rng(3).standard_normal((5, 9)).astype(np.float32)


def test_without_an_average_the_record_itself_is_reported() -> None:
    strategy, record = make_strategy(config_of()), ArrayRecord()
    assert strategy.reported.record(record) is record


@pytest.mark.parametrize(
    ("keys", "weights"),
    [
        ({"average": "ergodic"}, [0.2, 0.2, 0.2, 0.2, 0.2]),
        ({"average": "tail"}, [0, 0, 1 / 3, 1 / 3, 1 / 3]),
        ({"average": "tail", "average-tail": 0.4}, [0, 0, 0, 0.5, 0.5]),
        ({"average": "tail", "average-tail": 0.01}, [0, 0, 0, 0, 1]),
        ({"average": "ema", "average-decay": 0.5}, [1 / 16, 1 / 16, 1 / 8, 1 / 4, 1 / 2]),
    ],
    ids=str,
)
def test_averages(keys: dict[str, Any], weights: list[float]) -> None:
    expected = np.array(weights) @ MODELS.astype(np.float64)
    np.testing.assert_allclose(reported_after(MODELS, **keys), expected, rtol=2e-7, atol=1e-7)
    ahead = np.float32(0.25) * np.ones(9, np.float32)
    found = reported_after(MODELS, ahead, **keys)
    np.testing.assert_allclose(found, expected + 0.25, rtol=1e-6, atol=1e-6)


def test_a_strategys_own_reported_model_is_beside_the_broadcast_one() -> None:
    found = reported_after(MODELS, np.ones(9, np.float32))
    np.testing.assert_allclose(found, MODELS[-1] + 1, rtol=1e-6)


def test_a_tail_that_has_not_begun_reports_the_last_model() -> None:
    strategy = make_strategy(config_of(average="tail"))
    strategy.reported.add(1, MODELS[0], None)
    assert not strategy.reported.differs


def test_an_unknown_part_is_named_beside_the_known_ones() -> None:
    with pytest.raises(HDPFLError, match=r"after '\+' write .*pfa.*server step: momentum, adam"):
        check_strategy("fedavg+sgd")

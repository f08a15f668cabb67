"""SCAFFOLD against its paper's claims, on clients with quadratic losses and without noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord

from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import TermsError
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import RoundUpdates
from strategies import make_strategy
from strategies.core.base import HDPStrategy
from strategies.core.interface import RoundStart
from strategies.core.kernel import Kernel
from strategies.splitting.scaffold import Scaffold
from tests.federation import ScriptedGrid, sends

RATE, STEPS = 0.1, 10
CURVES = np.array([0.5, 1.0, 2.0, 4.0])
"""Of each client's loss ½·aᵢ‖x − oᵢ‖²: β = 4."""
SITES = tuple("abcd")
OPTIMA = np.random.default_rng(2).standard_normal((4, 6))
Rows = np.ndarray


def strategy_of(name: str = "scaffold", **keys: Any) -> HDPStrategy:
    config = {"strategy": name, "rounds": 500, "local-steps": STEPS, "learning-rate": RATE}
    return make_strategy(RunConfig.parse({**config, **keys}))


def local(x: Rows, curve: float, optimum: Rows, steps: int, offset: Rows | None) -> Rows:
    """Return a client's update: gradient steps, a k-th of the offset after each."""
    y = x.copy()
    for _ in range(steps):
        y = y - RATE * curve * (y - optimum) + (0 if offset is None else offset / steps)
    return y - x


def run(
    strategy: HDPStrategy,
    rounds: int = 150,
    *,
    steps: Sequence[int] = (STEPS,) * 4,
    optima: Rows = OPTIMA,
    present: Callable[[int], Sequence[int]] = lambda _: range(4),
    facts: dict[str, Rows] | None = None,
) -> Rows:
    """Return the model after the rounds, from 0, shape ``(d,)``."""
    x, state = np.zeros(6), strategy.initial_state()
    for server_round in range(1, rounds + 1):
        some, rows = list(present(server_round)), []
        for i in some:
            sent = strategy.request(state, server_round, SITES[i])
            rows.append(local(x, CURVES[i], optima[i], steps[i], sent.offset))
        disclosed = {fact: column[some] for fact, column in (facts or {}).items()}
        sites = tuple(SITES[i] for i in some)
        updates = RoundUpdates(server_round, sites, np.array(rows, np.float32), disclosed)
        state, outcome = strategy.combine(state, updates, RandomStream(bytes(32)))
        x = x + outcome.update.astype(np.float64)
    return x


def optimum_of(weights: Rows, optima: Rows = OPTIMA) -> Rows:
    """Return where Σ wᵢ(x − oᵢ) = 0."""
    best: Rows = weights @ optima / weights.sum()
    return best


BEST = optimum_of(CURVES)


def test_fedavg_stops_where_its_closed_form_says_and_scaffold_at_the_optimum() -> None:
    """k steps on ½a‖x − o‖² end at o + (1 − ηa)ᵏ(x − o): FedAvg weighs by 1 − (1 − ηa)ᵏ."""
    wrong = optimum_of(1 - (1 - RATE * CURVES) ** STEPS)
    np.testing.assert_allclose(run(strategy_of("fedavg")), wrong, atol=1e-5)
    assert np.linalg.norm(wrong - BEST) > 0.1
    np.testing.assert_allclose(run(strategy_of()), BEST, atol=1e-5)


@pytest.mark.parametrize("spread", [1.0, 10.0, 100.0])
def test_heterogeneity_does_not_slow_scaffold(spread: float) -> None:
    """Section 7, Figure 3: for G of 1 to 100 FedAvg is ever further off, SCAFFOLD as fast."""
    optima = spread * OPTIMA
    best = optimum_of(CURVES, optima)
    # float32 uploads: seven digits of the largest numbers, which grow with the spread
    error = np.linalg.norm(run(strategy_of(), 60, optima=optima) - best) / spread
    assert error < 1e-5
    assert np.linalg.norm(run(strategy_of("fedavg"), 60, optima=optima) - best) > 0.1 * spread


def test_clients_that_are_drawn_do_not_move_the_fixed_point() -> None:
    """Theorem III: the rate holds for sampled clients; FedAvg wanders with those of the round."""

    def half(server_round: int) -> Sequence[int]:
        return sorted(np.random.default_rng(server_round).choice(4, 2, replace=False).tolist())

    np.testing.assert_allclose(run(strategy_of(), 300, present=half), BEST, atol=1e-4)
    assert np.linalg.norm(run(strategy_of("fedavg"), 300, present=half) - BEST) > 0.1


UNEQUAL = (5, 10, 20, 40)
FACTS = {"batch-size": np.full(4, 10.0), "declared-records": 10.0 * np.array(UNEQUAL)}


def test_unequal_steps_that_are_disclosed_have_the_optimum_as_fixed_point() -> None:
    keys = {"local-steps": 0, "local-epochs": 1}
    found = run(strategy_of(**keys), 300, steps=UNEQUAL, facts=FACTS)
    np.testing.assert_allclose(found, BEST, atol=1e-5)
    hidden = run(strategy_of(**keys), 300, steps=UNEQUAL)
    np.testing.assert_allclose(hidden, optimum_of(CURVES * UNEQUAL), atol=1e-5)


@pytest.mark.parametrize("steps", [(STEPS,) * 4, UNEQUAL])
def test_unequal_weights_do_not_move_the_fixed_point(steps: Sequence[int]) -> None:
    """The equal mean minimises the plain sum of the losses, also by FedAvg's weights of records."""
    keys = {"fedavg.weights": "records", "local-steps": 0, "local-epochs": 1}
    records = np.array([100.0, 200.0, 300.0, 400.0])
    facts = {"batch-size": records / steps, "declared-records": records}
    found = run(strategy_of(**keys), 300, steps=steps, facts=facts)
    np.testing.assert_allclose(found, BEST, atol=1e-5)
    assert np.linalg.norm(optimum_of(CURVES * records) - BEST) > 0.1


@pytest.mark.parametrize("name", ["scaffold", "robust-hdp+scaffold", "mmse+scaffold"])
def test_a_full_round_moves_by_the_control_variate_estimate(name: str) -> None:
    """s·k̄·(v̄ + Σ wᵢ(vᵢ⁺ − vᵢ)), with the weights that own parts get: the noise of the docstring."""
    strategy, generator = strategy_of(name), np.random.default_rng(8)
    assert isinstance(strategy, Scaffold)
    noise, scale = RandomStream(bytes(32)), np.array([[0.1], [0.3], [1.0], [2.0]])
    signal = generator.standard_normal(400)

    def own_parts() -> Rows:
        return (signal + scale * generator.standard_normal((4, 400))).astype(np.float32)

    def updates_of(server_round: int, rows: Rows) -> RoundUpdates:
        return RoundUpdates(server_round, SITES, rows.astype(np.float32))

    before, after = own_parts(), own_parts()
    state, _ = strategy.combine(strategy.initial_state(), updates_of(1, before), noise)
    offsets = np.array([strategy.request(state, 2, site).offset for site in SITES])
    np.testing.assert_allclose(offsets, before.mean(0) - before, atol=1e-5)
    _, found = strategy.combine(state, updates_of(2, after + offsets), noise)
    weighting = strategy.weights
    inner, _ = weighting.combine(weighting.initial_state(), updates_of(1, before), noise)
    _, alone = weighting.combine(inner, updates_of(2, after), noise)
    np.testing.assert_allclose(found.weights, alone.weights, rtol=1e-3)
    expected = before.mean(0) + alone.weights @ (after.astype(np.float64) - before)
    np.testing.assert_allclose(found.update, alone.scale * expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(
        found.gauges["displacement"], np.linalg.norm(offsets, axis=1), rtol=1e-5
    )


def test_a_site_that_is_absent_keeps_its_control_variate() -> None:
    strategy, noise = strategy_of(), RandomStream(bytes(32))
    rows = np.arange(24, dtype=np.float32).reshape(4, 6)
    state, outcome = strategy.combine(strategy.initial_state(), RoundUpdates(1, SITES, rows), noise)
    assert outcome.gauges["control_variates"] == 4
    after, _ = strategy.combine(state, RoundUpdates(2, SITES[:3], rows[:3] + 1), noise)
    np.testing.assert_array_equal(after.variates["d"].part, state.variates["d"].part)
    offset = strategy.request(after, 3, "d").offset
    assert offset is not None
    steps = [after.variates[one].part / STEPS for one in SITES]
    np.testing.assert_allclose(offset, STEPS * (np.mean(steps, 0) - steps[3]), rtol=1e-5)
    assert strategy.request(after, 3, "new").use == ""
    for kind in (wire.EVALUATE, wire.FINISH):
        assert strategy.request(after, 3, "a", kind).use == ""


# --- memory ---------------------------------------------------------------------------------------


def test_control_variates_without_room_are_refused_before_round_1() -> None:
    strategy = strategy_of(**{"memory-mb": 1})
    size, state = 100_000, strategy.initial_state()
    arrays = server_wire.write_model({"w": np.zeros(size, np.float32)})
    assert strategy.begin_round(state, RoundStart(1, arrays, SITES[:2])).refused == {}
    with pytest.raises(TermsError, match=r"'memory-mb': .* of 3 sites take 2 MB"):
        strategy.begin_round(state, RoundStart(1, arrays, SITES[:3]))


# --- what is sent ---------------------------------------------------------------------------------


class Listening(ScriptedGrid):
    """Sites that note the instructions of the rounds."""

    heard: dict[str, list[wire.Instructions]]

    def send_and_receive(self, messages: Any, **keys: Any) -> Any:
        messages = list(messages)
        for message in messages:
            if message.metadata.message_type == wire.TRAIN:
                name = self.names[message.metadata.dst_node_id]
                self.heard.setdefault(name, []).append(wire.read_instructions(message.content))
        return super().send_and_receive(messages, **keys)


def test_each_site_is_sent_its_own_displacement() -> None:
    rows = {site: np.full(650, 1.0 + i, np.float32) for i, site in enumerate(SITES)}
    grid = Listening({site: sends(row) for site, row in rows.items()})
    grid.heard = {}
    kernel = Kernel(strategy_of(**{"min-sites": 1}))
    record = server_wire.write_model({"w": np.zeros(650, np.float32)})
    messages = list(kernel.configure_train(1, record, ConfigRecord(), grid))
    after, _ = kernel.aggregate_train(1, grid.send_and_receive(messages))
    assert after is not None
    list(grid.send_and_receive(kernel.configure_train(2, after, ConfigRecord(), grid)))
    for i, site in enumerate(SITES):
        first, second = grid.heard[site]
        assert (first.use, second.use) == ("", wire.OFFSET)
        np.testing.assert_allclose(server_wire.read_own(second.others[0])["w"], 1.5 - i, rtol=1e-6)
    assert len({grid.heard[site][1].digest for site in SITES}) == len(SITES)

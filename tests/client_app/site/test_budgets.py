"""A budget over rounds at a site: it releases what its plan pays for, whatever is asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from flwr.app import Message

from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.privacy.plan import Plan
from hdpfl_tools.simulation.sites import close_ledgers, simulated_ledger
from tests.client_app.messages import ask, config_of, make_site, model_of, send, terms_of
from tests.client_app.test_app import code, payload

EPSILON, DELTA = 1.2345678, 1e-6
"""Of the profile's run."""


def frozen(folder: Path) -> tuple[Plan, float]:
    """The plan in the ledger and the ε that was charged for it."""
    (charged,) = Ledger(folder / "ledger.sqlite").account().plans.values()
    return Plan.from_json(charged.plan), charged.epsilon


def released(folder: Path) -> int:
    account = Ledger(folder / "ledger.sqlite").account()
    return sum(release.status == "sent" for release in account.releases.values())


def price(plan: Plan, rounds: int) -> float:
    """ε of so many of a plan's rounds, straight from dp-accounting."""
    step = plan.steps[0]
    event = dp_accounting.PoissonSampledDpEvent(
        step.sampling_prob, dp_accounting.GaussianDpEvent(plan.noise_multiplier)
    )
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    return float(accountant.compose(event, rounds * step.count).get_epsilon(DELTA))


def test_a_site_takes_part_as_often_as_it_planned_and_no_more(tmp_path: Path) -> None:
    """Rounds 9, 4 and 5 of 10, then every other one is declined; a replay gets its bytes."""
    profile = make_site(tmp_path)
    terms = terms_of(rounds=10, participations=3)
    answers = {r: ask(profile, terms, r) for r in (9, 4, 5)}
    for server_round in (1, 3, 10):
        assert code(ask(profile, terms, server_round)) == wire.DECLINED
    assert code(ask(profile, terms, 11)) == wire.DECLINED
    for server_round, answer in answers.items():
        assert payload(ask(profile, terms, server_round)) == payload(answer)
    plan, charged = frozen(tmp_path)
    assert released(tmp_path) == plan.rounds == 3
    assert charged == EPSILON
    assert price(plan, 3) <= EPSILON
    assert price(plan, 4) > 1.05 * EPSILON


def test_a_lost_release_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from client_app.training.trainer import Trainer

    profile, terms = make_site(tmp_path), terms_of(participations=1)

    def fails(*_: object) -> bytes:
        raise RuntimeError("PATIENT-123")

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "run", fails)
        assert code(ask(profile, terms)) == wire.FAILED
    assert code(ask(profile, terms, 2)) == wire.DECLINED
    assert released(tmp_path) == 0


def test_a_used_up_site_declines_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from client_app.training.trainer import Trainer

    profile, terms = make_site(tmp_path), terms_of(participations=1)
    assert ask(profile, terms).has_content()
    worked: list[object] = []
    monkeypatch.setattr(Trainer, "run", lambda *args: worked.append(args))
    assert code(ask(profile, terms, 2)) == wire.DECLINED
    assert not worked


def test_under_a_common_noise_a_site_leaves_when_its_epsilon_is_used_up(tmp_path: Path) -> None:
    profile, terms = make_site(tmp_path), terms_of(**{"rounds": 8, "noise-multiplier": 2.5})
    answered = [not ask(profile, terms, r).has_error() for r in range(1, 9)]
    plan, charged = frozen(tmp_path)
    assert plan.noise_multiplier == 2.5
    assert 0 < plan.rounds < 8
    assert answered == [r < plan.rounds for r in range(8)]
    assert price(plan, plan.rounds) <= 1.001 * charged
    assert charged <= EPSILON < 1.001 * price(plan, plan.rounds + 1)


def test_noise_that_pays_for_no_round_is_declined_and_costs_nothing(tmp_path: Path) -> None:
    profile = make_site(tmp_path)
    for noise in (1e-9, 0.3):
        asked = terms_of(**{"noise-multiplier": noise})
        assert code(ask(profile, asked)) == wire.DECLINED
    assert Ledger(tmp_path / "ledger.sqlite").account().spent() == (0, 0)


def test_a_papers_formula_at_a_real_site_is_declined(tmp_path: Path) -> None:
    profile = make_site(tmp_path)
    for calibration in ("robust-hdp", "pfa"):
        for more in ({}, {"noise-multiplier": 2.5}, {"epsilon-cap": 0.5}):
            asked = terms_of(calibration=calibration, **more)
            assert code(ask(profile, asked)) == wire.DECLINED
    assert Ledger(tmp_path / "ledger.sqlite").account().spent() == (0, 0)


def test_terms_of_the_budget_cannot_change_in_mid_run(tmp_path: Path) -> None:
    """More participations, or another noise, would be another plan."""
    profile, terms = make_site(tmp_path), terms_of(participations=1)
    assert ask(profile, terms).has_content()
    for change in ({"participations": 2}, {"noise-multiplier": 0.1}, {"calibration": "pfa"}):
        assert code(ask(profile, terms_of(**{"participations": 1, **change}), 2)) == wire.DECLINED


def simulated(kind: str, **more: Any) -> tuple[Message, RunConfig]:
    config = config_of(dataset="digits", schema="", **{"epsilons": "0.5", **more})
    terms = config.terms
    content = server_wire.write_instructions(terms, 1 if kind == wire.TRAIN else 0, model_of(terms))
    node = {"partition-id": 0, "num-partitions": 4}
    return send(node, kind, content, in_process=True, config=config), config


def test_a_simulated_site_takes_the_formula_and_its_nominal_epsilon(tmp_path: Path) -> None:
    more = {"calibration": "pfa", "runs-dir": str(tmp_path), "run-id": "paper"}
    reply, config = simulated(wire.TRAIN, **more)
    assert reply.has_content()
    close_ledgers()
    (charged,) = Ledger(simulated_ledger(config, 0), durable=False).account().plans.values()
    assert charged.epsilon == 0.5
    q, steps = Plan.from_json(charged.plan).steps[0].sampling_prob, config.terms.rounds
    nominal = 10 * q * (steps / q * 5) ** 0.5 / 0.5  # log₁₀(1/δ) = 5, K·N/b steps a round
    assert json.loads(charged.plan)["noise_multiplier"] == pytest.approx(nominal)


def test_a_simulated_site_that_affords_no_round_still_says_who_it_is(tmp_path: Path) -> None:
    """Without its index it would be sorted by a node id, which is random."""
    more = {"noise-multiplier": 0.01, "runs-dir": str(tmp_path), "run-id": "none"}
    reply, _ = simulated(wire.JOIN, **more)
    facts = server_wire.read_site(reply.content)
    assert facts["partition"] == 0
    assert facts["epsilon"] == 0.5
    assert "noise-std" not in facts
    train, _ = simulated(wire.TRAIN, **more)
    assert code(train) == wire.DECLINED

"""A site's private choice of a model: what leaves, what is charged, what is declined."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message

from client_app.releases import choice
from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.models.networks import arrays_of, build_model
from hdpfl_flower.privacy.accounting import Gaussians, PureSelections
from hdpfl_flower.privacy.noisy_max import selection_noise_std
from hdpfl_flower.privacy.plan import Plan
from hdpfl_flower.releases.of_run import choices_of
from tests.client_app.messages import CLIENT_NOISE, make_site, model_in, model_of, send, terms_of

SIZE = 3


def choosing(**more: Any) -> RunTerms:
    return terms_of(
        **{"strategy": "r-dpcfl", "choice": {"kind": "gaussian", "times": 2, "share": 0.3}, **more}
    )


def says_no(terms: RunTerms) -> ArrayRecord:
    """Return a model that says "no" to every record; a third of them are."""
    arrays = arrays_of(build_model(terms.model, task_for(terms), 1))
    return server_wire.write_model(
        {n: np.full_like(a, -50 if n.endswith("bias") else 0) for n, a in arrays.items()}
    )


def says_yes(terms: RunTerms) -> ArrayRecord:
    arrays = wire.read_model(
        says_no(terms), arrays_of(build_model(terms.model, task_for(terms), 0))
    )
    return server_wire.write_model({name: -array for name, array in arrays.items()})


def ask_to_choose(
    profile: Path, terms: RunTerms, server_round: int = 2, models: tuple[ArrayRecord, ...] = ()
) -> Message:
    first, *others = models or (says_no(terms), says_yes(terms))
    content = server_wire.write_instructions(
        terms, server_round, first, others=others, use=wire.CHOOSE
    )
    return send({"profile": str(profile)}, wire.TRAIN, content)


def code_of(reply: Message) -> int:
    return reply.error.code if reply.has_error() else 0


def releases(profile: Path) -> list[tuple[int, str, str]]:
    ledger = Ledger(profile.parent / "ledger.sqlite")
    found = [(k[1], k[2], r.status) for k, r in ledger.account().releases.items()]
    ledger.close()
    return found


def plan_of(profile: Path) -> Plan:
    ledger = Ledger(profile.parent / "ledger.sqlite")
    frozen = ledger.frozen_plan("run-1")
    ledger.close()
    assert frozen is not None
    return Plan.from_json(frozen.plan)


def test_choice_and_update_are_two_releases_and_a_replay_gives_the_same(tmp_path: Path) -> None:
    profile, terms = make_site(tmp_path), choosing()
    reply = ask_to_choose(profile, terms)
    assert server_wire.read_choice(reply.content, 2) in (0, 1)
    update = server_wire.read_update(reply.content, SIZE, with_choice=True)
    assert releases(profile) == [(2, "choice", "sent"), (2, "update", "sent")]
    again = ask_to_choose(profile, terms)
    assert server_wire.read_choice(again.content, 2) == server_wire.read_choice(reply.content, 2)
    np.testing.assert_array_equal(
        server_wire.read_update(again.content, SIZE, with_choice=True), update
    )


def test_the_chosen_model_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without noise the better model is chosen, and its update is that of a message with it."""
    monkeypatch.setattr(choice, "selection_noise_std", lambda *_: 0.0)
    monkeypatch.setattr(
        "hdpfl_flower.engines.dpsgd.add_noise",
        lambda total, _, stream: total + 0 * stream.normal(1).float(),
    )
    terms = choosing(**{"local-steps": 1, "work": {"kind": "plain", "first-batch": "full"}})
    for best, models in enumerate(
        [(says_yes(terms), says_no(terms)), (says_no(terms), says_yes(terms))]
    ):
        profile = make_site(tmp_path / str(best))
        reply = ask_to_choose(profile, terms, 1, models)
        assert server_wire.read_choice(reply.content, 2) == best
        alone = make_site(tmp_path / f"alone-{best}")
        content = server_wire.write_instructions(terms, 1, says_yes(terms))
        plain = send({"profile": str(alone)}, wire.TRAIN, content)
        np.testing.assert_array_equal(
            server_wire.read_update(reply.content, SIZE, with_choice=True),
            server_wire.read_update(plain.content, SIZE),
        )


def test_no_more_choices_than_the_plan_pays_for(tmp_path: Path) -> None:
    profile, terms = make_site(tmp_path), choosing(rounds=4)
    for server_round in (1, 2):
        assert ask_to_choose(profile, terms, server_round).has_content()
    assert code_of(ask_to_choose(profile, terms, 3)) == wire.DECLINED
    assert (3, "update", "sent") not in releases(profile)
    model = server_wire.write_instructions(terms, 3, model_of(terms))
    assert send({"profile": str(profile)}, wire.TRAIN, model).has_content()


@pytest.mark.parametrize(
    "more",
    [
        {"choice": {}},
        {"choice": {"kind": "none"}},
        {"noise": "client"},
        {"noise": "server"},
        {"noise-multiplier": 3.0},
        {"participations": 2},
    ],
    ids=str,
)
def test_a_choice_that_nothing_pays_for_is_declined(tmp_path: Path, more: dict[str, Any]) -> None:
    profile = make_site(tmp_path, more=CLIENT_NOISE)
    profile.write_text("trust-server = true\n" + profile.read_text())
    reply = ask_to_choose(profile, choosing(**more))
    assert code_of(reply) == wire.DECLINED
    assert releases(profile) == []


def test_counts_have_the_plans_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[list[int], float]] = []

    def note(correct: np.ndarray, noise_std: float, _: object) -> int:
        seen.append((correct.tolist(), noise_std))
        return 0

    monkeypatch.setattr(choice, "choose_model", note)
    profile, terms = make_site(tmp_path), choosing()
    ask_to_choose(profile, terms, models=(says_no(terms), says_yes(terms), says_no(terms)))
    choices = plan_of(profile).cost_of("choice")
    assert isinstance(choices, Gaussians)
    assert choices.count == choices_of(terms)
    sick = sum(bool(i % 3) for i in range(61))
    assert seen == [
        ([61 - sick, sick, 61 - sick], selection_noise_std(choices.noise_multiplier, 3))
    ]
    assert seen[0][1] > 1


def test_gumbel_noise_is_that_of_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []

    def note(correct: np.ndarray, epsilon: float, _: object) -> int:
        seen.append(epsilon)
        return len(correct) - 1

    monkeypatch.setattr(choice, "choose_model_by_gumbel", note)
    profile, terms = (
        make_site(tmp_path),
        choosing(**{"choice": {"kind": "gumbel", "times": 2, "share": 0.3}}),
    )
    assert server_wire.read_choice(ask_to_choose(profile, terms).content, 2) == 1
    choices = plan_of(profile).cost_of("choice")
    assert isinstance(choices, PureSelections)
    assert seen == [choices.epsilon]


def test_every_model_is_checked_before_anything_is_taken(tmp_path: Path) -> None:
    terms = choosing()
    other = choosing(model="mlp:4")
    profile = make_site(tmp_path)
    bad = ask_to_choose(profile, terms, models=(says_no(terms), model_of(other)))
    assert code_of(bad) == wire.FAILED
    small = make_site(tmp_path / "small", more="[policy]\nmax-payload-mb = 0.0003\n")
    assert send(
        {"profile": str(small)},
        wire.TRAIN,
        server_wire.write_instructions(terms, 2, says_no(terms)),
    ).has_content()
    assert code_of(ask_to_choose(small, terms, 3)) == wire.DECLINED
    assert releases(profile) == []


def test_another_set_of_models_is_another_request(tmp_path: Path) -> None:
    profile, terms = make_site(tmp_path), choosing()
    assert ask_to_choose(profile, terms).has_content()
    other = ask_to_choose(profile, terms, models=(says_no(terms), says_no(terms)))
    assert code_of(other) == wire.DECLINED
    ask_again = server_wire.write_instructions(terms, 2, says_no(terms))
    assert code_of(send({"profile": str(profile)}, wire.TRAIN, ask_again)) == wire.DECLINED


def test_a_pull_leads_to_the_model_that_came_along(tmp_path: Path) -> None:
    """λ = 5 ends next to it, λ = 0 does not; noise is fresh, so it is small beside the way."""
    ends = {}
    for pull in (0.0, 5.0):
        terms = terms_of(
            **{
                "strategy": "mr-mtl",
                "work": {"kind": "plain", "pull": pull},
                "learning-rate": 0.1,
                "clip-norm": 0.001,
            }
        )
        profile = make_site(tmp_path / f"{pull:g}", more="[policy]\nmin-clip-norm = 1e-4\n")
        start, anchor = model_of(terms), model_in(terms, 40)
        content = server_wire.write_instructions(terms, 1, start, others=[anchor], use=wire.PULL)
        reply = send({"profile": str(profile)}, wire.TRAIN, content)
        assert reply.has_content(), reply.error
        like = arrays_of(build_model(terms.model, task_for(terms), 0))
        first, far = (
            np.concatenate([a.ravel() for a in wire.read_model(m, like).values()])
            for m in (start, anchor)
        )
        end = first + server_wire.read_update(reply.content, SIZE)
        ends[pull] = np.linalg.norm(end - far) / np.linalg.norm(first - far)
    assert ends[5.0] < 0.1 < 0.9 < ends[0.0]


def test_a_pull_too_long_for_the_learning_rate_is_refused_before_the_work(tmp_path: Path) -> None:
    profile = make_site(tmp_path)
    terms = terms_of(**{"work": {"kind": "plain", "pull": 20}, "learning-rate": 0.1})
    content = server_wire.write_instructions(terms, 1, model_of(terms))
    assert code_of(send({"profile": str(profile)}, wire.TRAIN, content)) == wire.DECLINED
    assert releases(profile) == []

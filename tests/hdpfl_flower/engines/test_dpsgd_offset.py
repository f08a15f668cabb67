"""Local training that is moved by an offset over the round: exact, after clipping and noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message

from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.engines import dpsgd
from hdpfl_flower.errors import TermsError
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.models.networks import arrays_of, build_model, flatten, unflatten
from hdpfl_flower.models.task import Task
from tests.client_app.messages import (
    CLIENT_NOISE,
    ask,
    make_site,
    model_in,
    model_of,
    send,
    terms_of,
)
from tests.hdpfl_flower.engines.oracle import make_engine, one_thread  # noqa: F401
from tests.hdpfl_flower.engines.updates import (
    RATE,
    TABLE,
    Train,
    plan_of,
    records_of,
    start_of,
    streams,
    with_bug,
)

LINE = Task.regression((5,))
STEPS = 8
FAR = np.linspace(-2, 3, 24, dtype=np.float32)


def moved(
    offset: np.ndarray | None, train: Train = dpsgd.train, task: Task = TABLE, **plan: Any
) -> np.ndarray:
    """Return the update of a round with an offset, shape ``(d,)``."""
    engine, steps = make_engine("linear", "logreg", task), plan_of(steps=STEPS, **plan)
    start, records = start_of("logreg", task), records_of(task, 50)
    return train(engine, start, records, steps, RATE, streams(), 1000, offset=offset)


def check_quadratic(train: Train = dpsgd.train) -> None:
    """Full batches of ½‖Xθ − y‖²/n: θₖ₊₁ = θₖ − η·(Aθₖ − r) + D/k, step by step."""
    records, offset = records_of(LINE, 50), np.linspace(-2, 3, 6, dtype=np.float32)
    design = np.hstack([records.features, np.ones((50, 1))]).astype(np.float64)
    theta = start = start_of("logreg", LINE).astype(np.float64)
    for _ in range(STEPS):
        gradient = design.T @ (design @ theta - records.targets) / 50
        theta = theta - RATE * gradient + offset / STEPS
    found = moved(offset, train, LINE, q=1.0, divisor=50.0, clip_norm=1e6)
    np.testing.assert_allclose(found, theta - start, rtol=0, atol=1e-5)


def check_apart(train: Train = dpsgd.train) -> None:
    """With no record in any batch the noise is that without an offset, whatever C and the offset.

    Float32 rounds a parameter of up to 10 by 5e-7 in each of the 16 sums.
    """
    for offset in (FAR, 1e-3 * FAR):
        keys = {"q": 1e-9, "noise_std": 0.5, "clip_norm": 1e-3}
        noise = moved(None, train, **keys)
        assert np.abs(noise).max() > 0.01
        np.testing.assert_allclose(moved(offset, train, **keys) - noise, offset, atol=1e-5)


def test_the_steps_are_those_of_the_moved_quadratic() -> None:
    check_quadratic()


def test_clipping_and_noise_do_not_touch_the_offset() -> None:
    check_apart()


@pytest.mark.parametrize(
    "bug",
    [
        ("offset / np.float32(steps)", "offset / np.float32(1)"),
        ("engine.theta.add_(drift)", "pass"),
        ("engine.theta.add_(drift)", "engine.theta.sub_(drift)"),
        (
            "noisy = add_noise(total[place],",
            "total += 0 if drift is None else -drift * (plan.divisor / learning_rate)\n"
            "                    total *= min(1, plan.clip_norm / (1e-9 + float(total.norm())))\n"
            "                    noisy = add_noise(total[place],",
        ),
        ("if drift is not None:", "if drift is not None and len(rows):"),
    ],
    ids=["k times", "dropped", "backwards", "clipped", "only with records"],
)
def test_a_bug_put_back_is_found(bug: tuple[str, str]) -> None:
    with pytest.raises(AssertionError):
        check_apart(with_bug(bug))


def test_batches_and_noise_are_the_same_with_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step draws the same rows and adds the same noise to its sum."""
    add, drawn, rows = dpsgd.add_noise, [], []
    bernoulli = type(streams().sampling).bernoulli

    def noted(total: Any, std: float, stream: Any) -> Any:
        noisy = add(total, std, stream)
        drawn.append((noisy - total).numpy().copy())
        return noisy

    def toss(stream: Any, count: int, probability: float) -> np.ndarray:
        rows.append(bernoulli(stream, count, probability))
        return rows[-1]  # type: ignore[no-any-return]

    monkeypatch.setattr(dpsgd, "add_noise", noted)
    monkeypatch.setattr(type(streams().sampling), "bernoulli", toss)
    for offset in (None, FAR):
        moved(offset, noise_std=50.0)
    assert len(rows) == len(drawn) == 2 * STEPS
    for one, other in zip(rows[:STEPS], rows[STEPS:], strict=True):
        np.testing.assert_array_equal(one, other)
    # Sums of ten gradients of norm 0.7 at most: float32 rounds their sum with the noise by 1e-5.
    np.testing.assert_allclose(drawn[:STEPS], drawn[STEPS:], atol=5e-5)


def test_an_offset_of_zero_changes_no_bit_and_is_not_written_to() -> None:
    zeros = np.zeros(24, np.float32)
    assert moved(zeros, noise_std=0.5).tobytes() == moved(None, noise_std=0.5).tobytes()
    offset = FAR.copy()
    moved(offset)
    np.testing.assert_array_equal(offset, FAR)


def test_an_offset_of_another_size_or_with_phases_is_refused() -> None:
    with pytest.raises(TermsError, match="of the whole model"):
        moved(FAR[:-1])
    engine = make_engine("linear", "logreg", TABLE)
    with pytest.raises(TermsError, match="no phases"):
        dpsgd.train(
            engine, start_of("logreg", TABLE), records_of(TABLE, 50), plan_of(steps=STEPS), RATE,
            streams(), 1000, offset=FAR, phases=(dpsgd.Phase(STEPS, slice(0, 24)),),
        )  # fmt: skip


# --- at a site ------------------------------------------------------------------------------------


def with_offset(terms: RunTerms, offset: np.ndarray | ArrayRecord, server_round: int = 1) -> Any:
    like = arrays_of(build_model(terms.model, task_for(terms), 0))
    sent = (
        server_wire.write_model(unflatten(offset, like))
        if isinstance(offset, np.ndarray)
        else offset
    )
    return server_wire.write_instructions(
        terms, server_round, model_of(terms), others=[sent], use=wire.OFFSET
    )


def size_of(terms: RunTerms) -> int:
    return len(flatten(arrays_of(build_model(terms.model, task_for(terms), 0))))


def code_of(reply: Message) -> int | None:
    return reply.error.code if reply.has_error() else None


def releases(profile: Path) -> list[str]:
    ledger = Ledger(profile.with_name("ledger.sqlite"))
    found = [release.status for release in ledger.account().releases.values()]
    ledger.close()
    return found


def test_a_site_follows_an_offset_and_seals_its_bytes(tmp_path: Path) -> None:
    """Noise of a round is fresh, so the offset is large beside it; a repeat has the same bytes."""
    terms, profile = terms_of(), make_site(tmp_path)
    size = size_of(terms)
    offset = np.linspace(1e3, 2e3, size, dtype=np.float32)
    replies = [
        send({"profile": str(profile)}, wire.TRAIN, with_offset(terms, offset)) for _ in range(2)
    ]
    found = [server_wire.read_update(reply.content, size) for reply in replies]
    assert found[0].tobytes() == found[1].tobytes()
    plain = server_wire.read_update(ask(profile, terms, 2).content, size)
    assert np.abs(plain).max() < 100
    np.testing.assert_allclose(found[0], offset, atol=100)
    assert code_of(ask(profile, terms, 1)) == wire.DECLINED  # another request of the same round
    other = with_offset(terms, 2 * offset)
    assert code_of(send({"profile": str(profile)}, wire.TRAIN, other)) == wire.DECLINED


DECLINES: dict[str, tuple[str, dict[str, Any], str, int]] = {
    "noise of the client": (CLIENT_NOISE, {"noise": "client"}, wire.TRAIN, wire.DECLINED),
    "noise of the server": (
        "", {"noise": "server", "strategy": "fedhdp", "delta": 1e-7}, wire.TRAIN, wire.DECLINED,
    ),
    "an offset of its own": ("", {"work": {"kind": "offset"}}, wire.TRAIN, wire.DECLINED),
    "updates of its own": ("", {"after": {"shrink": {"scale": 0.5}}}, wire.TRAIN, wire.DECLINED),
    "a test": ("", {"evaluation": "sites"}, wire.EVALUATE, wire.FAILED),
    "the end": ("", {}, wire.FINISH, wire.FAILED),
    "a question": ("", {}, wire.JOIN, wire.FAILED),
}  # fmt: skip


@pytest.mark.parametrize("case", DECLINES)
def test_work_beside_an_offset_is_declined_before_a_release(tmp_path: Path, case: str) -> None:
    more, keys, kind, code = DECLINES[case]
    trusts = "trust-server = true\n" if keys.get("noise") == "server" else ""
    profile = make_site(tmp_path, disclose="['metrics']", holdout=0.2, more=more)
    profile.write_text(trusts + profile.read_text())
    terms = terms_of(**keys)
    offset = np.ones(size_of(terms), np.float32)
    at = int(kind != wire.JOIN)
    plain = server_wire.write_instructions(terms, at, model_of(terms))
    if kind == wire.EVALUATE:
        assert code_of(send({"profile": str(profile)}, wire.TRAIN, plain)) is None
    before = releases(profile)
    asked = with_offset(terms, offset, at)
    assert code_of(send({"profile": str(profile)}, kind, asked)) == code
    assert releases(profile) == before
    if kind in (wire.TRAIN, wire.EVALUATE):  # it is the offset that was declined
        assert code_of(send({"profile": str(profile)}, kind, plain)) is None


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_an_offset_is_finite_and_of_the_models_layout(tmp_path: Path, wrong: float) -> None:
    terms, profile = terms_of(), make_site(tmp_path)
    offset = np.ones(size_of(terms), np.float32)
    offset[-1] = wrong
    bad: list[Any] = [offset, model_of(terms_of(model="mlp:3"))]
    bad += [ArrayRecord({"w": array}) for array in [next(iter(model_of(terms).values()))]]
    for one in bad:
        content = with_offset(terms, one)
        assert code_of(send({"profile": str(profile)}, wire.TRAIN, content)) == wire.FAILED
    assert releases(profile) == []


def test_the_payload_limit_counts_the_offset(tmp_path: Path) -> None:
    terms = terms_of(model="mlp:20000")  # 5 numbers a unit, 4 bytes each: 0.4 MB
    profile = make_site(tmp_path, more="[policy]\nmax-payload-mb = 0.6\n")
    offset = np.zeros(size_of(terms), np.float32)
    content = with_offset(terms, offset)
    assert code_of(send({"profile": str(profile)}, wire.TRAIN, content)) == wire.DECLINED
    assert code_of(ask(profile, terms)) is None


def test_two_offsets_are_none(tmp_path: Path) -> None:
    terms, profile = terms_of(), make_site(tmp_path)
    content = server_wire.write_instructions(
        terms, 1, model_of(terms), others=[model_in(terms, 2), model_in(terms, 3)], use=wire.OFFSET
    )
    assert code_of(send({"profile": str(profile)}, wire.TRAIN, content)) == wire.FAILED

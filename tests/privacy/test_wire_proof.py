"""What a server can read from a site's replies: one form for all sites, and no bit by ε alone.

ε, declared N, batch size and records of a site may show in one place alone, the numbers of the
noisy update. Here replies of sites that differ in all of them are compared, field by field; where
the noisy sums are frozen, ε may not show even there. Each check is tried on replies that leak.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.common.serde import recorddict_to_proto

from client_app.training.trainer import Trainer
from hdpfl_flower import wire
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.privacy.plan import Plan
from tests.client_app.messages import Projecting, ask
from tests.privacy.replay import Rows, check_noise, observe
from tests.privacy.sites import BATCH, DECLARED, EPSILON, digits, make_site, terms_of

_NUMPY = "numpy.ndarray"


@dataclass(frozen=True)
class Private:
    """What a server must not be able to tell from the form of a reply."""

    epsilon: float = EPSILON
    declared: int = DECLARED
    batch: int = BATCH
    records: int = DECLARED

    def site(self, folder: Path) -> Path:
        terms = {"epsilon": self.epsilon, "declared": self.declared, "batch": self.batch}
        return make_site(folder, digits(self.records), **terms)  # type: ignore[arg-type]


USUAL = Private()
OTHERS = {
    "a stricter epsilon": Private(epsilon=0.4),
    "more declared": Private(declared=480),
    "a batch of one": Private(batch=1),
    "all records in a batch": Private(batch=DECLARED),
    "no records": Private(records=0),
    "ten times the records": Private(records=480),
    "all of it": Private(epsilon=6.0, declared=101, batch=7, records=13),
}


def form(reply: Message) -> dict[str, Any]:
    """Return all that a reply tells but the numbers of its arrays, and the time.

    Flower adds ids, a group and a time to live, all of them the request's, and when it was made.
    """
    about = reply.metadata
    told: dict[str, Any] = {
        "about": (about.message_type, about.group_id, about.src_node_id, about.dst_node_id),
        "error": (reply.error.code, reply.error.reason) if reply.has_error() else None,
        "length": 0,
    }
    if reply.has_content():
        told["length"] = len(recorddict_to_proto(reply.content).SerializeToString())
        for key, record in reply.content.items():
            told[key] = type(record).__name__, [_field(*item) for item in record.items()]
    return told


def _field(name: str, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, Array):
        return name, type(value).__name__, value
    header, numbers = value.data[:128], value.data[128:]
    return name, value.dtype, tuple(value.shape), value.stype, header, len(numbers)


def forms(profile: Path, terms: RunTerms) -> list[dict[str, Any]]:
    """Return the forms of a site's replies in a run: first as it should be, then as it should not.

    Round 1 is asked for twice, and round 3 is one that the plan does not pay for.
    """
    rounds = [ask(profile, terms, number) for number in (1, 2, 1, 3)]
    others = [ask(profile, terms, 1, kind) for kind in (wire.JOIN, wire.EVALUATE, wire.FINISH)]
    return [form(reply) for reply in (*rounds, *others)]


@pytest.mark.parametrize("other", ["no records", "ten times the records", "all of it"])
def test_one_number_has_the_same_form_at_every_site(tmp_path: Path, other: str) -> None:
    terms, found = terms_of(), []
    for private in (USUAL, OTHERS[other]):
        profile, ask = private.site(tmp_path / str(len(found))), Projecting()
        found.append([form(ask(profile, terms, number)) for number in (1, 2, 2, 1, 3)])
    assert found[0] == found[1]
    shapes = [told["update"][1][0][2] for told in found[0][:4]]
    assert shapes == [(650,), (1,), (1,), (650,)]


@pytest.mark.parametrize(
    ("model", "other"),
    [*(("logreg", other) for other in OTHERS), ("mlp:16", "all of it"), ("cnn", "all of it")],
)
def test_all_replies_have_the_same_form(tmp_path: Path, model: str, other: str) -> None:
    terms = terms_of(model)
    usual = forms(USUAL.site(tmp_path / "usual"), terms)
    assert usual == forms(OTHERS[other].site(tmp_path / "other"), terms)
    errors = [told["error"] for told in usual]
    assert errors == [None] * 3 + [(wire.DECLINED, "declined"), None,
                                   (wire.DECLINED, "declined"), None]  # fmt: skip


def _after_training(
    patch: pytest.MonkeyPatch, write: Callable[[Plan, int, bytes, int], RecordDict]
) -> None:
    """Let ``write``, which sees the plan and the number of records, make the reply to a round."""
    seen: list[tuple[Plan, int]] = []
    run = Trainer.run

    def noting(self: Trainer, plan: Plan) -> bytes:
        seen.append((plan, len(self._site.training_records())))
        return run(self, plan)

    patch.setattr(Trainer, "run", noting)
    patch.setattr(wire, "write_update", lambda payload, size, *_: write(*seen[-1], payload, size))


def _reply(payload: bytes, size: int, kind: str = "float32", name: str = "update") -> RecordDict:
    return RecordDict({"update": ArrayRecord({name: Array(kind, (size,), _NUMPY, payload)})})


def num_examples(plan: Plan, records: int, payload: bytes, size: int) -> RecordDict:
    """As Flower's own strategies want it."""
    reply = _reply(payload, size)
    reply["metrics"] = MetricRecord({"num-examples": records})
    return reply


def steps_in_a_name(plan: Plan, records: int, payload: bytes, size: int) -> RecordDict:
    return _reply(payload, size, name=f"update-{plan.steps[0].count}")


def a_byte_a_step(plan: Plan, records: int, payload: bytes, size: int) -> RecordDict:
    return _reply(payload + bytes(plan.steps[0].count), size)


def precision_by_epsilon(plan: Plan, records: int, payload: bytes, size: int) -> RecordDict:
    return _reply(payload, size, "float32" if plan.epsilon < 4 else "float64")


def no_reply_from_few(plan: Plan, records: int, payload: bytes, size: int) -> RecordDict:
    if records < 20:
        raise ValueError
    return _reply(payload, size)


@pytest.mark.parametrize(
    "leak", [num_examples, steps_in_a_name, precision_by_epsilon, a_byte_a_step, no_reply_from_few]
)
def test_the_form_shows_a_leak(tmp_path: Path, leak: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _after_training(monkeypatch, leak)
    usual = forms(USUAL.site(tmp_path / "usual"), terms_of())
    assert usual != forms(OTHERS["all of it"].site(tmp_path / "other"), terms_of())


# With the noisy sums frozen, nothing of a reply may depend on ε or on the records.


def within(count: int) -> Callable[[Rows], Rows]:
    return lambda rows: rows[rows < count]


def replies_like(
    first: Any, private: Private, folder: Path, terms: RunTerms, ask: Callable[..., Message] = ask
) -> Any:
    return observe(private.site(folder), terms, first, within(private.records), ask).replies


def test_epsilon_and_records_act_through_noisy_sums_alone(tmp_path: Path) -> None:
    """The proof for one number in place of an update: it is a function of the noisy sums."""
    terms = terms_of()
    first = observe(USUAL.site(tmp_path / "usual"), terms, ask=Projecting())
    assert [reply.get("ArrayRecord update.update", (0, 0))[1] for reply in first.replies[:2]] == [
        (650,), (1,)
    ]  # fmt: skip
    check_noise(first, terms.clip_norm)
    for number, private in enumerate((Private(epsilon=0.4), Private(records=7))):
        folder = tmp_path / str(number)
        assert replies_like(first, private, folder, terms, Projecting()) == first.replies


@pytest.mark.parametrize(
    "private", [Private(epsilon=0.4), Private(epsilon=6.0), Private(epsilon=0.4, records=7)]
)
@pytest.mark.parametrize("model", ["logreg", "mlp:16"])
def test_epsilon_acts_through_noisy_sums(tmp_path: Path, model: str, private: Private) -> None:
    terms = terms_of(model)
    first = observe(USUAL.site(tmp_path / "usual"), terms)
    assert first.replies == replies_like(first, private, tmp_path / "other", terms)


def test_a_batch_size_moves_the_divisor_of_the_numbers_alone(tmp_path: Path) -> None:
    """Twice b and N: the same sums, over twice the divisor."""
    terms = terms_of()
    first = observe(USUAL.site(tmp_path / "usual"), terms)
    twice = Private(batch=2 * BATCH, declared=2 * DECLARED)
    replies = replies_like(first, twice, tmp_path / "other", terms)
    key = "ArrayRecord update.update"
    for one, other in zip(first.replies, replies, strict=True):
        if key not in one:
            assert one == other
            continue
        assert one[key][:3] == other[key][:3]
        mine, theirs = (np.frombuffer(reply[key][3][128:], np.float32) for reply in (one, other))
        # four float32 steps each of a model, and at its start, below 1: 2⁻²⁵ each
        np.testing.assert_allclose(theirs, mine / 2, rtol=0, atol=16 * 2.0**-25)


def scaled_by_epsilon(plan: Plan, update: Any) -> Any:
    return update * np.float32(1 + 1e-6 * plan.epsilon)


def noise_in_the_last_bit(plan: Plan, update: Any) -> Any:
    bits = update.view(np.uint32) & ~np.uint32(1)
    return (bits | np.uint32(plan.noise_multiplier > 2)).view(np.float32)


@pytest.mark.parametrize("leak", [scaled_by_epsilon, noise_in_the_last_bit])
def test_frozen_sums_show_a_leak(
    tmp_path: Path, leak: Callable[[Plan, Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Plan] = []
    run, encode = Trainer.run, wire.encode_update

    def noting(self: Trainer, plan: Plan) -> bytes:
        seen.append(plan)
        return run(self, plan)

    monkeypatch.setattr(Trainer, "run", noting)
    monkeypatch.setattr(wire, "encode_update", lambda update: encode(leak(seen[-1], update)))
    first = observe(USUAL.site(tmp_path / "usual"), terms_of())
    other = replies_like(first, Private(epsilon=0.4), tmp_path / "other", terms_of())
    assert first.replies != other

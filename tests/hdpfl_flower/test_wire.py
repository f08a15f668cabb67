"""What crosses the network: exactly the keys of wire.py, and nothing malformed gets through."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.wire import WireError
from tests.client_app.messages import make_site, model_in, send, terms_of

MODEL = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(2, dtype=np.float32)}
UPDATE = np.linspace(-1, 1, 8, dtype=np.float32)


def test_instructions_and_model_come_back_as_they_went() -> None:
    content = server_wire.write_instructions(RunTerms(rounds=3), 2, server_wire.write_model(MODEL))
    read = wire.read_instructions(content)
    assert (read.terms, read.server_round) == (RunTerms(rounds=3), 2)
    for name, array in wire.read_model(read.model, MODEL).items():
        np.testing.assert_array_equal(array, MODEL[name])


def test_a_model_is_written_as_flower_writes_it_and_read_as_it_reads() -> None:
    model = {**MODEL, "across": MODEL["w"].T, "one": np.array(3, np.float32)}
    ours = server_wire.write_model(model)
    flowers = ArrayRecord({name: Array(array) for name, array in model.items()})
    assert {
        name: (array.dtype, tuple(array.shape), array.stype) for name, array in ours.items()
    } == {name: (array.dtype, tuple(array.shape), array.stype) for name, array in flowers.items()}
    for name, array in server_wire.read_own(ours).items():
        np.testing.assert_array_equal(array, model[name])
        np.testing.assert_array_equal(ours[name].numpy(), model[name])


def test_an_update_comes_back_as_it_went_and_carries_nothing_else() -> None:
    content = wire.write_update(wire.encode_update(UPDATE), len(UPDATE))
    np.testing.assert_array_equal(server_wire.read_update(content, len(UPDATE)), UPDATE)
    assert {key: list(record) for key, record in content.items()} == {"update": ["update"]}
    assert not content.metric_records
    assert not content.config_records


def test_an_update_is_written_as_flower_writes_an_array() -> None:
    for update in (UPDATE, UPDATE[:1]):
        assert wire.encode_update(update) == Array(update).data


def wrong_update(**changes: object) -> RecordDict:
    array = Array(UPDATE)
    fields = {"dtype": array.dtype, "shape": array.shape, "stype": array.stype, "data": array.data}
    return RecordDict({"update": ArrayRecord({"update": Array(**{**fields, **changes})})})  # type: ignore[arg-type]


def header(shape: str, kind: str = "<f4", body: bytes = UPDATE.tobytes()) -> bytes:
    """Return what numpy.save writes, with any text for a shape (NumPy leaves room for growth)."""
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}"
    text += " " * (len(np_header()) - 10 - len(text) - 1) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + body


def np_header() -> bytes:
    return Array(UPDATE).data[: -UPDATE.nbytes]


def of(values: np.ndarray) -> RecordDict:
    return RecordDict({"update": ArrayRecord({"update": Array(values)})})


BAD: dict[str, Callable[[], RecordDict]] = {
    "nothing": RecordDict,
    "another key": lambda: RecordDict({"updates": ArrayRecord({"update": Array(UPDATE)})}),
    "an extra record": lambda: RecordDict({**of(UPDATE), "loss": MetricRecord({"loss": 1.0})}),
    "an extra array": lambda: RecordDict(
        {"update": ArrayRecord({"update": Array(UPDATE), "x": Array(UPDATE)})}
    ),
    "another array": lambda: RecordDict({"update": ArrayRecord({"x": Array(UPDATE)})}),
    "a config": lambda: RecordDict({"update": ConfigRecord({"update": 1.0})}),
    "NaN": lambda: of(np.where(UPDATE > 0.9, np.float32("nan"), UPDATE)),
    "Inf": lambda: of(np.where(UPDATE > 0.9, np.float32("inf"), UPDATE)),
    "shorter": lambda: of(UPDATE[:-1]),
    "broadcastable": lambda: of(UPDATE[:1]),
    "a scalar": lambda: of(np.ones((), np.float32)),
    "two dimensions": lambda: of(UPDATE.reshape(2, 4)),
    "float64": lambda: of(UPDATE.astype(np.float64)),
    "float16": lambda: of(UPDATE.astype(np.float16)),
    "integers": lambda: of(UPDATE.astype(np.int32)),
    "big-endian": lambda: wrong_update(data=header("(8,)", ">f4")),
    "objects": lambda: wrong_update(data=header("(8,)", "|O")),
    "a header of 2 GiB": lambda: wrong_update(data=header("(536870912,)")),
    "a header that lies": lambda: wrong_update(data=header("(4, 2)")),
    "a header of nonsense": lambda: wrong_update(data=header("((((")),
    "code in a header": lambda: wrong_update(data=header("(__import__('os').getpid(),)")),
    "no header": lambda: wrong_update(data=UPDATE.tobytes()),
    "an empty body": lambda: wrong_update(data=b""),
    "bytes after the end": lambda: wrong_update(data=header("(8,)", body=UPDATE.tobytes() + b"\0")),
    "another serialisation": lambda: wrong_update(stype="pickle"),
    "another dtype said": lambda: wrong_update(dtype="float64"),
    "another shape said": lambda: wrong_update(shape=(9,)),
}


@pytest.mark.parametrize("case", BAD)
def test_a_malformed_update_is_refused_in_constant_words(case: str) -> None:
    for projected in (False, True):
        if projected and case == "broadcastable":  # one number, which may come
            continue
        with pytest.raises(WireError) as error:
            server_wire.read_update(BAD[case](), len(UPDATE), may_be_projected=projected)
        assert not any(character.isdigit() for character in str(error.value))


def test_the_same_builder_makes_a_good_update() -> None:
    """The cases above fail for what they change, not for how they are built."""
    np.testing.assert_array_equal(server_wire.read_update(wrong_update(), 8), UPDATE)
    np.testing.assert_array_equal(
        server_wire.read_update(wrong_update(data=header("(8,)")), 8), UPDATE
    )


@pytest.mark.parametrize(
    "change",
    [
        {"w": np.zeros((3, 2), np.float32)},
        {"w": np.full((2, 3), np.nan, np.float32)},
        {"w": np.zeros((2, 3))},
        {"x": np.zeros(1, np.float32)},
    ],
)
def test_a_model_of_another_layout_is_refused(change: dict[str, np.ndarray]) -> None:
    sent = ArrayRecord({name: Array(array) for name, array in {**MODEL, **change}.items()})
    with pytest.raises(WireError):
        wire.read_model(sent, MODEL)
    with pytest.raises(WireError):
        wire.read_model(server_wire.write_model({"b": MODEL["b"], "w": MODEL["w"]}), MODEL)


def test_a_poor_models_metrics_are_read() -> None:
    """R² of a poor model is negative: such a site is not to be missing in the mean."""
    said = {"accuracy": -3.5, "loss": 0.25, "mse": 0.5, "mae": 0.5}
    try:
        read = server_wire.read_metrics(wire.write_metrics(wire.encode_metrics(said)))
    except wire.WireError as error:
        pytest.fail(str(error))
    assert read == said


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), [0.5]])
def test_metrics_are_finite_numbers(value: float) -> None:
    with pytest.raises(wire.WireError, match="metrics: a"):
        server_wire.read_metrics(RecordDict({"metrics": MetricRecord({"loss": value})}))


@pytest.mark.parametrize("name", ["batch-size", "declared-records", "epsilon", "noise-std"])
def test_facts_of_a_site_are_not_negative(name: str) -> None:
    with pytest.raises(wire.WireError, match="out of range"):
        server_wire.read_site(RecordDict({"site": MetricRecord({name: -1.0})}))


def test_refusals_are_constants() -> None:
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    request = Message(RecordDict(), 7, "train")
    declined, failed = wire.refusal(wire.DECLINED, request), wire.refusal(wire.FAILED, request)
    assert (declined.error.code, declined.error.reason) == (120, "declined")
    assert (failed.error.code, failed.error.reason) == (121, "failed")


# --- the digest by which a site knows a request covers everything that is asked


def model(number: float) -> ArrayRecord:
    return server_wire.write_model({"w": np.full((2, 3), number, np.float32)})


def digest(terms: RunTerms, server_round: int, first: ArrayRecord, **more: Any) -> str:
    content = server_wire.write_instructions(terms, server_round, first, **more)
    return wire.read_instructions(content).digest


TERMS = RunTerms()
PLAIN: dict[str, Any] = {"terms": TERMS, "server_round": 2, "project": server_wire.WHOLE}
PLAIN["first"] = model(1)
ONE = {**PLAIN, "others": [model(2)], "use": wire.CHOOSE}
TWO = {**PLAIN, "others": [model(2), model(3)], "use": wire.CHOOSE}
REQUESTS = {
    "as it is": PLAIN,
    "other terms": {**PLAIN, "terms": RunTerms(rounds=3)},
    "another round": {**PLAIN, "server_round": 1},
    "another model": {**PLAIN, "first": model(2)},
    "another projection": {**PLAIN, "project": "0" * 64},
    "no projection": {**PLAIN, "project": None},
    "a choice of two": ONE,
    "a pull towards the second": {**ONE, "use": wire.PULL},
    "an offset by the second": {**ONE, "use": wire.OFFSET},
    "a choice of another second": {**ONE, "others": [model(3)]},
    "a choice of three": TWO,
    "the same three, in another order": {**TWO, "others": [model(3), model(2)]},
}


def test_whatever_is_asked_differently_has_another_digest() -> None:
    digests = {name: digest(**request) for name, request in REQUESTS.items()}
    again = {name: digest(**request) for name, request in REQUESTS.items()}
    assert again == digests
    assert len(set(digests.values())) == len(REQUESTS), digests


@pytest.mark.parametrize("first", [wire.CHOOSE, wire.PULL, wire.OFFSET])
def test_the_same_models_for_another_use_are_another_request(tmp_path: Path, first: str) -> None:
    """A site that answered one does not answer the other: one request, one payload."""
    terms, profile = terms_of(choice={"kind": "gaussian", "times": 1}), make_site(tmp_path)
    replies = []
    uses = [wire.CHOOSE, wire.PULL, wire.OFFSET]
    for use in (first, first, uses[uses.index(first) - 1]):
        content = server_wire.write_instructions(
            terms, 1, model_in(terms, 1), others=[model_in(terms, 2)], use=use
        )
        replies.append(send({"profile": str(profile)}, wire.TRAIN, content))
    assert [reply.has_content() for reply in replies] == [True, True, False]
    assert replies[-1].error.code == wire.DECLINED

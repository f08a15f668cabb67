"""What crosses the network: exactly the keys of wire.py, and nothing malformed gets through."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from hdpfl_flower import wire
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.wire import WireError

MODEL = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(2, dtype=np.float32)}
UPDATE = np.linspace(-1, 1, 8, dtype=np.float32)


def test_instructions_and_model_come_back_as_they_went() -> None:
    content = wire.write_instructions(RunTerms(rounds=3), 2, wire.write_model(MODEL))
    read = wire.read_instructions(content)
    assert (read.terms, read.server_round) == (RunTerms(rounds=3), 2)
    for name, array in wire.read_model(read.model, MODEL).items():
        np.testing.assert_array_equal(array, MODEL[name])


def test_a_model_is_written_as_flower_writes_it_and_read_as_it_reads() -> None:
    model = {**MODEL, "across": MODEL["w"].T, "one": np.array(3, np.float32)}
    ours = wire.write_model(model)
    flowers = ArrayRecord({name: Array(array) for name, array in model.items()})
    assert {
        name: (array.dtype, tuple(array.shape), array.stype) for name, array in ours.items()
    } == {name: (array.dtype, tuple(array.shape), array.stype) for name, array in flowers.items()}
    for name, array in wire.read_own(ours).items():
        np.testing.assert_array_equal(array, model[name])
        np.testing.assert_array_equal(ours[name].numpy(), model[name])


def test_an_update_comes_back_as_it_went_and_carries_nothing_else() -> None:
    content = wire.write_update(wire.encode_update(UPDATE), len(UPDATE))
    np.testing.assert_array_equal(wire.read_update(content, len(UPDATE)), UPDATE)
    assert {key: list(record) for key, record in content.items()} == {"update": ["update"]}
    assert not content.metric_records
    assert not content.config_records


def test_the_digest_covers_everything_but_flowers_ids() -> None:
    plain = RunTerms()

    def digest(terms: RunTerms = plain, server_round: int = 1, **model: np.ndarray) -> str:
        record = wire.write_model({**MODEL, **model})
        return wire.read_instructions(wire.write_instructions(terms, server_round, record)).digest

    same = digest()
    assert digest() == same
    others = [digest(RunTerms(rounds=3)), digest(server_round=2), digest(w=MODEL["w"] + 1)]
    others.append(digest(w=MODEL["w"].reshape(3, 2)))
    assert len({same, *others}) == 5


def projecting(project: object) -> RecordDict:
    content = wire.write_instructions(RunTerms(), 2, wire.write_model(MODEL))
    content["instructions"]["project"] = project  # type: ignore[index,call-overload]
    return content


def test_what_to_project_on_comes_back_as_it_went_and_is_part_of_the_digest() -> None:
    model = wire.write_model(MODEL)
    digests = set()
    for project in (None, wire.WHOLE, "0" * 64, "1" * 64):
        read = wire.read_instructions(wire.write_instructions(RunTerms(), 2, model, project))
        assert read.project == project
        assert read.model_digest == wire.model_digest(model)
        digests.add(read.digest)
    assert len(digests) == 4


@pytest.mark.parametrize(
    "project", ["0" * 63, "0" * 65, "g" * 64, "A" * 64, "0" * 64 + "\n", "None", 1, b"0" * 64, True]
)
def test_nothing_but_a_digest_names_a_model(project: object) -> None:
    with pytest.raises(WireError):
        wire.read_instructions(projecting(project))
    wire.read_instructions(projecting("0" * 64))


def test_a_model_is_known_by_all_that_it_holds() -> None:
    digests = {
        wire.model_digest(wire.write_model(model))
        for model in (
            MODEL,
            {**MODEL, "w": np.nextafter(MODEL["w"], np.float32(9))},
            {**MODEL, "w": MODEL["w"].reshape(3, 2)},
            {"v": MODEL["w"], "b": MODEL["b"]},
            {"b": MODEL["b"], "w": MODEL["w"]},
        )
    }
    assert len(digests) == 5


def test_an_update_is_written_as_flower_writes_an_array() -> None:
    for update in (UPDATE, UPDATE[:1]):
        assert wire.encode_update(update) == Array(update).data


def test_one_number_comes_back_as_it_went_where_it_may_come() -> None:
    content = wire.write_update(wire.encode_update(UPDATE[:1]), len(UPDATE))
    read = wire.read_update(content, len(UPDATE), may_be_projected=True)
    np.testing.assert_array_equal(read, UPDATE[:1])
    whole = wire.write_update(wire.encode_update(UPDATE), len(UPDATE))
    read = wire.read_update(whole, len(UPDATE), may_be_projected=True)
    np.testing.assert_array_equal(read, UPDATE)
    with pytest.raises(WireError):
        wire.read_update(content, len(UPDATE))


def test_bytes_are_those_of_arrays_texts_and_numbers() -> None:
    content = wire.write_instructions(RunTerms(), 2, wire.write_model(MODEL), "0" * 64)
    arrays = sum(len(Array(array).data) for array in MODEL.values())
    assert wire.content_bytes(content) == arrays + len(RunTerms().to_json().encode()) + 2 * 8 + 64
    assert wire.content_bytes(wire.write_site({"epsilon": 1.0, "declared-records": 3})) == 16
    lists = RecordDict({"x": ConfigRecord({"a": [1, 2, 3], "b": b"12345"})})
    assert wire.content_bytes(lists) == 29


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
            wire.read_update(BAD[case](), len(UPDATE), may_be_projected=projected)
        assert not any(character.isdigit() for character in str(error.value))


def test_the_same_builder_makes_a_good_update() -> None:
    """The cases above fail for what they change, not for how they are built."""
    np.testing.assert_array_equal(wire.read_update(wrong_update(), 8), UPDATE)
    np.testing.assert_array_equal(wire.read_update(wrong_update(data=header("(8,)")), 8), UPDATE)


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({"instructions": ConfigRecord({"format": 1, "terms": "{}", "round": 1})}),
        RecordDict(
            {"instructions": ConfigRecord({"format": 1, "terms": "{}"}), "model": ArrayRecord()}
        ),
        RecordDict(
            {
                "instructions": ConfigRecord({"format": 1, "terms": "{}", "round": 1.0}),
                "model": ArrayRecord(),
            }
        ),
        RecordDict(
            {
                "instructions": ConfigRecord({"format": 1, "terms": "{}", "round": True}),
                "model": ArrayRecord(),
            }
        ),
        RecordDict(
            {
                "instructions": ConfigRecord({"format": 1, "terms": b"{}", "round": 1}),
                "model": ArrayRecord(),
            }
        ),
        RecordDict({"instructions": ArrayRecord(), "model": ArrayRecord()}),
        RecordDict(
            {
                "instructions": ConfigRecord({"format": 1, "terms": "{}", "round": 1, "x": 1}),
                "model": ArrayRecord(),
            }
        ),
    ],
)
def test_malformed_instructions_are_refused(content: RecordDict) -> None:
    with pytest.raises(WireError):
        wire.read_instructions(content)


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
        wire.read_model(wire.write_model({"b": MODEL["b"], "w": MODEL["w"]}), MODEL)


def test_a_site_says_only_what_the_list_allows() -> None:
    facts = {"partition": 3, "epsilon": float("inf"), "declared-records": 100, "batch-size": 16}
    assert wire.read_site(wire.write_site(facts)) == facts
    assert wire.read_site(wire.write_site({})) == {}
    with pytest.raises(WireError):
        wire.write_site({"num-examples": 100})
    for bad in (
        {"epsilon": -1.0},
        {"epsilon": float("nan")},
        {"noise-std": float("inf")},
        {"delta": 1e-5},
    ):
        with pytest.raises(WireError):
            wire.read_site(RecordDict({"site": MetricRecord(bad)}))
    with pytest.raises(WireError):
        wire.read_site(RecordDict({"site": MetricRecord({"epsilon": [1.0, 2.0]})}))


def test_a_poor_models_metrics_are_read() -> None:
    """R² of a poor model is negative: such a site is not to be missing in the mean."""
    said = {"accuracy": -3.5, "loss": 0.25, "mse": 0.5, "mae": 0.5}
    try:
        read = wire.read_metrics(wire.write_metrics(wire.encode_metrics(said)))
    except wire.WireError as error:
        pytest.fail(str(error))
    assert read == said


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), [0.5]])
def test_metrics_are_finite_numbers(value: float) -> None:
    with pytest.raises(wire.WireError, match="metrics: a"):
        wire.read_metrics(RecordDict({"metrics": MetricRecord({"loss": value})}))


@pytest.mark.parametrize("name", ["batch-size", "declared-records", "epsilon", "noise-std"])
def test_facts_of_a_site_are_not_negative(name: str) -> None:
    with pytest.raises(wire.WireError, match="out of range"):
        wire.read_site(RecordDict({"site": MetricRecord({name: -1.0})}))


def test_metrics_are_two_numbers_and_no_count() -> None:
    payload = wire.encode_metrics({"loss": 0.5, "accuracy": 0.75})
    assert wire.read_metrics(wire.write_metrics(payload)) == {"accuracy": 0.75, "loss": 0.5}
    with pytest.raises(WireError):
        wire.write_metrics(wire.encode_metrics({"num-examples": 3}))
    with pytest.raises(WireError):
        wire.read_metrics(RecordDict({"metrics": MetricRecord({"num-examples": 3})}))


def test_refusals_are_constants() -> None:
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    request = Message(RecordDict(), 7, "train")
    declined, failed = wire.refusal(wire.DECLINED, request), wire.refusal(wire.FAILED, request)
    assert (declined.error.code, declined.error.reason) == (120, "declined")
    assert (failed.error.code, failed.error.reason) == (121, "failed")

"""The wire's refusals one by one, each beside what passes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.server_wire import pack_models, write_model
from hdpfl_flower.wire import (
    WireError,
    decode,
    encode,
    model_digest,
    numbers_in,
    read_model,
    split_models,
    unpack_models,
)

ONE = {"a": np.arange(3, dtype=np.float32), "b": np.ones((1, 2), np.float32)}
MODEL = write_model(ONE)
OTHER = write_model({name: array + 1 for name, array in ONE.items()})


@pytest.mark.parametrize(
    "names",
    [["a"], ["1/a"], ["0/a", "0"], ["0/a", "a"], ["0/a", "2/a"], ["0/a", "1/a", "0/b"],
     ["0/a", "1"], ["00/a"], ["/a"], ["-1/a"]],
)  # fmt: skip
def test_models_go_by_the_names_that_are_written_alone(names: list[str]) -> None:
    with pytest.raises(WireError, match="unexpected names"):
        split_models(dict.fromkeys(names, 0))


def test_models_are_unpacked_as_they_were_packed() -> None:
    unpacked = unpack_models(pack_models([MODEL, OTHER]))
    assert [model_digest(one) for one in unpacked] == [model_digest(MODEL), model_digest(OTHER)]
    assert split_models({"0/a/b": 1, "0/c": 2, "1/a/b": 3}) == [{"a/b": 1, "c": 2}, {"a/b": 3}]
    assert split_models({}) == []


def test_a_digest_covers_names_types_shapes_forms_and_numbers() -> None:
    def record(name: str = "a", dtype: str = "float32", shape: tuple[int, ...] = (2,),
               stype: str = "numpy.ndarray", data: bytes = b"xy") -> ArrayRecord:  # fmt: skip
        return ArrayRecord({name: Array(dtype, shape, stype, data)})

    several = [
        record(), record(name="b"), record(dtype="float64"), record(shape=(1, 2)),
        record(stype="other"), record(data=b"xz"), record(data=b"xyz"),
        ArrayRecord({"a": record()["a"], "b": record()["a"]}), ArrayRecord({}),
        ArrayRecord({"b": record()["a"], "a": record()["a"]}),
    ]  # fmt: skip
    digests = [model_digest(one) for one in several]
    assert len({*digests}) == len(several)
    assert all(len(digest) == 64 for digest in digests)
    two = ArrayRecord({"a": record(data=b"x")["a"], "b": record(data=b"y")["a"]})
    one = record(data=b"xb\nfloat32\n(2,)\nnumpy.ndarray\ny")  # what is hashed for two, in one
    assert model_digest(one) != model_digest(two)


def test_an_array_is_refused_for_each_thing_that_differs() -> None:
    good = write_model({"a": np.array([1.0, 2.0], np.float32)})["a"]
    assert decode(good, (2,)).tolist() == [1.0, 2.0]
    data = good.data
    header = data[:-8]
    for wrong, words in (
        (Array("float64", (2,), "numpy.ndarray", data), "type or shape"),
        (Array("float32", (2,), "numpy", data), "type or shape"),
        (Array("float32", (1, 2), "numpy.ndarray", data), "type or shape"),
        (Array("float32", (2,), "numpy.ndarray", b"x" + data[1:]), "header"),
        (Array("float32", (2,), "numpy.ndarray", data + b"x"), "length"),
        (Array("float32", (2,), "numpy.ndarray", data[:-1]), "length"),
        (Array("float32", (2,), "numpy.ndarray", header), "length"),
        (Array("float32", (2,), "numpy.ndarray",
               encode(np.array([1.0, np.nan], np.float32))), "not finite"),
        (Array("float32", (2,), "numpy.ndarray",
               encode(np.array([1.0, -np.inf], np.float32))), "not finite"),
    ):  # fmt: skip
        with pytest.raises(WireError, match=words):
            decode(wrong, (2,))
    assert [numbers_in(len(data)), numbers_in(len(header) + 4 * 650)] == [2, 650]
    with pytest.raises(WireError, match="parameter names"):
        read_model(MODEL, {"b": ONE["b"], "a": ONE["a"]})
    assert [*read_model(MODEL, ONE)] == ["a", "b"]


TERMS = RunTerms()


def content(**changes: Any) -> RecordDict:
    """Return instructions with some parts of their head changed or, where None, left out."""
    written = server_wire.write_instructions(TERMS, 1, MODEL)
    head = written["instructions"]
    assert isinstance(head, ConfigRecord)
    for key, value in changes.items():
        if value is None:
            del head[key]
        else:
            head[key] = value
    return written


@pytest.mark.parametrize(
    "changes",
    [{"terms": None}, {"round": None}, {"terms": 5}, {"terms": b"x"}, {"round": 1.0},
     {"round": "1"}, {"round": True}, {"more": 1}, {"project": 5}, {"project": "x"},
     {"project": "a" * 63}, {"project": "A" * 64}, {"project": "a" * 65}, {"use": "choose"},
     {"use": "pull"}, {"use": "x"},
     *({"project": wrong} for wrong in ("g" * 64, "0" * 64 + "\n", "None", b"0" * 64, True))],
)  # fmt: skip
def test_a_head_is_refused_for_each_thing_that_differs(changes: dict[str, Any]) -> None:
    with pytest.raises(WireError, match="instructions"):
        wire.read_instructions(content(**changes))


def test_a_head_that_is_written_is_read() -> None:
    read = wire.read_instructions(content())
    assert (read.server_round, read.project, read.others, read.use) == (1, None, (), "")
    assert read.terms == TERMS
    assert read.model_digest == model_digest(MODEL)
    for project in ("", "0123456789abcdef" * 4):
        written = server_wire.write_instructions(TERMS, 1, MODEL, project)
        assert wire.read_instructions(written).project == project


def test_records_of_other_kinds_are_refused() -> None:
    good = content()
    for key, other in itertools.product(
        ("instructions", "model"), (MetricRecord({"a": 1}), ConfigRecord({"a": 1}))
    ):
        wrong = RecordDict({**good, key: other})
        with pytest.raises(WireError, match=r"instructions|message from the server"):
            wire.read_instructions(wrong)
    with pytest.raises(WireError, match="unexpected types"):
        wire.read_instructions(RecordDict({**good, "instructions": MODEL}))
    for key in good:
        with pytest.raises(WireError, match="unexpected keys"):
            wire.read_instructions(RecordDict({k: v for k, v in good.items() if k != key}))
    for wrong in (RecordDict(), RecordDict({**good, "more": MODEL})):
        with pytest.raises(WireError, match="unexpected keys"):
            wire.read_instructions(wrong)
    for others in (ConfigRecord({"a": 1}), ArrayRecord({})):
        with pytest.raises(WireError, match="unexpected models"):
            wire.read_instructions(RecordDict({**good, "others": others}))


def test_other_models_need_a_use_and_a_pull_needs_one() -> None:
    for use, others in (
        (wire.CHOOSE, [OTHER]),
        (wire.CHOOSE, [OTHER, MODEL]),
        (wire.PULL, [OTHER]),
        (wire.OFFSET, [OTHER]),
    ):
        written = server_wire.write_instructions(TERMS, 1, MODEL, others=others, use=use)
        read = wire.read_instructions(written)
        assert (read.use, len(read.others), len(read.models)) == (use, len(others), 1 + len(others))
    two = [OTHER, MODEL]
    for use, others in (("", [OTHER]), ("x", [OTHER]), (wire.PULL, two), (wire.OFFSET, two)):
        with pytest.raises(WireError, match="without a use"):
            wire.read_instructions(
                server_wire.write_instructions(TERMS, 1, MODEL, others=others, use=use)
            )


def test_each_part_of_a_request_makes_it_another_one() -> None:
    requests = [
        server_wire.write_instructions(TERMS, 1, MODEL),
        server_wire.write_instructions(TERMS, 2, MODEL),
        server_wire.write_instructions(TERMS.updated(rounds=3), 1, MODEL),
        server_wire.write_instructions(TERMS, 1, OTHER),
        server_wire.write_instructions(TERMS, 1, MODEL, ""),
        server_wire.write_instructions(TERMS, 1, MODEL, "a" * 64),
        server_wire.write_instructions(TERMS, 1, MODEL, others=[OTHER], use=wire.CHOOSE),
        server_wire.write_instructions(TERMS, 1, MODEL, others=[OTHER], use=wire.PULL),
        server_wire.write_instructions(TERMS, 1, MODEL, others=[OTHER], use=wire.OFFSET),
        server_wire.write_instructions(TERMS, 1, MODEL, others=[MODEL], use=wire.CHOOSE),
        server_wire.write_instructions(TERMS, 1, MODEL, others=[OTHER, OTHER], use=wire.CHOOSE),
    ]
    digests = [wire.read_instructions(request).digest for request in requests]
    assert len({*digests}) == len(requests)
    assert digests == [wire.read_instructions(request).digest for request in requests]


@pytest.mark.parametrize("wrong", [-1, 2, 3, 0.0, True, "0"])
def test_a_choice_is_one_of_the_models(wrong: Any) -> None:
    assert server_wire.read_choice(RecordDict({"choice": ConfigRecord({"choice": 0})}), 2) == 0
    assert server_wire.read_choice(RecordDict({"choice": ConfigRecord({"choice": 1})}), 2) == 1
    for record in (
        ConfigRecord({"choice": wrong}), ConfigRecord({"choice": 0, "more": 1}),
        ConfigRecord({"other": 0}), MetricRecord({"choice": 0}),
    ):  # fmt: skip
        with pytest.raises(WireError, match="not one of the models"):
            server_wire.read_choice(RecordDict({"choice": record}), 2)
    with pytest.raises(WireError, match="not one of the models"):
        server_wire.read_choice(RecordDict({}), 2)


def test_an_update_is_read_whole_or_as_one_number_where_that_was_asked() -> None:
    whole = wire.write_update(wire.encode_update(np.arange(3, dtype=np.float32)), 3)
    number = wire.write_update(wire.encode_update(np.array([7.0], np.float32)), 3)
    chosen = wire.write_update(wire.encode_update(np.zeros(3, np.float32)), 3, b"1")
    assert server_wire.read_update(whole, 3).tolist() == [0.0, 1.0, 2.0]
    assert server_wire.read_update(whole, 3, may_be_projected=True).tolist() == [0.0, 1.0, 2.0]
    assert server_wire.read_update(number, 3, may_be_projected=True).tolist() == [7.0]
    assert server_wire.read_update(chosen, 3, with_choice=True).tolist() == [0.0, 0.0, 0.0]
    assert server_wire.read_choice(chosen, 2) == 1
    for record, more in (
        (number, {}), (chosen, {}), (whole, {"with_choice": True}),
        (RecordDict({"update": ConfigRecord({"a": 1})}), {}),
        (RecordDict({"update": ArrayRecord({"other": MODEL["a"]})}), {}),
        (RecordDict({"update": ArrayRecord({"update": MODEL["a"], "b": MODEL["a"]})}), {}),
    ):  # fmt: skip
        with pytest.raises(WireError):
            server_wire.read_update(record, 3, **more)
    for size in (2, 4):
        with pytest.raises(WireError):
            server_wire.read_update(whole, size, may_be_projected=True)


def test_what_a_site_says_of_itself() -> None:
    said = {"partition": 0, "batch-size": 7, "declared-records": 61, "epsilon": 1.5,
            "noise-std": 0.25}  # fmt: skip
    for facts in ({}, said, {"epsilon": float("inf")}):
        assert server_wire.read_site(wire.write_site(facts)) == facts
    with pytest.raises(WireError, match="unexpected keys"):
        wire.write_site({"records": 1})
    for wrong in (
        {"records": 1.0}, {"epsilon": -0.5}, {"epsilon": float("nan")}, {"batch-size": -1},
        {"batch-size": float("inf")}, {"epsilon": [1.0]}, {"noise-std": float("inf")},
    ):  # fmt: skip
        with pytest.raises(WireError, match="site"):
            server_wire.read_site(RecordDict({"site": MetricRecord(wrong)}))
    for record in (RecordDict({}), RecordDict({"site": ConfigRecord({"epsilon": 1.0})}),
                   RecordDict({"site": MetricRecord({}), "more": MetricRecord({})})):  # fmt: skip
        with pytest.raises(WireError, match="unexpected keys"):
            server_wire.read_site(record)


def test_the_bytes_of_a_message_are_counted_by_their_kind() -> None:
    record = RecordDict({
        "a": ArrayRecord({"x": Array("float32", (2,), "numpy.ndarray", b"12345")}),
        "b": ConfigRecord({"text": "ε", "bytes": b"123", "number": 5, "list": [1, 2, 3]}),
        "c": MetricRecord({"number": 1.0}),
    })  # fmt: skip
    assert server_wire.content_bytes(record) == 5 + 2 + 3 + 8 + 24 + 8


def test_the_codes_and_words_of_a_refusal() -> None:
    assert (wire.DECLINED, wire.FAILED) == (120, 121)
    assert wire.REASONS == {
        120: "declined", 121: "failed", 122: "pending", 123: "refused",
    }  # fmt: skip
    assert {
        "partition", "batch-size", "declared-records", "epsilon", "noise-std",
    } == wire.SITE_KEYS  # fmt: skip


def test_every_metric_of_the_list_comes_back_and_no_other_is_written() -> None:
    four = {"accuracy": 0.5, "loss": 1.5, "personal-accuracy": 0.25, "personal-loss": 2.5}
    for metrics in ({}, four, dict.fromkeys(wire.METRIC_KEYS, 0.5)):
        payload = wire.encode_metrics(metrics)
        assert server_wire.read_metrics(wire.write_metrics(payload)) == metrics
        assert wire.encode_metrics(dict(reversed(metrics.items()))) == payload
    with pytest.raises(WireError, match="unexpected keys"):
        wire.write_metrics(wire.encode_metrics({**four, "records": 61.0}))
    with pytest.raises(WireError):
        server_wire.read_metrics(RecordDict({"metrics": MetricRecord({"num-examples": 3})}))


@pytest.mark.parametrize(
    ("noise", "text", "words"),
    [
        ("records", "0,1,2", "unexpected head"),
        ("shared", "", "no text of bounded length"),
        ("shared", "1" * (wire.MOST_OF_NOISE + 1), "no text of bounded length"),
        ("shared", 3, "no text of bounded length"),
    ],
)
def test_a_text_of_the_noise_is_read_for_its_source_alone(
    noise: str, text: object, words: str
) -> None:
    terms = RunTerms(noise=noise)
    content = server_wire.write_instructions(terms, 1, MODEL)
    assert wire.read_instructions(content).of_noise == ""
    head = content["instructions"]
    assert isinstance(head, ConfigRecord)
    head["sum-of"] = text  # type: ignore[assignment]
    with pytest.raises(WireError, match=words):
        wire.read_instructions(content)


def test_a_text_of_the_noise_is_part_of_the_request() -> None:
    terms = RunTerms(noise="shared")
    digests = {
        wire.read_instructions(
            server_wire.write_instructions(terms, 1, MODEL, of_noise=sites)
        ).digest
        for sites in ("", "0,1", "0,1,2")
    }
    assert len(digests) == 3

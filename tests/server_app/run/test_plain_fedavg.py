"""What a plain Flower FedAvg makes of the replies in the table of docs/concepts/guards.md.

If a later Flower survives one of them, this fails, and the table is to be corrected.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity

SIZE = 650
HONEST = np.full(SIZE, 0.01, np.float32)
ROOT = Path(__file__).parents[3]


def reply(values: Any = HONEST, examples: float = 100.0, **more: Any) -> RecordDict:
    arrays = ArrayRecord({"update": Array(np.asarray(values))})
    metrics = MetricRecord({"num-examples": examples})
    return RecordDict({"arrays": arrays, "metrics": metrics, **more})


def lying_header() -> RecordDict:
    data = Array(HONEST).data.replace(b"(650,), }      ", b"(650000000,), }")
    found = reply()
    found["arrays"] = ArrayRecord({"update": Array("float32", (SIZE,), "numpy.ndarray", data)})
    return found


FAULTS: dict[str, tuple[str, Callable[[], list[RecordDict]]]] = {
    "NaN": ("poisoned", lambda: [reply(np.full(SIZE, np.nan, np.float32))]),
    "Inf": ("poisoned", lambda: [reply(np.full(SIZE, np.inf, np.float32))]),
    "numbers like 1e30": ("poisoned", lambda: [reply(np.full(SIZE, 1e30, np.float32))]),
    "another shape": ("ends", lambda: [reply(np.zeros(SIZE + 1, np.float32))]),
    "a broadcastable shape": ("poisoned", lambda: [reply(np.full(1, 9, np.float32))]),
    "complex numbers": ("ends", lambda: [reply(np.zeros(SIZE, np.complex128))]),
    "an extra record": ("ends", lambda: [reply(more=ArrayRecord())]),
    "a missing record": ("ends", lambda: [RecordDict()]),
    "a header that claims 2 GiB": ("ends", lambda: [lying_header()]),
    "a second reply": ("poisoned", lambda: [reply(-HONEST), reply(-HONEST)]),
    "a wild weight": ("poisoned", lambda: [reply(-HONEST, 1e300)]),
    "a weight that makes the sum 0": ("ends", lambda: [reply(examples=-500.0)]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_plain_fedavg_ends_or_is_poisoned(fault: str) -> None:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    fate, replies = FAULTS[fault]
    contents = [reply() for _ in range(5)] + replies()
    messages = [Message(content, reply_to=asked()) for content in contents]
    if fate == "ends":
        with pytest.raises(Exception):  # noqa: B017 - whatever ends the run
            FedAvg().aggregate_train(1, messages)
        return
    arrays, _ = FedAvg().aggregate_train(1, messages)
    assert arrays is not None
    mean = arrays["update"].numpy()
    # one honest vote of six at most: the mean of five honest updates and one that is not stronger
    assert not np.all(np.abs(mean - HONEST) <= 2 / 6 * np.abs(HONEST) * (1 + 1e-6))


def test_the_page_of_guards_lists_exactly_these() -> None:
    section = (
        (ROOT / "docs/concepts/guards.md")
        .read_text()
        .partition("## What survives")[2]
        .partition("\n## ")[0]
    )
    rows = re.findall(r"^\| ([^|]+?) \| (ends|poisoned) \| ", section, re.M)
    assert rows == [(fault, fate) for fault, (fate, _) in FAULTS.items()]


def asked() -> Message:
    message = Message(RecordDict(), 5, "train")
    message.metadata.__dict__["_message_id"] = "m"
    return message

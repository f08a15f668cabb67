"""Every key that crosses the network, and nothing else; encode and decode.

The only file of the vocabulary that knows Flower. Both sides read with equal distrust: a shape, a
dtype or a key that is not expected raises :class:`WireError` before anything is allocated.

    server → site   "model":        parameters by name, float32
                    "instructions": the terms (JSON) and the round
    site → server   "update":       one noisy vector, float32, shape (d,)
                    "site":         constants that the profile discloses      (query.join)
                    "metrics":      metrics that the profile discloses        (evaluate)
                    or Error(120, "declined"), Error(121, "failed")
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from hdpfl_flower.config import RunTerms
from hdpfl_flower.errors import HDPFLError
from hdpfl_flower.models import Arrays

TRAIN, EVALUATE, JOIN, FINISH = "train", "evaluate", "query.join", "query.finish"
"""Message types: a round; a test of the model; who are you; here is the final model."""

DECLINED, FAILED = 120, 121
"""The two codes of a site that sends nothing: policy, budget or terms; anything else."""
_REASONS = {DECLINED: "declined", FAILED: "failed"}

_MODEL, _INSTRUCTIONS, _UPDATE, _SITE, _METRICS = (
    "model",
    "instructions",
    "update",
    "site",
    "metrics",
)
SITE_KEYS = frozenset({"partition", "declared-records", "epsilon", "noise-std"})
"""What a site may say of itself when it joins; each but ``partition`` only if disclosed."""
METRIC_KEYS = frozenset({"accuracy", "loss"})
"""What a site may say of a model, if its profile discloses metrics."""

_NUMPY = "numpy.ndarray"


class WireError(HDPFLError):
    """A message does not have the form that this file describes; the text is a constant."""


@dataclass(frozen=True)
class Instructions:
    """What the server asks of a site.

    Attributes:
        terms: the run's public terms.
        server_round: from 1; 0 before the first and for the end.
        model: the message's arrays, not yet decoded.
        digest: SHA-256 of all of it; Flower's ids are left out, so a replay has the same one.
    """

    terms: RunTerms
    server_round: int
    model: ArrayRecord
    digest: str


def write_instructions(terms: RunTerms, server_round: int, model: ArrayRecord) -> RecordDict:
    """Return the content of a message to a site."""
    head = ConfigRecord({"terms": terms.to_json(), "round": server_round})
    return RecordDict({_MODEL: model, _INSTRUCTIONS: head})


def read_instructions(content: RecordDict) -> Instructions:
    """Return what :func:`write_instructions` wrote.

    Raises:
        WireError: keys or types are not those of this file.
        TermsError: the terms are wrong.
    """
    head, model = content.get(_INSTRUCTIONS), content.get(_MODEL)
    if set(content) != {_INSTRUCTIONS, _MODEL}:
        raise WireError("instructions: unexpected keys")
    if not isinstance(head, ConfigRecord) or not isinstance(model, ArrayRecord):
        raise WireError("instructions: unexpected types")
    terms, server_round = head.get("terms"), head.get("round")
    if (
        set(head) != {"terms", "round"}
        or not isinstance(terms, str)
        or type(server_round) is not int
    ):
        raise WireError("instructions: unexpected head")
    digest = hashlib.sha256(f"{terms}\n{server_round}\n".encode())
    for name, array in model.items():
        digest.update(f"{name}\n{array.dtype}\n{array.shape}\n{array.stype}\n".encode())
        digest.update(len(array.data).to_bytes(8, "big") + array.data)
    return Instructions(RunTerms.from_json(terms), server_round, model, digest.hexdigest())


def write_model(arrays: Arrays) -> ArrayRecord:
    """Return the model as Flower's record."""
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def read_model(record: ArrayRecord, like: Arrays) -> Arrays:
    """Return the model in ``record``, which must have the names and shapes of ``like``.

    Raises:
        WireError: names, shapes or types differ, or a number is not finite.
    """
    if list(record) != list(like):
        raise WireError("model: unexpected parameter names")
    return {name: _decode(record[name], array.shape) for name, array in like.items()}


def encode_update(update: npt.NDArray[np.float32]) -> bytes:
    """Return the payload that is sealed, and later sent, for an update of shape ``(d,)``."""
    return Array(update).data


def write_update(payload: bytes, size: int) -> RecordDict:
    """Return the reply that carries a sealed payload of ``size`` numbers."""
    array = Array("float32", (size,), _NUMPY, payload)
    return RecordDict({_UPDATE: ArrayRecord({_UPDATE: array})})


def read_update(content: RecordDict, size: int) -> npt.NDArray[np.float32]:
    """Return the update in a reply, shape ``(size,)``.

    Raises:
        WireError: anything but one finite float32 vector of that size under its key.
    """
    record = content.get(_UPDATE)
    if set(content) != {_UPDATE} or not isinstance(record, ArrayRecord):
        raise WireError("update: unexpected keys")
    if set(record) != {_UPDATE}:
        raise WireError("update: unexpected array names")
    return _decode(record[_UPDATE], (size,))


def write_site(disclosed: Mapping[str, int | float]) -> RecordDict:
    """Return a site's answer to ``query.join``."""
    if not set(disclosed) <= SITE_KEYS:
        raise WireError("site: unexpected keys")
    return RecordDict({_SITE: MetricRecord(dict(disclosed))})


def read_site(content: RecordDict) -> dict[str, float]:
    """Return a site's answer to ``query.join``: finite or infinite positive numbers.

    Raises:
        WireError: unknown keys, other types, or numbers out of range.
    """
    return _read_numbers(content, _SITE, SITE_KEYS, infinite="epsilon")


def encode_metrics(metrics: Mapping[str, float]) -> bytes:
    """Return the payload that is sealed, and later sent, for metrics of a model."""
    return json.dumps(dict(metrics), sort_keys=True).encode()


def write_metrics(payload: bytes) -> RecordDict:
    """Return the reply that carries sealed metrics."""
    metrics = json.loads(payload)
    if not set(metrics) <= METRIC_KEYS:
        raise WireError("metrics: unexpected keys")
    return RecordDict({_METRICS: MetricRecord(metrics)})


def read_metrics(content: RecordDict) -> dict[str, float]:
    """Return a site's answer to ``evaluate``; raises ``WireError`` for anything unexpected."""
    return _read_numbers(content, _METRICS, METRIC_KEYS)


def refusal(code: int, request: Message) -> Message:
    """Return the reply of a site that sends nothing: the code and its constant reason."""
    return Message(Error(code, _REASONS[code]), reply_to=request)


def _read_numbers(
    content: RecordDict, key: str, allowed: frozenset[str], infinite: str = ""
) -> dict[str, float]:
    record = content.get(key)
    if set(content) != {key} or not isinstance(record, MetricRecord) or not set(record) <= allowed:
        raise WireError(f"{key}: unexpected keys")
    numbers = {}
    for name, value in record.items():
        if isinstance(value, list) or not value >= 0 or (math.isinf(value) and name != infinite):
            raise WireError(f"{key}: a number is out of range")
        numbers[name] = float(value)
    return numbers


def _decode(array: Array, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Return the numbers of ``array``, checked against ``shape`` before they are touched.

    The header is compared, not parsed: NumPy's parser takes what it reads for Python.
    """
    if array.stype != _NUMPY or array.dtype != "float32" or tuple(array.shape) != shape:
        raise WireError("array: unexpected type or shape")
    header = _header(shape)
    if not array.data.startswith(header):
        raise WireError("array: unexpected header")
    if len(array.data) - len(header) != 4 * math.prod(shape):
        raise WireError("array: unexpected length")
    values = np.frombuffer(array.data, dtype="<f4", offset=len(header)).reshape(shape)
    if not np.isfinite(values).all():
        raise WireError("array: not finite")
    return values


@lru_cache(maxsize=256)
def _header(shape: tuple[int, ...]) -> bytes:
    """Return what ``numpy.save`` writes before the numbers of a float32 array of ``shape``."""
    stream = io.BytesIO()
    fields = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, fields)
    return stream.getvalue()

"""Every key that crosses the network, and nothing else; encode and decode.

The only file of the vocabulary that knows Flower. Both sides read with equal distrust: a shape, a
dtype or a key that is not expected raises :class:`WireError` before anything is allocated.

    server → site   "model":        parameters by name, float32
                    "instructions": the terms (JSON) and the round; in PFA+ also the model that
                                    a site is to have kept
    site → server   "update":       one noisy vector, float32, shape (d,); or, where it is asked
                                    for that, its one number along the model's last step, (1,)
                    "site":         constants that the profile discloses      (query.join)
                    "metrics":      metrics that the profile discloses        (evaluate)
                    or Error(120, "declined"), Error(121, "failed")
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
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
SITE_KEYS = frozenset({"partition", "batch-size", "declared-records", "epsilon", "noise-std"})
"""What a site may say of itself when it joins; each but ``partition`` only if disclosed."""
METRIC_KEYS = frozenset({"accuracy", "loss"})
"""What a site may say of a model, if its profile discloses metrics."""

_HEAD = {"terms", "round"}
_PROJECT = "project"
WHOLE = ""
"""What ``project`` holds where a site is to keep the model and send the whole update."""

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
        model_digest: SHA-256 of the model alone.
        project: ``model_digest`` of an earlier model: the update is wanted as its one number along
            the step from there to this model. ``WHOLE``: as it is, but keep this model for such a
            request. None: as it is.
    """

    terms: RunTerms
    server_round: int
    model: ArrayRecord
    digest: str
    model_digest: str
    project: str | None = None


def write_instructions(
    terms: RunTerms, server_round: int, model: ArrayRecord, project: str | None = None
) -> RecordDict:
    """Return the content of a message to a site; ``project`` as :class:`Instructions` has it."""
    head = ConfigRecord({"terms": terms.to_json(), "round": server_round})
    if project is not None:
        head[_PROJECT] = project
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
    terms, server_round, project = head.get("terms"), head.get("round"), head.get(_PROJECT)
    if (
        set(head) - {_PROJECT} != _HEAD
        or not isinstance(terms, str)
        or type(server_round) is not int
        or (_PROJECT in head and not _is_digest(project))
    ):
        raise WireError("instructions: unexpected head")
    named = project if isinstance(project, str) else None
    contents = model_digest(model)
    asked = hashlib.sha256(f"{terms}\n{server_round}\n{named}\n{contents}".encode())
    return Instructions(
        RunTerms.from_json(terms), server_round, model, asked.hexdigest(), contents, named
    )


def model_digest(model: ArrayRecord) -> str:
    """Return the SHA-256 of a model: its names, shapes, types and numbers, in their order."""
    digest = hashlib.sha256()
    for name, array in model.items():
        shape = tuple(array.shape)
        digest.update(f"{name}\n{array.dtype}\n{shape}\n{array.stype}\n".encode())
        digest.update(len(array.data).to_bytes(8, "big") + array.data)
    return digest.hexdigest()


def content_bytes(content: RecordDict) -> int:
    """Return the bytes of a message's arrays, texts and numbers, without copying any.

    Keys, framing and TLS are left out: below 1 kB a message, whatever the strategy.
    """
    total = 0
    for record in content.values():
        for value in record.values():
            if isinstance(value, Array):
                total += len(value.data)
            elif isinstance(value, str | bytes):
                total += len(value.encode() if isinstance(value, str) else value)
            else:
                total += 8 * (len(value) if isinstance(value, list) else 1)
    return total


def _is_digest(text: object) -> bool:
    """Tell whether ``text`` is a SHA-256 in hexadecimal, or :data:`WHOLE`."""
    return isinstance(text, str) and re.fullmatch("([0-9a-f]{64})?", text) is not None


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
    """Return the payload that is sealed, and later sent: shape ``(d,)``, or ``(1,)`` projected."""
    return _header(update.shape) + update.astype("<f4", copy=False).tobytes()


def write_update(payload: bytes, size: int) -> RecordDict:
    """Return the reply that carries a sealed payload of ``size`` numbers, or of one number."""
    if len(payload) == len(_header((1,))) + 4:
        size = 1
    array = Array("float32", (size,), _NUMPY, payload)
    return RecordDict({_UPDATE: ArrayRecord({_UPDATE: array})})


def read_update(
    content: RecordDict, size: int, *, may_be_projected: bool = False
) -> npt.NDArray[np.float32]:
    """Return the update in a reply, shape ``(size,)``; ``(1,)``, where it may be projected and is.

    Raises:
        WireError: anything but one finite float32 vector of that size under its key.
    """
    record = content.get(_UPDATE)
    if set(content) != {_UPDATE} or not isinstance(record, ArrayRecord):
        raise WireError("update: unexpected keys")
    if set(record) != {_UPDATE}:
        raise WireError("update: unexpected array names")
    array = record[_UPDATE]
    projected = may_be_projected and tuple(array.shape) == (1,)
    return _decode(array, (1,) if projected else (size,))


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

"""Keys of all network messages; requests read by a site, replies written by it.

The server's half is ``server_wire.py``. Both sides distrust the other equally: a
shape, a dtype or a key that is not expected raises :class:`WireError` before any allocation.

    server → site   "model":        parameters by name, float32
                    "instructions": the format, the terms (JSON) and the round; in PFA+ also which
                                    model the site should have kept; otherwise the use of "others";
                                    some sources of noise add a text of their own
                    "others":       more models, from which the site chooses or to which it is
                                    pulled; or a vector that the site adds to its model over the
                                    round (SCAFFOLD)
    site → server   "update":       one noisy vector, float32, shape (d,); or, if the server asks
                                    for it, one number along the model's last step, shape (1,)
                    "choice":       the model that the site chose privately, if it is asked to
                    "site":         constants that the profile discloses      (query.join)
                    "metrics":      metrics that the profile discloses        (evaluate)
                    name of a kind of release:
                                    one noisy payload, float32, once a run; or before round 1 a
                                    part of a sum                             (query.KIND)
                    name of a source of noise:
                                    for example a part of a sum, uint64, in place of an update
                    or Error(120, "declined"), Error(121, "failed"), Error(122, "pending"),
                    Error(123, "refused")
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
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from hdpfl_flower import formats
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import WireError as WireError  # noqa: PLC0414 - exported
from hdpfl_flower.models.networks import Arrays

Item = TypeVar("Item")
NUMPY = "numpy.ndarray"
"""Flower's name for the form of sent arrays."""
TRAIN, EVALUATE, JOIN, FINISH = "train", "evaluate", "query.join", "query.finish"
"""Message types: training round, model test, join, final model."""
QUERY = "query."
"""Start of the message type that asks for the one payload of a kind of release, by its name."""

DECLINED, FAILED = 120, 121
"""Error codes: declined (policy, budget or terms), and other failures.

A site replies with one if it sends no result.
"""
PENDING, REFUSED = 122, 123
"""Error codes of runs not yet approved, and refused."""
REASONS = {DECLINED: "declined", FAILED: "failed", PENDING: "pending", REFUSED: "refused"}
"""Single word sent with each code."""

MODEL, INSTRUCTIONS, OTHERS = "model", "instructions", "others"
UPDATE, CHOICE, SITE, METRICS = "update", "choice", "site", "metrics"
SITE_KEYS = frozenset({"partition", "batch-size", "declared-records", "epsilon", "noise-std"})
"""Facts sent when joining; all but ``partition`` only if disclosed."""
METRIC_KEYS = frozenset(
    f"{whose}{metric}"
    for whose in ("", "personal-")
    for metric in ("accuracy", "loss", "mse", "mae")
)
"""Metrics of a model and of the personal one, sent only if disclosed.

``mse`` and ``mae`` are for a regression alone, whose ``accuracy`` is R²: any number up to 1, also
negative.
"""

_HEAD = {"terms", "round"}
FORMAT, PROJECT, USE = "format", "project", "use"
DESCRS = {"float32": "<f4", "uint64": "<u8"}
"""Types of arrays and their names in headers of ``numpy.save``."""
MOST_OF_NOISE = 16_384
"""Characters of the text of a source of noise in a message's head."""
CHOOSE, PULL, OFFSET = "choose", "pull", "offset"
"""Uses of further models in a message.

The site chooses one of all, this one included, and trains that; is pulled towards the one sent
along (the ``pull`` of ``work``); or adds it, in equal parts after each step (SCAFFOLD).
"""


@dataclass(frozen=True)
class Instructions:
    """Server's request to a site.

    Attributes:
        terms: the run's public terms.
        server_round: from 1; 0 before the first and for the end.
        model: the message's arrays, not yet decoded.
        digest: SHA-256 of the whole request without Flower's ids, so a replay has the same one.
        model_digest: SHA-256 of the model alone.
        project: ``model_digest`` of an earlier model: the update is requested as one number along
            the step from there to this model. Empty: as it is, but keep this model for a later
            request of that kind. None: as it is.
        others: more models, not yet decoded.
        use: their use, ``CHOOSE``, ``PULL`` or ``OFFSET``; empty: there are none.
        of_noise: text of the run's source of noise, see ``NoiseSource.head``; empty: none.
    """

    terms: RunTerms
    server_round: int
    model: ArrayRecord
    digest: str
    model_digest: str
    project: str | None = None
    others: tuple[ArrayRecord, ...] = ()
    use: str = ""
    of_noise: str = ""

    @property
    def models(self) -> tuple[ArrayRecord, ...]:
        """The message's model and the others."""
        return (self.model, *self.others)


def read_instructions(content: RecordDict) -> Instructions:
    """Return the instructions written by ``server_wire.write_instructions``.

    Raises:
        WireError: keys or types are not those of this file, or the message is of a newer version.
        TermsError: the terms are wrong.
    """
    head, model, more = content.get(INSTRUCTIONS), content.get(MODEL), content.get(OTHERS)
    if set(content) - {OTHERS} != {INSTRUCTIONS, MODEL}:
        raise WireError("instructions: unexpected keys")
    if not isinstance(head, ConfigRecord) or not isinstance(model, ArrayRecord):
        raise WireError("instructions: unexpected types")
    formats.INSTRUCTIONS.check(head.get(FORMAT))  # before other keys, which may be newer
    terms, server_round, project = head.get("terms"), head.get("round"), head.get(PROJECT)
    if (
        not set(head) >= _HEAD
        or not isinstance(terms, str)
        or type(server_round) is not int
        or (PROJECT in head and not _is_digest(project))
    ):
        raise WireError("instructions: unexpected head")
    read = RunTerms.from_json(terms)  # their size is bounded: before the arrays' digests
    of_noise = _read_of_noise(head, read.source.head)
    # None and the empty text differ: "as it is" and "as it is, and keep this model".
    named = project if isinstance(project, str) else None
    contents, others, use = model_digest(model), _read_others(more), head.get(USE, "")
    # Models need a use, and a use models; a pull is towards one model, and one is added.
    uses = (CHOOSE, PULL, OFFSET) if others else ("",)
    if not isinstance(use, str) or use not in uses or (use != CHOOSE and len(others) > 1):
        raise WireError("instructions: other models without a use")
    # All that decides the payload, but no id of Flower's: a message sent again has the same
    # digest and gets the sealed bytes.
    asked = hashlib.sha256(f"{terms}\n{server_round}\n{named}\n{contents}".encode())
    for other in others:
        asked.update(f"\n{use}\n{model_digest(other)}".encode())
    if of_noise:  # another set of sites would be another request: the site's ledger refuses it
        asked.update(f"\n{read.source.head} {of_noise}".encode())
    digest = asked.hexdigest()
    return Instructions(read, server_round, model, digest, contents, named, others, use, of_noise)


def _read_of_noise(head: ConfigRecord, key: str) -> str:
    """Return the text under the key of the run's source of noise; raises ``WireError``."""
    if set(head) - {FORMAT, PROJECT, USE, key} != _HEAD:
        raise WireError("instructions: unexpected head")
    text = head.get(key, "") if key else ""
    if not isinstance(text, str) or len(text) > MOST_OF_NOISE or (key in head and not text):
        raise WireError(f"instructions: no text of bounded length under '{key}'")
    return text


def _read_others(record: object) -> tuple[ArrayRecord, ...]:
    if record is None:
        return ()
    if not isinstance(record, ArrayRecord) or not record:
        raise WireError("instructions: unexpected models")
    return unpack_models(record)


def _is_digest(text: object) -> bool:
    """Return whether ``text`` is a SHA-256 in hexadecimal, or empty."""
    return isinstance(text, str) and re.fullmatch("([0-9a-f]{64})?", text) is not None


def encode_update(update: npt.NDArray[np.float32]) -> bytes:
    """Return the payload of an update to seal: shape ``(d,)``, projected ``(1,)``."""
    return encode(update)


def encode_choice(model: int) -> bytes:
    """Return the payload of a model choice to seal and send."""
    return b"%d" % model


def write_update(payload: bytes, size: int, choice: bytes | None = None) -> RecordDict:
    """Return the reply with a sealed payload of ``size`` or one number.

    Args:
        payload: of the update.
        size: d.
        choice: the sealed payload of the choice, if one was requested.
    """
    # A header is padded to a multiple of 64 bytes, so that the length determines the count.
    if len(payload) == len(numpy_header((1,))) + 4:
        size = 1
    reply = _array_reply(UPDATE, payload, size)
    if choice is not None:
        reply[CHOICE] = ConfigRecord({CHOICE: int(choice)})
    return reply


def kind_asked(message_type: str) -> str:
    """Return the kind of release that a message type may ask for; empty: of another form."""
    return message_type[len(QUERY) :] if message_type.startswith(QUERY) else ""


def write_payload(kind: str, payload: bytes, dtype: str = "float32") -> RecordDict:
    """Return the reply with a sealed vector under its name, such as that of its kind of release."""
    size = numbers_in(len(payload), int(DESCRS[dtype][-1]))
    return _array_reply(kind, payload, size, dtype)


def _array_reply(name: str, payload: bytes, size: int, dtype: str = "float32") -> RecordDict:
    return RecordDict({name: ArrayRecord({name: Array(dtype, (size,), NUMPY, payload)})})


def write_site(disclosed: Mapping[str, int | float]) -> RecordDict:
    """Return a site's answer to ``query.join``."""
    if not set(disclosed) <= SITE_KEYS:
        raise WireError("site: unexpected keys")
    return RecordDict({SITE: MetricRecord(dict(disclosed))})


def encode_metrics(metrics: Mapping[str, float]) -> bytes:
    """Return the payload of metrics to seal and send."""
    return json.dumps(dict(metrics), sort_keys=True).encode()


def write_metrics(payload: bytes) -> RecordDict:
    """Return the reply with sealed metrics."""
    metrics = json.loads(payload)
    if not set(metrics) <= METRIC_KEYS:
        raise WireError("metrics: unexpected keys")
    return RecordDict({METRICS: MetricRecord(metrics)})


def refusal(code: int, request: Message) -> Message:
    """Return the reply of a site without a result: a constant code."""
    return Message(Error(code, REASONS[code]), reply_to=request)


def reply_with(answered: RecordDict | int, request: Message, created_at: float | None) -> Message:
    """Return a reply with its creation time set, and the rest of the request's time to live.

    Args:
        answered: the content, or the code of a refusal.
        request: the message that it answers.
        created_at: of ``reply_time.wait_until_due``; None leaves the time of Flower.

    Guarantees:
        Both numbers are functions of the request and of ``created_at`` alone.
    """
    if isinstance(answered, int):
        reply = refusal(answered, request)
    else:
        reply = Message(answered, reply_to=request)
    if created_at is not None:
        reply.metadata.created_at = created_at
        reply.metadata.ttl = request.metadata.created_at + request.metadata.ttl - created_at
    return reply


# --- models and vectors as Flower's arrays --------------------------------------------------------


def encode(array: npt.NDArray[np.generic], dtype: str = "float32") -> bytes:
    """Return the bytes of ``numpy.save`` for an array of a type of :data:`DESCRS`."""
    descr = DESCRS[dtype]
    return numpy_header(array.shape, descr) + array.astype(descr, copy=False).tobytes()


def read_model(record: ArrayRecord, like: Arrays) -> Arrays:
    """Return the model in ``record``, with the layout of ``like``.

    Raises:
        WireError: names, shapes or types differ, or a number is not finite.
    """
    if list(record) != list(like):
        raise WireError("model: unexpected parameter names")
    return {name: decode(record[name], array.shape) for name, array in like.items()}


def unpack_models(record: ArrayRecord) -> tuple[ArrayRecord, ...]:
    """Return the models packed by ``server_wire.pack_models``.

    Raises:
        WireError: other names than those of ``server_wire.pack_models``.
    """
    return tuple(ArrayRecord(model) for model in split_models(record))


def split_models(named: Mapping[str, Item]) -> list[dict[str, Item]]:
    """Return the packed names by model; raises as ``unpack_models``."""
    models: list[dict[str, Item]] = []
    for key, item in named.items():
        number, slash, name = key.partition("/")
        if number == str(len(models)):
            models.append({})
        if not (slash and models and number == str(len(models) - 1)):  # "-1" is no number of ours
            raise WireError("models: unexpected names")
        models[-1][name] = item
    return models


def model_digest(model: ArrayRecord) -> str:
    """Return a model's SHA-256: names, shapes, types and numbers, in order."""
    digest = hashlib.sha256()
    for name, array in model.items():
        shape = tuple(array.shape)
        digest.update(f"{name}\n{array.dtype}\n{shape}\n{array.stype}\n".encode())
        # The length first: otherwise bytes could move between arrays under one digest.
        digest.update(len(array.data).to_bytes(8, "big"))
        digest.update(array.data)  # by itself: the two together would be a copy of it
    return digest.hexdigest()


def decode(array: Array, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Return the numbers of ``array`` after checking type and shape."""
    values = view(array, shape)
    if not np.isfinite(values).all():
        raise WireError("array: not finite")
    return values


def view(array: Array, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Return a view of the numbers of ``array``.

    The header is compared, not parsed: NumPy's parser would evaluate it as Python.
    """
    return np.frombuffer(bytes_of(array, shape), "<f4").reshape(shape)


def bytes_of(array: Array, shape: tuple[int, ...], dtype: str = "float32") -> memoryview:
    """Return the bytes behind the header, which is compared, not parsed."""
    descr = DESCRS[dtype]
    if array.stype != NUMPY or array.dtype != dtype or tuple(array.shape) != shape:
        raise WireError("array: unexpected type or shape")
    header = numpy_header(shape, descr)
    if not array.data.startswith(header):
        raise WireError("array: unexpected header")
    # Exact: no read goes beyond the bytes, and none of them is left over.
    if len(array.data) - len(header) != int(descr[-1]) * math.prod(shape):
        raise WireError("array: unexpected length")
    return memoryview(array.data)[len(header) :]


def read_sealed(payload: bytes) -> npt.NDArray[np.float32]:
    """Return the vector of :func:`encode_update`, shape ``(d,)``; raises ``WireError``."""
    size = numbers_in(len(payload))
    return decode(Array("float32", (size,), NUMPY, payload), (size,))


def numbers_in(payload_bytes: int, each: int = 4) -> int:
    """Return the number of numbers in an update's payload of ``payload_bytes`` bytes.

    >>> numbers_in(len(numpy_header((650,))) + 4 * 650)
    650
    """
    return (payload_bytes - len(numpy_header((1,)))) // each


@lru_cache(maxsize=256)
def numpy_header(shape: tuple[int, ...], descr: str = "<f4") -> bytes:
    """Return the header of ``numpy.save`` for arrays of ``shape``, of float32 unless stated."""
    stream = io.BytesIO()
    fields = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, fields)
    return stream.getvalue()

"""Keys, encoding and decoding of all network messages.

The only module of ``hdpfl_flower`` that imports Flower. Both sides distrust the other equally: a
shape, a dtype or a key that is not expected raises :class:`WireError` before any allocation.

    server → site   "model":        parameters by name, float32
                    "instructions": the format, the terms (JSON) and the round; in PFA+ also the
                                    model that a site is to have kept; else the use of "others"
                    "others":       more models, to choose from or to be pulled to; or a vector that
                                    a site is to add to its model over the round (SCAFFOLD)
    site → server   "update":       one noisy vector, float32, shape (d,); or, where it is asked for
                                    that, its one number along the model's last step, (1,)
                    "choice":       the model that it chose privately, where it is asked to
                    "site":         constants that the profile discloses      (query.join)
                    "metrics":      metrics that the profile discloses        (evaluate)
                    its kind:       one noisy payload of a kind of release that is sent, float32,
                                    once a run                                (query.KIND)
                    or Error(120, "declined"), Error(121, "failed"), Error(122, "pending"),
                    Error(123, "refused")
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from hdpfl_flower import formats
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import WireError as WireError  # noqa: PLC0414 - exported
from hdpfl_flower.models.networks import Arrays
from hdpfl_flower.payloads import numbers_in, numpy_header

Item = TypeVar("Item")
NUMPY = "numpy.ndarray"
"""Flower's name for the form of sent arrays."""
TRAIN, EVALUATE, JOIN, FINISH = "train", "evaluate", "query.join", "query.finish"
"""Message types: training round, model test, join, final model."""
_QUERY = "query."
"""Start of the message type that asks for the one payload of a kind of release, by its name."""

DECLINED, FAILED = 120, 121
"""Error codes: declined (policy, budget or terms), and other failures.

A site replies with one if it sends no result.
"""
PENDING, REFUSED = 122, 123
"""Error codes of runs not yet approved, and refused."""
REASONS = {DECLINED: "declined", FAILED: "failed", PENDING: "pending", REFUSED: "refused"}
"""Single word sent with each code."""

_MODEL, _INSTRUCTIONS, _OTHERS = "model", "instructions", "others"
_UPDATE, _CHOICE, _SITE, _METRICS = "update", "choice", "site", "metrics"
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
_FORMAT, _PROJECT, _USE = "format", "project", "use"
CHOOSE, PULL, OFFSET = "choose", "pull", "offset"
"""Uses of further models in a message.

The site chooses one of all, this one included, and trains that; is pulled towards the one sent
along (the ``pull`` of ``work``); or adds it, in equal parts after each step (SCAFFOLD).
"""
WHOLE = ""
"""Value of ``project``: keep the model and send the whole update."""


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
            the step from there to this model. ``WHOLE``: as it is, but keep this model for a later
            request of that kind. None: as it is.
        others: more models, not yet decoded.
        use: their use, ``CHOOSE``, ``PULL`` or ``OFFSET``; empty: there are none.
    """

    terms: RunTerms
    server_round: int
    model: ArrayRecord
    digest: str
    model_digest: str
    project: str | None = None
    others: tuple[ArrayRecord, ...] = ()
    use: str = ""

    @property
    def models(self) -> tuple[ArrayRecord, ...]:
        """The message's model and the others."""
        return (self.model, *self.others)


def write_instructions(
    terms: RunTerms,
    server_round: int,
    model: ArrayRecord,
    project: str | None = None,
    *,
    others: Sequence[ArrayRecord] = (),
    use: str = "",
) -> RecordDict:
    """Return a message's content to a site; arguments as in :class:`Instructions`."""
    head = ConfigRecord({_FORMAT: formats.INSTRUCTIONS.newest, "terms": terms.to_json()})
    head["round"] = server_round
    if project is not None:
        head[_PROJECT] = project
    if not others:
        return RecordDict({_MODEL: model, _INSTRUCTIONS: head})
    head[_USE] = use
    return RecordDict({_MODEL: model, _INSTRUCTIONS: head, _OTHERS: pack_models(others)})


def read_instructions(content: RecordDict) -> Instructions:
    """Return the instructions written by :func:`write_instructions`.

    Raises:
        WireError: keys or types are not those of this file, or the message is of a newer version.
        TermsError: the terms are wrong.
    """
    head, model, more = content.get(_INSTRUCTIONS), content.get(_MODEL), content.get(_OTHERS)
    if set(content) - {_OTHERS} != {_INSTRUCTIONS, _MODEL}:
        raise WireError("instructions: unexpected keys")
    if not isinstance(head, ConfigRecord) or not isinstance(model, ArrayRecord):
        raise WireError("instructions: unexpected types")
    formats.INSTRUCTIONS.check(head.get(_FORMAT))  # before other keys, which may be newer
    terms, server_round, project = head.get("terms"), head.get("round"), head.get(_PROJECT)
    if (
        set(head) - {_FORMAT, _PROJECT, _USE} != _HEAD
        or not isinstance(terms, str)
        or type(server_round) is not int
        or (_PROJECT in head and not _is_digest(project))
    ):
        raise WireError("instructions: unexpected head")
    read = RunTerms.from_json(terms)  # their size is bounded: before the arrays' digests
    # None and WHOLE differ: "as it is" and "as it is, and keep this model".
    named = project if isinstance(project, str) else None
    contents, others, use = model_digest(model), _read_others(more), head.get(_USE, "")
    # Models need a use, and a use models; a pull is towards one model, and one is added.
    uses = (CHOOSE, PULL, OFFSET) if others else ("",)
    if not isinstance(use, str) or use not in uses or (use != CHOOSE and len(others) > 1):
        raise WireError("instructions: other models without a use")
    # All that decides the payload, but no id of Flower's: a message sent again has the same
    # digest and gets the sealed bytes.
    asked = hashlib.sha256(f"{terms}\n{server_round}\n{named}\n{contents}".encode())
    for other in others:
        asked.update(f"\n{use}\n{model_digest(other)}".encode())
    digest = asked.hexdigest()
    return Instructions(read, server_round, model, digest, contents, named, others, use)


def _read_others(record: object) -> tuple[ArrayRecord, ...]:
    if record is None:
        return ()
    if not isinstance(record, ArrayRecord) or not record:
        raise WireError("instructions: unexpected models")
    return unpack_models(record)


def content_bytes(content: RecordDict) -> int:
    """Return the bytes of a message's values without copying any.

    Keys, framing and TLS are left out: below 1 kB a message, for any strategy.
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
    """Return whether ``text`` is a SHA-256 in hexadecimal, or :data:`WHOLE`."""
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
    array = Array("float32", (size,), NUMPY, payload)
    reply = RecordDict({_UPDATE: ArrayRecord({_UPDATE: array})})
    if choice is not None:
        reply[_CHOICE] = ConfigRecord({_CHOICE: int(choice)})
    return reply


def read_choice(content: RecordDict, models: int) -> int:
    """Return the choice in a reply; raises ``WireError`` if not below ``models``."""
    record = content.get(_CHOICE)
    chosen = record.get(_CHOICE) if isinstance(record, ConfigRecord) else None
    # `type`, since a bool is an int to `isinstance`; the bound, since the server indexes with it.
    if type(chosen) is not int or not 0 <= chosen < models or len(record or ()) != 1:
        raise WireError("choice: not one of the models")
    return chosen


def read_update(
    content: RecordDict,
    size: int,
    *,
    may_be_projected: bool = False,
    with_choice: bool = False,
) -> npt.NDArray[np.float32]:
    """Return the update in a reply, shape ``(size,)``, or ``(1,)`` if projected.

    A projected one only with ``may_be_projected``.

    Raises:
        WireError: other content than one finite vector of that size under its key, with a choice
            beside it if one was requested.
    """
    record, keys = content.get(_UPDATE), {_UPDATE, _CHOICE} if with_choice else {_UPDATE}
    if set(content) != keys or not isinstance(record, ArrayRecord):
        raise WireError("update: unexpected keys")
    if set(record) != {_UPDATE}:
        raise WireError("update: unexpected array names")
    # One number is accepted only if it was requested; else exactly d numbers.
    array = record[_UPDATE]
    projected = may_be_projected and tuple(array.shape) == (1,)
    return decode(array, (1,) if projected else (size,))


def query_of(kind: str) -> str:
    """Return the message type that asks for the payload of a kind of release."""
    return f"{_QUERY}{kind}"


def kind_asked(message_type: str) -> str:
    """Return the kind of release that a message type may ask for; empty: of another form."""
    return message_type[len(_QUERY) :] if message_type.startswith(_QUERY) else ""


def write_payload(kind: str, payload: bytes) -> RecordDict:
    """Return the reply with the sealed payload of a kind of release."""
    array = Array("float32", (numbers_in(len(payload)),), NUMPY, payload)
    return RecordDict({kind: ArrayRecord({kind: array})})


def read_payload(kind: str, content: RecordDict, size: int) -> npt.NDArray[np.float32]:
    """Return the payload of a kind in a reply, shape ``(size,)``.

    Raises:
        WireError: other content than one finite float32 vector of that size under its key.
    """
    record = content.get(kind)
    if set(content) != {kind} or not isinstance(record, ArrayRecord):
        raise WireError(f"{kind}: unexpected keys")
    if set(record) != {kind}:
        raise WireError(f"{kind}: unexpected array names")
    return decode(record[kind], (size,))


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
    facts = _read_numbers(content, _SITE, SITE_KEYS)
    for name, value in facts.items():
        # Written so that NaN fails too. Only ε may be infinite: a site that opted out.
        if not value >= 0 or (math.isinf(value) and name != "epsilon"):
            raise WireError("site: a number is out of range")
    return facts


def encode_metrics(metrics: Mapping[str, float]) -> bytes:
    """Return the payload of metrics to seal and send."""
    return json.dumps(dict(metrics), sort_keys=True).encode()


def write_metrics(payload: bytes) -> RecordDict:
    """Return the reply with sealed metrics."""
    metrics = json.loads(payload)
    if not set(metrics) <= METRIC_KEYS:
        raise WireError("metrics: unexpected keys")
    return RecordDict({_METRICS: MetricRecord(metrics)})


def read_metrics(content: RecordDict) -> dict[str, float]:
    """Return a site's answer to ``evaluate``: finite numbers of either sign.

    Raises:
        WireError: unknown keys, other types, or a number that is not finite.
    """
    numbers = _read_numbers(content, _METRICS, METRIC_KEYS)
    if not all(map(math.isfinite, numbers.values())):
        raise WireError("metrics: a number is not finite")
    return numbers


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


def _read_numbers(content: RecordDict, key: str, allowed: frozenset[str]) -> dict[str, float]:
    """Return the numbers of the only record; callers check their range."""
    record = content.get(key)
    if set(content) != {key} or not isinstance(record, MetricRecord) or not set(record) <= allowed:
        raise WireError(f"{key}: unexpected keys")
    numbers = {}
    for name, value in record.items():
        if isinstance(value, list):
            raise WireError(f"{key}: a list in place of a number")
        numbers[name] = float(value)
    return numbers


# --- models and vectors as Flower's arrays --------------------------------------------------------


def write_model(arrays: Arrays) -> ArrayRecord:
    """Return the model as Flower's record, without ``numpy.save``."""
    return ArrayRecord(
        {
            name: Array("float32", array.shape, NUMPY, encode(array))
            for name, array in arrays.items()
        }
    )


def encode(array: npt.NDArray[np.float32]) -> bytes:
    """Return the bytes of ``numpy.save`` for a float32 array."""
    return numpy_header(array.shape) + array.astype("<f4", copy=False).tobytes()


def read_model(record: ArrayRecord, like: Arrays) -> Arrays:
    """Return the model in ``record``, with the layout of ``like``.

    Raises:
        WireError: names, shapes or types differ, or a number is not finite.
    """
    if list(record) != list(like):
        raise WireError("model: unexpected parameter names")
    return {name: decode(record[name], array.shape) for name, array in like.items()}


def read_own(record: ArrayRecord) -> Arrays:
    """Return this process's own model record, read-only, without a copy.

    Raises:
        WireError: the record is no :func:`write_model`'s.
    """
    return {name: _view(array, tuple(array.shape)) for name, array in record.items()}


def pack_models(models: Iterable[ArrayRecord]) -> ArrayRecord:
    """Return several models as one record, prefixed ``0/``, ``1/``, …."""
    return ArrayRecord(
        {f"{i}/{name}": array for i, model in enumerate(models) for name, array in model.items()}
    )


def unpack_models(record: ArrayRecord) -> tuple[ArrayRecord, ...]:
    """Return the models packed by :func:`pack_models`.

    Raises:
        WireError: other names than those of :func:`pack_models`.
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
    values = _view(array, shape)
    if not np.isfinite(values).all():
        raise WireError("array: not finite")
    return values


def _view(array: Array, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Return a view of the numbers of ``array``.

    The header is compared, not parsed: NumPy's parser would evaluate it as Python.
    """
    if array.stype != NUMPY or array.dtype != "float32" or tuple(array.shape) != shape:
        raise WireError("array: unexpected type or shape")
    header = numpy_header(shape)
    if not array.data.startswith(header):
        raise WireError("array: unexpected header")
    # Exact: no read goes beyond the bytes, and none of them is left over.
    if len(array.data) - len(header) != 4 * math.prod(shape):
        raise WireError("array: unexpected length")
    return np.frombuffer(array.data, dtype="<f4", offset=len(header)).reshape(shape)


def read_sealed(payload: bytes) -> npt.NDArray[np.float32]:
    """Return the vector of :func:`encode_update`, shape ``(d,)``; raises ``WireError``."""
    size = numbers_in(len(payload))
    return decode(Array("float32", (size,), NUMPY, payload), (size,))

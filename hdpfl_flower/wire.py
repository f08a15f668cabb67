"""Keys of every message that crosses the network, their encoding and decoding.

The only module of ``hdpfl_flower`` that imports Flower. Both sides read with equal distrust: a
shape, a dtype or a key that is not expected raises :class:`WireError` before anything is allocated.

    server → site   "model":        parameters by name, float32; for training in the form that the
                                    terms name (``rounding.py``)
                    "instructions": the format, the terms (JSON) and the round; in PFA+ also the
                                    model that a site is to have kept; else what "others" are for
                    "others":       more models, to choose from or to be pulled to; or what a
                                    site is to add to its model over the round (SCAFFOLD)
    site → server   "update":       one noisy vector, shape (d,), in the form that the terms name;
                                    or, where it is asked for that, its one number along the
                                    model's last step, float32, (1,)
                    "choice":       the model that it chose privately, where it is asked to
                    "site":         constants that the profile discloses      (query.join)
                    "metrics":      metrics that the profile discloses        (evaluate)
                    "scores":       one noisy histogram of scores by class, float32, once a run
                                    (query.scores)
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
from hdpfl_flower.config.recorded_terms import recorded_terms
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import WireError as WireError  # noqa: PLC0414 - exported
from hdpfl_flower.models.networks import Arrays
from hdpfl_flower.rounding import (
    FLOAT32,
    Draw,
    Form,
    numbers_in,
    numpy_header,
    read_rounded,
    round_vector,
)

Item = TypeVar("Item")
NUMPY = "numpy.ndarray"
"""Flower's name for the form in which arrays are sent."""
ROUNDED = "hdpfl.rounded"
"""Ours, of what ``rounding.py`` writes: the bytes of its form, and no header."""
TRAIN, EVALUATE, JOIN, FINISH = "train", "evaluate", "query.join", "query.finish"
"""Message types: a round; a test of the model; who are you; here is the final model."""
SCORES = "query.scores"
"""Message type: the charged histogram of the final model's scores."""

DECLINED, FAILED = 120, 121
"""The two codes of a site that sends nothing: policy, budget or terms; anything else."""
PENDING, REFUSED = 122, 123
"""Likewise, of a site whose operator has not approved the run so far, or has refused it."""
REASONS = {DECLINED: "declined", FAILED: "failed", PENDING: "pending", REFUSED: "refused"}
"""The one word that is sent with each code."""

_MODEL, _INSTRUCTIONS, _OTHERS = "model", "instructions", "others"
_UPDATE, _CHOICE, _SITE, _METRICS = "update", "choice", "site", "metrics"
_SCORES = "scores"
SITE_KEYS = frozenset({"partition", "batch-size", "declared-records", "epsilon", "noise-std"})
"""What a site may say of itself when it joins; each but ``partition`` only if disclosed."""
METRIC_KEYS = frozenset(
    f"{whose}{metric}"
    for whose in ("", "personal-")
    for metric in ("accuracy", "loss", "mse", "mae")
)
"""What a site may say of a model, and of its own, if its profile discloses metrics; ``mse`` and
``mae`` for a regression alone, whose ``accuracy`` is R²: any number up to 1, negative ones too."""

_HEAD = {"terms", "round"}
_FORMAT, _PROJECT, _USE = "format", "project", "use"
CHOOSE, PULL, OFFSET = "choose", "pull", "offset"
"""What other models in a message are for: to choose one of all, this one included, and train that;
to be pulled towards the one sent along (``prox-lambda``); or to add it, in equal parts after each
step (SCAFFOLD)."""
WHOLE = ""
"""What ``project`` holds where a site is to keep the model and send the whole update."""


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
        others: more models, not yet decoded.
        use: what they are for, ``CHOOSE``, ``PULL`` or ``OFFSET``; empty: there are none.
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
    """Return the content of a message to a site; the rest is as :class:`Instructions` has it."""
    head = ConfigRecord({
        _FORMAT: formats.INSTRUCTIONS.newest, "terms": terms.to_json(), "round": server_round,
    })  # fmt: skip
    if project is not None:
        head[_PROJECT] = project
    if not others:
        return RecordDict({_MODEL: model, _INSTRUCTIONS: head})
    head[_USE] = use
    return RecordDict({_MODEL: model, _INSTRUCTIONS: head, _OTHERS: pack_models(others)})


def read_instructions(content: RecordDict) -> Instructions:
    """Return what :func:`write_instructions` wrote.

    Raises:
        WireError: keys or types are not those of this file, or the message is of a newer version.
        TermsError: the terms are wrong.
    """
    head, model, more = content.get(_INSTRUCTIONS), content.get(_MODEL), content.get(_OTHERS)
    if set(content) - {_OTHERS} != {_INSTRUCTIONS, _MODEL}:
        raise WireError("instructions: unexpected keys")
    if not isinstance(head, ConfigRecord) or not isinstance(model, ArrayRecord):
        raise WireError("instructions: unexpected types")
    number = formats.INSTRUCTIONS.check(head.get(_FORMAT))  # before other keys, which may be newer
    terms, server_round, project = head.get("terms"), head.get("round"), head.get(_PROJECT)
    if (
        set(head) - {_FORMAT, _PROJECT, _USE} != _HEAD
        or not isinstance(terms, str)
        or type(server_round) is not int
        or (_PROJECT in head and not _is_digest(project))
    ):
        raise WireError("instructions: unexpected head")
    # None and WHOLE differ: "as it is" and "as it is, and keep this model".
    named = project if isinstance(project, str) else None
    contents, others, use = model_digest(model), _read_others(more), str(head.get(_USE, ""))
    # Models need a use, and a use models; a pull is towards one model, and one is added.
    uses = (CHOOSE, PULL, OFFSET) if others else ("",)
    if use not in uses or (use != CHOOSE and len(others) > 1):
        raise WireError("instructions: other models without a use")
    # All that decides the payload, and nothing of Flower's: a message sent again has the same
    # digest and gets the sealed bytes.
    asked = hashlib.sha256(f"{terms}\n{server_round}\n{named}\n{contents}".encode())
    for other in others:
        asked.update(f"\n{use}\n{model_digest(other)}".encode())
    return Instructions(
        recorded_terms(terms, number), server_round, model, asked.hexdigest(), contents, named,
        others, use,
    )  # fmt: skip


def _read_others(record: object) -> tuple[ArrayRecord, ...]:
    if record is None:
        return ()
    if not isinstance(record, ArrayRecord) or not record:
        raise WireError("instructions: unexpected models")
    return unpack_models(record)


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
    """Return whether ``text`` is a SHA-256 in hexadecimal, or :data:`WHOLE`."""
    return isinstance(text, str) and re.fullmatch("([0-9a-f]{64})?", text) is not None


def encode_update(update: npt.NDArray[np.float32]) -> bytes:
    """Return the payload that is sealed, and later sent: shape ``(d,)``, or ``(1,)`` projected."""
    return encode(update)


def encode_choice(model: int) -> bytes:
    """Return the payload that is sealed, and later sent, for the choice of a model."""
    return b"%d" % model


def write_update(
    payload: bytes, size: int, choice: bytes | None = None, form: Form = FLOAT32
) -> RecordDict:
    """Return the reply that carries a sealed payload of ``size`` numbers, or of one number.

    Args:
        payload: of the update.
        size: d.
        choice: the sealed payload of the choice, where one was asked for.
        form: in which the payload was sealed; one number alone is always float32.
    """
    # A header is padded to a multiple of 64 bytes, so that the length determines the count.
    if form == FLOAT32 and len(payload) == len(numpy_header((1,))) + 4:
        size = 1
    array = Array(form, (size,), NUMPY if form == FLOAT32 else ROUNDED, payload)
    reply = RecordDict({_UPDATE: ArrayRecord({_UPDATE: array})})
    if choice is not None:
        reply[_CHOICE] = ConfigRecord({_CHOICE: int(choice)})
    return reply


def read_choice(content: RecordDict, models: int) -> int:
    """Return the choice in a reply; raises ``WireError`` where it is none of so many models."""
    record = content.get(_CHOICE)
    chosen = record.get(_CHOICE) if isinstance(record, ConfigRecord) else None
    # `type`, for a bool is an int to `isinstance`; the bound, for the server indexes with it.
    if type(chosen) is not int or not 0 <= chosen < models or len(record or ()) != 1:
        raise WireError("choice: not one of the models")
    return chosen


def read_update(
    content: RecordDict,
    size: int,
    *,
    may_be_projected: bool = False,
    with_choice: bool = False,
    form: Form = FLOAT32,
) -> npt.NDArray[np.float32]:
    """Return the update in a reply, shape ``(size,)``; ``(1,)``, where it may be projected and is.

    Raises:
        WireError: anything but one finite vector of that size and form under its key, and a choice
            beside it where one was asked for.
    """
    record, keys = content.get(_UPDATE), {_UPDATE, _CHOICE} if with_choice else {_UPDATE}
    if set(content) != keys or not isinstance(record, ArrayRecord):
        raise WireError("update: unexpected keys")
    if set(record) != {_UPDATE}:
        raise WireError("update: unexpected array names")
    # One number is accepted only where it was asked for; else d numbers, no fewer.
    array = record[_UPDATE]
    projected = may_be_projected and tuple(array.shape) == (1,)
    return decode(array, (1,), FLOAT32) if projected else decode(array, (size,), form)


def write_scores(payload: bytes) -> RecordDict:
    """Return the reply that carries a sealed histogram of scores."""
    array = Array("float32", (numbers_in(len(payload)),), NUMPY, payload)
    return RecordDict({_SCORES: ArrayRecord({_SCORES: array})})


def read_scores(content: RecordDict, size: int) -> npt.NDArray[np.float32]:
    """Return the histogram in a reply, shape ``(size,)``.

    Raises:
        WireError: anything but one finite float32 vector of that size under its key.
    """
    record = content.get(_SCORES)
    if set(content) != {_SCORES} or not isinstance(record, ArrayRecord):
        raise WireError("scores: unexpected keys")
    if set(record) != {_SCORES}:
        raise WireError("scores: unexpected array names")
    return decode(record[_SCORES], (size,))


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
        # Written so that NaN fails too. ε alone may be infinite: a site that opted out.
        if not value >= 0 or (math.isinf(value) and name != "epsilon"):
            raise WireError("site: a number is out of range")
    return facts


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
    """Return a site's answer to ``evaluate``: finite numbers of either sign.

    Raises:
        WireError: unknown keys, other types, or a number that is not finite.
    """
    numbers = _read_numbers(content, _METRICS, METRIC_KEYS)
    if not all(map(math.isfinite, numbers.values())):
        raise WireError("metrics: a number is not finite")
    return numbers


def refusal(code: int, request: Message) -> Message:
    """Return the reply of a site that sends nothing: the code and its constant reason."""
    return Message(Error(code, REASONS[code]), reply_to=request)


def _read_numbers(content: RecordDict, key: str, allowed: frozenset[str]) -> dict[str, float]:
    """Return the numbers of the one record in ``content``; whether they make sense, callers say."""
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
    """Return the model as Flower's record, without a detour over ``numpy.save``."""
    return ArrayRecord(
        {
            name: Array("float32", array.shape, NUMPY, encode(array))
            for name, array in arrays.items()
        }
    )


def encode(array: npt.NDArray[np.float32]) -> bytes:
    """Return what ``numpy.save`` writes for a float32 array."""
    return numpy_header(array.shape) + array.astype("<f4", copy=False).tobytes()


def round_model(record: ArrayRecord, form: Form, draw: Draw) -> ArrayRecord:
    """Return the model in a record of :func:`write_model`'s, rounded to the grid of ``form``."""
    rounded = ArrayRecord()
    for name, array in record.items():
        shape = tuple(array.shape)
        data = round_vector(_view(array, shape).ravel(), form, draw)
        rounded[name] = Array(form, shape, ROUNDED, data)
    return rounded


def read_model(record: ArrayRecord, like: Arrays, form: Form = FLOAT32) -> Arrays:
    """Return the model in ``record``, which must have the names and shapes of ``like``.

    Sent in ``form``, that of the run's terms or float32, and in no other.

    Raises:
        WireError: names, shapes or types differ, or a number is not finite.
    """
    if list(record) != list(like):
        raise WireError("model: unexpected parameter names")
    return {name: decode(record[name], array.shape, form) for name, array in like.items()}


def read_own(record: ArrayRecord) -> Arrays:
    """Return the model in a record that this process wrote, read-only, without a copy.

    Raises:
        WireError: the record is no :func:`write_model`'s.
    """
    return {name: _view(array, tuple(array.shape)) for name, array in record.items()}


def pack_models(models: Iterable[ArrayRecord]) -> ArrayRecord:
    """Return several models as one record, their names after ``0/``, ``1/`` and so on."""
    return ArrayRecord(
        {f"{i}/{name}": array for i, one in enumerate(models) for name, array in one.items()}
    )


def unpack_models(record: ArrayRecord) -> tuple[ArrayRecord, ...]:
    """Return the models that :func:`pack_models` packed.

    Raises:
        WireError: names that it does not write.
    """
    return tuple(ArrayRecord(one) for one in split_models(record))


def split_models(named: Mapping[str, Item]) -> list[dict[str, Item]]:
    """Return what :func:`pack_models` named, a dictionary a model; raises as ``unpack_models``."""
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
    """Return the SHA-256 of a model: its names, shapes, types and numbers, in their order."""
    digest = hashlib.sha256()
    for name, array in model.items():
        shape = tuple(array.shape)
        digest.update(f"{name}\n{array.dtype}\n{shape}\n{array.stype}\n".encode())
        # The length first: else bytes could move from one array to the next under one digest.
        digest.update(len(array.data).to_bytes(8, "big"))
        digest.update(array.data)  # by itself: the two together would be a copy of it
    return digest.hexdigest()


def decode(array: Array, shape: tuple[int, ...], form: Form = FLOAT32) -> npt.NDArray[np.float32]:
    """Return the numbers of ``array``, checked against shape and form before they are touched."""
    if form != FLOAT32:
        if array.stype != ROUNDED or array.dtype != form or tuple(array.shape) != shape:
            raise WireError("array: unexpected type or shape")
        return read_rounded(array.data, math.prod(shape), form).reshape(shape)
    values = _view(array, shape)
    if not np.isfinite(values).all():
        raise WireError("array: not finite")
    return values


def _view(array: Array, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Return the numbers of ``array`` where they lie.

    The header is compared, not parsed: NumPy's parser takes what it reads for Python.
    """
    if array.stype != NUMPY or array.dtype != "float32" or tuple(array.shape) != shape:
        raise WireError("array: unexpected type or shape")
    header = numpy_header(shape)
    if not array.data.startswith(header):
        raise WireError("array: unexpected header")
    # Exact: nothing is read beyond the bytes, and none of them is left over.
    if len(array.data) - len(header) != 4 * math.prod(shape):
        raise WireError("array: unexpected length")
    return np.frombuffer(array.data, dtype="<f4", offset=len(header)).reshape(shape)


def read_sealed(payload: bytes) -> npt.NDArray[np.float32]:
    """Return the vector that :func:`encode_update` wrote, shape ``(d,)``; raises ``WireError``."""
    size = numbers_in(len(payload))
    return decode(Array("float32", (size,), NUMPY, payload), (size,))

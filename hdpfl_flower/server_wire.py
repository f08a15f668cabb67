"""Server's half of the network messages: requests written, replies read.

Keys and the decoding of arrays are those of ``wire.py``, which a site has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from hdpfl_flower import formats
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import WireError
from hdpfl_flower.models.networks import Arrays
from hdpfl_flower.wire import (
    CHOICE,
    DESCRS,
    FORMAT,
    INSTRUCTIONS,
    METRIC_KEYS,
    METRICS,
    MODEL,
    NUMPY,
    OTHERS,
    PROJECT,
    QUERY,
    SITE,
    SITE_KEYS,
    UPDATE,
    USE,
    bytes_of,
    decode,
    encode,
    view,
)

WHOLE = ""
"""Value of ``project``: keep the model and send the whole update."""


def write_instructions(
    terms: RunTerms,
    server_round: int,
    model: ArrayRecord,
    project: str | None = None,
    *,
    others: Sequence[ArrayRecord] = (),
    use: str = "",
    of_noise: str = "",
) -> RecordDict:
    """Return a message's content to a site; arguments as in :class:`Instructions`."""
    head = ConfigRecord({FORMAT: formats.INSTRUCTIONS.newest, "terms": terms.to_json()})
    head["round"] = server_round
    if project is not None:
        head[PROJECT] = project
    if of_noise:
        head[terms.source.head] = of_noise
    if not others:
        return RecordDict({MODEL: model, INSTRUCTIONS: head})
    head[USE] = use
    return RecordDict({MODEL: model, INSTRUCTIONS: head, OTHERS: pack_models(others)})


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


def read_choice(content: RecordDict, models: int) -> int:
    """Return the choice in a reply; raises ``WireError`` if not below ``models``."""
    record = content.get(CHOICE)
    chosen = record.get(CHOICE) if isinstance(record, ConfigRecord) else None
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
    record, keys = content.get(UPDATE), {UPDATE, CHOICE} if with_choice else {UPDATE}
    if set(content) != keys or not isinstance(record, ArrayRecord):
        raise WireError("update: unexpected keys")
    if set(record) != {UPDATE}:
        raise WireError("update: unexpected array names")
    # One number is accepted only if it was requested; else exactly d numbers.
    array = record[UPDATE]
    projected = may_be_projected and tuple(array.shape) == (1,)
    return decode(array, (1,) if projected else (size,))


def query_of(kind: str) -> str:
    """Return the message type that asks for the payload of a kind of release."""
    return f"{QUERY}{kind}"


def read_payload(kind: str, content: RecordDict, size: int) -> npt.NDArray[np.float32]:
    """Return the payload of a kind in a reply, shape ``(size,)``.

    Raises:
        WireError: other content than one finite float32 vector of that size under its key.
    """
    return decode(_only_array(kind, content), (size,))


def read_numbers(
    name: str, content: RecordDict, size: int, dtype: str
) -> npt.NDArray[np.unsignedinteger]:
    """Return the only vector of a reply, of whole numbers, shape ``(size,)``.

    Raises:
        WireError: other content than one vector of that size and type under its name.
    """
    return np.frombuffer(bytes_of(_only_array(name, content), (size,), dtype), DESCRS[dtype])


def _only_array(name: str, content: RecordDict) -> Array:
    record = content.get(name)
    if set(content) != {name} or not isinstance(record, ArrayRecord):
        raise WireError(f"{name}: unexpected keys")
    if set(record) != {name}:
        raise WireError(f"{name}: unexpected array names")
    return record[name]


def read_site(content: RecordDict) -> dict[str, float]:
    """Return a site's answer to ``query.join``: finite or infinite positive numbers.

    Raises:
        WireError: unknown keys, other types, or numbers out of range.
    """
    facts = _read_numbers(content, SITE, SITE_KEYS)
    for name, value in facts.items():
        # Written so that NaN fails too. Only ε may be infinite: a site that opted out.
        if not value >= 0 or (math.isinf(value) and name != "epsilon"):
            raise WireError("site: a number is out of range")
    return facts


def read_metrics(content: RecordDict) -> dict[str, float]:
    """Return a site's answer to ``evaluate``: finite numbers of either sign.

    Raises:
        WireError: unknown keys, other types, or a number that is not finite.
    """
    numbers = _read_numbers(content, METRICS, METRIC_KEYS)
    if not all(map(math.isfinite, numbers.values())):
        raise WireError("metrics: a number is not finite")
    return numbers


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


def write_model(arrays: Arrays) -> ArrayRecord:
    """Return the model as Flower's record, without ``numpy.save``."""
    return ArrayRecord(
        {
            name: Array("float32", array.shape, NUMPY, encode(array))
            for name, array in arrays.items()
        }
    )


def read_own(record: ArrayRecord) -> Arrays:
    """Return this process's own model record, read-only, without a copy.

    Raises:
        WireError: the record is no :func:`write_model`'s.
    """
    return {name: view(array, tuple(array.shape)) for name, array in record.items()}


def pack_models(models: Iterable[ArrayRecord]) -> ArrayRecord:
    """Return several models as one record, prefixed ``0/``, ``1/``, …."""
    return ArrayRecord(
        {f"{i}/{name}": array for i, model in enumerate(models) for name, array in model.items()}
    )

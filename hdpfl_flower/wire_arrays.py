"""Models and vectors as Flower's arrays, read with distrust: the part of the wire that is numbers.

A shape, a dtype or a name that is not expected raises :class:`WireError` before a number is
touched.
"""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord

from hdpfl_flower.errors import HDPFLError
from hdpfl_flower.models.networks import Arrays

Item = TypeVar("Item")
NUMPY = "numpy.ndarray"
"""How Flower calls the form that arrays travel in."""


class WireError(HDPFLError):
    """A message does not have the form that this file describes; the text is a constant."""


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


def read_model(record: ArrayRecord, like: Arrays) -> Arrays:
    """Return the model in ``record``, which must have the names and shapes of ``like``.

    Raises:
        WireError: names, shapes or types differ, or a number is not finite.
    """
    if list(record) != list(like):
        raise WireError("model: unexpected parameter names")
    return {name: decode(record[name], array.shape) for name, array in like.items()}


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
        digest.update(len(array.data).to_bytes(8, "big"))
        digest.update(array.data)  # by itself: the two together would be a copy of it
    return digest.hexdigest()


def decode(array: Array, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Return the numbers of ``array``, checked against ``shape`` before they are touched."""
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
    if len(array.data) - len(header) != 4 * math.prod(shape):
        raise WireError("array: unexpected length")
    return np.frombuffer(array.data, dtype="<f4", offset=len(header)).reshape(shape)


@lru_cache(maxsize=256)
def numpy_header(shape: tuple[int, ...]) -> bytes:
    """Return what ``numpy.save`` writes before the numbers of a float32 array of ``shape``."""
    stream = io.BytesIO()
    fields = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, fields)
    return stream.getvalue()


def numbers_in(payload_bytes: int) -> int:
    """Return how many numbers a sealed update of ``payload_bytes`` holds.

    >>> numbers_in(len(numpy_header((650,))) + 4 * 650)
    650
    """
    return (payload_bytes - len(numpy_header((1,)))) // 4

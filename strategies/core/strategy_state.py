"""Serializer for the state of every strategy, for checkpoints.

A state is a frozen dataclass. Its fields are numbers, texts, arrays, other dataclasses, and tuples,
lists, sets, and dictionaries of these by text. :func:`save_state` turns it into facts that JSON can
hold and a list of arrays; :func:`load_state` reads them back by the fields' types, so that the
checkpoint of another strategy is rejected. Nothing here belongs to one algorithm.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt

from hdpfl_flower.config.terms import RunTerms
from strategies.core.kernel import Kernel

Array = npt.NDArray[Any]
ARRAY = "array"
"""Only key of the facts of an array; its value is the array's number."""


@dataclass(frozen=True)
class SavedState:
    """Saved state of a strategy.

    Attributes:
        facts: values that JSON can hold, dictionaries in their order.
        arrays: by their number, which the facts name, each of its own type and shape.
    """

    facts: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, Array] = field(default_factory=dict)


def save_state(value: object, arrays: dict[str, Array]) -> Any:
    """Return ``value`` for JSON; arrays are added to ``arrays``.

    Raises:
        TypeError: something that no state may hold.

    >>> save_state({"a": (1.5, None)}, {}), save_state(np.zeros(2), {})
    ({'a': [1.5, None]}, {'array': '0'})
    """
    if isinstance(value, np.ndarray):
        number = str(len(arrays))
        arrays[number] = value
        return {ARRAY: number}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field_.name: getattr(value, field_.name) for field_ in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value) or value.keys() == {ARRAY}:
            raise TypeError(
                "a dictionary of a strategy's state has a key that is not text, or the single "
                f"key '{ARRAY}'"
            )
        return {key: save_state(member, arrays) for key, member in value.items()}
    if isinstance(value, tuple | list | set | frozenset):
        # Sets are sorted: the same state has the same text.
        members = sorted(value) if isinstance(value, set | frozenset) else value
        return [save_state(member, arrays) for member in members]
    if value is not None and type(value) not in (bool, int, str) and not isinstance(value, float):
        raise TypeError(f"a strategy's state holds a {type(value).__name__}, which cannot be saved")
    return float(value) if isinstance(value, float) else value


def load_state(kind: Any, facts: Any, arrays: Mapping[str, Array], like: object = None) -> Any:
    """Return the value of type ``kind`` that :func:`save_state` saved.

    Args:
        kind: a type, as a dataclass annotates its fields. ``Any`` is the type of ``like``, or where
            that is None, whatever was saved; so are the members of a bare ``dict`` or ``tuple``.
        facts: as :func:`save_state` returned them.
        arrays: as it filled them.
        like: a value of the type, which a new strategy begins with.

    Raises:
        LookupError, TypeError, ValueError: the facts are not of that type.
    """
    kind = _stated(kind, like)
    if kind is Any:
        return _load_any(facts, arrays)
    origin, parts = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, types.UnionType):
        options = [option for option in parts if option is not type(None)]
        return None if facts is None else load_state(options[0], facts, arrays, like)
    if origin is np.ndarray and isinstance(facts, dict):
        return arrays[facts[ARRAY]]
    if dataclasses.is_dataclass(kind):
        return _load_fields(kind, facts, arrays, like)
    if parts and origin is not np.ndarray:
        return _load_members(origin, parts, facts, arrays)
    if kind is float and type(facts) is int:
        facts = float(facts)
    # The exact type: to `isinstance`, True is an int.
    if type(facts) is not kind:
        words = getattr(kind, "__name__", kind)
        raise TypeError(f"annotated as {words}, and holds a {type(facts).__name__}")
    return facts


def _stated(kind: Any, like: object) -> Any:
    """Return the type that an annotation stands for; ``Any``: it states none."""
    if kind is Any and like is not None:
        kind = type(like)
    if kind in (dict, list, tuple, set, frozenset):
        return kind[str, Any] if kind is dict else kind[Any, ...] if kind is tuple else kind[Any]
    return kind


def _load_any(facts: Any, arrays: Mapping[str, Array]) -> Any:
    """Return a saved value without a type: arrays, numbers, texts, lists, dictionaries."""
    if isinstance(facts, list):
        return [_load_any(member, arrays) for member in facts]
    if not isinstance(facts, dict):
        return facts
    if facts.keys() == {ARRAY}:
        return arrays[facts[ARRAY]]
    return {key: _load_any(member, arrays) for key, member in facts.items()}


def _load_fields(kind: Any, facts: Any, arrays: Mapping[str, Array], like: object) -> Any:
    hints = _hints(kind)
    if not isinstance(facts, dict) or facts.keys() != hints.keys():
        raise TypeError(f"not a {kind.__name__}")
    values = {}
    for name, hint in hints.items():
        try:
            values[name] = load_state(hint, facts[name], arrays, getattr(like, name, None))
        except TypeError as error:
            raise TypeError(f"'{name}' {error}") from None
    return kind(**values)


def _load_members(origin: Any, parts: Any, facts: Any, arrays: Mapping[str, Array]) -> Any:
    if issubclass(origin, Mapping):
        return {key: load_state(parts[1], member, arrays) for key, member in facts.items()}
    if not isinstance(facts, list):
        raise TypeError(f"not a {origin.__name__}")
    kinds = parts if origin is tuple and parts[-1] is not Ellipsis else parts[:1] * len(facts)
    return origin(load_state(k, member, arrays) for k, member in zip(kinds, facts, strict=True))


@cache
def _hints(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field_.name: hints[field_.name] for field_ in dataclasses.fields(kind)}


def keep_strategy(kernel: Kernel) -> SavedState:
    """Return the state of ``kernel`` without model and streams."""
    arrays: dict[str, Array] = {}
    facts = {
        "settled": kernel.settled,
        "terms": kernel.terms.to_json(),
        "disclosed": kernel.roster.disclosed,
        "declined": kernel.report.declined,
        "answered": kernel.report.answered,
        "sampler": save_state(kernel.sampler.state, arrays),
        "guard": save_state(kernel.guard.state, arrays),
        "state": save_state(kernel.state, arrays),
        "step": save_state(kernel.step_state, arrays),
        "reported": save_state(kernel.reported.state, arrays),
    }
    return SavedState(facts, arrays)


def restore_strategy(kernel: Kernel, saved: SavedState) -> None:
    """Restore the state that :func:`keep_strategy` saved, into a new ``kernel``.

    The sampler learns at once of the sites that declined the last round.

    Raises:
        LookupError, TypeError, ValueError, HDPFLError: ``saved`` is of another kernel.
    """
    facts, arrays = saved.facts, saved.arrays
    kernel.settled = bool(facts["settled"])
    kernel.strategy.terms = RunTerms.from_json(facts["terms"])
    kernel.roster.disclosed.update(facts["disclosed"])
    kernel.sampler.state = load_state(Any, facts["sampler"], arrays, kernel.sampler.state)
    kernel.sampler.note_declined(facts["declined"])
    kernel.report.answered = list(facts["answered"])
    kernel.guard.state = load_state(Any, facts["guard"], arrays, kernel.guard.state)
    kernel.state = load_state(Any, facts["state"], arrays, kernel.state)
    kernel.step_state = load_state(Any, facts["step"], arrays, kernel.step_state)
    kernel.reported.state = load_state(Any, facts["reported"], arrays, kernel.reported.state)

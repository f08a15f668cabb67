"""Make any one call of a site's code fail, with secrets in the text of the exception.

A profile function that raises makes the call fail that it was told of: our own functions, other
libraries' and those written in C alike, and nothing has to be patched for it.
"""

from __future__ import annotations

import gc
import sqlite3
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from tests.e2e.engines import ROOT

GUARD = "handle"
"""The function around every handler, in client_app/app.py."""
PACKAGES = ("client_app", "hdpfl_flower")
OURS = tuple(f"{ROOT / name}/" for name in PACKAGES)
SECRET = "PATIENT-123 pays 1.2345678"
SECRETS = ("PATIENT-123", "1.2345678", "2.4691356")
"""Of tests/client_app/messages.py, whose sites have ε = 1.2345678 and twice that as their cap."""

_ERRORS: tuple[Callable[[], BaseException], ...] = (
    lambda: ValueError(SECRET),
    lambda: UnicodeDecodeError("utf-8", SECRET.encode(), 0, 1, SECRET),
    lambda: OSError(28, "No space left on device", f"/wards/{SECRET}"),
    lambda: sqlite3.OperationalError(SECRET),
    lambda: KeyError(SECRET),
    lambda: MemoryError(SECRET),
    lambda: SystemExit(SECRET),
    lambda: _noted(RuntimeError(SECRET)),
)


def _planted(number: int, in_validator: bool) -> BaseException:
    errors = [error() for error in _ERRORS]
    if in_validator:
        errors = [error for error in errors if not isinstance(error, ValueError)]
    error = errors[number % len(errors)]
    error.planted = True  # type: ignore[attr-defined]
    return error


def _noted(error: BaseException) -> BaseException:
    error.add_note(SECRET)
    error.__cause__ = ValueError(SECRET)
    return error


@dataclass(frozen=True)
class Call:
    """A function, who calls it, and on whose behalf: training has failures that a rehearsal has."""

    callee: str
    caller: str
    behalf: str


def calls_of(work: Callable[[], object]) -> list[Call]:
    """Return the different calls that our code makes while ``work`` runs, in order.

    Left out are modules being imported, and what the test itself does before the guard is at work.
    """
    found: dict[Call, None] = {}
    guard = False

    def note(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal guard
        guard = guard or frame.f_code.co_name == GUARD
        call = _call(frame, event, arg)
        if guard and call is not None:
            found[call] = None

    _profiled(work, note)
    return list(found)


def failing(call: Call, number: int, work: Callable[[], object]) -> bool:
    """Do ``work``, in which ``call`` fails once, with an exception that ``number`` picks.

    Returns:
        Whether the call was made.
    """
    made = guard = False
    python, c_function = call.callee.rpartition(":")[2], call.callee.rpartition(".")[2]

    def fail(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal made, guard
        guard = guard or frame.f_code.co_name == GUARD
        # Most events are of other functions: their names alone say so.
        named = (
            arg.__name__ == c_function if event == "c_call" else frame.f_code.co_qualname == python
        )
        if named and guard and not made and _call(frame, event, arg) == call:
            made = True
            raise _planted(number, _in_validator(frame))

    _profiled(work, fail)
    return made


def is_planted(error: BaseException | None) -> bool:
    """Tell whether ``error`` is one that :func:`failing` raised."""
    return getattr(error, "planted", False)


def full_caches() -> list[Any]:
    """Return the cached functions of our modules that hold a value: what is held is not called."""
    modules = [each for name, each in sys.modules.copy().items() if name.split(".")[0] in PACKAGES]
    cached = [v for each in modules for v in vars(each).values() if hasattr(v, "cache_clear")]
    return [value for value in dict.fromkeys(cached) if value.cache_info().currsize]


def _profiled(work: Callable[[], object], note: Callable[[FrameType, str, Any], None]) -> None:
    """Do ``work`` under ``note``; Python and torch are then as before, whatever call failed."""
    before, collects, gradients = sys.getprofile(), gc.isenabled(), torch.is_grad_enabled()
    modes, device = torch._C._len_torch_function_stack(), torch.utils._device.CURRENT_DEVICE
    gc.disable()  # what a collection calls, it calls on behalf of whoever is at work just then
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
        # the failed call may be the one that restores a mode of torch: a process of a site ends
        # with its message, this one does not
        torch.set_grad_enabled(gradients)
        while torch._C._len_torch_function_stack() > modes:
            torch._C._pop_torch_function_stack()
        torch.utils._device.CURRENT_DEVICE = device
        if collects:
            gc.enable()


def _call(frame: FrameType, event: str, arg: Any) -> Call | None:
    """Return the call that a profile function is told of, if our code makes it or is called."""
    if event == "c_call":
        return Call(_function(arg), *_names(frame)) if _ours(frame) else None
    if event != "call" or frame.f_code.co_name in ("<module>", GUARD):
        return None
    back = frame.f_back
    if back is None or not (_ours(frame) or _ours(back)):
        return None
    return Call(_name(frame), *_names(back))


def _in_validator(frame: FrameType | None) -> bool:
    """Tell whether pydantic called: there a ValueError's text is, by contract, the key's finding.

    Our validators raise it with constant texts, and call nothing that raises another.
    """
    while frame is not None and "/pydantic/" not in frame.f_code.co_filename:
        frame = frame.f_back
    return frame is not None


def _ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(OURS)


def _names(frame: FrameType) -> tuple[str, str]:
    return _name(frame), _name(frame.f_back) if frame.f_back is not None else ""


def _function(arg: Any) -> str:
    return f"{type(getattr(arg, '__self__', None)).__name__}.{arg.__name__}"


def _name(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_code.co_qualname}"

"""Tracebacks of users' code for its author, and the folder that commands search."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hdpfl_flower.errors import HDPFLError

_PACKAGES = Path(__file__).parents[2]


def search_here() -> None:
    """Add the current directory to Python's path, in last place.

    For commands of a researcher: a site imports only installed modules and the approved app.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)


@contextmanager
def shown_to_its_author() -> Iterator[None]:
    """Print the traceback of users' code that raised, on stderr.

    Only for commands that users run on their own code; the error itself is raised again.
    """
    try:
        yield
    except HDPFLError as error:
        show_own(error)
        raise


def show_own(error: BaseException) -> None:
    """Print users' code's traceback in ``error`` or its causes on stderr."""
    print(own_traceback(error), end="", file=sys.stderr)


def own_traceback(error: BaseException) -> str:
    """Return the traceback from the first line of users' code; empty: no code of theirs raised.

    Frames of this package and of installed libraries before the user's are left out.
    """
    cause: BaseException | None = error
    while cause is not None:
        frames = traceback.extract_tb(cause.__traceback__)
        first = next((i for i, frame in enumerate(frames) if is_own(frame.filename)), None)
        syntax = isinstance(cause, SyntaxError) and is_own(cause.filename or "")
        if first is not None or syntax:
            lines = traceback.format_list(frames[first:] if first is not None else [])
            lines += traceback.format_exception_only(cause)
            return "Traceback of your code:\n" + "".join(lines)
        if type(cause).__name__ == "_RemoteTraceback":  # of a worker process, whole, as text
            files = re.findall(r'^  File "([^"]+)"', str(cause), re.M)
            if any(map(is_own, files)):
                return str(cause)
        cause = cause.__cause__
    return ""


def is_own(file: str) -> bool:
    """Return whether ``file`` is outside this package, Python and libraries."""
    if not file or file.startswith("<"):
        return False
    path = Path(file).absolute()
    installed = {"site-packages", "dist-packages"} & set(path.parts)
    if installed or path.is_relative_to(Path(traceback.__file__).parent):
        return False
    tops = ("hdpfl_flower", "strategies", "client_app", "server_app", "hdpfl_tools", "studies")
    return not any(path.is_relative_to(_PACKAGES / top) for top in tops)

"""Import of users' code ``module:name``, with tracebacks for its author.

An error's text names the place, the remedy and the kind of an exception, never its message: a text
may reach a server. The traceback stays in the process; the commands of the researcher print it.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from hdpfl_flower.errors import HDPFLError

_NAME = re.compile(r"(?P<module>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*):(?P<name>[A-Za-z_]\w*)", re.ASCII)
_PACKAGES = Path(__file__).parents[2]


def search_here() -> None:
    """Add the current directory to Python's path, in last place.

    For commands of a researcher: a site imports only installed modules and the approved app.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)


def load_own(spec: str, key: str, refuse: Callable[[str], HDPFLError], kind: str) -> Any:
    """Return the object named by ``module:name``.

    Args:
        spec: the name, as the run config has it.
        key: of the run config, for the error.
        refuse: makes the error from a text.
        kind: kind of the object, ``class`` or ``function``, for the error.

    Raises:
        HDPFLError: by ``refuse``; it names the key and the file or the folders that were searched.
            If the module itself raises, that exception is the error's cause.
    """
    match = _NAME.fullmatch(spec)
    if match is None:
        form = {"class": "module:Class', such as my_rules:Median"}.get(kind, f"module:{kind}'")
        raise refuse(f"'{key}': '{spec}': write '{form}")
    module, name = match["module"], match["name"]
    try:
        loaded = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise refuse(
                f"'{key}': '{spec}': module '{module}' imports '{error.name}', which is not "
                "installed here; install it"
            ) from error
        file = Path(*module.split(".")).with_suffix(".py")
        raise refuse(
            f"'{key}': '{spec}': there is no module '{module}' in {Path.cwd()} ({file}), nor in "
            f"the other {len(sys.path) - 1} entries of Python's path; run in its folder, install "
            "it, or set PYTHONPATH"
        ) from None
    except Exception as error:
        raise refuse(
            f"'{key}': '{spec}': module '{module}' cannot be imported: {type(error).__name__}; "
            "correct it"
        ) from error
    where = getattr(loaded, "__file__", None) or module
    if not hasattr(loaded, name):
        raise refuse(f"'{key}': '{spec}': {where} has no {kind} '{name}'; correct the name")
    return getattr(loaded, name)


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

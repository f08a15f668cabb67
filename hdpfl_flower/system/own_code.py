"""Import of users' code ``module:name``, with tracebacks for its author.

An error's text names the place, the remedy and the kind of an exception, never its message: a text
may reach a server. The traceback stays in the process; the commands of the researcher print it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from hdpfl_flower.errors import HDPFLError

_NAME = re.compile(r"(?P<module>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*):(?P<name>[A-Za-z_]\w*)", re.ASCII)


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

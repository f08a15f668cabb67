"""Programs that Flower starts for a task, and the PATH in which it finds them.

The server states the type of a task, and flower-superexec starts the program of that type by its
name. A site that pins its code has one launcher under all of these names.
"""

from __future__ import annotations

import os
import shutil
from importlib.metadata import entry_points
from pathlib import Path

LAUNCHER = "flwr-clientapp"


def task_programs() -> set[str]:
    """Return the names of the installed Flower's task programs."""
    scripts = entry_points(group="console_scripts")  # of flwr and of flwr-nightly
    return {s.name for s in scripts if s.value.startswith("flwr.") and s.name.startswith("flwr-")}


def pinned_folder(path: str | None = None) -> Path | None:
    """Return the first folder of ``path`` that ``hdpfl-site approve`` wrote; None: not pinned.

    Args:
        path: folders as in PATH; None: this process's.
    """
    folders = (os.environ.get("PATH", "") if path is None else path).split(os.pathsep)
    written = (
        Path(folder)
        for folder in folders
        if (Path(folder) / LAUNCHER).is_file() and (Path(folder).parent / "apps").is_dir()
    )
    return next(written, None)


def path_fault(path: str | None = None) -> str:
    """Return why ``path`` pins the code only in part, or empty.

    A path without a launcher pins nothing, which is no fault: its site trusts its coordinator.
    """
    folder = pinned_folder(path)
    if folder is None:
        return ""
    for program in sorted(task_programs()):
        first = shutil.which(program, path=path)
        if first is None:
            return f"{folder} has no {program}; run again: hdpfl-site approve APP.fab --to …"
        if Path(first).parent != folder:
            return (
                f"{program} would start from {first}, which is not approved; set PATH={folder}, "
                "with no other folder"
            )
    return ""

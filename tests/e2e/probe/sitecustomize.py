"""Python reads this first where its folder is in PYTHONPATH: notes when a site began on a message.

A line for each message goes to the file that REPLY_PROBE names: the request's id, when the work on
it began and how long that took, and what the profile asks for. Nothing of the site's changes, but
that a reply to train waits as long as the file ``hold-train`` lies beside the site's state.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

MODULE = "hdpfl_flower.reply_time"


def watch(timing: ModuleType) -> None:
    """Wrap the three calls with which a site times a reply."""
    noted: dict[str, Any] = {}
    from hdpfl_flower import wire

    arrival, wait, reply_with = timing.arrival, timing.wait_until_due, wire.reply_with

    def arrival_noted(*words: Any) -> Any:
        came = arrival(*words)
        if came.profile is not None:
            noted["site"] = str(came.profile.state.path.parent)
        noted.update(at=came.wall, reply_after=came.reply_after)
        return came

    def wait_noted(*words: Any) -> Any:
        noted["work"] = time.time() - noted["at"]
        return wait(*words)

    def reply_noted(answered: Any, request: Any, created_at: float | None) -> Any:
        line = json.dumps({"request": request.metadata.message_id, **noted}) + "\n"
        with Path(os.environ["REPLY_PROBE"]).open("a") as file:
            file.write(line)
        hold = Path(noted.get("site", "")) / f"hold-{request.metadata.message_type}"
        while hold.exists():
            time.sleep(0.1)
        return reply_with(answered, request, created_at)

    vars(timing).update(arrival=arrival_noted, wait_until_due=wait_noted)
    vars(wire).update(reply_with=reply_noted)  # its user imports it after this module


class Watcher(importlib.abc.MetaPathFinder):
    """Finds that one module, and watches it as soon as it is there."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, _: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def then_watch(module: ModuleType) -> None:
                run(module)
                watch(module)

            vars(spec.loader).update(exec_module=then_watch)
        return spec


if "REPLY_PROBE" in os.environ:
    sys.meta_path.insert(0, Watcher())

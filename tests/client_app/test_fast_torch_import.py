"""A client's process imports torch without a run of the garbage collector."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

COUNT = """
import gc, importlib, json, sys
runs = []
def count(phase, info):
    if phase == "start" and "torch" in sys.modules and not gc.get_freeze_count():
        runs.append(info["generation"])
gc.callbacks.append(count)
importlib.import_module(sys.argv[1])
print(json.dumps([len(runs), gc.get_freeze_count() > 0, gc.isenabled()]))
"""


@pytest.mark.parametrize(
    ("module", "rests"), [("client_app.app", True), ("client_app.training.engines", False)]
)
def test_collector_rests_while_the_client_imports_torch(module: str, rests: bool) -> None:
    """The second row imports torch as it is, so that the count is seen to count."""
    told = subprocess.run(
        [sys.executable, "-c", COUNT, module], capture_output=True, text=True, check=True
    )
    runs, frozen, enabled = json.loads(told.stdout)
    assert (runs == 0, frozen, enabled) == (rests, rests, True)

"""A federation in this process whose training is replaced by ready updates.

Everything else is the product's own: messages, terms, ledger, checks, aggregation, journal.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from itertools import cycle
from typing import Any
from unittest import mock

import numpy as np

from hdpfl_flower.config.run_config import RunConfig
from server_app.run.rounds import RunResult
from server_app.simulation.in_process_run import run_in_process


def ready_updates(number: int, size: int) -> Iterator[np.ndarray]:
    """Return ``number`` updates, again and again: noise of their own, as honest ones have."""
    draws = np.random.default_rng(0).standard_normal((number, size), dtype=np.float32)
    return cycle(draws)


def run_ready(updates: Iterator[np.ndarray], clients: int, **terms: Any) -> RunResult:
    """Run ``terms`` with an update of ``updates`` wherever a client would train."""
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch("client_app.training.trainer.train", lambda *_, **__: next(updates)),
    ):
        common = {"runs-dir": folder, "evaluation": "none", "epsilons": "1", "batch-sizes": "16"}
        return run_in_process(RunConfig.parse({**common, **terms}), clients)

"""A round holds one copy of the updates, and gives the same bits where they lie in a file."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from hdpfl_flower.linalg import update_matrix as matrix
from hdpfl_flower.updates import RoundUpdates
from strategies.core import base
from strategies.core.kernel import Kernel
from tests.strategies.core.memory import BAR, BARS, CLASSES, INPUTS, SITES, STRATEGIES, two_rounds

FIXED = 8_000_000
"""Bytes of blocks and samples of a fixed size: of ``mmse`` the kept sums, 6 MB for 20 sites."""


def share(name: str, monkeypatch: pytest.MonkeyPatch, width: int = 5_000) -> float:
    """Return the most memory of two rounds, once the matrix is full, over the size of the updates.

    While it fills, tracemalloc counts it as full already: ``test_exchange.py`` has that part.
    """
    screen = Kernel._screen

    def full(self: Kernel, came: RoundUpdates) -> RoundUpdates:
        nonlocal peak
        tracemalloc.reset_peak()
        kept = screen(self, came)
        peak = max(peak, tracemalloc.get_traced_memory()[1])
        return kept

    monkeypatch.setattr(Kernel, "_screen", full)
    # A found rate adds the last aggregate in float64, whatever the strategy.
    config = {"strategy": name.partition(",")[0], "learning-rate": 0.1, **STRATEGIES[name]}
    peak = 0
    two_rounds(config, 5, name)  # imports
    tracemalloc.start()
    size = two_rounds(config, width, name)
    peak = max(peak, tracemalloc.get_traced_memory()[1])
    tracemalloc.stop()
    return peak / (4 * SITES * size)


@pytest.mark.slow
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_round_takes_little_memory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bar above an idle server, which holds a model; the last draw is its own.

    Blocks and samples of a fixed size come on top: nothing to the gigabyte of the bar.
    """
    bar = BARS.get(name, BAR)
    size = 4 * SITES * 5_000 * (INPUTS + CLASSES + 1)
    assert share(name, monkeypatch, 5_000) <= bar + 2 / SITES + FIXED / size


def test_replies_that_are_kept_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above, and that it can fail."""
    assert share("fedavg", monkeypatch, 2_000) <= 1.3 + 2 / SITES
    monkeypatch.setattr("strategies.core.exchange._letting_go", iter)
    assert share("fedavg", monkeypatch, 2_000) > 1.7


def test_a_round_in_a_file_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    models, files = [], []
    write = base.wire.write_model

    def spy(arrays: dict[str, np.ndarray]) -> Any:
        models.append(np.concatenate([array.ravel() for array in arrays.values()]))
        return write(arrays)

    monkeypatch.setattr(base.wire, "write_model", spy)
    for limit in (matrix.memory_limit(), 0):
        monkeypatch.setattr(matrix, "memory_limit", lambda limit=limit: limit)
        monkeypatch.setattr(matrix.log, "info", lambda *_: files.append(1))
        two_rounds({"strategy": "robust-hdp"}, 2 * INPUTS, "robust-hdp")
    assert len(files) == 2
    assert models[-1].any()
    np.testing.assert_array_equal(models[2], models[5])

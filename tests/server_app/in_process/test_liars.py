"""Simulated liars in a real federation of digits: what they send, and what guards make of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.scenarios.attacks import Attack
from server_app.in_process.grid import LocalGrid
from server_app.in_process.in_process_run import run_in_process
from server_app.in_process.liars import AttackGrid
from server_app.run.rounds import finalize_terms
from strategies.guards.bounds import REPEATS, ZEROS
from tests.federation import first_updates

SITES = 10
LIARS = (3, 7)
Updates = dict[str, np.ndarray[Any, Any]]


def terms_of(tmp_path: Path, **more: Any) -> RunConfig:
    config = {
        "strategy": "robust-hdp", "rounds": 3, "dataset": "digits", "partition": "iid",
        "epsilons": "8", "batch-sizes": "16", "runs-dir": str(tmp_path), "run-id": "r",
        "calibration": "pfa", "delta": 1e-4,
    }  # fmt: skip
    return RunConfig.parse({**config, **more})


def uploads(grid: LocalGrid, tmp_path: Path) -> Updates:
    """Return what the sites of ``grid`` send in round 1."""
    return first_updates(grid, finalize_terms(terms_of(tmp_path)))


@pytest.fixture(scope="module")
def sent_honestly(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Updates]:
    return cache(lambda: uploads(LocalGrid(SITES), tmp_path_factory.mktemp("honest")))


def test_liars_alone_reverse_updates(tmp_path: Path, sent_honestly: Callable[[], Updates]) -> None:
    honest = sent_honestly()
    found = uploads(AttackGrid(SITES, attack=Attack("minus-5", LIARS)), tmp_path)
    for site, update in honest.items():
        if int(site) not in LIARS:
            np.testing.assert_array_equal(found[site], update)
            continue
        # A reversed update without noise: against the honest one, and 5 times its signal.
        clean = found[site] / -5
        assert clean @ update > 0
        assert np.linalg.norm(clean) < np.linalg.norm(update)
        weights = clean[: 10 * 64].reshape(10, 64)
        np.testing.assert_allclose(weights.sum(0), 0, atol=1e-5)  # no noise in the silent sums


def test_a_run_with_liars_refuses_them_and_says_why(tmp_path: Path) -> None:
    for name, reason, first in (("zero", ZEROS, 1), ("repeated", REPEATS, 2)):
        terms = terms_of(tmp_path / name, guard="none")
        result = run_in_process(terms, SITES, attack=Attack(name, LIARS))
        for event in result.rounds:
            expected = {"3": reason, "7": reason} if event["round"] >= first else {}
            assert event["rejected"] == expected


def test_poison_changes_labels_alone(tmp_path: Path, sent_honestly: Callable[[], Updates]) -> None:
    """The noise is that of its honest update; the progress is that of an honest site on others."""
    honest = sent_honestly()
    found = uploads(AttackGrid(SITES, attack=Attack("label-flip", LIARS)), tmp_path)
    for site, update in honest.items():
        if int(site) not in LIARS:
            np.testing.assert_array_equal(found[site], update)
            continue
        rows, flipped = (one[: 10 * 64].reshape(10, 64) for one in (update, found[site]))
        # The silent sums hold noise alone, and it is the same draw.
        np.testing.assert_allclose(flipped.sum(0), rows.sum(0), atol=1e-5)
        assert np.linalg.norm(flipped - rows) > 0.1 * np.linalg.norm(rows)


def test_colluders_use_their_mean(tmp_path: Path, sent_honestly: Callable[[], Updates]) -> None:
    honest = sent_honestly()
    clean = uploads(AttackGrid(SITES, attack=Attack("minus-1", LIARS)), tmp_path / "a")
    found = uploads(AttackGrid(SITES, attack=Attack("minus-mean", LIARS)), tmp_path / "c")
    mean = -sum(clean[str(site)] for site in LIARS) / len(LIARS)
    for site in map(str, LIARS):
        noise = honest[site] + clean[site]
        np.testing.assert_allclose(found[site], noise - mean / 5, atol=1e-5)

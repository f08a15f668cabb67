"""DP-SGD of simulated sites together: each reserves before it, seals after it, sends its own."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_app import app as client
from client_app.training import trainer
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import DataError
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_tools.simulation import stacked_sites as together
from hdpfl_tools.simulation.in_process.grid import LocalGrid
from hdpfl_tools.simulation.in_process.in_process_run import run_in_process
from hdpfl_tools.simulation.sites import (
    _LEDGERS,
    InProcessContext,
    Place,
    SimulatedSite,
    close_ledgers,
)
from server_app.run.rounds import finalize_terms
from strategies.core.checks import NoAnswerError
from tests.federation import first_updates

SITES = 5
TOLERANCE = 1e-6
"""Of an update's norm: another order of float32 sums, below the grid of the noise, σ·2⁻²⁰."""


def config_of(folder: Path, **more: Any) -> RunConfig:
    config = {
        "strategy": "fedavg", "rounds": 2, "runs-dir": str(folder), "run-id": "r",
        "min-sites": 1, "delta": 1e-3, "batch-sizes": "40,16", "epsilons": "levels:2:6",
        "partition": "iid", "evaluation": "none", "model": "logreg", "local-epochs": 1,
        "clip-norm": 0.5, "learning-rate": 0.1, "stack": True,
    }  # fmt: skip
    return finalize_terms(RunConfig.parse({**config, **more}))


def one_round(config: RunConfig, **grid_of: Any) -> tuple[dict[str, np.ndarray], LocalGrid]:
    """Return what the sites send in round 1, and the grid, still open."""
    grid = LocalGrid(SITES, config=config, **grid_of)
    return first_updates(grid, config), grid


def alone(folder: Path, **more: Any) -> dict[str, np.ndarray]:
    found, grid = one_round(config_of(folder, stack=False, **more))
    grid.close()
    assert set(found) == set(map(str, range(SITES)))
    return found


def not_alone(*_: object, **__: object) -> None:
    raise DataError("a site trained by itself")


def not_together(*_: object) -> None:
    raise AssertionError("sites trained together")


def close_to(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert set(found) == set(expected)
    for site, update in expected.items():
        assert np.linalg.norm(found[site] - update) <= TOLERANCE * np.linalg.norm(update)


def statuses(folder: Path) -> list[str]:
    """Return what each site's ledger says of its releases, read from its file."""
    close_ledgers()
    found = []
    for path in sorted(folder.glob("r/sites/*/ledger.sqlite")):
        ledger = Ledger(path, durable=False)
        found += [release.status for release in ledger.account().releases.values()]
        ledger.close()
    return found


@pytest.mark.parametrize("more", [{}, {"model": "mlp:8"}, {"epsilons": "4+opt-out:0.4"}])
def test_sites_send_what_they_send_alone(
    tmp_path: Path, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = alone(tmp_path / "a", **more)
    monkeypatch.setattr(trainer, "train", not_alone)
    found, grid = one_round(config_of(tmp_path / "b", **more))
    close_to(found, expected)
    for site, update in found.items():  # a mix-up is far outside
        others = [other for key, other in expected.items() if key != site]
        assert min(np.linalg.norm(update - other) for other in others) > 1e-2
    assert not any(node.trained or node.taken for node in grid._contexts.values())
    grid.close()
    assert statuses(tmp_path / "b") == ["sealed"] * SITES


def test_stacks_are_made_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "train_stacked", not_together)
    one, other = alone(tmp_path / "a"), alone(tmp_path / "b")
    for site, update in one.items():
        np.testing.assert_array_equal(other[site], update)


def test_a_model_that_cannot_be_stacked_trains_alone_to_the_bit(tmp_path: Path) -> None:
    found, grid = one_round(config_of(tmp_path / "a", model="cnn"), present=[0])
    grid.close()
    config = config_of(tmp_path / "b", model="cnn", stack=False)
    expected, grid = one_round(config, present=[0])
    grid.close()
    np.testing.assert_array_equal(found["0"], expected["0"])


def test_sites_reserve_work_and_seal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    work, seal = together.train_stacked, Ledger.seal

    def worked(*given: Any) -> Any:
        held = [ledger.account().releases.values() for ledger in _LEDGERS.values()]
        log.extend(release.status for releases in held for release in releases)
        log.append("work")
        return work(*given)

    def sealed(*given: Any) -> None:
        log.append("seal")
        seal(*given)

    monkeypatch.setattr(together, "train_stacked", worked)
    monkeypatch.setattr(Ledger, "seal", sealed)
    _, grid = one_round(config_of(tmp_path))
    assert log == ["reserved"] * SITES + ["work"] + ["seal"] * SITES
    grid.close()


def test_a_whole_run_charges_and_sends_as_alone(tmp_path: Path) -> None:
    spent, models = [], []
    for stack in (True, False):
        folder = tmp_path / str(stack)
        result = run_in_process(config_of(folder, stack=stack), SITES)
        assert [event["accepted"] for event in result.rounds] == [list(map(str, range(SITES)))] * 2
        models.append(np.concatenate([array.ravel() for array in result.arrays.values()]))
        spent.append([])
        for path in sorted(folder.glob("r/sites/*/ledger.sqlite")):
            ledger = Ledger(path, durable=False)
            spent[-1].append(ledger.account().spent())
            ledger.close()
    assert spent[0] == spent[1]
    assert len(spent[0]) == SITES
    assert np.linalg.norm(models[0] - models[1]) <= 1e-6 * np.linalg.norm(models[1])


# What goes wrong between the reservation and the seal.


def test_a_common_failure_sends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "train_stacked", not_alone)
    config = config_of(tmp_path)
    grid = LocalGrid(SITES, config=config)
    with pytest.raises(DataError):
        first_updates(grid, config)
    assert not any(node.trained or node.taken for node in grid._contexts.values())
    grid.close()
    assert statuses(tmp_path) == ["lost"] * SITES


def test_a_late_failure_loses_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trainer.Trainer.run

    def fails(self: trainer.Trainer, plan: Any) -> bytes:
        if self._site.place == Place(2, SITES):
            raise DataError("on purpose")
        return run(self, plan)

    monkeypatch.setattr(trainer.Trainer, "run", fails)
    config = config_of(tmp_path)
    grid = LocalGrid(SITES, config=config)
    with pytest.raises(NoAnswerError):  # the site's code, in the place of an update
        first_updates(grid, config)
    grid.close()
    assert statuses(tmp_path) == ["sealed", "sealed", "lost", "sealed", "sealed"]


POINTS = ("reserve", "after reserve", "work", "seal", "after seal")


@pytest.mark.parametrize("turn", [0, 2, SITES - 1])
@pytest.mark.parametrize("point", POINTS)
def test_a_killed_process_sends_sealed_bytes_alone(tmp_path: Path, point: str, turn: int) -> None:
    """kill -9 in a resumable simulation, whose ledgers are files; then the same request again.

    Before the work of all, ``turn`` + 1 sites at most hold a reservation; after it, those that
    sealed are the only ones that can have sent. The next process works the others' releases again,
    under the same seed: each is lost once, charged once, and has the bits of an undisturbed run.
    """
    whole, grid = one_round(config_of(tmp_path / "whole"), ledgers_in_files=True)
    grid.close()
    config = config_of(tmp_path / "cut")
    child = os.fork()
    if not child:
        try:
            _die(point, turn)
            one_round(config, ledgers_in_files=True)
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    held = {"reserve": turn, "after reserve": turn + 1}.get(point, SITES)
    done = {"seal": turn, "after seal": turn + 1}.get(point, 0)
    assert sorted(statuses(tmp_path / "cut")) == ["reserved"] * (held - done) + ["sealed"] * done
    found, grid = one_round(config, ledgers_in_files=True)
    for site, update in whole.items():
        np.testing.assert_array_equal(found[site], update)
    for ledger in _LEDGERS.values():
        assert len(ledger.account().plans) == 1
    grid.close()
    assert statuses(tmp_path / "cut") == ["sealed"] * SITES


def _die(point: str, turn: int) -> None:
    """Kill this process at the ``turn``-th call of what ``point`` names."""
    left = [turn]

    def cut(inner: Any, *, after: bool) -> Any:
        def outer(*given: Any, **named: Any) -> Any:
            now = left[0] == 0
            left[0] -= 1
            if now and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            found = inner(*given, **named)
            if now:
                os.kill(os.getpid(), signal.SIGKILL)
            return found

        return outer

    if point == "work":
        left[0] = 0
        together.train_stacked = cut(together.train_stacked, after=True)
        return
    name = point.removeprefix("after ")
    setattr(Ledger, name, cut(getattr(Ledger, name), after=point != name))


# Who takes whose work.


def test_work_and_reservations_for_another_request_are_not_used(tmp_path: Path) -> None:
    expected = alone(tmp_path / "a")
    planted = {("another", "update"): np.ones(650, np.float32)}
    original = InProcessContext.trained, InProcessContext.taken
    try:
        InProcessContext.trained = property(lambda _: dict(planted))  # type: ignore[assignment, misc]
        found, grid = one_round(config_of(tmp_path / "b", stack=False))
    finally:
        InProcessContext.trained, InProcessContext.taken = original  # type: ignore[method-assign]
    for site, update in expected.items():
        np.testing.assert_array_equal(found[site], update)
    grid.close()


def test_real_sites_are_never_stacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows are proven to be apart in its own engine alone."""
    expected = alone(tmp_path / "a")
    monkeypatch.setattr(together, "train_stacked", not_together)
    monkeypatch.setattr(SimulatedSite, "simulated", property(lambda _: False))
    monkeypatch.setattr(together, "check_consent", lambda *_, **__: None)
    monkeypatch.setattr(client, "check_consent", lambda *_, **__: None)
    found, grid = one_round(config_of(tmp_path / "b"))
    assert set(found) == set(expected)
    grid.close()

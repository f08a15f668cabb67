"""A round in one process, clients stacked: each answer is the site's own, and nobody else's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from client_app.site.site import open_site
from client_app.training import plain_sgd
from client_app.training.ditto import load_personal_model
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.errors import DataError
from hdpfl_flower.reply_time import node_profile
from hdpfl_tools.simulation import stacked_sites as together
from hdpfl_tools.simulation.in_process.grid import LocalGrid
from hdpfl_tools.simulation.scenarios.budgets import draw_epsilons
from hdpfl_tools.simulation.sites import _LEDGERS, InProcessContext, simulated_personal_path
from server_app.run.rounds import finalize_terms
from tests.client_app.messages import make_site
from tests.federation import first_updates

SITES, BATCH, RECORDS = 12, 10, 120
TOLERANCE = 2 * 64 * 2**-24 * 4 * (RECORDS / BATCH) * 0.5
"""Two float32 sums of 64 terms, two layers, there and back, in every step; an update's norm is at
most the clip norm, 0.5. As in ``tests/hdpfl_tools/simulation/test_stacked_sgd.py``."""


def config_of(folder: Path, **more: Any) -> RunConfig:
    config = {
        "strategy": "fedhdp", "noise": "server", "rounds": 3, "runs-dir": str(folder),
        "run-id": "r", "min-sites": 1, "delta": 1e-3, "batch-sizes": f"{BATCH},7",
        "fedhdp.level-ratio": "0.5", "epsilons": "4+opt-out:0.2", "partition": "shards:1",
        "clip-norm": 0.5, "learning-rate": 0.1,
    }  # fmt: skip
    return finalize_terms(RunConfig.parse({**config, **more}))


def one_round(
    config: RunConfig, *, stacked: bool, present: list[int] | None = None
) -> tuple[dict[str, np.ndarray], LocalGrid]:
    """Return what the sites send in round 1, and the grid, still open."""
    grid = LocalGrid(SITES, present, config=config)
    grid.stacked = stacked
    return first_updates(grid, config), grid


def no_training_alone(*_: object) -> None:
    raise DataError("on purpose")


@pytest.mark.parametrize("model", ["logreg", "mlp:8"])
def test_stacks_send_as_alone(tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    alone, grid = one_round(config_of(tmp_path / "a", model=model), stacked=False)
    grid.close()
    monkeypatch.setattr(plain_sgd.Network, "train", no_training_alone)
    found, grid = one_round(config_of(tmp_path / "b", model=model), stacked=True)
    assert set(found) == set(alone) == set(map(str, range(SITES)))
    for site, update in alone.items():
        assert np.linalg.norm(update) > 0.01
        np.testing.assert_allclose(found[site], update, rtol=0, atol=TOLERANCE)
        for other in set(alone) - {site}:  # a mix-up is far outside
            assert np.abs(found[site] - alone[other]).max() > 10 * TOLERANCE
    assert not any(context.trained for context in grid._contexts.values())
    grid.close()
    assert len(list((tmp_path / "b").glob("r/sites/*/ledger.sqlite"))) == SITES


def test_personal_models_are_stacked_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = []
    for stacked, pulls in (
        (False, {"pull": 0.5, "opted-out": 0.05}), (True, {"pull": 0.5, "opted-out": 0.05}),
        (True, {"pull": 0.5}),
    ):  # fmt: skip
        if stacked:
            monkeypatch.setattr(plain_sgd.Network, "train", no_training_alone)
        config = config_of(tmp_path / str(len(kept)), second={"kind": "kept", **pulls})
        _, grid = one_round(config, stacked=stacked)
        grid.close()
        paths = [simulated_personal_path(config, i) for i in range(SITES)]
        kept.append([load_personal_model(path, 650) for path in paths])
    for own, other in zip(*kept[:2], strict=True):
        assert own is not None
        assert other is not None
        np.testing.assert_allclose(other, own, rtol=0, atol=8 * TOLERANCE)  # not clipped
    assert np.abs(kept[1][0] - kept[0][1]).max() > 80 * TOLERANCE
    opted_out = np.isinf(draw_epsilons("4+opt-out:0.2", SITES, config.simulation.seed))
    differ = [not np.array_equal(own, same) for own, same in zip(kept[1], kept[2], strict=True)]
    assert differ == opted_out.tolist() and 0 < sum(differ) < SITES


def test_a_personal_model_adds_one_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    train = plain_sgd.Network.train

    def counted(network: plain_sgd.Network, job: plain_sgd.LocalJob, rate: float) -> Any:
        steps.append(len(job.batches))
        return train(network, job, rate)

    monkeypatch.setattr(plain_sgd.Network, "train", counted)
    _, grid = one_round(
        config_of(tmp_path, **{"second": {"kind": "kept", "pull": 0.5}}), stacked=False
    )
    grid.close()
    assert len(steps) == 2 * SITES
    assert steps[::2] == steps[1::2]  # a site's update, then its personal model


def test_a_site_outside_the_stack_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone, grid = one_round(config_of(tmp_path / "a"), stacked=False)
    grid.close()

    def opened(context: Context, *more: Any) -> Any:
        if context.node_config["partition-id"] == 3:
            raise DataError("on purpose")
        return open_site(context, *more)

    monkeypatch.setattr(together, "open_site", opened)
    found, grid = one_round(config_of(tmp_path / "b"), stacked=True)
    np.testing.assert_array_equal(found["3"], alone["3"])  # not stacked: the same bits
    np.testing.assert_allclose(found["4"], alone["4"], rtol=0, atol=TOLERANCE)
    grid.close()


def test_few_results_wait_for_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "_KEPT", 650 * 5)
    asked: list[int] = []
    stack = together.stack_for("logreg", task_for(config_of(tmp_path).terms), "cpu")
    train = stack.train
    monkeypatch.setattr(
        stack, "train", lambda jobs, rate: asked.append(len(jobs)) or train(jobs, rate)
    )
    found, grid = one_round(config_of(tmp_path), stacked=True)
    assert asked == [5, 5, 2]
    assert len(found) == SITES
    grid.close()


def test_work_done_for_another_request_is_not_sent(tmp_path: Path) -> None:
    config = config_of(tmp_path / "a")
    alone, grid = one_round(config, stacked=False, present=[2])
    grid.close()
    planted: dict[tuple[str, str], np.ndarray] = {("another", "update"): np.ones(650, np.float32)}
    original = InProcessContext.trained
    try:
        InProcessContext.trained = property(lambda _: planted)  # type: ignore[assignment, misc]
        found, grid = one_round(config_of(tmp_path / "b"), stacked=False, present=[2])
    finally:
        InProcessContext.trained = original  # type: ignore[method-assign]
    np.testing.assert_array_equal(found["2"], alone["2"])
    grid.close()


def test_a_deployed_site_takes_no_work_from_anybody(tmp_path: Path) -> None:
    profile = make_site(tmp_path)
    context = Context(1, 5, {"profile": str(profile)}, RecordDict(), {})
    context.__dict__["_trained"] = {("digest", "update"): np.ones(3, np.float32)}
    site = open_site(context, config_of(tmp_path).terms, node_profile(context.node_config))
    assert site.trained("digest", "update") is None
    assert not site.in_process


def test_idle_sites_cost_nothing_but_their_name(tmp_path: Path) -> None:
    """Nobody but those asked has a ledger, a file or a state."""
    _, grid = one_round(config_of(tmp_path), stacked=True, present=[1, 5])
    names = [path.parent.name for path in _LEDGERS]
    assert sorted(names) == ["1", "5"]
    assert not (tmp_path / "r" / "sites").exists()
    grid.close()
    assert {p.name for p in (tmp_path / "r" / "sites").iterdir()} == {"1", "5"}

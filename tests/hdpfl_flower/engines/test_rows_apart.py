"""A record's clipped gradient is its own to the last bit: hostile weights move nobody else's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.engines.engines import Engine
from hdpfl_flower.models.evaluation import count_correct
from hdpfl_flower.models.task import Records, Task
from hdpfl_tools.tables.site_data import read_site_data
from tests.hdpfl_flower.engines.hostile import in_the_gap, set_gates
from tests.hdpfl_flower.engines.oracle import (
    TOLERANCE,
    clipped_sum,
    draw,
    gradients_of,
    make_engine,
    model_of,
    sum_of,
)

TASK = Task.classification((13,), 2)
CLUSTERS = Path(__file__).parents[3] / "deploy" / "clusters"


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def largest_move(engine: Engine, count: int, seeds: int, task: Task = TASK) -> float:
    """Return by how much leaving out one record moves the sum, in C, at most over hostile gates."""
    found, clip_norm = 0.0, 1e-3
    x, y = draw(task, count)
    for seed in range(seeds):
        set_gates(engine, x, seed)
        for left_out in (0, count - 1):
            rows = [row for row in range(count) if row != left_out]
            moved = sum_of(engine, x, y, clip_norm) - sum_of(engine, x[rows], y[rows], clip_norm)
            found = max(found, float(moved.norm()) / clip_norm)
    return found


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("count", [15, 19, 31])
@pytest.mark.parametrize("name", ["bookkeeping", "vmap", "opacus"])
def test_hostile_gates_move_the_sum_by_one_record_alone(name: str, count: int) -> None:
    """In batches of their own size one record moved it by 2 C and more."""
    assert largest_move(make_engine(name, "mlp:1", TASK), count, 12) <= 1 + TOLERANCE


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("name", ["linear", "bookkeeping", "vmap", "opacus"])
def test_hostile_logits_move_the_sum_by_one_record_alone(name: str) -> None:
    """Saturated: a logit's sign, which rounding decides, makes a residual 0 or 1."""
    engine = make_engine(name, "logreg", TASK)
    for count in (15, 19, 31):
        x, y = draw(TASK, count)
        for seed in range(12):
            engine.theta.copy_(torch.from_numpy(in_the_gap(x.numpy()[-4:], seed, 1e9)))
            moved = sum_of(engine, x, y, 1e-3) - sum_of(engine, x[1:], y[1:], 1e-3)
            assert moved.norm() <= 1e-3 * (1 + TOLERANCE)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("spec", ["logreg", "mlp:1", "mlp:7:5"])
def test_a_records_part_has_the_same_bits_in_every_batch(spec: str) -> None:
    """Alone, at any place and among others: taken alone, the sum is the part itself."""
    names = ("bookkeeping", "vmap", "opacus", *(("linear",) if spec == "logreg" else ()))
    x, y = draw(TASK, 37)
    for name in names:
        engine = make_engine(name, spec, TASK)
        granule = engine.settle(4, 256)
        parts = torch.cat(
            [part[:37].flatten(1) for part in engine._parts(*_filled(x, y, granule))], 1
        )
        order = torch.randperm(37, generator=torch.Generator().manual_seed(1))
        for size in (1, 7, 19, 37):
            rows = order[:size]
            some = engine._parts(*_filled(x[rows], y[rows], granule))
            other = torch.cat([part[:size].flatten(1) for part in some], 1)
            assert torch.equal(other, parts[rows]), (name, size)


def _filled(x: torch.Tensor, y: torch.Tensor, granule: int) -> tuple[torch.Tensor, torch.Tensor]:
    missing = -len(x) % granule
    return torch.cat([x, x[:1].expand(missing, -1)]), torch.cat([y, y[:1].expand(missing)])


def test_a_size_that_fails_is_taken_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, sizes = make_engine("linear", "logreg", TASK), []
    add = engine._add

    def note(total: torch.Tensor, x: torch.Tensor, *rest: Any) -> None:
        sizes.append((len(x), rest[1]))
        add(total, x, *rest)

    monkeypatch.setattr(engine, "_add", note)
    monkeypatch.setattr(engine.proof, "granule", lambda *_: 4)
    monkeypatch.setattr(engine.proof, "holds", lambda granule, size: size in (4, 8))
    x, y = draw(TASK, 11)
    expected = clipped_sum(gradients_of(model_of("logreg", TASK), TASK, x, y), 0.1)
    assert (sum_of(engine, x, y, 0.1) - expected).norm() <= TOLERANCE * expected.norm()
    assert sizes == [(4, 4), (4, 4), (4, 3)]
    sizes.clear()
    assert (sum_of(engine, x[:7], y[:7], 0.1) - sum_of(engine, x, y, 0.1, count=7)).norm() < 1e-6
    assert sizes == [(8, 7), (4, 4), (4, 3)]


# Choices.


@pytest.fixture(scope="module")
def cleveland(tmp_path_factory: pytest.TempPathFactory) -> tuple[Task, Records]:
    """The records that the ward cleveland-a trains on and counts."""
    folder = tmp_path_factory.mktemp("ward")
    for name in ("profile.toml", "data.csv"):
        (folder / name).write_bytes((CLUSTERS / "cleveland-a" / name).read_bytes())
    (folder / "profile.toml").chmod(0o600)
    terms = RunConfig.load(CLUSTERS / "run.toml").terms
    profile = Profile.load(folder / "profile.toml")
    assert profile.data is not None
    task = task_for(terms)
    return task, read_site_data(profile.data, task, terms.schema_text).train


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("close", [3, 8])
def test_a_record_moves_a_count_by_one(cleveland: tuple[Task, Records], close: int) -> None:
    """In blocks of their own size it moved them by 3, some up and some down."""
    task, records = cleveland
    count = len(records)
    for seed in range(15):
        line = in_the_gap(records.features[-close:], seed).astype(np.float32)
        arrays = {"1.weight": line[None, :-1], "1.bias": line[-1:]}
        all_of_them = count_correct("logreg", task, arrays, records)
        for left_out in (0, 1, 2, count - 1):
            others = records.take(np.delete(np.arange(count), left_out))
            assert all_of_them - count_correct("logreg", task, arrays, others) in (0, 1)


def test_every_choice_is_as_likely_without_the_record(cleveland: tuple[Task, Records]) -> None:
    """All counts move one way, by at most 1, as the sensitivity of a choice asks for."""
    task, records = cleveland
    others = records.take(np.arange(1, len(records)))
    for seed in range(10):
        moved = []
        for sign in (1, -1):
            line = sign * in_the_gap(records.features[-3:], seed).astype(np.float32)
            arrays = {"1.weight": line[None, :-1], "1.bias": line[-1:]}
            counts = [count_correct("logreg", task, arrays, some) for some in (records, others)]
            moved.append(counts[0] - counts[1])
        assert set(moved) <= {0, 1}

"""Local training: the update is that of a loop in float64, however the batch is cut.

Each check also runs on ``train`` with a bug put back, which must fail.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.func import functional_call

from hdpfl_flower.engines import dpsgd
from hdpfl_flower.engines.dpsgd import granule_of, rehearsal_size
from hdpfl_flower.models.losses import total_loss
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.privacy.plan import RoundPlan
from tests.hdpfl_flower.engines.oracle import (
    ENGINES_OF,
    TASKS,
    TOLERANCE,
    clipped_sum,
    model_of,
    one_thread,  # noqa: F401
)
from tests.hdpfl_flower.engines.updates import (
    RATE,
    TABLE,
    Train,
    plan_of,
    records_of,
    streams,
    update_of,
    with_bug,
)

TABLES = {"classes": TABLE, "binary": Task.classification((5,), 2)}
TABLES["regression"] = Task.regression((5,))


# Against a loop in float64.


def check_against_loop(
    task: Task, plan: RoundPlan, train: Train = dpsgd.train, **more: Any
) -> None:
    """The update is that of Algorithm 1 of Abadi et al. with the same batches, in float64.

    Allowed is what each step may add: 1e-5 of its clipped sum, and float32's rounding of θ. What
    the steps before have added grows by at most 1 + 2·η·|batch|/b, since ‖[x, 1]‖² ≤ 2 bounds the
    curvature of each of the three losses (clipping, a projection, does not stretch).
    """
    drawn = records_of(task, 50)
    longest = np.linalg.norm(drawn.features, axis=1).max()
    records = Records(drawn.features / longest, drawn.targets)
    model = model_of("logreg", task).double()
    parameters = {name: p.detach().clone() for name, p in model.named_parameters()}
    start = torch.cat([p.reshape(-1) for p in parameters.values()])
    release, allowed = streams(), 0.0
    release.sampling.bytes(7)  # the seed of dropout
    for _ in range(plan.steps.count):
        rows = release.sampling.bernoulli(50, plan.steps.sampling_prob)
        total = clipped_sum(
            gradients_at(model, task, parameters, records.take(rows)), plan.clip_norm
        )
        place = 0
        for name, parameter in parameters.items():
            part = total[place : place + parameter.numel()].view_as(parameter)
            parameters[name] = parameter - RATE / plan.divisor * part
            place += parameter.numel()
        allowed *= 1 + 2 * RATE * len(rows) / plan.divisor
        allowed += RATE / plan.divisor * TOLERANCE * plan.clip_norm * len(rows)
        allowed += 2**-24 * math.sqrt(sum(float(p.square().sum()) for p in parameters.values()))
    expected = torch.cat([p.reshape(-1) for p in parameters.values()]) - start
    update = update_of(records, plan, task, train=train, **more)
    assert update.dtype == np.float32
    assert (torch.from_numpy(update) - expected).norm() <= allowed


def gradients_at(
    model: nn.Module, task: Task, parameters: dict[str, torch.Tensor], records: Records
) -> torch.Tensor:
    """Return every record's gradient in float64, by autograd of its own loss, shape ``(b, d)``."""
    rows = [torch.zeros(0, sum(p.numel() for p in parameters.values()), dtype=torch.float64)]
    leaves = {name: p.clone().requires_grad_() for name, p in parameters.items()}
    for x, y in zip(records.features, records.targets, strict=True):
        outputs = functional_call(model, leaves, (torch.from_numpy(x).double().unsqueeze(0),))
        loss = total_loss(task, outputs, torch.tensor([y]))
        parts = torch.autograd.grad(loss, list(leaves.values()))
        rows.append(torch.cat([part.reshape(-1) for part in parts]).unsqueeze(0))
    return torch.cat(rows)


@pytest.mark.parametrize("clip_norm", [1e-3, 0.7, 1e3])
@pytest.mark.parametrize("task", TABLES)
@pytest.mark.parametrize("name", ENGINES_OF["logreg"])
def test_the_update_is_that_of_a_loop_in_float64(name: str, task: str, clip_norm: float) -> None:
    check_against_loop(TABLES[task], plan_of(clip_norm=clip_norm), name=name)


@pytest.mark.parametrize("physical_batch", [1, 3, 1000])
@pytest.mark.parametrize("name", ["linear", "vmap"])
def test_so_it_is_where_memory_holds_a_part_of_the_batch(name: str, physical_batch: int) -> None:
    plan = plan_of(q=0.9, steps=3, divisor=45.0)
    check_against_loop(TABLE, plan, name=name, physical_batch=physical_batch)


@pytest.mark.parametrize(
    "bug",
    [
        ("learning_rate / plan.divisor", "learning_rate / max(1, len(rows))"),
        ("learning_rate / plan.divisor", "learning_rate"),
        ("                    total.zero_()\n", ""),
        ("learning_rate / plan.divisor)", "-learning_rate / plan.divisor)"),
        ("part = rows[first : first + physical_batch]", "part = rows[first : first + 7]"),
        ("len(part), plan.clip_norm", "len(at), plan.clip_norm"),
        ("len(part), plan.clip_norm", "len(part), math.inf"),
        ("len(records), probability", "len(records), probability / 2"),
        ("plan.steps.sampling_prob", "plan.divisor / len(records)"),
        ("range(phase.steps)", "range(phase.steps - 1)"),
        ("(engine.theta - begin)", "engine.theta"),
        ("engine.theta.copy_(begin)", "engine.theta.zero_()"),
    ],
)
def test_the_loop_finds_a_bug_put_back(bug: tuple[str, str]) -> None:
    plan = plan_of(q=0.7, steps=3, divisor=40.0)  # batches are filled up to multiples of 4 or more
    check_against_loop(TABLE, plan, name="vmap")
    with pytest.raises(AssertionError):
        check_against_loop(TABLE, plan, with_bug(bug), name="vmap")


# Batches in parts.


def check_parts(spec: str, name: str, physical_batch: int, train: Train = dpsgd.train) -> None:
    """In one step, two sums, each within 1e-5·C of the true one a record, are divided by b."""
    task, count = TASKS["classes"], 70
    plan = plan_of(q=1.0, steps=1, divisor=64.0)
    whole = update_of(records_of(task, count), plan, task, spec, name=name)
    parts = update_of(
        records_of(task, count),
        plan,
        task,
        spec,
        name=name,
        train=train,
        physical_batch=physical_batch,
    )
    bound = 2 * TOLERANCE * count * plan.clip_norm * RATE / plan.divisor
    assert np.linalg.norm(whole - parts) <= bound


@pytest.mark.parametrize("physical_batch", [1, 6, 69])
@pytest.mark.parametrize(
    ("spec", "name"),
    [("logreg", "linear"), ("cnn", "bookkeeping"), ("mlp:32", "vmap"), ("mlp:32", "opacus")],
)
def test_a_batch_in_parts_gives_the_same_update(spec: str, name: str, physical_batch: int) -> None:
    check_parts(spec, name, physical_batch)


@pytest.mark.parametrize(
    "bug",
    [
        ("len(part), plan.clip_norm", "len(at), plan.clip_norm"),
        ("place = torch.from_numpy", "total.zero_()\n                place = torch.from_numpy"),
        ("range(0, len(rows), physical_batch)", "range(0, len(rows) - 6, physical_batch)"),
    ],
)
def test_parts_that_are_counted_wrongly_are_found(bug: tuple[str, str]) -> None:
    with pytest.raises(AssertionError):
        check_parts("mlp:32", "bookkeeping", 33, with_bug(bug))


@pytest.mark.parametrize("divisor", [1, 5, 64, 1000, 50_000])
@pytest.mark.parametrize("physical_batch", [1, 100, 10**9])
def test_no_batch_in_memory_exceeds_the_rehearsed_one(divisor: int, physical_batch: int) -> None:
    """A Poisson variable's tail bounds that of a binomial one with the same mean."""
    size = rehearsal_size(divisor, physical_batch)
    assert size % granule_of(min(divisor, physical_batch)) == 0
    if size < physical_batch:
        assert stats.poisson.sf(size, divisor) <= 1e-14
        assert stats.poisson.sf(divisor + 3 * math.sqrt(divisor), divisor) > 1e-14
    else:
        assert size - physical_batch < granule_of(min(divisor, physical_batch))

"""The noise of an update, and what may not depend on the data: steps, divisor, noise.

Statistical bounds are computed from FALSE_ALARM; the streams are simulated ones, so that right code
passes for good. Each check also runs on ``train`` with a bug put back, which must fail.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from hdpfl_flower.engines import dpsgd
from hdpfl_flower.models.task import Records
from hdpfl_flower.privacy.accounting import Steps
from hdpfl_flower.privacy.noise import add_noise
from hdpfl_flower.privacy.plan import Plan
from tests.hdpfl_flower.engines.oracle import EVERY_ENGINE, TASKS, make_engine, one_thread  # noqa: F401
from tests.hdpfl_flower.engines.updates import (
    RATE,
    TABLE,
    Train,
    plan_of,
    records_of,
    start_of,
    streams,
    update_of,
    with_bug,
)

FALSE_ALARM = 1e-6
"""Chance that one statistical check below rejects right code."""
ACTUAL_BATCH = ("learning_rate / plan.divisor", "learning_rate / max(1, len(rows))")
SKIPS_EMPTY = (
    "                    total.zero_()\n",
    "                    total.zero_()\n                    if not len(rows):\n"
    "                        continue\n",
)
SAME_NOISE = (
    "add_noise(total[place], plan.noise_std, streams.noise)",
    "add_noise(total[place], plan.noise_std, type(streams.noise)(bytes(32)))",
)
ONE_NOISE = (
    "total[place], plan.noise_std, streams",
    "total[place], plan.noise_std if _ == 0 else 0.0, streams",
)

# The scale of the noise.

SITE = Plan(4.0, 1e-5, 1.3, 16.0, (Steps(0.1, 9),) * 3, 0.1, 10.0)
"""Nine steps a round at z = 1.3 and b = 16."""


def check_scale(noise: np.ndarray, std: float) -> None:
    """Mean, variance and shape of independent normals, each at FALSE_ALARM."""
    d, values = len(noise), noise / std
    low, high = stats.chi2(d).isf([1 - FALSE_ALARM / 2, FALSE_ALARM / 2]) / d
    assert low < np.mean(values**2) < high
    assert abs(values.mean()) < stats.norm.isf(FALSE_ALARM / 2) / math.sqrt(d)
    assert stats.kstest(values, "norm").pvalue > FALSE_ALARM


def noise_of(train: Train = dpsgd.train) -> np.ndarray:
    """Return the update of a site whose records all add zero, at C = 0.5; d = 25,450."""
    task = TASKS["classes"]
    drawn = records_of(task, 12)
    records = Records(np.full_like(drawn.features, np.nan), drawn.targets)
    return update_of(records, SITE.round(1, 0.5), task, "mlp:32", train=train)


def test_the_noise_of_an_update_has_the_scale_of_the_plan() -> None:
    """√k · η · z·C / b in each coordinate: what Robust-HDP's σᵢ is."""
    std = math.sqrt(9) * RATE * 1.3 * 0.5 / 16
    assert SITE.update_noise_std(1, 0.5, RATE) == pytest.approx(std, rel=1e-12)
    noise = noise_of()
    assert len(noise) == 25_450
    check_scale(noise, std)
    for wrong in (2 / 3, 0.97, 1.03, 1.5):
        with pytest.raises(AssertionError):
            check_scale(wrong * noise, std)


@pytest.mark.parametrize("bug", [SAME_NOISE, ONE_NOISE, ACTUAL_BATCH])
def test_noise_of_another_scale_is_found(bug: tuple[str, str]) -> None:
    with pytest.raises(AssertionError):
        check_scale(noise_of(with_bug(bug)), SITE.update_noise_std(1, 0.5, RATE))


def test_the_noise_of_a_step_is_added_to_the_sum() -> None:
    """With real records, a step differs from one without noise by η/b · N(0, z²C²)."""
    task = TASKS["classes"]
    noisy, quiet = (
        update_of(records_of(task, 40), plan_of(steps=1, noise_std=std), task, "mlp:32")
        for std in (0.9, 0.0)
    )
    check_scale(noisy.astype(np.float64) - quiet, RATE * 0.9 / 10)


# Empty batches.


def check_exact_noise(count: int, train: Train = dpsgd.train) -> None:
    """Batches are empty: the update is the steps' own noises, drawn again from the same stream.

    float32 keeps θ, below 2, to 2⁻²⁴ a step, and the update to as much.
    """
    task, std = TASKS["classes"], 0.9
    plan = plan_of(q=1e-9, steps=count, noise_std=std)
    update = update_of(records_of(task, 30), plan, task, train=train)
    release, zeros = streams(), torch.zeros(len(update))
    noises = [add_noise(zeros, std, release.noise).double() for _ in range(count)]
    expected = -RATE / plan.divisor * torch.stack(noises).sum(0).numpy()
    assert np.abs(start_of("logreg", task)).max() + np.abs(expected).max() < 2
    assert np.abs(update - expected).max() <= (2 * count + 1) * 2**-24
    assert (update != 0).mean() > 0.99


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_every_step_of_empty_batches_moves_the_weights(count: int) -> None:
    check_exact_noise(count)
    with pytest.raises(AssertionError):
        check_exact_noise(count, with_bug(SKIPS_EMPTY))


# One record more or less.


def check_public(train: Train = dpsgd.train) -> None:
    """Sites with 0, 1, 49, 50 and 51 records, all of which add zero, give the same bytes.

    The steps, the divisor, the draws of noise and their scale are then the same; and each leaves
    the stream of the noise at the same place.
    """
    left = set()
    for count in (0, 1, 49, 50, 51):
        drawn, release = records_of(TABLE, count), streams()
        records = Records(np.full_like(drawn.features, np.inf), drawn.targets)
        update = update_of(records, plan_of(noise_std=1.0), train=train, release=release)
        left.add((update.shape, update.dtype, update.tobytes(), release.noise.bytes(16)))
    assert len(left) == 1


@pytest.mark.parametrize(
    "bug",
    [
        None,
        SKIPS_EMPTY,
        ACTUAL_BATCH,
        ("learning_rate / plan.divisor", "learning_rate / max(1, len(records) * probability)"),
        ("range(plan.steps.count)", "range(math.ceil(len(records) / plan.divisor))"),
        ("[place], plan.noise_std, streams", "[place], plan.noise_std * len(rows), streams"),
    ],
)
def test_a_record_more_or_less_changes_nothing_public(bug: tuple[str, str] | None) -> None:
    if bug is None:
        check_public()
    else:
        with pytest.raises(AssertionError):
            check_public(with_bug(bug))


@pytest.mark.parametrize(("spec", "name"), EVERY_ENGINE)
def test_a_site_without_records_sends_noise(spec: str, name: str) -> None:
    task = TASKS["classes"]
    update = update_of(records_of(task, 0), plan_of(noise_std=1.0), task, spec, name=name)
    check_scale(update, math.sqrt(8) * RATE * 1.0 / 10)


def test_one_record_moves_one_step_by_no_more_than_the_clip_norm() -> None:
    """At q = 1 the batches of D and D′ differ in that record alone; the rest is float32's."""
    records, plan = records_of(TABLE, 20), plan_of(q=1.0, steps=1, clip_norm=0.01, noise_std=0.3)
    one, other = (
        update_of(records.take(np.arange(first, 20)), plan).astype(np.float64) for first in (0, 1)
    )
    moved = np.linalg.norm(one - other)
    grid = 0.3 * 2**-20  # a noisy sum's public grid, and θ's float32
    rounding = (RATE / plan.divisor * grid + 2**-23) * math.sqrt(len(one))
    assert 0 < moved <= RATE / plan.divisor * 0.01 * (1 + 1e-5) + rounding


# On a GPU.


@pytest.mark.gpu
@pytest.mark.parametrize(("spec", "name"), EVERY_ENGINE)
def test_training_on_a_gpu_gives_the_update_of_the_cpu(spec: str, name: str) -> None:
    """One step of n records: two sums, each within 1e-5·C a record, and float32's rounding of θ."""
    assert torch.cuda.is_available(), "this test needs a GPU that torch can use"
    task, plan = TASKS["classes"], plan_of(q=1.0, steps=1)  # its noise is another cipher's
    one, other = (
        update_of(
            records_of(task, 40), plan, task, spec, engine=make_engine(name, spec, task, device)
        ).astype(np.float64)
        for device in ("cpu", "cuda")
    )
    allowed = RATE / plan.divisor * (2 * 40 * 1e-5 * 0.7)
    assert np.linalg.norm(one - other) <= allowed + 2**-22 * math.sqrt(len(one))

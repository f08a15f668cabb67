"""DP-SGD of clients in one product: what each of them does alone, and nothing of another one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from hdpfl_flower.engines import dpsgd
from hdpfl_flower.engines.engine_choice import engine_for
from hdpfl_flower.errors import TermsError
from hdpfl_flower.models.networks import arrays_of, build_model, flatten
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.privacy.accounting import Steps
from hdpfl_flower.privacy.noise import ReleaseStreams, add_noise
from hdpfl_flower.privacy.plan import RoundPlan
from hdpfl_tools.simulation import stacked_dpsgd
from hdpfl_tools.simulation.stacked_dpsgd import PrivateJob, _StackedRound, train_stacked
from hdpfl_tools.simulation.stacked_sgd import Stack, stack_for
from tests.hdpfl_flower.engines.oracle import one_thread  # noqa: F401

RATE, INPUTS, PHYSICAL = 0.2, 12, 64
TASKS = {
    "softmax": Task.classification((3, 4), 3),
    "logistic": Task.classification((INPUTS,), 2),
    "squared": Task.regression((INPUTS,)),
    "hazard": Task.survival((INPUTS,), 5),
    "weighted": replace(Task.classification((3, 4), 3), class_weights=(0.25, 5.0, 1.0)),
    "weighted pair": replace(Task.classification((INPUTS,), 2), class_weights=(1.0, 4.0)),
}
SITES = (
    # records, q, steps, C, noise's std, b
    (40, 0.25, 6, 0.5, 0.9, 10.0),
    (25, 0.2, 5, 2.0, 0.0, 5.0),
    (30, 1.0, 1, 0.05, 0.3, 30.0),
    (0, 0.5, 3, 1.0, 1.1, 4.0),
    (7, 0.1, 9, 1.0, 4.0, 1.0),
    (90, 0.9, 2, 0.7, 0.01, 80.0),
)
"""Everything differs: no records, batches that are empty, and one larger than memory holds."""
SPECS = ("logreg", "mlp:8", "mlp:8:5")


def stack_of(spec: str, task: Task, device: str = "cpu") -> Stack:
    stack = stack_for(spec, task, device)
    assert stack is not None
    return stack


def start_of(spec: str, task: Task) -> np.ndarray:
    return flatten(arrays_of(build_model(spec, task, seed=3)))


def records_of(task: Task, count: int, seed: int) -> Records:
    draws = np.random.default_rng(seed)
    features = draws.standard_normal((count, *task.input_shape), np.float32)
    targets: np.ndarray = draws.standard_normal(count).astype(np.float32)
    if task.target_values:
        targets = draws.integers(0, task.target_values, count)
    return Records(features, targets)


def jobs_of(spec: str, task: Task, pull: float | None = None) -> list[PrivateJob]:
    """Return the clients' rounds, with fresh streams of their own."""
    found, start = [], start_of(spec, task)
    for number, (count, q, steps, clip, std, divisor) in enumerate(SITES):
        begin = start + np.random.default_rng(number).standard_normal(len(start)) / 8
        found.append(
            PrivateJob(
                begin.astype(np.float32),
                records_of(task, count, number),
                RoundPlan(Steps(q, steps), clip, std, divisor),
                ReleaseStreams.simulated(5, str(number), 1, "update"),
                None if pull is None else (pull / (number + 1), start),
            )
        )
    return found


def alone(
    spec: str, task: Task, jobs: Sequence[PrivateJob], device: str = "cpu"
) -> list[np.ndarray]:
    engine = engine_for(spec, task, "auto", device)
    return [
        dpsgd.train(
            engine, job.start, job.records, job.plan, RATE, job.streams, PHYSICAL, pull=job.pull
        )
        for job in jobs
    ]


def allowed(job: PrivateJob, update: np.ndarray) -> float:
    """Return by how much an update may differ from that of another order of float32 sums.

    A step's sum of m terms, each at most C, has an error of at most m·2⁻²⁴ times the sum of their
    sizes, and the gradients' own sums add as much: 4·m·C·m·2⁻²⁴ for both ways. The noisy sum may
    then fall on the next point of its grid, std·2⁻²⁰, in each coordinate. θ is rounded once a step.
    """
    plan = job.plan
    rows = max(INPUTS, len(job.records))
    sums = 4 * rows * rows * 2**-24 * plan.clip_norm
    grid = plan.noise_std * 2**-20 * math.sqrt(len(update))
    largest = float(np.linalg.norm(job.start) + np.linalg.norm(update))
    step = RATE / plan.divisor * (sums + grid) + largest * 2**-23
    return plan.steps.count * step


@pytest.mark.parametrize("pull", [None, 0.4])
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("spec", SPECS)
def test_each_client_sends_what_it_sends_alone(spec: str, task: str, pull: float | None) -> None:
    some = TASKS[task]
    expected = alone(spec, some, jobs_of(spec, some, pull))
    jobs = jobs_of(spec, some, pull)
    found = train_stacked(stack_of(spec, some), jobs, RATE, PHYSICAL)
    for i, job in enumerate(jobs):
        assert np.linalg.norm(found[i] - expected[i]) <= allowed(job, expected[i])
        for k, other in enumerate(expected):  # a mix-up is far outside
            assert k == i or np.linalg.norm(found[i] - other) > 10 * allowed(job, expected[i])


def test_each_client_uses_as_much_of_its_streams_as_alone() -> None:
    task = TASKS["softmax"]
    jobs, others = jobs_of("logreg", task), jobs_of("logreg", task)
    train_stacked(stack_of("logreg", task), jobs, RATE, PHYSICAL)
    alone("logreg", task, others)
    for one, other in zip(jobs, others, strict=True):
        assert one.streams.noise.position == other.streams.noise.position
        assert one.streams.sampling.position == other.streams.sampling.position


def test_clients_step_together_a_bounded_number_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    task, stack = TASKS["softmax"], stack_of("mlp:8", TASKS["softmax"])
    whole = train_stacked(stack, jobs_of("mlp:8", task), RATE, PHYSICAL)
    for name, value in (("_AT_ONCE", 2 * stack.size), ("_INPUTS", 1)):
        monkeypatch.setattr(stacked_dpsgd, name, value)
        jobs = jobs_of("mlp:8", task)
        parts = train_stacked(stack, jobs, RATE, 7)  # and batches in parts
        for job, one, other in zip(jobs, whole, parts, strict=True):
            assert np.linalg.norm(one - other) <= allowed(job, one)


def test_a_pull_that_goes_too_far_is_refused() -> None:
    job = jobs_of("logreg", TASKS["softmax"], pull=6.0)[0]
    with pytest.raises(TermsError, match="learning-rate"):
        train_stacked(stack_of("logreg", TASKS["softmax"]), [job], RATE, PHYSICAL)


# Clipping.


def sums_of(spec: str, task: Task, jobs: Sequence[PrivateJob]) -> np.ndarray:
    """Return each client's clipped sum of its first step, float64, shape ``(n, d)``."""
    stack = stack_of(spec, task)
    theta = torch.from_numpy(np.stack([job.start for job in jobs]))
    total = torch.full_like(theta, math.nan)  # what an earlier step left is no part of the sum
    _StackedRound(stack, jobs, PHYSICAL)._put_clipped_sums(total, theta, 0)
    return total.double().numpy()


SCALES = (1e-30, 1e-8, 1.0, 1e3, 1e10, 1e19, 1e30, np.nan, np.inf, -np.inf)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("task", TASKS)
def test_a_hostile_record_adds_its_clients_clip_norm_at_most(spec: str, task: str) -> None:
    """One record a client and every client its own C: beside clients with records of any values."""
    some, jobs = TASKS[task], []
    for number, scale in enumerate((*SCALES, *SCALES)):
        drawn = records_of(some, 1, number)
        with np.errstate(invalid="ignore", over="ignore"):
            records = Records((drawn.features * np.float32(scale)), drawn.targets)
        plan = RoundPlan(Steps(1.0, 1), 10.0 ** (number % 4 - 2), 0.0, 1.0)
        jobs.append(PrivateJob(start_of(spec, some), records, plan, streams_of(number)))
    sums = sums_of(spec, some, jobs)
    assert np.isfinite(sums).all()
    for job, one in zip(jobs, sums, strict=True):
        assert np.linalg.norm(one) <= job.plan.clip_norm * (1 + 1e-5)
        if not np.isfinite(job.records.features).all():
            assert not one.any()
    shares = np.linalg.norm(sums, axis=1) / [job.plan.clip_norm for job in jobs]
    assert (shares > 0.999).sum() >= 4  # a C that is reached


def streams_of(number: int) -> ReleaseStreams:
    return ReleaseStreams.simulated(5, str(number), 1, "update")


def test_batches_that_are_all_empty_have_the_sum_zero() -> None:
    task = TASKS["softmax"]
    plan = RoundPlan(Steps(1e-9, 1), 0.5, 0.0, 10.0)
    jobs = [
        PrivateJob(start_of("mlp:8", task), records_of(task, count, 1), plan, streams_of(count))
        for count in (0, 5)
    ]
    assert not sums_of("mlp:8", task, jobs).any()


@pytest.mark.parametrize("spec", SPECS)
def test_a_record_that_is_not_finite_adds_zero_alone(spec: str) -> None:
    """Its client's other records, and other clients, add what they add without it."""
    task, jobs = TASKS["softmax"], []
    for number in range(3):
        plan = RoundPlan(Steps(1.0, 1), 0.5, 0.0, 10.0)
        records = records_of(task, 8 + number, number)
        jobs.append(PrivateJob(start_of(spec, task), records, plan, streams_of(number)))
    kept = jobs[1].records.take(np.array([0, 1, 2, 4, 5, 6, 7, 8]))
    expected = sums_of(spec, task, [jobs[0], replace(jobs[1], records=kept), jobs[2]])
    jobs[1].records.features[3, 0, 0] = np.nan
    found = sums_of(spec, task, jobs)
    np.testing.assert_allclose(found, expected, rtol=0, atol=10 * 10 * 2**-23 * 0.5)
    assert np.linalg.norm(expected, axis=1).min() > 0.1


def test_one_record_more_moves_the_sum_by_its_clip_norm_at_most() -> None:
    task = TASKS["softmax"]
    records = records_of(task, 20, 1)
    records.features[19] *= 1e6
    plan = RoundPlan(Steps(1.0, 1), 0.3, 0.0, 20.0)
    job = PrivateJob(start_of("mlp:8", task), records, plan, streams_of(0))
    less = replace(job, records=records.take(np.arange(19)), streams=streams_of(0))
    (one,), (other,) = sums_of("mlp:8", task, [job]), sums_of("mlp:8", task, [less])
    rounding = 20 * 20 * 2**-24 * 0.3
    assert 0.29 < np.linalg.norm(one - other) <= 0.3 * (1 + 1e-5) + rounding


# Noise.


def test_the_noise_of_each_step_is_the_clients_own_at_its_own_scale() -> None:
    """Batches are empty: an update is the steps' own noises, drawn again from the same stream.

    As ``test_dpsgd_noise.check_exact_noise``: float32 keeps θ, below 4, to 2⁻²³ a step.
    """
    task, count, jobs = TASKS["softmax"], 4, []
    start = start_of("mlp:8", task)
    for number, std in enumerate((0.9, 0.0, 0.1, 2.5)):
        plan = RoundPlan(Steps(1e-9, count), 1.0, std, 3.0 + number)
        jobs.append(PrivateJob(start, records_of(task, 30, number), plan, streams_of(number)))
    found = train_stacked(stack_of("mlp:8", task), jobs, RATE, PHYSICAL)
    for number, (job, update) in enumerate(zip(jobs, found, strict=True)):
        noise, zeros = streams_of(number).noise, torch.zeros(len(start))
        drawn = [add_noise(zeros, job.plan.noise_std, noise).double() for _ in range(count)]
        expected = -RATE / job.plan.divisor * torch.stack(drawn).sum(0).numpy()
        assert np.abs(start).max() + np.abs(expected).max() < 4
        assert np.abs(update - expected).max() <= (2 * count + 1) * 2**-23
        assert (update != 0).any() == (job.plan.noise_std > 0)


# On a GPU.


@pytest.mark.gpu
@pytest.mark.parametrize("spec", SPECS)
def test_clients_stacked_on_a_gpu_send_what_they_send_alone(spec: str) -> None:
    assert torch.cuda.is_available(), "this test needs a GPU that torch can use"
    task = TASKS["softmax"]
    expected, jobs = alone(spec, task, jobs_of(spec, task), "cuda"), jobs_of(spec, task)
    found = train_stacked(stack_of(spec, task, "cuda"), jobs, RATE, PHYSICAL)
    for job, one, other in zip(jobs, found, expected, strict=True):
        assert np.linalg.norm(one - other) <= allowed(job, other)

"""Phases of a round: each trains its own coordinates, and is noised in every one of them.

Each check also runs on ``train`` with a bug put back, which must fail. Statistical checks reject
right code with probability :data:`FALSE_ALARM`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from hdpfl_flower.engines import dpsgd
from hdpfl_flower.engines.dpsgd import Phase
from hdpfl_flower.errors import TermsError
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.privacy.plan import RoundPlan
from tests.hdpfl_flower.engines.oracle import (
    TOLERANCE,
    clipped_sum,
    gradients_of,
    make_engine,
    model_of,
    one_thread,  # noqa: F401
)
from tests.hdpfl_flower.engines.updates import (
    RATE,
    TABLE,
    Train,
    plan_of,
    records_of,
    start_of,
    streams,
    with_bug,
)

FALSE_ALARM = 1e-6
SPEC = "mlp:40"
SIZE, SPLIT = 40 * 6 + 4 * 41, 40 * 6
BODY, HEAD = slice(0, SPLIT), slice(SPLIT, SIZE)
ALTERNATE = (Phase(2, HEAD), Phase(3, BODY))


def update_of(
    plan: RoundPlan,
    phases: tuple[Phase, ...],
    train: Train = dpsgd.train,
    *,
    name: str = "vmap",
    records: Records | None = None,
    **more: Any,
) -> np.ndarray:
    return train(
        make_engine(name, SPEC, TABLE), start_of(SPEC, TABLE), records or records_of(TABLE, 50),
        plan, RATE, streams(), 1000, phases=phases, **more,
    )  # fmt: skip


# Against a loop in float64.


def check_against_loop(
    phases: tuple[Phase, ...], train: Train = dpsgd.train, name: str = "vmap"
) -> None:
    """The update is that of phases written out, with the same batches, in float64."""
    plan, records = plan_of(q=0.5, steps=5, divisor=20.0, clip_norm=0.2), records_of(TABLE, 50)
    model = model_of(SPEC, TABLE).double()
    theta = torch.from_numpy(start_of(SPEC, TABLE)).double()
    begin, release = theta.clone(), streams()
    release.sampling.bytes(7)  # the seed of dropout
    for phase in phases:
        keep = torch.ones(SIZE, dtype=torch.float64)
        if phase.mask is not None:
            keep[phase.place] = torch.from_numpy(phase.mask[phase.place]).double()
        theta, begin = theta * keep, begin * keep
        for _ in range(phase.steps):
            rows = release.sampling.bernoulli(50, plan.steps.sampling_prob)
            torch.nn.utils.vector_to_parameters(theta.clone(), model.parameters())
            batch = records.take(rows)
            gradients = gradients_of(
                model, TABLE, torch.from_numpy(batch.features), torch.from_numpy(batch.targets)
            )
            own = torch.zeros_like(gradients)
            own[:, phase.place] = gradients[:, phase.place]
            theta = theta - RATE / plan.divisor * keep * clipped_sum(own, plan.clip_norm)
    update = update_of(plan, phases, train, name=name)
    allowed = 20 * TOLERANCE * RATE * plan.clip_norm * 5 + 2**-20
    assert np.linalg.norm(update - (theta - begin).numpy()) <= allowed


def masked(steps: int, place: slice, keep: int) -> Phase:
    mask = np.ones(SIZE, np.bool_)
    mask[place] = np.arange(place.stop - place.start) % keep == 0
    return Phase(steps, place, mask)


CASES = {
    "all": (Phase(5, slice(0, SIZE)),),
    "head": (Phase(5, HEAD),),
    "head, body": ALTERNATE,
    "body, head": (Phase(4, BODY), Phase(1, HEAD)),
    "head, masked body": (Phase(2, HEAD), masked(3, BODY, 3)),
    "masked body beside the head": (masked(5, slice(0, SIZE), 2),),
}


@pytest.mark.parametrize("name", ["bookkeeping", "vmap", "opacus"])
@pytest.mark.parametrize("case", CASES)
def test_the_update_is_that_of_phases_written_out(case: str, name: str) -> None:
    check_against_loop(CASES[case], name=name)


@pytest.mark.parametrize(
    "bug",
    [
        ("with engine.only(place):", "with contextlib.nullcontext():"),
        ("range(phase.steps)", "range(plan.steps.count - 1)"),
        ("            if keep is not None:\n                begin[place].mul_(keep)\n", ""),
        ("vector[phase.place].mul_(keep)", "pass"),
    ],
)
def test_the_loop_finds_a_bug_in_the_phases(bug: tuple[str, str]) -> None:
    case = CASES["head, masked body"]
    with pytest.raises(AssertionError):
        check_against_loop(case, with_bug(bug))


@pytest.mark.parametrize("case", CASES)
def test_a_phase_changes_its_coordinates_alone(case: str) -> None:
    phases = CASES[case]
    may = np.zeros(SIZE, np.bool_)
    for phase in phases:
        own = np.ones(SIZE, np.bool_) if phase.mask is None else phase.mask
        may[phase.place] |= own[phase.place]
    for std in (0.0, 3.0):
        update = update_of(plan_of(q=0.5, steps=5, noise_std=std), phases)
        assert not update[~may].any()
        assert np.mean(update[may] != 0) > 0.5


def test_a_phase_of_everything_is_the_round_without_phases() -> None:
    plan = plan_of(noise_std=2.0)
    whole = (Phase(8, slice(0, SIZE), np.ones(SIZE, np.bool_)),)
    np.testing.assert_array_equal(update_of(plan, whole), update_of(plan, ()))


# Noise.


def check_noise(phases: tuple[Phase, ...], train: Train = dpsgd.train, factor: float = 1.0) -> None:
    """Without records every coordinate that moved has the noise of its phase's steps."""
    plan = plan_of(steps=5, noise_std=2.0)
    nobody = records_of(TABLE, 50).take(np.zeros(0, np.int64))
    update = update_of(plan, phases, train, records=nobody)
    for phase in phases:
        own = np.ones(SIZE, np.bool_) if phase.mask is None else phase.mask
        noise = update[phase.place][own[phase.place]]
        std = factor * math.sqrt(phase.steps) * RATE * plan.noise_std / plan.divisor
        values, d = noise / std, len(noise)
        low, high = stats.chi2(d).isf([1 - FALSE_ALARM / 2, FALSE_ALARM / 2]) / d
        assert low < np.mean(values**2) < high
        assert stats.kstest(values, "norm").pvalue > FALSE_ALARM
        assert noise.all(), "a coordinate has no noise"


@pytest.mark.parametrize("case", CASES)
def test_every_coordinate_that_a_phase_moves_has_the_noise_of_its_steps(case: str) -> None:
    check_noise(CASES[case])


@pytest.mark.parametrize("factor", [0.5, 2.0])
@pytest.mark.parametrize("case", CASES)
def test_noise_of_another_scale_is_found(case: str, factor: float) -> None:
    with pytest.raises(AssertionError):
        check_noise(CASES[case], factor=factor)


NOISE = "noisy = add_noise(total[place], plan.noise_std, streams.noise).float()"


@pytest.mark.parametrize(
    "bug",
    [
        ("plan.noise_std, streams", "(phase is phases[-1]) * plan.noise_std, streams"),
        ("plan.noise_std, streams", "(phase is phases[0]) * plan.noise_std, streams"),
        ("plan.noise_std, streams", "plan.noise_std / 2, streams"),
        (NOISE, f"{NOISE}; noisy[-30:] = 0.0"),
    ],
)
def test_a_phase_without_its_noise_is_found(bug: tuple[str, str]) -> None:
    with pytest.raises(AssertionError):
        check_noise(ALTERNATE, with_bug(bug))


def drawn_in(steps: range, count: int, plan: RoundPlan) -> set[int]:
    """Return the records that the batches of these steps draw."""
    release, found = streams(), set()
    release.sampling.bytes(7)
    for step in range(steps.stop):
        rows = release.sampling.bernoulli(count, plan.steps.sampling_prob)
        found |= set(rows.tolist()) if step in steps else set()
    return found


@pytest.mark.parametrize("phases", [ALTERNATE, (Phase(5, BODY),), (Phase(5, slice(0, SIZE)),)])
def test_a_record_outside_of_all_batches_shifts_nothing(phases: tuple[Phase, ...]) -> None:
    plan, records = plan_of(q=0.1, steps=5, noise_std=1.0), records_of(TABLE, 50)
    drawn = drawn_in(range(5), 50, plan)
    outside = min(set(range(50)) - drawn)
    inside = min(drawn)
    update = update_of(plan, phases, records=records)
    for row, moves in ((outside, False), (inside, True)):
        features = records.features.copy()
        features[row] = 100.0
        other = update_of(plan, phases, records=Records(features, records.targets))
        assert np.any(other[BODY] != update[BODY]) == moves


# The pull.


def test_a_pull_moves_no_coordinate_outside_the_mask_or_the_phase() -> None:
    phases = (Phase(2, HEAD), masked(3, BODY, 2))
    anchor = np.full(SIZE, 5.0, np.float32)
    update = update_of(plan_of(steps=5), phases, pull=(2.0, anchor))
    keep = phases[1].mask
    assert keep is not None
    assert not update[~keep].any()
    assert np.all(np.abs(update[BODY][keep[BODY]]) > 0.5)


@pytest.mark.parametrize("phases", [(Phase(4, BODY),), (Phase(3, HEAD), Phase(3, BODY))])
def test_phases_of_unpaid_steps_are_refused(phases: tuple[Phase, ...]) -> None:
    with pytest.raises(TermsError, match="other steps than its plan"):
        update_of(plan_of(steps=5), phases)


def test_the_table_of_the_tests_is_the_model_they_name() -> None:
    assert Task.classification((5,), 4) == TABLE
    assert len(start_of(SPEC, TABLE)) == SIZE

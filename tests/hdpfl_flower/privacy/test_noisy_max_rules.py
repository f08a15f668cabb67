"""A choice is the largest of the counts and the noise that was asked for, number by number."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import hdpfl_flower.privacy.noisy_max as module
import studies.r_dpcfl.two_stages as stages
from hdpfl_flower.errors import AccountingError
from hdpfl_flower.privacy.accounting import Gaussians, PureSelections, Steps
from hdpfl_flower.privacy.noisy_max import choose_model, selection_noise_std, selection_sensitivity
from studies.r_dpcfl.two_stages import calibrate_with_selections, two_stage_steps


class Known:
    """A stream whose noise is known."""

    def __init__(self, *noise: float) -> None:
        self._noise = torch.tensor(noise, dtype=torch.float64)

    def normal(self, count: int) -> torch.Tensor:
        assert count == len(self._noise)
        return self._noise


@pytest.mark.parametrize(
    ("counts", "noise_std", "noise", "expected"),
    [
        ([10, 10], 1.0, (0.0, 0.5), 1),
        ([10, 10], 1.0, (0.5, 0.0), 0),
        ([10, 10], 1.0, (0.0, -0.5), 0),
        ([10, 12], 4.0, (0.51, 0.0), 0),  # 2.04 against 2: half of the noise would not do
        ([10, 12], 4.0, (0.49, 0.0), 1),
        ([10, 12], 0.0, (9.0, 0.0), 1),
        ([10, 10, 10], 0.0, (0.0, 9.0, 0.0), 0),
        ([0, 5, 3], 2.0, (0.0, 0.0, 1.01), 2),
    ],
)
def test_a_choice_is_the_largest_count_with_its_noise(
    counts: list[int], noise_std: float, noise: tuple[float, ...], expected: int
) -> None:
    assert choose_model(np.array(counts), noise_std, Known(*noise)) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("noise_std", [-1e-9, -1.0, math.inf, math.nan])
def test_noise_of_a_choice_is_a_finite_number(noise_std: float) -> None:
    with pytest.raises(AccountingError, match="finite and not negative"):
        choose_model(np.array([1, 2]), noise_std, Known(0.0, 0.0))  # type: ignore[arg-type]


def test_the_sensitivity_is_that_of_half_of_the_models() -> None:
    for models in range(1, 12):
        largest = max(k - k**2 / models for k in range(models + 1))
        assert selection_sensitivity(models) == pytest.approx(math.sqrt(largest), rel=1e-15)
        std = selection_noise_std(3.0, models)
        assert 0 <= std - 3.0 * selection_sensitivity(models) < 1e-14
        assert (std > 3.0 * selection_sensitivity(models)) == (models > 1)
    for wrong in (0, -1):
        with pytest.raises(AccountingError, match="at least one model"):
            selection_sensitivity(wrong)


def test_batches_of_two_stages_may_be_one_record_or_all_and_rounds_one() -> None:
    one, all_ = Steps(1 / 7, 7), Steps(1.0, 1)
    assert two_stage_steps(7, 1, 7, 2) == (all_, one)
    assert two_stage_steps(7, 7, 1, 2) == (one, all_)
    assert two_stage_steps(7, 1, 1, 1) == (one,)
    assert two_stage_steps(7, 7, 7, 1, 3) == (Steps(1.0, 3),)
    for wrong in ((7, 0, 7, 1), (7, 8, 7, 1), (7, 1, 0, 1), (7, 1, 8, 1), (7, 1, 7, 0)):
        with pytest.raises(AccountingError, match="batches must be from 1"):
            two_stage_steps(*wrong)


@pytest.mark.parametrize(
    ("share", "selections"),
    [(0.0, 1), (1.0, 1), (-0.1, 1), (1.5, 1), (math.nan, 1), (0.1, -1), (0.0, -1)],
)
def test_bounds_of_options(share: float, selections: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for each in (module, stages):
        monkeypatch.setattr(each, "calibrate", lambda *_: 1.0)
    steps = [Steps(0.5, 2)]
    with pytest.raises(AccountingError, match=r"share of epsilon within \(0, 1\)"):
        calibrate_with_selections(steps, 1.0, 1e-5, selections, share)
    noise, beside = calibrate_with_selections(steps, 1.0, 1e-5, 0, 0.1)
    assert (noise, beside.count) == (1.0, 0)
    with pytest.raises(AccountingError, match="'gaussian' or 'gumbel'"):
        calibrate_with_selections(steps, 1.0, 1e-5, 1, 0.1, mechanism="none")  # type: ignore[arg-type]


def test_choices_get_their_share_of_epsilon(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(
        module, "pure_selections", lambda *words: asked.append(words) or PureSelections(0.1, 3)
    )
    for each in (module, stages):
        monkeypatch.setattr(each, "calibrate", lambda *words: asked.append(words) or 5.0)
    steps = [Steps(0.5, 2)]
    found = calibrate_with_selections(steps, 8.0, 1e-5, 3, 0.25, mechanism="gumbel")
    assert found == (5.0, PureSelections(0.1, 3))
    assert asked == [(2.0, 1e-5, 3), (steps, 8.0, 1e-5, [PureSelections(0.1, 3)])]
    asked.clear()
    found = calibrate_with_selections(steps, 8.0, 1e-5, 3, 0.25)
    assert found == (5.0, Gaussians(5.0, 3))
    assert asked == [([Steps(1.0, 3)], 2.0, 1e-5), (steps, 8.0, 1e-5, [Gaussians(5.0, 3)])]
    asked.clear()
    calibrate_with_selections(steps, math.inf, 1e-5, 3, 0.25)
    assert asked == [([Steps(1.0, 3)], math.inf, 1e-5), (steps, math.inf, 1e-5)]

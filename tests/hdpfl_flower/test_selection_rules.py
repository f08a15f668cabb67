"""A choice is the largest of the counts and the noise that was asked for, number by number."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from hdpfl_flower.errors import AccountingError
from hdpfl_flower.selection import choose_model, selection_noise_std, selection_sensitivity


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

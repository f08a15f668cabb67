"""Survival: the likelihood of a discrete hazard, its gradient, and the concordance of its risks."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from hdpfl_flower.data.array_targets import survival_targets
from hdpfl_flower.measures.concordance import concordance
from hdpfl_flower.models.losses import output_gradient, record_losses, total_loss
from hdpfl_flower.models.task import Task

TASK = Task.survival((3,), 5)
LAST = np.array([0, 2, 4, 4, 0, 3])
EVENT = np.array([True, True, True, False, False, False])
TARGETS = torch.from_numpy(survival_targets(LAST, EVENT))


def test_the_loss_is_minus_the_log_likelihood() -> None:
    """P(event in k) = h_k·Π_{t<k}(1 − h_t); P(censored after k) = Π_{t≤k}(1 − h_t)."""
    outputs = torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    hazard = torch.sigmoid(outputs).numpy()
    for row, (last, event) in enumerate(zip(LAST, EVENT, strict=True)):
        survived = np.prod(1 - hazard[row, :last])
        likelihood = survived * (hazard[row, last] if event else 1 - hazard[row, last])
        loss = float(record_losses(TASK, outputs, TARGETS)[row])
        assert loss == pytest.approx(-math.log(likelihood))
    total = total_loss(TASK, outputs, TARGETS)
    assert float(total) == pytest.approx(float(record_losses(TASK, outputs, TARGETS).sum()))


def test_the_gradient_is_that_of_the_loss_and_zero_after_the_last_interval() -> None:
    outputs = torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    outputs.requires_grad_(requires_grad=True)
    total_loss(TASK, outputs, TARGETS).backward()
    found = output_gradient(TASK, outputs.detach(), TARGETS)
    torch.testing.assert_close(found, outputs.grad)
    for row, last in enumerate(LAST):
        assert not found[row, last + 1 :].any()
        assert found[row, : last + 1].all()


def test_what_is_not_finite_after_the_last_interval_counts_for_nothing() -> None:
    """No interval at risk: neither loss nor gradient may hold 0 · NaN."""
    outputs = torch.zeros(6, 5)
    outputs[0, 1:], outputs[1, 3:] = math.nan, math.inf
    outputs.requires_grad_(requires_grad=True)
    total_loss(TASK, outputs, TARGETS).backward()
    assert outputs.grad.isfinite().all()
    assert output_gradient(TASK, outputs.detach(), TARGETS).isfinite().all()
    assert record_losses(TASK, outputs.detach(), TARGETS).isfinite().all()


def test_concordance_by_every_pair() -> None:
    """Against Harrell's definition, a pair at a time, with ties and censoring."""
    draws = np.random.default_rng(0)
    for _ in range(20):
        last, event = draws.integers(0, 5, 30), draws.random(30) < 0.6
        risks = draws.integers(0, 6, 30).astype(float)
        right = pairs = 0.0
        for i in range(30):
            for j in range(30):
                if event[i] and (last[i] < last[j] or (last[i] == last[j] and not event[j])):
                    pairs += 1
                    right += 1.0 if risks[i] > risks[j] else 0.5 if risks[i] == risks[j] else 0.0
        assert concordance(risks, survival_targets(last, event)) == pytest.approx(right / pairs)

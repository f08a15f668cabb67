"""Weights with which rounding decides: no engine is refuted, and a kernel with a tail would be."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hdpfl_flower.engines.engines import Engine, LinearEngine
from hdpfl_flower.models.losses import output_gradient
from hdpfl_flower.models.row_batches import RowProof
from hdpfl_tools.site.audit import CLIP_NORM, ENGINES, claimed, default_training
from tests.client_app.audits import rounding as audit_rounding
from tests.client_app.audits.rounding import TASK, _sum, _worst, attack_by_rounding
from tests.hdpfl_flower.engines.oracle import (
    CPU,
    TOLERANCE,
    make_engine,
    model_of,
    one_thread,  # noqa: F401
)


class Tailed(LinearEngine):
    """A linear engine whose product adds the last rows in another order, as BLAS does."""

    def _rows(
        self, x: torch.Tensor, y: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        whole = len(x) // 4 * 4
        outputs = torch.cat([self._outputs(x[:whole], 1), self._outputs(x[whole:], -1)])
        residual = output_gradient(self.task, outputs, y)
        return outputs, residual, residual.square().sum(1) * (x.square().sum(1) + 1)

    def _outputs(self, x: torch.Tensor, step: int) -> torch.Tensor:
        """Add the products one after another, from the first or from the last; rounds the same."""
        outputs = self._bias.expand(len(x), -1)
        for column in range(x.shape[1])[::step]:
            outputs = outputs + x[:, column : column + 1] * self._weight[:, column]
        return outputs


def tailed() -> Engine:
    return Tailed(model_of("logreg", TASK), TASK, CPU)


@pytest.fixture
def trusting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of their own size, as they were."""
    monkeypatch.setattr(RowProof, "granule", lambda *_: 1)
    monkeypatch.setattr(RowProof, "holds", lambda *_: True)


def largest_move(engine: Engine) -> float:
    """Return by how much one record moves the sum at worst, in C."""
    start, records, _ = _worst(engine)
    sums = [_sum(engine, start, records.take(np.arange(i, len(records)))) for i in (0, 1)]
    return float(np.linalg.norm(sums[0] - sums[1])) / CLIP_NORM


@pytest.mark.parametrize("name", ENGINES)
def test_one_record_moves_the_sum_by_c_under_the_audits_weights(name: str) -> None:
    """Before, it moved it by 6 C with every engine."""
    assert largest_move(make_engine(name, "logreg", TASK)) <= 1 + TOLERANCE


def test_a_kernel_with_a_tail_gets_batches_without_one() -> None:
    engine = tailed()
    assert engine.settle(2, 256) == 4
    assert largest_move(engine) <= 1 + TOLERANCE


@pytest.mark.usefixtures("trusting")
def test_in_batches_of_their_own_size_a_tail_moves_other_records() -> None:
    assert largest_move(tailed()) > 1.5


@pytest.mark.parametrize("name", ["linear", pytest.param("vmap", marks=pytest.mark.slow)])
def test_the_build_is_not_refuted(name: str) -> None:
    finding = attack_by_rounding(claimed(8.0), name, default_training())
    assert not finding.violates
    assert finding.canaries == audit_rounding.RELEASES
    assert finding.bound(0.5) > 4, "the attack sees the record itself"


@pytest.mark.usefixtures("trusting")
def test_batches_of_their_own_size_are_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_rounding, "engine_for", lambda *_: tailed())
    monkeypatch.setattr("hdpfl_flower.engines.engines.Engine.settle", lambda *_: 1)
    assert attack_by_rounding(claimed(8.0), "linear", default_training()).violates

"""Lack of memory: the site declines before a release is reserved, and says what to lower."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from client_app.training import plain_sgd, trainer
from hdpfl_flower import wire
from hdpfl_flower.ledger.ledger import Ledger
from tests.client_app.messages import CLIENT_NOISE, ask, make_site, terms_of


@pytest.mark.parametrize(
    ("noise", "key", "error"),
    [
        ("records", "physical-batch", torch.OutOfMemoryError("CUDA out of memory")),
        ("records", "physical-batch", RuntimeError("[enforce] can't allocate memory: 5 bytes")),
        ("client", "batch-size", torch.OutOfMemoryError("CUDA out of memory")),
    ],
)
def test_a_batch_that_does_not_fit_is_declined_before_it_is_paid_for(
    noise: str, key: str, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    def full(*_: object) -> None:
        raise error

    monkeypatch.setattr(trainer, "rehearse", full)
    monkeypatch.setattr(plain_sgd.Network, "rehearse", full)
    profile = make_site(tmp_path, more=CLIENT_NOISE)
    reply = ask(profile, terms_of(noise=noise, strategy="fedavg"))
    assert reply.has_error() and reply.error.code == wire.DECLINED
    assert f"lower 'training.{key}'" in caplog.text
    assert Ledger(tmp_path / "ledger.sqlite").account().spent() == (0.0, 0.0)

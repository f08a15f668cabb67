"""A small ledger, and what a site does for a release: ask, reserve, seal, send."""

from __future__ import annotations

from pathlib import Path

import pytest

from hdpfl_flower.ledger.account import ChargedPlan, Request
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.ledger.site_ledger import Reservation

PLAN = ChargedPlan("{}", "{}", epsilon=1.0, delta=1e-6)


def ask(
    run: str = "run", server_round: int = 1, digest: str = "d", kind: str = "update"
) -> Request:
    return Request(run, server_round, kind, digest)


def reserve(
    ledger: Ledger, request: Request, plan: ChargedPlan = PLAN, **more: object
) -> Reservation:
    taken = ledger.reserve(request, plan, **more)  # type: ignore[arg-type]
    assert isinstance(taken, Reservation)
    return taken


def release(ledger: Ledger, request: Request, payload: bytes = b"noisy", **more: object) -> bytes:
    """Reserve, seal and send; return what was sealed."""
    with reserve(ledger, request, **more) as reservation:  # type: ignore[arg-type]
        sealed = reservation.seal(payload)
    ledger.mark_sent(request.key)
    return sealed


@pytest.fixture(name="path")
def small_ledger(tmp_path: Path) -> Path:
    """A ledger that three plans use up."""
    Ledger.create(tmp_path / "ledger.sqlite", 3.0, 1e-5).close()
    return tmp_path / "ledger.sqlite"


@pytest.fixture(name="ledger")
def open_ledger(path: Path) -> Ledger:
    return Ledger(path)

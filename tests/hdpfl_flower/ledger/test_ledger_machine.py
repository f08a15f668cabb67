"""The ledger does what a model of it says, in any order of runs, retries, replays and crashes.

The machine is in ``tests/crash/machine.py``; each of the bugs below makes it fail.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import Phase

from hdpfl_flower.errors import LedgerError
from hdpfl_flower.ledger import site_ledger
from hdpfl_flower.ledger.account import Account, ChargedPlan
from hdpfl_flower.ledger.ledger import Ledger
from tests.crash.machine import INFINITE, as_fraction, run_machine


def test_the_ledger_does_what_the_model_says() -> None:
    run_machine(25, 30)


@pytest.mark.slow
def test_the_ledger_does_what_the_model_says_for_long() -> None:
    run_machine(50, 80)


def _sum_floats(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        "hdpfl_flower.ledger.account.sum_within", lambda values, limit: sum(values) <= limit
    )


def _forget_the_profiles_cap(patch: pytest.MonkeyPatch) -> None:
    check = Account.check_fits
    patch.setattr(Account, "check_fits", lambda self, plan, _: check(self, plan, INFINITE))


def _count_no_runs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Account, "check_runs", lambda self, request, most: None)


def _take_lost_releases_again(patch: pytest.MonkeyPatch) -> None:
    take = Ledger.reserve
    patch.setattr(Ledger, "reserve", lambda *args, **more: take(*args, **{**more, "again": True}))


def _keep_no_lock(patch: pytest.MonkeyPatch) -> None:
    class Free(site_ledger.ReleaseLock):
        def __init__(self, path: Path) -> None:
            super().__init__(path)
            self.free()

        def free(self) -> None:
            if self._path.exists():
                super().free()

    patch.setattr("hdpfl_flower.ledger.site_ledger.ReleaseLock", Free)


def _keep_every_payload(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("hdpfl_flower.ledger.site_ledger.KEPT_ROUNDS", 9)


def _round_spent_to_nearest(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        "hdpfl_flower.ledger.account.sum_rounded_up",
        lambda values: float(sum(map(as_fraction, values), Fraction(0))),
    )


def _count_a_lower_cap(patch: pytest.MonkeyPatch) -> None:
    def set_cap(self: Ledger, epsilon: float, delta: float) -> None:
        with self._current():
            self._append("cap", {"epsilon": epsilon, "delta": delta})

    patch.setattr(Ledger, "raise_cap", set_cap)


def _follow_another_plan(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ChargedPlan, "__ne__", lambda self, other: False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "bug",
    [
        _sum_floats,
        _forget_the_profiles_cap,
        _count_no_runs,
        _take_lost_releases_again,
        _keep_no_lock,
        _keep_every_payload,
        _round_spent_to_nearest,
        _count_a_lower_cap,
        _follow_another_plan,
    ],
)
def test_the_machine_finds_a_ledger_with_a_bug(
    monkeypatch: pytest.MonkeyPatch, bug: Callable[[pytest.MonkeyPatch], None]
) -> None:
    bug(monkeypatch)
    with pytest.raises((AssertionError, LedgerError, pytest.fail.Exception)):
        run_machine(1000, 40, phases=[Phase.generate], print_blob=False)

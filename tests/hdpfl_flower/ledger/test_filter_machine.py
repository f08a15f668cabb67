"""The Rényi filter holds against a server that chooses as it sees, and each bug below breaks it.

The machine is in ``tests/crash/filter_machine.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import Phase

from hdpfl_flower.ledger import renyi
from hdpfl_flower.ledger.account import Account, ChargedPlan
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_tools.site.reports.lifetime import order_for
from tests.crash.filter_machine import run_filter_machine


def test_no_server_passes_the_filter() -> None:
    run_filter_machine(100, 40)


def _take_the_servers_order(patch: pytest.MonkeyPatch) -> None:
    at = ChargedPlan.at
    patch.setattr(ChargedPlan, "at", lambda self, order: at(self, 2))


def _refund_what_was_lost(patch: pytest.MonkeyPatch) -> None:
    divergences = Account.divergences

    def forget(self: Account, *args: Any) -> Any:
        every = self.releases
        self.releases = {key: one for key, one in every.items() if one.status != "lost"}
        try:
            return divergences(self, *args)
        finally:
            self.releases = every

    patch.setattr(Account, "divergences", forget)


def _refund_before_the_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Account, "ended", property(lambda self: set(self.plans)))


def _release_after_the_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Account, "check_open", lambda self, request: None)


def _release_what_is_not_priced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Account, "check_priced", lambda self, request, plan: None)


def _count_the_own_process_alone(patch: pytest.MonkeyPatch) -> None:
    """Two runs that are reserved at once do not see each other."""
    check = Account.check_fits

    def alone(self: Account, plan: ChargedPlan, cap: tuple[float, float]) -> None:
        every = self.plans
        worked_on = {key[0] for key, one in self.releases.items() if one.status == "reserved"}
        self.plans = {run: frozen for run, frozen in every.items() if run not in worked_on}
        try:
            check(self, plan, cap)
        finally:
            self.plans = every

    patch.setattr(Account, "check_fits", alone)


def _convert_at_twice_the_bound(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("hdpfl_flower.ledger.account.capacity", lambda *cap: 2 * renyi.capacity(*cap))


def _choose_the_order_again(patch: pytest.MonkeyPatch) -> None:
    apply = Account.apply

    def chosen(self: Account, entry: Any) -> None:
        apply(self, entry)
        if entry.kind == "cap":
            self.order = order_for(self.cap_epsilon, self.cap_delta)

    patch.setattr(Account, "apply", chosen)


@pytest.mark.parametrize(
    "bug",
    [
        _take_the_servers_order,
        _refund_what_was_lost,
        _refund_before_the_end,
        _release_after_the_end,
        _release_what_is_not_priced,
        _count_the_own_process_alone,
        _convert_at_twice_the_bound,
        _choose_the_order_again,
    ],
)
def test_the_machine_finds_a_filter_with_a_bug(
    monkeypatch: pytest.MonkeyPatch, bug: Callable[[pytest.MonkeyPatch], None]
) -> None:
    bug(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        run_filter_machine(300, 40, phases=[Phase.generate], print_blob=False)


def test_the_first_entry_names_the_order_and_no_later_one(tmp_path: Any) -> None:
    ledger = Ledger.create(tmp_path / "ledger.sqlite", 3.0, 1e-5, order=8)
    ledger.raise_cap(8.0, 1e-5)
    assert ledger.account().order == 8

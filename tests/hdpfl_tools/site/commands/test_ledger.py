"""``hdpfl-site ledger``: what it shows is what the ledger does."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hdpfl_flower.config.profile import Profile
from hdpfl_flower.errors import Declined
from hdpfl_flower.ledger.account import ChargedPlan, Request
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.ledger.site_ledger import Reservation
from hdpfl_tools.site.reports.formatting import ceil_digits, floor_digits
from hdpfl_tools.site.reports.ledger_view import read_ledger
from hdpfl_tools.site.reports.lifetime import budget_status, runs_that_fit


def test_init_show_verify(site) -> None:
    made = site("ledger", "--init", "--composition", "sum")
    assert made.code == 0
    assert site.ledger_path.stat().st_mode & 0o077 == 0
    assert "cap ε 4, δ 0.0001" in made.out
    assert "no run has been charged yet" in site("ledger").out
    site.charge("run-1", rounds=3)
    site.charge("run-2", rounds=1)
    site.charge("run-2", rounds=2, kind="metrics")
    assert "models on this site's records: 2 of 0 answered" in site("ledger").out
    shown = json.loads(site("ledger", "--json").out)
    assert shown["exact-answers"] == {"given": 2, "most": 0}
    lines = [line.split() for line in site("ledger").out.splitlines()]
    run_1, run_2 = (next(r for r in lines if r[:1] == [name]) for name in ("run-1", "run-2"))
    assert run_1[2:] == ["1.235", "1e-05", "0", "0", "3", "0", "0"]
    assert run_2[2:] == ["1.235", "1e-05", "0", "0", "1", "0", "2"]
    assert ["cap", "4", "0.0001"] in lines
    assert ["spent", "2.47", "2e-05"] in lines  # 2.4691356 rounded up
    assert ["left", "1.53", "8e-05"] in lines  # 1.5308644 rounded down
    verified = site("ledger").out
    # cap; two plans; reserved, sealed and sent for each of 3 + 1 + 2 releases
    assert "entries verified: 21" in verified
    assert "anchor" in verified


def test_a_lost_release_is_shown(opened) -> None:
    ledger = Ledger(opened.ledger_path, opened.profile.ledger.anchor)
    with ledger.reserve(Request("run-9", 1, "update", "d"), ChargedPlan("{}", "{}", 1.0, 1e-6)):
        pass
    ledger.close()
    (row,) = [x.split() for x in opened("ledger").out.splitlines() if "run-9" in x]
    assert row[4:] == ["0", "0", "0", "1", "0"]


def test_raise_cap_asks_first_and_is_recorded(opened) -> None:
    assert "nothing to do" in opened("ledger", "--raise-cap").out
    opened.write_profile(("epsilon = 4.0", "epsilon = 6.0"))
    assert "'budget.epsilon' is higher" in opened("ledger").out
    assert opened("ledger", "--raise-cap", answer="n\n").code == 1
    assert "cap    4" in opened("ledger").out
    assert opened("ledger", "--raise-cap", answer="y\n").code == 0
    assert "cap    6" in opened("ledger").out
    opened.write_profile(("epsilon = 4.0", "epsilon = 7.0"))
    assert opened("ledger", "--raise-cap", "--yes").code == 0
    assert "cap    7" in opened("ledger").out
    assert "the cap was raised on" in opened.whole_report()


def test_the_lower_of_cap_and_budget_counts(opened) -> None:
    opened.write_profile(("epsilon = 4.0", "epsilon = 2.0"))
    shown = opened("ledger").out
    assert "'budget.epsilon' is lower" in shown
    assert "cap    2" in shown
    assert "can only be raised" in opened("ledger", "--raise-cap", "--yes").error()


@pytest.mark.parametrize(
    ("cap", "cost", "delta", "max_runs"),
    [
        (1.0, 0.1, 1e-6, 0),
        (0.3, 0.1, 1e-6, 0),
        (1.0, 0.25, 1e-6, 0),
        (4.0, 1.2345678, 1e-6, 0),
        (9.0, 1.0, 3e-5, 0),
        (9.0, 1.0, 1e-6, 2),
        (math.inf, math.inf, 4e-5, 0),
    ],
)
def test_as_many_runs_fit_as_the_ledger_charges(
    tmp_path, cap: float, cost: float, delta: float, max_runs: int
) -> None:
    path = tmp_path / "ledger.sqlite"
    site = Profile.parse(
        {
            "budget": {"epsilon": cap, "delta": 1e-4},
            "run": {"epsilon": cost, "delta": delta},
            "training": {"batch-size": 1, "declared-records": 10},
            "ledger": {"path": str(path)},
            "policy": {"runs": max_runs},
        }
    )
    ledger = Ledger.create(path, cap, 1e-4, durable=False)
    promised = runs_that_fit(read_ledger(site).account, site, (cost, delta))
    charged = 0
    with pytest.raises(Declined):
        while charged < 50:
            request = Request(f"run-{charged}", 1, "update", "digest")
            plan = ChargedPlan("{}", "{}", cost, delta)
            taken = ledger.reserve(request, plan, max_runs=max_runs)
            assert isinstance(taken, Reservation)
            with taken:
                charged += 1
    assert charged == promised > 0
    account = read_ledger(site).account
    now = budget_status(account, site.budget)
    assert runs_that_fit(account, site, (cost, delta)) == 0
    assert now.spent[0] <= now.cap[0] or math.isinf(cap)
    assert 0 <= now.left[1] < 1e-4
    ledger.close()


@given(st.floats(1e-9, 1e6))
def test_printed_numbers_round_to_the_safe_side(value: float) -> None:
    above, below = float(ceil_digits(value)), float(floor_digits(value))
    assert value * (1 - 1e-11) <= above <= value * 1.0011
    assert value * 0.9989 <= below <= value * (1 + 1e-11)

"""What an account's entries say, and its sums, number by number."""

from __future__ import annotations

import math

import pytest

from hdpfl_flower.errors import Declined, LedgerError
from hdpfl_flower.ledger.account import Account, Request, check_cost, sum_within
from hdpfl_flower.ledger.hash_chain import Entry


@pytest.mark.parametrize("wrong", [-1e-300, -0.5, -1.0, -math.inf, math.nan])
def test_a_cost_is_never_negative_and_always_a_number(wrong: float) -> None:
    for epsilon, delta in ((wrong, 1e-5), (1.0, wrong), (wrong, wrong)):
        with pytest.raises(LedgerError, match="not negative"):
            check_cost(epsilon, delta)


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.0, 1e-5), (1.0, 0.0), (0.0, 0.0), (0.5, 0.5), (math.inf, 1e-5)]
)
def test_a_cost_may_be_nothing_or_infinite(epsilon: float, delta: float) -> None:
    check_cost(epsilon, delta)


@pytest.mark.parametrize(
    ("values", "limit", "expected"),
    [
        ([], 0.0, True),
        ([0.1] * 10, 1.0, True),
        ([0.1] * 11, 1.0, False),
        ([1.0, 1e300], math.inf, True),
        ([math.inf], math.inf, True),
        ([math.inf], 1e300, False),
        ([], -math.inf, False),
        ([0.0], -math.inf, False),
        ([math.inf], -math.inf, False),
    ],
)
def test_a_sum_fits_below_its_limit(values: list[float], limit: float, expected: bool) -> None:
    assert sum_within(values, limit) is expected


def test_nothing_is_allowed_before_a_cap_is_written() -> None:
    account = Account()
    assert (account.cap_epsilon, account.cap_delta, account.spent()) == (0.0, 0.0, (0.0, 0.0))


def asked(epsilon: float | None, server_round: int = 1, run: str = "a") -> Request:
    return Request(run, server_round, "clipped-update", "d" * 64, epsilon)


def test_an_epsilon_that_the_server_was_told_is_kept_and_holds_for_its_run() -> None:
    assert asked(None).entry() == {
        "run_id": "a",
        "round": 1,
        "kind": "clipped-update",
        "request": "d" * 64,
    }
    assert asked(2.5).entry() == {**asked(None).entry(), "told": 2.5}
    account = Account()
    account.check_declared(asked(2.5))
    account.apply(Entry(1, "", "reserved", asked(None).entry()))
    assert account.declared == {}
    account.apply(Entry(2, "", "reserved", asked(2.5, 2).entry()))
    assert account.declared == {"a": 2.5}
    account.check_declared(asked(2.5, 3))
    account.check_declared(asked(None, 3))
    account.check_declared(asked(9.0, 3, "b"))
    with pytest.raises(Declined, match=r"'run.epsilon' changed in mid-run"):
        account.check_declared(asked(9.0, 3))

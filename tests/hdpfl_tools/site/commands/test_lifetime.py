"""A site's lifetime budget under a Rényi filter, up to the run that does not fit."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import pytest

from hdpfl_flower import wire
from hdpfl_flower.ledger.renyi import capacity
from hdpfl_flower.privacy.accounting import Steps, calibrate
from hdpfl_tools.site.reports.formatting import ceil_digits
from hdpfl_tools.site.reports.ledger_view import read_ledger
from hdpfl_tools.site.reports.lifetime import noise_of_one
from tests.client_app.messages import ask

STUDY = {"rounds": 20, "local_steps": 5}
CAP = ("epsilon = 4.0\ndelta = 1e-4", "epsilon = 3.0\ndelta = 1e-5")
STUDIES = (
    ("epsilon = 1.2345678\ndelta = 1e-5", "epsilon = 1.0\ndelta = 3e-6"),
    ("batch-size = 10\ndeclared-records = 40", "batch-size = 64\ndeclared-records = 303"),
)


@pytest.fixture
def hospital(site):
    """A hospital with ε 3 for life, for studies of ε 1 each."""
    site.write_profile(CAP, *STUDIES)
    site.write_terms(**STUDY)
    return site


def study(hospital, number: int, rounds: int = 1) -> list[bool]:
    """Ask the site for rounds of a study, as its coordinator does; return which it answered."""
    terms = hospital.terms.updated(run_id=f"study-{number}")
    return [
        ask(hospital.profile_path, terms, server_round).has_content()
        for server_round in range(1, rounds + 1)
    ]


def taken(hospital) -> float:
    account = read_ledger(hospital.profile).account
    return float(sum(account.divergences().values(), Fraction(0))) / capacity(
        account.order, *(3.0, 1e-5)
    )


def test_seven_studies_where_the_sum_ends_at_three(hospital) -> None:
    created = hospital("ledger", "--init").out
    assert "composition renyi" in created
    assert "ε 1, δ 3e-06 (this [run]) 3 " in " ".join(created.split())
    for number in range(1, 7):
        assert study(hospital, number) == [True]
    assert study(hospital, 7, rounds=7) == [True] * 7
    assert study(hospital, 8) == [False], "declined"

    shown = hospital("plan", "--terms", hospital.terms_path)
    assert shown.code == 1
    assert "0 such runs still fit (by the sum of ε and δ, 7 of 3: 0)" in shown.out
    assert "this run does NOT fit: the site will decline it; 5 of its 20 rounds would fit" in (
        shown.out
    )
    facts = json.loads(hospital("plan", "--terms", hospital.terms_path, "--json").out)
    assert (facts["fits"], facts["runs-that-fit"], facts["rounds-that-fit"]) == (False, 0, 5)
    before = hospital("ledger").out
    assert "promise: ε 3, δ 1e-05 for all releases" in before
    assert "[#############################.] 96.4 %" in before
    assert "spent" not in before, "a filter has no ε so far"

    # A run of 20 rounds that ends after 7: the rest returns.
    full = taken(hospital)
    assert hospital("requests", "--refuse", "study-7", "--yes").code == 0
    assert taken(hospital) == pytest.approx(full * (6 + 7 / 20) / 7, rel=1e-6)
    assert study(hospital, 7, rounds=8)[-1] is False, "a refused run releases no more"
    shown = hospital("plan", "--terms", hospital.terms_path).out
    assert "18 of its 20 rounds would fit" in shown
    hospital("requests", "--refuse", "study-6", "--yes")
    assert study(hospital, 8) == [True], "two rests are more than a run"

    text = " ".join(hospital("report").out.split())
    assert "private with ε = 3, δ = 1e-05" in text and "no ε for what has been released" in text
    report = json.loads(hospital("report", "--json").out)
    assert (report["composition"], report["spent"], report["left"]) == ("renyi", None, None)
    assert all(row["status"] != "fails" for row in report["assumptions"])
    assert f"{report['full']:.6f}" == f"{taken(hospital):.6f}"
    assert "of the promise is taken; the line marks the whole promise" in hospital.whole_report()
    assert "ended" in hospital("ledger").out


def test_the_end_of_a_run_gives_back_what_did_not_leave(hospital) -> None:
    hospital("ledger", "--init")
    assert study(hospital, 1, rounds=2) == [True, True]
    whole, terms = taken(hospital), hospital.terms.updated(run_id="study-1")
    assert ask(hospital.profile_path, terms, 2, kind=wire.FINISH).has_content()
    assert taken(hospital) == pytest.approx(whole * 2 / 20, rel=1e-6)
    assert not ask(hospital.profile_path, terms, 3).has_content()
    assert ask(hospital.profile_path, terms, 2, kind=wire.FINISH).has_content(), "sent again"


def test_a_run_whose_noise_falls_is_shown_and_pays_for_each_round_as_it_is(hospital) -> None:
    hospital.write_terms(**STUDY, spend={"kind": "late", "ratio": 3})
    hospital("ledger", "--init")
    shown = " ".join(hospital("plan", "--terms", hospital.terms_path).out.split())
    assert "noise of round 1 3 times that of the last round" in shown
    assert study(hospital, 1, rounds=2) == [True, True]
    whole, terms = taken(hospital), hospital.terms.updated(run_id="study-1")
    louder = terms.updated(spend={"kind": "late", "ratio": 6})
    assert not ask(hospital.profile_path, louder, 3).has_content(), "not what was approved"
    frozen = read_ledger(hospital.profile).account.plans["study-1"].read()
    text = hospital.whole_report()
    for factor in (3.0, 1.0):
        assert ceil_digits(factor * frozen.noise_multiplier) in text
    hospital("requests", "--refuse", "study-1", "--yes")
    # The first rounds are the noisiest, and so the cheapest.
    assert 0 < taken(hospital) < 0.3 * whole * 2 / 20
    hospital.write_profile(CAP, *STUDIES, ('approval = "standing"', 'approval = "each-run"'))
    study(hospital, 2)
    asked = " ".join(hospital("requests").out.split())
    assert "spend.kind 'late'" in asked
    assert "spend.ratio 3.0" in asked


def test_any_run_stands_for_one_gaussian_release() -> None:
    for epsilon in (0.01, 0.3, 3.0, 400.0):
        for delta in (1e-10, 1e-6, 1e-2):
            searched = calibrate([Steps(1.0, 1)], epsilon, delta)
            assert 0.998 * searched < noise_of_one(epsilon, delta) <= searched
    assert noise_of_one(math.inf, 1e-5) == 0


def test_a_refused_run_keeps_what_was_sent(hospital) -> None:
    hospital("ledger", "--init")
    study(hospital, 1, rounds=3)
    whole = taken(hospital)
    assert hospital("requests", "--refuse", "study-1", "--yes").code == 0
    assert taken(hospital) == pytest.approx(whole * 3 / 20, rel=1e-6)


def test_the_end_of_a_run_by_other_terms_is_declined(hospital) -> None:
    hospital("ledger", "--init")
    study(hospital, 1)
    other = hospital.terms.updated(run_id="study-1", rounds=5)
    assert not ask(hospital.profile_path, other, 1, kind=wire.FINISH).has_content()
    assert not read_ledger(hospital.profile).account.closed


def test_one_large_run_is_better_off_with_the_sum(site) -> None:
    site.write_profile(("epsilon = 1.2345678\ndelta = 1e-5", "epsilon = 4.0\ndelta = 1e-4"))
    assert "composition sum" in site("ledger", "--init").out
    assert read_ledger(site.profile).account.order == 0


def test_the_choice_is_the_operators(hospital) -> None:
    assert "composition sum" in hospital("ledger", "--init", "--composition", "sum").out
    study(hospital, 1)
    before = json.loads(hospital("ledger", "--json").out)["spent"]
    assert hospital("requests", "--refuse", "study-1", "--yes").code == 0
    after = json.loads(hospital("ledger", "--json").out)["spent"]
    assert after == before, "nothing returns under the sum"
    assert study(hospital, 1, rounds=2) == [False, False]


def test_a_cap_that_no_order_holds_is_refused_with_the_smallest(site) -> None:
    site.write_profile(
        ("epsilon = 4.0\ndelta = 1e-4", "epsilon = 1e-3\ndelta = 1e-9"),
        ("epsilon = 1.2345678\ndelta = 1e-5", "epsilon = 1e-3\ndelta = 1e-9"),
    )
    said = site("ledger", "--init").error()
    assert "the smallest is 0.01" in said
    assert "--composition sum" in said
    assert not site.ledger_path.exists()
    assert site("ledger", "--init", "--composition", "sum").code == 0


def test_a_budget_that_was_lowered_promises_nothing_about_what_has_left(hospital) -> None:
    """Three studies fit under ε 2.9, and not under .5: by the ledger's cap of 3 they left."""
    hospital("ledger", "--init")
    for number in range(1, 4):
        assert all(study(hospital, number, rounds=20))
    for number, lower, run, promised in ((4, "2.9", "1.0", "2.9"), (5, "0.5", "0.5", "3")):
        hospital.write_profile(
            (CAP[0], f"epsilon = {lower}\ndelta = 1e-5"),
            (STUDIES[0][0], f"epsilon = {run}\ndelta = 3e-6"),
            STUDIES[1],
        )
        assert f"promise: ε {promised}, δ 1e-05" in hospital("ledger").out
        text = " ".join(hospital("report").out.split())
        assert f"differentially private with ε = {promised}, δ = 1e-05" in text
        assert "the lower value counts for new runs" in text
        assert study(hospital, number) == [lower == "2.9"]


def test_a_raised_cap_admits_more_at_the_same_order(hospital) -> None:
    hospital("ledger", "--init")
    order = read_ledger(hospital.profile).account.order
    study(hospital, 1)
    raised = (CAP[0], "epsilon = 5.0\ndelta = 1e-5")
    hospital.write_profile(raised, *STUDIES)
    fit = json.loads(hospital("ledger", "--json").out)["runs-that-fit"]
    assert hospital("ledger", "--raise-cap", "--yes").code == 0
    assert json.loads(hospital("ledger", "--json").out)["runs-that-fit"] > fit + 5
    assert read_ledger(hospital.profile).account.order == order

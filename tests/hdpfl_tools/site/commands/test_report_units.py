"""``hdpfl-site report``: the unit of each run, and sums that never mix units under one name."""

from __future__ import annotations

import json

import pytest

from hdpfl_flower.ledger.account import ChargedPlan, Request
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.ledger.site_ledger import Reservation
from hdpfl_flower.privacy.plan import make_plan
from hdpfl_flower.privacy.unit import OF_FOLDER
from hdpfl_flower.releases.rounds import ClippedUpdate
from hdpfl_tools.site.reports.formatting import ceil_digits
from hdpfl_tools.site.reports.units import BY_SERVER, RECORD, SEVERAL, WHOLE_SITE, of_id

EPSILON, DELTA = 1.2345678, 1e-5
ID = ('path = "records.csv"', 'path = "records.csv"\nid = "who"')


def facts(site, *more: object) -> dict:
    result = (site.bare if more else site)("report", "--json", *more)
    assert result.code == 0, result.err
    return json.loads(result.out)


def charge(site, run_id: str, **terms: object) -> None:
    """Charge a run of other terms, and release a round of it."""
    site.write_terms(**terms)
    site.charge(run_id, rounds=1)


def charge_with(site, run_id: str, sensitivity: float) -> None:
    """Charge a run with another sensitivity in its plan."""
    plan, run = make_plan(site.profile, site.terms), site.terms.updated(run_id=run_id)
    content = json.loads(plan.to_json()) | {"sensitivity": sensitivity}
    frozen = ChargedPlan(json.dumps(content), run.to_json(), plan.epsilon, plan.delta)
    release(site, Request(run_id, 1, "update", "digest"), frozen)


def release(site, request: Request, frozen: ChargedPlan | None) -> None:
    ledger = Ledger(site.profile.ledger.path, site.profile.ledger.anchor)
    taken = ledger.reserve(request, frozen)
    assert isinstance(taken, Reservation)
    with taken:
        taken.seal(b"payload")
    ledger.mark_sent(request.key)
    ledger.close()


def test_before_the_first_run_the_unit_is_the_profiles(opened) -> None:
    assert "The protected unit is one record." in opened.whole_report()
    assert "A person with several records" in opened.whole_report()
    opened.write_profile(ID)
    text = opened.whole_report()
    assert f"The protected unit is {of_id('who')}." in text
    assert "A person with several records" not in text
    assert "training uses the first labelled row of an id." in text
    assert facts(opened)["promise"]["unit"] == of_id("who")
    assert facts(opened)["sums"] == []


@pytest.mark.parametrize("alone", [False, True], ids=["profile", "ledger alone"])
def test_a_run_with_an_id_protects_it(opened, alone: bool) -> None:
    opened.write_profile(ID)
    charge(opened, "run-1", schema='id = "who"\n' + opened.schema)
    source = ("--ledger", opened.ledger_path) if alone else ()
    assert f"The protected unit is {of_id('who')}." in opened.whole_report(*source)
    assert facts(opened, *source)["promise"]["unit"] == of_id("who")


def test_images_of_one_folder_are_one_unit(opened) -> None:
    charge(
        opened,
        "run-1",
        task={"kind": "classification", "shape": "1,8,8", "classes": 2, "id": "folder"},
    )
    assert facts(opened, "--ledger", opened.ledger_path)["promise"]["unit"] == OF_FOLDER


def test_one_unit_for_all_runs_is_one_sum(opened) -> None:
    for run in ("run-1", "run-2"):
        charge(opened, run, noise="client")
    text, report = opened.whole_report(), facts(opened)
    assert f"unit is {WHOLE_SITE}. The change that is compared is any change of one" in text
    assert "with ε = 2.47 and δ = 2e-05" in text
    assert report["promise"]["unit"] == WHOLE_SITE
    assert [row["unit"] for row in report["sums"]] == [WHOLE_SITE]
    assert not any("A person with several records" in line for line in report["not-covered"])


def test_a_mixed_ledger_has_a_sum_for_each_unit_and_none_over_them(opened) -> None:
    opened.write_profile(("epsilon = 4.0\ndelta = 1e-4", "epsilon = 9.0\ndelta = 1e-3"))
    opened("ledger", "--raise-cap", "--yes")
    charge(opened, "records-1")
    charge(opened, "records-2")
    charge(opened, "whole", noise="client")
    charge(opened, "ids", schema='id = "who"\n' + opened.schema)
    release(opened, Request("server", 1, ClippedUpdate.release, "digest", 3.5), None)
    text, report = opened.whole_report(), facts(opened)
    assert report["promise"]["unit"] == SEVERAL
    units = {RECORD: ["records-1", "records-2"], WHOLE_SITE: ["whole"], of_id("who"): ["ids"]}
    assert {row["unit"]: row["runs"] for row in report["sums"]} == units
    units |= {BY_SERVER: ["server"]}
    for run in report["runs"]:
        assert run["run-id"] in units[run["unit"]]
    # A run that protects all records protects each of them; an id's run says nothing of a record.
    wider = {RECORD: 3, of_id("who"): 2}
    for row in report["sums"]:
        assert row["epsilon"] == pytest.approx(len(row["runs"]) * EPSILON)
        assert row["delta"] == pytest.approx(len(row["runs"]) * DELTA)
        with_all = row["with-all-records"]
        assert (with_all is None) == (row["unit"] == WHOLE_SITE)
        if with_all:
            assert with_all["epsilon"] == pytest.approx(wider[row["unit"]] * EPSILON)
            assert f"its ε is {ceil_digits(with_all['epsilon'])} and" in text
        assert f"{row['unit']}; the change that is compared is {row['relation']}: ε =" in text
    assert report["trusted-server"] == {"runs": ["server"], "epsilon": 3.5}
    assert "Only runs 'records-1', 'records-2' count here." in text
    promise = text.partition("What is promised?")[2].partition("What leaves?")[0]
    assert promise and "4.939" not in promise, "the sum over all units has no name"
    assert "TRUSTED SERVER for run 'server'" in text and "an ε of 3.5 in all" in text


@pytest.mark.parametrize("sensitivity", [0.5, 1.5, -1.0])
def test_a_plan_with_less_noise_than_its_multiplier_is_no_plan(opened, sensitivity: float) -> None:
    charge_with(opened, "run-1", sensitivity)
    result = opened("report", "--html")
    assert result.code == 1
    assert "no ε can be computed from its plan" in result.out
    assert "CONTRADICTED" in result.out


def test_a_server_that_was_told_an_infinite_epsilon_promises_nothing(opened) -> None:
    release(opened, Request("open", 1, ClippedUpdate.release, "digest", float("inf")), None)
    assert facts(opened)["trusted-server"] == {"runs": [], "epsilon": None}
    assert "NO PRIVACY in the runs of a trusted server" in opened.whole_report()


@pytest.mark.parametrize("composition", ["renyi", "sum"])
def test_no_command_gives_one_promise_for_two_units(site, composition: str) -> None:
    """A run for one record, one for the site with all of its records, under one ledger."""
    site("ledger", "--init", "--composition", composition)
    charge(site, "run-1")
    shown = site("ledger").out
    assert ("under this ledger together" in shown) == (composition == "renyi")
    assert "protected unit" not in shown
    charge(site, "run-2", noise="client")
    shown = site("ledger").out
    site.write_terms()
    planned = site("plan", "--terms", site.terms_path).out
    for text in (shown, planned):
        assert "together" not in text
        assert f"protected unit: {RECORD}, " in text
        assert f"protected unit: {WHOLE_SITE}, " in text
    if composition == "sum":
        first = f"protected unit: {RECORD}, ε {ceil_digits(EPSILON)}, δ 1e-05, by 1 run"
        assert f"{first}; with the runs that protect all records: ε 2.47, δ 2e-05" in shown
        assert "there is no single ε" in shown
    else:
        assert "for each unit below, by the runs that protect it" in shown
        assert "by the runs of all units" in shown
    units = json.loads(site("ledger", "--json").out)["units"]
    runs = {RECORD: ["run-1"], WHOLE_SITE: ["run-2"]}
    assert [(row["unit"], row["runs"]) for row in units] == list(runs.items())
    assert all(("epsilon" in row) == (composition == "sum") for row in units)
    assert [row["unit"] for row in facts(site)["sums"]] == [row["unit"] for row in units]


def test_a_plan_names_the_unit_that_its_run_adds(site) -> None:
    site("ledger", "--init", "--composition", "renyi")
    charge(site, "earlier", noise="client")
    site.write_terms()
    planned = site("plan", "--terms", site.terms_path).out
    assert f"protected unit: {RECORD}, by no run so far" in planned
    assert f"protected unit: {WHOLE_SITE}, by 1 run" in planned

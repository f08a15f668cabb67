"""``hdpfl-site report``: no release and no limit goes unnamed, and numbers round safely."""

from __future__ import annotations

import json
import math
import re

import pytest

from hdpfl_flower.config.profile import Disclosure
from hdpfl_flower.ledger.account import ChargedPlan
from hdpfl_flower.ledger.ledger import Approval, Ledger
from hdpfl_tools.site.reports.attack import FALSE_POSITIVES, attack_rates
from hdpfl_tools.site.reports.rendering import as_html, as_text, factor, hundredths
from tests.hdpfl_tools.site.commands.conftest import SiteFolder, page_text

INFINITE = (("epsilon = 4.0", "epsilon = inf"), ("epsilon = 1.2345678", "epsilon = inf"))
SIMULATION = (("[data]", "[simulation]\nseed = 1\n[data]"),)


def facts(site: SiteFolder) -> dict:
    result = site("report", "--json")
    assert result.code == 0, result.err

    def no_constants(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(result.out, parse_constant=no_constants)


def first_page(site: SiteFolder) -> str:
    page = site("report", "--html").out
    return page_text(page[: page.index('<div class="rest">')])


def terminal(site: SiteFolder) -> str:
    return " ".join(site("report").out.split())


def decide(site: SiteFolder, run_id: str, by: str, *, approve: bool) -> None:
    ledger = Ledger(site.ledger_path, site.profile.ledger.anchor)
    if approve:
        ledger.approve(Approval(run_id, "0" * 64, site.terms.to_json(), "1" * 64, by))
    else:
        ledger.refuse(run_id, by)
    ledger.close()


def test_epsilon_is_rounded_up_and_the_rest_down_in_both_forms(opened) -> None:
    opened.charge("run-1", rounds=3)
    opened.charge("run-2", rounds=1)
    for text in (opened.whole_report(), terminal(opened)):
        assert "ε = 2.47 and δ = 2e-05" in text  # 2.4691356
        assert "ε 2.47 of 4; 1.53 is left" in text  # 1.5308644
        assert "at most 11.82 times" in text  # e^2.4691356 = 11.8122
    report = facts(opened)
    assert report["spent"]["epsilon"] == pytest.approx(2 * 1.2345678)
    assert report["spent"]["epsilon"] + report["left"]["epsilon"] <= report["cap"]["epsilon"]
    assert [run["updates"]["sent"] for run in report["runs"]] == [3, 1]
    assert [run["rounds"] for run in report["runs"]] == [3, 3]
    assert report["ledger"]["entries"] == 1 + 2 + 3 * 4
    assert not report["no-privacy"]


@pytest.mark.parametrize(
    ("rounded", "expected"),
    [
        (hundredths(0.0924), 10),
        (hundredths(0.03), 3),
        (hundredths(1.0), 100),
        (factor(1.0), "2.719"),
        (factor(50.0), "more than a hundred million"),
    ],
)
def test_words_for_probabilities_are_rounded_up(rounded: object, expected: object) -> None:
    assert rounded == expected


def test_the_page_holds_every_row_and_claim_of_the_facts(opened) -> None:
    opened.write_terms(after={"prior": {"share": 0.1}, "tuning": {"steps": 3}})
    opened.charge("run-1", rounds=2)
    opened.charge("run-1", rounds=1, kind="counts")
    opened.charge("run-1", rounds=1, kind="metrics")
    Ledger(opened.ledger_path).close_run("run-1", tuned=True)
    report, text, short = facts(opened), opened.whole_report(), terminal(opened)
    (run,) = report["runs"]
    assert (report["closed-runs"], run["plan"]["releases"]["tuning"]["steps"]) == (["run-1"], 3)
    assert run["plan"]["releases"]["counts"]["noise"] > 0
    for row in report["releases"]:
        cells = ("run-1", row["round"], row["kind"], row["status"], row["at"][:19], row["payload"])
        assert " ".join(map(str, cells)) in text
    for row in report["assumptions"]:
        assert f"{row['claim']} ({row['how']})" in text
    for limit in report["not-covered"]:
        assert limit in text and limit in short
    for fact in (report["ledger"]["digest"], report["promise"]["adversary"]):
        assert fact in text and fact in short
    assert report["promise"]["private-epsilon"] in text
    assert "tuning × 3" in text and "run-1 counts 1 " in text and "closed here: run 'run-1'" in text


@pytest.mark.parametrize("name", Disclosure.__args__)
def test_each_disclosure_is_named(opened, name: str) -> None:
    names = ["metrics", name] if name == "personal-metrics" else [name]
    opened.write_profile(("\n[budget]", f"disclose = {json.dumps(names)}\n[budget]"))
    report = facts(opened)
    assert report["disclosed"] == names
    assert any(limit.startswith(f"'{name}', ") for limit in report["not-covered"])
    listed = [f"{n} (40)" if n == "declared-records" else n for n in names]
    assert f"which ε does not protect: {', '.join(listed)}." in first_page(opened)


def test_answers_without_noise_are_listed_although_no_longer_disclosed(opened) -> None:
    assert "No exact result left without noise" in first_page(opened)
    for run, rounds in (("run-1", 2), ("run-2", 1)):
        opened.charge(run, rounds)
        opened.charge(run, rounds, kind="metrics")
    for text in (first_page(opened), terminal(opened)):
        assert "3, in 3 of the replies (run 'run-1': rounds 1, 2; run 'run-2': round 1)" in text
    opened.write_profile(("delta = 1e-4\n", "delta = 1e-4\nexact-answers = 20\n"))
    report = facts(opened)
    assert [(row["run-id"], row["round"], row["answers"]) for row in report["exact-releases"]] == [
        ("run-1", 1, 1),
        ("run-1", 2, 1),
        ("run-2", 1, 1),
    ]
    assert report["exact-answers"] == {"given": 3, "most": 20}
    assert (report["metrics-released"], report["updates"]["sent"]) == (3, 3)
    assert any("3 of 20" in limit for limit in report["not-covered"])


@pytest.mark.parametrize("changes", [INFINITE, SIMULATION], ids=["infinite ε", "simulation"])
def test_no_privacy_is_an_alarm_in_place_of_the_promise(site, changes) -> None:
    site.write_profile(*changes)
    assert site("ledger", "--init", "--composition", "sum").code == 0
    assert "no privacy" in terminal(site) or "simulation" in terminal(site), "before any run"
    site.charge("run-1", rounds=1)
    text, page = terminal(site), site("report", "--html").out
    alarms = re.findall('<p class="alarm">(NO PRIVACY|NO PROTECTION)', page)
    assert len(alarms) == 1 and page.index('class="alarm"') < page.index("What leaves?")
    assert alarms[0] in text
    for form in (text, page):
        assert "differentially private with" not in form and "What is promised?" not in form
    report = facts(site)
    assert report["simulation"] == (changes is SIMULATION)
    assert report["no-privacy"] == (changes is INFINITE)
    assert (report["spent"]["epsilon"] == "inf") == (changes is INFINITE)


def test_a_column_that_the_site_lacks_is_on_the_page(opened) -> None:
    assert facts(opened)["promise"]["absent"] == []
    opened.write_profile(("[ledger]", "[data.columns.dose]\nabsent = true\n[ledger]"))
    assert facts(opened)["promise"]["absent"] == ["dose"]
    page = page_text(opened("report", "--html").out)
    assert "Which data does this site lack?" in page and "1 column of the run's" in page
    assert "constant fills it in every record: dose." in page


@pytest.mark.parametrize("reply_after", [None, 0, 45])
def test_the_time_of_replies_is_a_limit_constant_or_not(opened, reply_after) -> None:
    if reply_after:
        opened.write_profile(("[budget]", f"reply-after = {reply_after}\n[budget]"))
    if reply_after is None:
        report = json.loads(opened.bare("report", "--ledger", opened.ledger_path, "--json").out)
    else:
        report = facts(opened)
    assert (report["reply-after"] or 0) == (reply_after or 0)
    (limit,) = [limit for limit in report["not-covered"] if "'reply-after'" in limit]
    words = {None: "unless the profile sets", 0: "no constant", 45: "took longer than the constant"}
    assert [key for key, said in words.items() if said in limit] == [reply_after]


def test_name_date_coordinator_purpose_and_decisions_are_on_the_first_page(opened) -> None:
    opened.write_profile(('approval = "standing"', 'approval = "standing"\nname = "Ward <7>"'))
    opened.write_terms(coordinator="Uni Köln", purpose=f"Risk of <surgery>{'.' * 60}")
    decide(opened, "run-1", "root (Dr. Weber)", approve=True)
    assert "Uni Köln" in first_page(opened), "before it is charged, too"
    opened.charge("run-1", rounds=1)
    decide(opened, "run-2", "root (Dr. Özil)", approve=False)
    opened.charge("run-3", rounds=1)
    day = facts(opened)["made"]
    for text in (first_page(opened), terminal(opened)):
        for fact in (
            "Ward <7>",
            f"made on {day}",
            "Uni Köln",
            f"Risk of <surgery>{'.' * 42}…",
            "UTC by root (Dr. Weber)",
            "UTC by root (Dr. Özil)",
            "no entry (standing approval)",
            "not in the ledger",
        ):
            assert fact in text, fact
    assert f"Risk of <surgery>{'.' * 60}" in opened.whole_report()


# --- an attacker's gain ---------------------------------------------------------------------------


def test_the_attackers_rates_are_those_of_all_runs_together(opened) -> None:
    """Two runs are more than one, and no more than their sum of ε allows."""
    opened.charge("run-1", rounds=2)
    first = facts(opened)["sums"][0]["attacker-finds"]
    assert f"at most {hundredths(first['0.01'])} of 100 records in the data" in first_page(opened)
    opened.charge("run-2", rounds=2)
    (row,) = facts(opened)["sums"]
    both = row["attacker-finds"]
    for rate in FALSE_POSITIVES:
        assert rate < first[f"{rate:g}"] < both[f"{rate:g}"]
        assert both[f"{rate:g}"] <= math.exp(row["epsilon"]) * rate + row["delta"]


def test_unreadable_plans_have_no_attackers_rates() -> None:
    assert attack_rates([ChargedPlan('{"format": 1}', "{}", 1.0, 1e-5)]) is None
    assert attack_rates([]) is None


# --- texts of the server's ------------------------------------------------------------------------

HOSTILE = [
    'x|y\n## 9. Nothing was spent\n<b onclick="x">*\x1b[2J`\x9b2J\u202e',
    "<script>alert(1)</script>",
    "- a\n? What leaves?\n- Nothing\r\u2028| b\t{{ cap }}",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_of_a_run_forges_the_report(opened, name: str) -> None:
    """Names, algorithms, purposes and deciders come from outside."""
    opened.charge("plain", rounds=1)
    report = json.loads(opened("report", "--json").out)
    plain_text, plain_page = as_text(report), as_html(report)
    report["runs"][0] |= dict.fromkeys(("run-id", "strategy", "coordinator", "purpose"), name)
    report["releases"][0]["run-id"] = name
    report["sums"][0]["runs"] = [name]
    decision = {"run-id": name, "decision": "refused", "at": "2026", "by": name}
    report["decisions"] = [decision | {"coordinator": name, "purpose": name}]
    text, page = as_text(report), as_html(report)
    for form in (text, page):
        assert form.replace("\n", "").isprintable()
    # The lines and elements are those of a harmless name.
    questions = [line for line in text.splitlines() if line[:1] not in ("", " ")]
    assert len(questions) == len([x for x in plain_text.splitlines() if x[:1] not in ("", " ")])
    assert re.findall(r"<[a-z/]+", page) == re.findall(r"<[a-z/]+", plain_page)
    assert "default-src 'none'" in page


def test_a_hostile_name_in_a_ledger_reaches_the_json_as_it_is(opened) -> None:
    opened.charge(HOSTILE[0], rounds=1)
    assert facts(opened)["runs"][0]["run-id"] == HOSTILE[0]
    for form in ("--json", "--html"):
        assert opened("report", form).out.replace("\n", "").isprintable()

"""``hdpfl-site report``: a ledger that contradicts its promise ends with status 1.

Every digest of the forged ledgers agrees, as after a rewrite or a fault of the ledger's code. Each
is caught by one rule, so a missing rule fails a test.
"""

from __future__ import annotations

import contextlib
import html
import json
import sqlite3

import pytest

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.ledger.hash_chain import Chain, Entry
from hdpfl_flower.privacy.plan import make_plan
from hdpfl_tools.site.ledger_checks import invariants as assumptions


def append(site, *entries: tuple[str, dict]) -> None:
    """Add entries behind the ledger's back, with right digests, and an anchor that agrees."""
    paths = site.profile.ledger
    with contextlib.closing(Chain(paths.path, paths.anchor)) as chain, chain.transaction():
        for kind, body in entries:
            chain.append(kind, body)


def plan(site, run_id: str, charged: RunTerms | None = None, **changes: object) -> tuple[str, dict]:
    """Return the entry that charges ``run_id`` the cost of its terms, with ``changes``."""
    planned = make_plan(site.profile, charged or site.terms)
    body = {"plan": planned.to_json(), "epsilon": planned.epsilon, "delta": planned.delta}
    return "plan", {"run_id": run_id, "terms": "{}"} | body | changes


def with_noise(site, factor: float) -> str:
    planned = json.loads(make_plan(site.profile, site.terms).to_json())
    return json.dumps(planned | {"noise_multiplier": factor * planned["noise_multiplier"]})


def plan_for_one(site, run_id: str) -> tuple[str, dict]:
    """Return the entry that charges ``run_id`` for one participation, of 3 rounds."""
    return plan(site, run_id, site.terms.updated(participations=1))


def with_choices(site, run_id: str) -> tuple[str, dict]:
    """Return the entry that charges ``run_id`` for ten rounds and one private choice."""
    terms = site.terms.updated(rounds=10, choice={"kind": "gaussian", "times": 1}, local_steps=1)
    return plan(site, run_id, terms)


def choices(run_id: str, count: int) -> list[tuple[str, dict]]:
    return [reserved(run_id, number, kind="choice") for number in range(1, count + 1)]


PRIVATE = json.dumps({"second.kind": "private", "second.pull": 0.1})
"""Terms under which a round trains a personal model with noise beside the update's."""


def reserved(run_id: str, server_round: int, kind: str = "update") -> tuple[str, dict]:
    return "reserved", {"run_id": run_id, "round": server_round, "kind": kind, "request": "d"}


def sealed(release: int, payload: str = "aa") -> tuple[str, dict]:
    return "sealed", {"release": release, "payload": payload}


# The site's run 'run-1' is charged for 3 rounds and sent round 1, entries 1 to 5. A forgery names
# the entries that follow, from number 6 on; it stands below the rule that must see them.
FORGERIES = {
    "charged-once": {"a run charged twice": lambda site: [plan(site, "run-1")]},
    "paid-for": {
        "an update of a run that was never charged": lambda site: [reserved("run-2", 1)],
        "an update before its run was charged": lambda site: [
            reserved("run-2", 1), plan(site, "run-2")],
        "a round too many": lambda site: [reserved("run-1", 4)],
        "a release too many of a plan for some of the rounds": lambda site: [
            plan_for_one(site, "run-2"), reserved("run-2", 3), reserved("run-2", 2)],
        "a round 0": lambda site: [reserved("run-1", 0)],
        "an update under another name": lambda site: [reserved("run-2", 1, "gradient")],
        "ten choices where the plan pays for one": lambda site: [
            with_choices(site, "run-2"), *choices("run-2", 10)],
        "a choice where the plan pays for none": lambda site: [reserved("run-1", 2, "choice")],
        "a kind that no plan pays for": lambda site: [reserved("run-1", 2, "gradient")],
        "a personal model that the plan does not pay for": lambda site: [
            plan(site, "run-2", terms=PRIVATE)],
    },
    "closed": {
        "an update of a run that was closed": lambda site: [
            ("closed", {"run_id": "run-1"}), reserved("run-1", 2)],
    },
    "refused": {
        "an update of a run that was refused": lambda site: [
            ("refused", {"run_id": "run-1", "by": "ada"}), reserved("run-1", 2)],
    },
    "cap": {
        "more ε than the cap": lambda site: [plan(site, "run-2", epsilon=2.8)],
        "more δ than the cap": lambda site: [plan(site, "run-2", delta=9.1e-5)],
        "more ε than the cap of then": lambda site: [
            plan(site, "run-2", epsilon=2.8), ("cap", {"epsilon": 9.0, "delta": 1e-4})],
        "a cap below what was spent": lambda site: [("cap", {"epsilon": 1.0, "delta": 1e-4})],
    },
    "one-payload": {
        "a payload sealed twice": lambda site: [reserved("run-1", 2), sealed(6), sealed(6, "bb")],
        "two payloads for one round": lambda site: [
            reserved("run-1", 2), sealed(6), reserved("run-1", 2), sealed(8, "bb")],
        "a lost release that was sealed": lambda site: [
            reserved("run-1", 2), ("lost", {"release": 6}), sealed(6)],
        "a release sent and never sealed": lambda site: [
            reserved("run-1", 2), ("sent", {"release": 6})],
    },
    "recount": {
        "less noise than was charged for": lambda site: [
            plan(site, "run-2", plan=with_noise(site, 0.99))],
        "no noise for a finite ε": lambda site: [
            plan(site, "run-2", plan=with_noise(site, 0.0))],
        "a plan that nobody can read": lambda site: [
            plan(site, "run-2", plan='{"format": 1, "less": "noise"}')],
    },
}  # fmt: skip
RULES = list(FORGERIES)
RULE_OF = {name: rule for rule, forgeries in FORGERIES.items() for name in forgeries}


def status_of(site, *options: str) -> dict[str, str]:
    result = site("report", "--json", *options)
    return {row["name"]: row["status"] for row in json.loads(result.out)["assumptions"]}


def test_a_ledger_of_the_sites_code_bears_out_its_promise(opened) -> None:
    opened.charge("run-1", rounds=3)
    opened.charge("run-2", rounds=1)
    opened.charge("run-2", rounds=2, kind="metrics")
    opened.write_profile(("epsilon = 4.0", "epsilon = 6.0"))
    assert opened("ledger", "--raise-cap", "--yes").code == 0
    expected = dict.fromkeys(["chain", "anchor", *RULES], "holds")
    expected |= {"noise": "not checked", "records": "not checked"}
    assert status_of(opened) == expected
    assert opened("report").code == 0


def test_a_plan_pays_for_choices_and_a_personal_model(opened) -> None:
    """One choice and three updates of a plan for them; a private personal model of its own plan."""
    append(opened, with_choices(opened, "run-1"), *choices("run-1", 1))
    append(opened, *(reserved("run-1", number) for number in (1, 2, 3)))
    assert status_of(opened)["paid-for"] == "holds"
    opened.write_profile(("epsilon = 4.0", "epsilon = 6.0"))
    assert opened("ledger", "--raise-cap", "--yes").code == 0
    two = make_plan(opened.profile, opened.terms.updated(second={"kind": "private"}))
    append(opened, plan(opened, "run-2", terms=PRIVATE, plan=two.to_json()))
    assert status_of(opened) == dict.fromkeys(["chain", "anchor", *RULES], "holds") | {
        "noise": "not checked",
        "records": "not checked",
    }


@pytest.mark.parametrize("name", RULE_OF)
def test_a_ledger_that_contradicts_its_promise(opened, name: str) -> None:
    rule = RULE_OF[name]
    opened.charge("run-1", rounds=1)
    append(opened, *FORGERIES[rule][name](opened))
    result = opened("report", "--json")
    assert result.code == 1, name
    assert result.err.startswith("error: the ledger contradicts what is promised")
    assert result.err.count("\n") == 1
    rows = json.loads(result.out)["assumptions"]
    (failing,) = [row for row in rows if row["status"] == "fails"]
    assert failing["name"] == rule
    check_it_is_said_loudly(opened, failing)


def check_it_is_said_loudly(site, assumption: dict) -> None:
    assert assumption["failures"]
    for form in ((), ("--html",)):
        result = site("report", *form)
        assert result.code == 1
        text = " ".join(html.unescape(result.out).split())
        assert "CONTRADICTED: do not rely on the numbers" in text
        assert assumption["claim"] in text
    assert f"FAILS: {assumption['claim']}" in text


@pytest.mark.parametrize("rule", RULES)
def test_the_mutant_without_a_rule_lets_a_forgery_pass(opened, monkeypatch, rule: str) -> None:
    rules = tuple(candidate for candidate in assumptions._RULES if candidate[0] != rule)
    monkeypatch.setattr(assumptions, "_RULES", rules)
    forge, *_ = FORGERIES[rule].values()
    opened.charge("run-1", rounds=1)
    append(opened, *forge(opened))
    assert opened("report").code == 0


def test_the_same_payload_again_is_no_second_one(opened) -> None:
    """A seeded simulation that is asked again makes the same bytes: nothing more is told."""
    opened.charge("run-1", rounds=1)
    append(opened, reserved("run-1", 2), sealed(6), reserved("run-1", 2), sealed(8))
    assert opened("report").code == 0


def check_altered_entries_are_refused(site) -> None:
    """Change the hour of one entry, which no rule but the chain can see."""
    site.charge("run-1", rounds=1)
    with contextlib.closing(sqlite3.connect(site.ledger_path)) as db:
        db.execute("UPDATE entries SET at = '2020-01-01T00:00:00.000+00:00' WHERE seq = 2")
        db.commit()
    for result in (site("report"), site.bare("report", "--ledger", site.ledger_path)):
        assert "damaged at entry 2" in result.error()
        assert not result.out, "no number of a broken ledger is shown"


def test_an_altered_entry_is_refused(opened) -> None:
    check_altered_entries_are_refused(opened)


def test_the_mutant_that_skips_the_digests_is_caught(opened, monkeypatch) -> None:
    def unchecked(chain: Chain) -> list[Entry]:
        rows = chain._db.execute("SELECT * FROM entries WHERE seq > ?", (chain._last,)).fetchall()
        for row in rows:
            chain._last, chain._digest = row[0], row[4]
        return [Entry(seq, time, kind, json.loads(text)) for seq, time, kind, text, _ in rows]

    monkeypatch.setattr(Chain, "_read", unchecked)
    with pytest.raises(AssertionError):
        check_altered_entries_are_refused(opened)


def test_an_entry_that_refers_to_nothing(opened) -> None:
    append(opened, sealed(77))
    assert "entry 2 holds what no entry can hold" in opened("report").error()
    assert "entry 2 holds what no entry can hold" in opened("ledger").error()


def test_an_anchor_is_said_to_agree_only_where_there_is_one(opened) -> None:
    assert status_of(opened)["anchor"] == "holds"
    opened.write_profile(('anchor = "anchor/ledger.anchor"\n', ""))
    assert status_of(opened)["anchor"] == "not checked"
    assert "nobody would notice if an older copy was put back" in opened.whole_report()

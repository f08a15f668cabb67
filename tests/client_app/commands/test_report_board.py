"""What a board reads: who asked and decided, and every answer that left without noise."""

from __future__ import annotations

import json

from hdpfl_flower.ledger.account import Approval
from hdpfl_flower.ledger.ledger import Ledger
from tests.client_app.commands.conftest import SiteFolder, page_text


def decide(site: SiteFolder, run_id: str, *, approve: bool) -> None:
    ledger = Ledger(site.ledger_path, site.profile.ledger.anchor)
    if approve:
        ledger.approve(
            Approval(run_id, "0" * 64, site.terms.to_json(), "1" * 64, "root (Dr. Weber)")
        )
    else:
        ledger.refuse(run_id, "root (Dr. Özil)")
    ledger.close()


def short(site: SiteFolder) -> str:
    page = site("report", "--html").out
    return page_text(page[: page.index('<div class="rest">')])


def test_site_date_coordinator_purpose_and_decisions_are_on_the_first_page(opened) -> None:
    opened.write_profile(('approval = "standing"', 'approval = "standing"\nname = "Ward <7>"'))
    opened.write_terms(coordinator="Uni Köln", purpose="Risk of <surgery>")
    decide(opened, "run-1", approve=True)
    assert "Uni Köln" in short(opened), "before it is charged, too"
    opened.charge("run-1", rounds=1)
    decide(opened, "run-2", approve=False)
    opened.charge("run-3", rounds=1)
    text = short(opened)
    made = json.loads(opened("report", "--json").out)["made"]
    for each in ("Ward <7>", f"made on {made}", "Uni Köln", "Risk of <surgery>",
                 "UTC by root (Dr. Weber)", "UTC by root (Dr. Özil)",
                 "no entry (standing approval)", "not in the ledger"):  # fmt: skip
        assert each in text, each
    terminal = " ".join(opened("report").out.split())
    assert "run run-2 (-): refused" in terminal and "Asked by Uni Köln, for: Risk" in terminal


def test_each_exact_answer_that_left_is_listed(opened) -> None:
    assert "Exact results without noise: none left." in short(opened)
    opened.charge("run-1", rounds=2)
    opened.charge("run-1", rounds=2, kind="metrics")
    opened.charge("run-2", rounds=1)
    opened.charge("run-2", rounds=1, kind="metrics")
    said = "WITHOUT noise: 3, in 3 of the replies (run 'run-1': rounds 1, 2; run 'run-2': round 1)"
    assert said in short(opened)
    assert said in " ".join(opened("report").out.split())
    found = json.loads(opened("report", "--json").out)["exact-releases"]
    assert [(one["run-id"], one["round"], one["answers"]) for one in found] == [
        ("run-1", 1, 1), ("run-1", 2, 1), ("run-2", 1, 1),
    ]  # fmt: skip


def test_what_the_profile_discloses_is_said_with_its_value_where_it_is_a_count(opened) -> None:
    opened.write_profile(("[budget]", 'disclose = ["declared-records", "epsilon"]\n[budget]'))
    assert "not protected by ε: declared-records (40), epsilon." in short(opened)


def test_the_attackers_sentence_is_about_patients_where_an_id_protects_them(opened) -> None:
    opened.charge("run-1", rounds=2)
    assert "of 100 records in the data when wrongly accusing 1 of 100 others" in short(opened)
    opened.write_profile(('path = "records.csv"', 'path = "records.csv"\nid = "who"'))
    opened.write_terms(schema='id = "who"\n' + opened.schema)
    opened.charge("run-2", rounds=2)
    assert "of 100 patients in the data when wrongly accusing 1 of 100 others" in short(opened)

"""``hdpfl-site prepare``, and the records that ``approve`` prepares."""

from __future__ import annotations

from pathlib import Path

import pytest

from hdpfl_flower import wire
from hdpfl_flower.ledger.checked_table import read_facts
from hdpfl_tools.site import open_requests
from hdpfl_tools.site.approval import preparation
from hdpfl_tools.site.reports.ledger_view import read_ledger
from tests.client_app.messages import ask
from tests.hdpfl_tools.site.commands.conftest import SiteFolder

EACH_RUN = ('approval = "standing"\n', "")


def files_of(site: SiteFolder) -> list[Path]:
    return sorted((site.ledger_path.parent / "ledger.sqlite.records").glob("*"))


def kinds(site: SiteFolder) -> list[str]:
    return [entry.kind for entry in read_ledger(site.profile).entries]


def left_out(site: SiteFolder, rows: int) -> None:
    """Take the last rows from the export."""
    path = site.profile_path.parent / "records.csv"
    path.write_text("\n".join(path.read_text().splitlines()[:-rows]) + "\n")


@pytest.fixture(name="waiting")
def site_with_a_request(opened: SiteFolder) -> SiteFolder:
    opened.write_profile(EACH_RUN)
    assert ask(opened.profile_path, opened.terms).error.code == wire.PENDING
    return opened


def test_an_approval_shows_the_records_prepares_them_and_binds_the_run(waiting: SiteFolder) -> None:
    run = waiting.terms.run_id
    declined = waiting("approve", run, answer="n\n")
    assert "records in the export " in declined.out
    assert (files_of(waiting), kinds(waiting)) == ([], ["cap"])
    done = waiting("approve", run, answer="y\n")
    assert done.code == 0, done.err
    assert "there are no records prepared earlier to compare with" in done.out
    (path,) = files_of(waiting)
    assert kinds(waiting) == ["cap", "approved", "records"]
    entry = read_ledger(waiting.profile).entries[-1]
    export = read_facts(waiting.ledger_path).table  # type: ignore[union-attr]
    assert entry.body == {"run_id": run, "records": path.stem, "export": export}
    assert ask(waiting.profile_path, waiting.terms).has_content()


def test_an_approval_shows_what_changed_since_the_records_prepared_last(
    waiting: SiteFolder,
) -> None:
    assert waiting("approve", waiting.terms.run_id, answer="y\n").code == 0
    later = waiting.terms.updated(run_id="later")
    for rows, words in ((0, "the same as in the records prepared last\n"), (2, "before")):
        if rows:
            left_out(waiting, rows)
        ask(waiting.profile_path, later)
        asked = waiting("approve", "later", answer="n\n")
        assert words in asked.out
    lines = [line.split() for line in asked.out.splitlines()]
    counts = preparation.last_prepared(
        waiting.ledger_path, read_ledger(waiting.profile).account
    ).counts  # type: ignore[union-attr]
    before = counts["records in the export"]
    assert ["records", "in", "the", "export", str(before), str(before - 2)] in lines


def test_a_broken_export_cannot_be_approved(waiting: SiteFolder) -> None:
    (waiting.profile_path.parent / "records.csv").write_text("a,PATIENT-123\n1,no\n")
    assert "column" in waiting("approve", waiting.terms.run_id, answer="y\n").error()
    assert kinds(waiting) == ["cap"]
    assert len(open_requests.read_requests(waiting.ledger_path)) == 1


def test_a_dry_run_writes_nothing(waiting: SiteFolder) -> None:
    before = sorted(waiting.ledger_path.parent.rglob("*"))
    shown = waiting("prepare", waiting.terms.run_id, "--dry-run")
    assert shown.code == 0, shown.err
    assert "records in the export " in shown.out
    assert sorted(waiting.ledger_path.parent.rglob("*")) == before
    assert kinds(waiting) == ["cap"]
    assert "waits for approval" in waiting("prepare", waiting.terms.run_id).error()
    assert "knows no run" in waiting("prepare", "none").error()


def test_a_run_is_prepared_anew_by_a_decision(opened: SiteFolder) -> None:
    assert ask(opened.profile_path, opened.terms).has_content()
    left_out(opened, 2)
    run = opened.terms.run_id
    assert "changed since" in opened("prepare").out
    assert "nothing was changed" in opened("prepare", run, answer="n\n").error()
    done = opened("prepare", run, "--yes")
    assert done.code == 0, done.err
    first, second = [e for e in read_ledger(opened.profile).entries if e.kind == "records"]
    assert first.body["records"] != second.body["records"]
    account = read_ledger(opened.profile).account
    assert account.records == {run: second.body["records"]}
    assert [path.stem for path in files_of(opened)] == [second.body["records"]]
    listed = opened("prepare").out
    assert "as it is" in listed and run in listed
    assert ask(opened.profile_path, opened.terms, 2).has_content()


def test_deleted_records_decline_their_run_until_they_are_prepared_again(
    opened: SiteFolder, caplog: pytest.LogCaptureFixture
) -> None:
    assert ask(opened.profile_path, opened.terms).has_content()
    run = opened.terms.run_id
    assert "nothing was deleted" in opened("prepare", "--delete", answer="n\n").error()
    assert "no records are prepared for" in opened("prepare", "other", "--delete").error()
    done = opened("prepare", run, "--delete", "--yes")
    assert done.code == 0 and f"records of '{run}'" in done.out, done.err
    assert files_of(opened) == []
    assert "no records are prepared" in opened("prepare").out
    assert "no records are prepared" in opened("prepare", "--delete", "--yes").out
    assert ask(opened.profile_path, opened.terms, 2).error.code == wire.FAILED
    assert "prepare them again: hdpfl-site prepare RUN" in caplog.text
    assert opened("prepare", run, "--yes").code == 0
    assert ask(opened.profile_path, opened.terms, 2).has_content()


def test_records_prepared_for_runs_to_come_are_not_read_again(
    opened: SiteFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened.write_terms()
    terms = ("--terms", str(opened.terms_path))
    assert opened("prepare", *terms, "--dry-run").code == 0
    assert files_of(opened) == []
    done = opened("prepare", *terms)
    assert done.code == 0, done.err
    assert len(files_of(opened)) == 1 and kinds(opened) == ["cap"]
    assert " none" in opened("prepare").out
    monkeypatch.setattr(preparation, "stored_site_data", None)
    assert ask(opened.profile_path, opened.terms).has_content()


@pytest.mark.parametrize(
    "words", [("--delete", "--dry-run"), ("--dry-run",), ("--yes",), ("run", "--terms", "run.toml")]
)
def test_options_that_exclude_each_other(opened: SiteFolder, words: tuple[str, ...]) -> None:
    assert opened("prepare", *words).code == 2


def test_a_file_that_cannot_be_used_is_listed_with_its_fault(opened: SiteFolder) -> None:
    assert ask(opened.profile_path, opened.terms).has_content()
    files_of(opened)[0].chmod(0o644)
    assert "can be read by others" in opened("prepare").out

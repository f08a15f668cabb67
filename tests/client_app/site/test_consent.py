"""Without its operator's consent to a request a deployed site does nothing of a run."""

from __future__ import annotations

import sqlite3
import stat
from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from flwr.app import Message

from client_app.site import consent, inbox
from client_app.site.app_digest import app_digest, is_pinned
from client_app.site.refusals import read_refusals
from client_app.site.site import Site
from hdpfl_flower import wire
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import LedgerError, Refused, TermsError
from hdpfl_flower.ledger.account import Approval, Request
from hdpfl_flower.ledger.ledger import Ledger
from tests.client_app.messages import ask, make_site, terms_of

KINDS = (wire.TRAIN, wire.EVALUATE, wire.JOIN, wire.SCORES, wire.FINISH)


@pytest.fixture(name="profile")
def asking_site(tmp_path: Path) -> Path:
    """A deployed site that asks its operator about each run, as by default."""
    profile = make_site(tmp_path, disclose='["metrics", "epsilon"]', holdout=0.3)
    profile.write_text(profile.read_text().replace('approval = "standing"\n', ""))
    return profile


def code_of(reply: Message) -> int:
    """Return the code of a reply, whose reason must be its one constant word."""
    assert reply.has_error()
    assert reply.error.reason in ("pending", "refused", "declined")
    return int(reply.error.code)


def ledger_of(profile: Path) -> Path:
    return profile.with_name("ledger.sqlite")


def approve(profile: Path, terms: RunTerms, app: str = "") -> None:
    app = app or app_digest()
    digest = inbox.request_digest(terms, app)
    ledger = Ledger(ledger_of(profile))
    ledger.approve(Approval(terms.run_id, digest, terms.to_json(), app, "a person"))
    ledger.close()


def entries(profile: Path) -> list[str]:
    with sqlite3.connect(ledger_of(profile)) as db:
        return [kind for (kind,) in db.execute("SELECT kind FROM entries ORDER BY seq")]


@pytest.mark.parametrize("kind", KINDS)
def test_an_unapproved_run_reads_charges_and_discloses_nothing(
    profile: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def read(site: Site) -> None:
        pytest.fail("records were read")

    monkeypatch.setattr(Site, "training_records", read)
    monkeypatch.setattr(Site, "test_records", read)
    assert code_of(ask(profile, terms_of(), kind=kind)) == wire.PENDING
    assert entries(profile) == ["cap"]
    assert not profile.with_name("state").exists()
    # The end of a run that nobody approved is nothing to decide on.
    assert len(inbox.read_requests(ledger_of(profile))) == (kind != wire.FINISH)
    assert sum(read_refusals(ledger_of(profile)).counts.values()) == 0


def test_an_approved_run_trains_and_the_request_shows_what_was_asked(profile: Path) -> None:
    terms = terms_of(purpose="Risk of stroke", coordinator="Dr. Ada, ada@example.org")
    assert code_of(ask(profile, terms, 0, wire.JOIN)) == wire.PENDING
    (request,) = inbox.read_requests(ledger_of(profile))
    assert (request.terms, request.app) == (terms, app_digest())
    assert stat.S_IMODE(inbox.inbox_path(ledger_of(profile)).stat().st_mode) == 0o600
    approve(profile, terms)
    assert ask(profile, terms, 0, wire.JOIN).has_content()
    assert ask(profile, terms).has_content()
    assert entries(profile) == ["cap", "approved", "plan", "reserved", "sealed", "sent"]


@pytest.mark.parametrize(
    "change",
    [
        {"rounds": 4},
        {"purpose": "another"},
        {"run-id": "run-2"},
        {"model": "mlp:4"},
        {"epsilon-cap": 0.0},
        {"epsilon-cap": 0.6},
    ],
    ids=lambda change: next(iter(change)),
)
def test_changed_terms_need_a_new_approval(profile: Path, change: dict[str, object]) -> None:
    approved = {"purpose": "one", "epsilon-cap": 0.5 if "epsilon-cap" in change else 0.0}
    approve(profile, terms_of(**approved))
    changed = terms_of(**{**approved, **change})
    assert code_of(ask(profile, changed)) == wire.PENDING
    (request,) = inbox.read_requests(ledger_of(profile))
    assert request.terms == changed
    assert "reserved" not in entries(profile)


def test_what_the_noise_does_not_depend_on_needs_none(profile: Path) -> None:
    """A clip norm moves within the plan's bounds, and a cap makes the run cost less."""
    approve(profile, terms_of())
    assert ask(profile, terms_of(**{"clip-norm": 2.0, "epsilon-cap": 0.5})).has_content()


def test_an_approval_for_another_app_is_none(profile: Path) -> None:
    approve(profile, terms_of(), app="0" * 64)
    assert code_of(ask(profile, terms_of())) == wire.PENDING
    assert "reserved" not in entries(profile)


def test_a_refused_run_stays_refused_under_whatever_terms(profile: Path) -> None:
    ask(profile, terms_of())
    ledger = Ledger(ledger_of(profile))
    ledger.refuse("run-1", "a person")
    ledger.close()
    with pytest.raises(LedgerError, match="a refusal stays"):
        approve(profile, terms_of())
    inbox.inbox_path(ledger_of(profile)).unlink()
    for terms in (terms_of(), terms_of(rounds=2)):
        for kind in KINDS:
            assert code_of(ask(profile, terms, kind=kind)) == wire.REFUSED
    assert inbox.read_requests(ledger_of(profile)) == []


@pytest.mark.parametrize("approval", ["each-run", "standing"])
def test_an_approval_can_be_withdrawn(profile: Path, approval: str) -> None:
    profile.write_text(f'approval = "{approval}"\n{profile.read_text()}')
    approve(profile, terms_of())
    assert ask(profile, terms_of()).has_content()
    ledger = Ledger(ledger_of(profile))
    ledger.refuse("run-1", "a person")
    # A message that was let in before the refusal finds it where it reserves.
    with pytest.raises(Refused):
        ledger.reserve(Request("run-1", 2, "update", "digest"), None)
    ledger.close()
    # The same request again, which was sealed before: not even that is sent.
    assert code_of(ask(profile, terms_of())) == wire.REFUSED
    assert code_of(ask(profile, terms_of(), 0, wire.JOIN)) == wire.REFUSED


def test_a_policy_that_declines_leaves_no_request(profile: Path) -> None:
    assert code_of(ask(profile, terms_of(rounds=5000))) == wire.DECLINED
    assert inbox.read_requests(ledger_of(profile)) == []


@pytest.mark.parametrize(
    ("bounds", "today", "stands"),
    [
        ("", "2030-01-01", True),
        ("until = 2027-12-31", "2027-12-31", True),
        ("until = 2027-12-31", "2028-01-01", False),
        ("max-rounds = 3", "2027-01-01", True),
        ("max-rounds = 2", "2027-01-01", False),
    ],
)
def test_a_standing_approval_ends_at_its_bounds(
    tmp_path: Path, bounds: str, today: str, stands: bool
) -> None:
    profile = Profile.load(make_site(tmp_path, more=f"[standing]\n{bounds}"))
    assert consent.is_standing(profile, terms_of(), date.fromisoformat(today)) is stands


def test_beyond_its_bounds_a_run_waits(tmp_path: Path) -> None:
    profile = make_site(tmp_path, more="[standing]\nmax-rounds = 2")
    assert code_of(ask(profile, terms_of())) == wire.PENDING
    assert ask(profile, terms_of(rounds=2)).has_content()


def test_a_flood_of_runs_leaves_a_bounded_file_and_the_newest(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.sqlite"
    for number in range(inbox.MOST_RUNS + 5):
        inbox.file_request(ledger, terms_of(**{"run-id": f"run-{number}"}), "app")
    names = [request.run_id for request in inbox.read_requests(ledger)]
    assert names == [f"run-{number}" for number in range(5, inbox.MOST_RUNS + 5)]
    with pytest.raises(TermsError, match="longer than"):
        inbox.file_request(ledger, terms_of(schema="#" * inbox.MOST_BYTES), "app")


def test_a_request_keeps_the_time_of_its_first_until_its_terms_change(tmp_path: Path) -> None:
    ledger, seen = tmp_path / "ledger.sqlite", []
    for rounds in (3, 3, 4):
        inbox.file_request(ledger, terms_of(rounds=rounds), "app")
        seen += inbox.read_requests(ledger)
    assert seen[0].first == seen[1].first < seen[1].last < seen[2].first == seen[2].last
    assert datetime.fromisoformat(seen[2].last) <= datetime.now(UTC)
    inbox.remove_request(ledger, seen[0])  # what was decided is no longer what is asked for
    assert inbox.read_requests(ledger) == [seen[2]]


def test_a_damaged_file_changes_no_reply_and_is_named(profile: Path) -> None:
    path = inbox.inbox_path(ledger_of(profile))
    path.write_bytes(b"no database" * 100)
    assert code_of(ask(profile, terms_of())) == wire.PENDING
    with pytest.raises(LedgerError, match="remove the file"):
        inbox.read_requests(ledger_of(profile))


@pytest.mark.parametrize("text", ["two\nlines", "\x1b[2J", "x" * 501, "a\u202eb"])
def test_what_operators_read_is_one_bounded_printable_line(text: str) -> None:
    for key in ("purpose", "coordinator"):
        with pytest.raises(TermsError, match=f"'{key}'"):
            terms_of(**{key: text})


def test_the_app_is_known_by_its_bundle_where_it_is_pinned_and_else_by_its_files(
    tmp_path: Path,
) -> None:
    pinned, loose = tmp_path / "apps" / ("a1" * 32), tmp_path / "loose"
    assert is_pinned(pinned) and app_digest(pinned) == "a1" * 32
    digests = set()
    for number, content in enumerate((b"1", b"2")):
        file = loose / str(number) / "client_app" / "app.py"
        file.parent.mkdir(parents=True)
        file.write_bytes(content)
        digests.add(app_digest(loose / str(number)))
    assert len(digests) == 2 and not is_pinned(loose / "0")

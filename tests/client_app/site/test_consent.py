"""Without its operator's consent to a request a deployed site does nothing of a run."""

from __future__ import annotations

import contextlib
import sqlite3
import stat
import threading
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from client_app.site import consent, inbox
from client_app.site.app_digest import app_digest, is_pinned
from client_app.site.site import Site
from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import LedgerError, Refused, TermsError
from hdpfl_flower.ledger.account import Request
from hdpfl_flower.ledger.ledger import Approval, Ledger
from hdpfl_flower.privacy.policy import FREE_TERMS
from hdpfl_tools.site import open_requests
from hdpfl_tools.site.reports.site_series import read_refusals
from tests.client_app.messages import ask, make_site, terms_of
from tests.hdpfl_flower.privacy.test_policy import other_value

KINDS = (wire.TRAIN, wire.EVALUATE, wire.JOIN, server_wire.query_of("scores"), wire.FINISH)


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
def test_unapproved_runs_wait(profile: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    def read(site: Site) -> None:
        pytest.fail("records were read")

    monkeypatch.setattr(Site, "training_records", read)
    monkeypatch.setattr(Site, "test_records", read)
    assert code_of(ask(profile, terms_of(), kind=kind)) == wire.PENDING
    assert entries(profile) == ["cap"]
    assert not profile.with_name("state").exists()
    # The end of a run that nobody approved is nothing to decide on.
    assert len(open_requests.read_requests(ledger_of(profile))) == (kind != wire.FINISH)
    assert sum(read_refusals(ledger_of(profile)).counts.values()) == 0


def test_an_approved_run_trains_and_the_request_shows_what_was_asked(profile: Path) -> None:
    terms = terms_of(purpose="Risk of stroke", coordinator="Dr. Ada, ada@example.org")
    assert code_of(ask(profile, terms, 0, wire.JOIN)) == wire.PENDING
    (request,) = open_requests.read_requests(ledger_of(profile))
    assert (request.terms, request.app) == (terms, app_digest())
    assert stat.S_IMODE(inbox.inbox_path(ledger_of(profile)).stat().st_mode) == 0o600
    approve(profile, terms)
    assert ask(profile, terms, 0, wire.JOIN).has_content()
    assert ask(profile, terms).has_content()
    decided = ["cap", "approved", "records"]
    assert entries(profile) == [*decided, "plan", "reserved", "sealed", "sent"]


@pytest.mark.parametrize(
    "change",
    [
        {"rounds": 4},
        {"purpose": "another"},
        {"run-id": "run-2"},
        {"model": "mlp:4"},
        {"epsilon-cap": 0.0},
        {"epsilon-cap": 0.6},
        {"after": {}},
        {"after": {"scores": {"share": 0.3}}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_changed_terms_need_a_new_approval(profile: Path, change: dict[str, object]) -> None:
    approved = {"purpose": "one", "epsilon-cap": 0.5 if "epsilon-cap" in change else 0.0,
                "after": {"scores": {"share": 0.2}} if "after" in change else {}}  # fmt: skip
    approve(profile, terms_of(**approved))
    changed = terms_of(**{**approved, **change})
    assert code_of(ask(profile, changed)) == wire.PENDING
    (request,) = open_requests.read_requests(ledger_of(profile))
    assert request.terms == changed
    assert "reserved" not in entries(profile)


@pytest.mark.parametrize("key", sorted({*RunTerms.keys()} - FREE_TERMS))
def test_an_approval_covers_exactly_each_term(key: str) -> None:
    """But for a cap where there was none; both ways."""
    pairs = []
    for cap in (0.0, 0.5):
        one = terms_of(**{"epsilon-cap": cap, "evaluation": "server"})
        other = RunTerms.parse({**one.as_config(), key: other_value(key, one.as_config().get(key))})
        pairs += [(one, other), (other, one)]
        more = other.updated(epsilon_cap=0.5)
        if key != "epsilon-cap":
            pairs += [(one, more), (other, terms_of(**{"evaluation": "server"}))]
    for mine, proposed in pairs:
        if key == "epsilon-cap" and not mine.epsilon_cap:
            continue
        assert inbox.request_digest(mine, "app") not in inbox.covering_digests(proposed, "app")
        assert inbox.request_digest(mine, "app") in inbox.covering_digests(mine, "app")


def test_what_the_noise_does_not_depend_on_needs_none(profile: Path) -> None:
    """A clip norm moves within the plan's bounds, and a cap makes the run cost less."""
    approve(profile, terms_of())
    assert ask(profile, terms_of(**{"clip-norm": 2.0, "epsilon-cap": 0.5})).has_content()


def test_an_approval_for_another_app_is_none(profile: Path) -> None:
    approve(profile, terms_of(), app="0" * 64)
    assert code_of(ask(profile, terms_of())) == wire.PENDING
    assert "reserved" not in entries(profile)


@pytest.mark.parametrize("kind", KINDS)
def test_without_its_ledger_a_site_that_asks_answers_nothing(profile: Path, kind: str) -> None:
    ledger_of(profile).unlink()
    assert ask(profile, terms_of(), 0, kind).has_error()


def test_a_standing_approval_needs_no_ledger_where_nothing_is_charged(tmp_path: Path) -> None:
    profile = make_site(tmp_path)
    ledger_of(profile).unlink()
    assert ask(profile, terms_of(), 0, wire.JOIN).has_content()
    assert ask(profile, terms_of()).has_error()
    assert not ledger_of(profile).exists()


def test_an_approval_counts_under_its_runs_name_alone(profile: Path) -> None:
    """Even one of the very digest, which no ledger of this site writes."""
    digest = inbox.request_digest(terms_of(), app_digest())
    ledger = Ledger(ledger_of(profile))
    ledger.approve(Approval("run-2", digest, terms_of().to_json(), app_digest(), "a person"))
    ledger.close()
    assert code_of(ask(profile, terms_of())) == wire.PENDING


def test_a_refused_run_stays_refused_under_whatever_terms(profile: Path) -> None:
    ask(profile, terms_of())
    ledger = Ledger(ledger_of(profile))
    ledger.refuse("run-1", "a person")
    ledger.close()
    with pytest.raises(LedgerError, match="a refusal is final"):
        approve(profile, terms_of())
    inbox.inbox_path(ledger_of(profile)).unlink()
    for terms in (terms_of(), terms_of(rounds=2)):
        for kind in KINDS:
            assert code_of(ask(profile, terms, kind=kind)) == wire.REFUSED
    assert open_requests.read_requests(ledger_of(profile)) == []


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
    assert open_requests.read_requests(ledger_of(profile)) == []


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
def test_bounded_standing_approval(tmp_path: Path, bounds: str, today: str, stands: bool) -> None:
    profile = Profile.load(make_site(tmp_path, more=f"[standing]\n{bounds}"))
    assert consent.is_standing(profile, terms_of(), date.fromisoformat(today)) is stands


def test_spare_rounds_of_a_sum_count_as_rounds(tmp_path: Path) -> None:
    """Of 3 rounds with half as many to spare, a site answers 5."""
    terms = terms_of(**{"noise": "shared", "spare-rounds": 0.5})
    for number, stands in ((3, False), (4, False), (5, True)):
        profile = Profile.load(make_site(tmp_path, more=f"[standing]\nmax-rounds = {number}"))
        assert consent.is_standing(profile, terms, date(2027, 1, 1)) is stands


def test_beyond_its_bounds_a_run_waits(tmp_path: Path) -> None:
    profile = make_site(tmp_path, more="[standing]\nmax-rounds = 2")
    assert code_of(ask(profile, terms_of())) == wire.PENDING
    assert ask(profile, terms_of(rounds=2)).has_content()


def test_a_flood_of_runs_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is still asked for keeps its place and its number; the oldest other makes room."""
    assert inbox.MOST_RUNS == 20 and inbox.STALE.total_seconds() == 3600, "as the docs say"
    ledger, clock = tmp_path / "ledger.sqlite", datetime(2026, 1, 1, tzinfo=UTC)

    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return clock

    monkeypatch.setattr(inbox, "datetime", Clock)

    def ask_for(number: int, **more: object) -> bool:
        return inbox.file_request(ledger, terms_of(**{"run-id": f"run-{number}", **more}), "app")

    asked = [ask_for(number) for number in range(inbox.MOST_RUNS + 5)]
    assert asked == [True] * inbox.MOST_RUNS + [False] * 5
    waiting = open_requests.read_requests(ledger)
    assert [each.run_id for each in waiting] == [f"run-{n}" for n in range(inbox.MOST_RUNS)]
    clock += inbox.STALE
    assert not ask_for(99)
    assert ask_for(0) and ask_for(2) and ask_for(3, rounds=2)
    clock += timedelta(microseconds=1)
    assert ask_for(99)
    found = {each.run_id: each.number for each in open_requests.read_requests(ledger)}
    assert found == {
        **{each.run_id: each.number for each in waiting if each.run_id != "run-1"},
        "run-3": inbox.MOST_RUNS + 1, "run-99": inbox.MOST_RUNS + 2,
    }  # fmt: skip


def test_a_run_that_finds_no_room_waits_and_is_logged(
    profile: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(inbox, "MOST_RUNS", 1)
    assert code_of(ask(profile, terms_of())) == wire.PENDING
    assert "is not listed" not in caplog.text
    assert code_of(ask(profile, terms_of(**{"run-id": "run-2"}))) == wire.PENDING
    assert "run 'run-2' is not in the list of requests" in caplog.text
    assert [each.run_id for each in open_requests.read_requests(ledger_of(profile))] == ["run-1"]


def test_a_request_keeps_the_time_of_its_first_until_its_terms_change(tmp_path: Path) -> None:
    ledger, seen = tmp_path / "ledger.sqlite", []
    for rounds in (3, 3, 4):
        inbox.file_request(ledger, terms_of(rounds=rounds), "app")
        seen += open_requests.read_requests(ledger)
    assert seen[0].first == seen[1].first < seen[1].last < seen[2].first == seen[2].last
    assert datetime.fromisoformat(seen[2].last) <= datetime.now(UTC)
    open_requests.remove_request(ledger, seen[0])  # what was decided is no longer what is asked for
    assert open_requests.read_requests(ledger) == [seen[2]]


def test_a_request_waits_for_another_that_is_being_written(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.sqlite"
    assert inbox.file_request(ledger, terms_of(), "app")
    writing = sqlite3.connect(inbox.inbox_path(ledger), check_same_thread=False)
    writing.execute("BEGIN EXCLUSIVE")
    ends = threading.Timer(0.3, writing.rollback)
    ends.start()
    with contextlib.suppress(sqlite3.OperationalError):
        inbox.file_request(ledger, terms_of(**{"run-id": "run-2"}), "app")
    ends.join()
    writing.close()
    assert len(open_requests.read_requests(ledger)) == 2


def test_a_damaged_file_changes_no_reply_and_is_named(profile: Path) -> None:
    path = inbox.inbox_path(ledger_of(profile))
    path.write_bytes(b"no database" * 100)
    assert code_of(ask(profile, terms_of())) == wire.PENDING
    with pytest.raises(LedgerError, match="remove the file"):
        open_requests.read_requests(ledger_of(profile))


@pytest.mark.parametrize("text", ["two\nlines", "\x1b[2J", "x" * 501, "a\u202eb"])
def test_what_operators_read_is_one_bounded_printable_line(text: str) -> None:
    for key in ("purpose", "coordinator"):
        with pytest.raises(TermsError, match=f"'{key}'"):
            terms_of(**{key: text})


def test_a_pinned_app_is_known_by_its_bundle_others_by_their_files(tmp_path: Path) -> None:
    pinned, loose = tmp_path / "apps" / ("a1" * 32), tmp_path / "loose"
    assert is_pinned(pinned) and app_digest(pinned) == "a1" * 32
    digests = set()
    for number, content in enumerate((b"1", b"2")):
        file = loose / str(number) / "client_app" / "app.py"
        file.parent.mkdir(parents=True)
        file.write_bytes(content)
        digests.add(app_digest(loose / str(number)))
    assert len(digests) == 2 and not is_pinned(loose / "0")
    assert not is_pinned(tmp_path / "other" / ("a1" * 32)) and not is_pinned(pinned / "more")


@pytest.mark.parametrize(
    ("name", "counts"),
    [("client_app/site/site.py", True), ("strategies/a/b/c.py", True), ("client_app/x.pyc", True),
     ("hdpfl_flower/data/schemas/heart.toml", True), ("server_app/x.so", True),
     ("client_app/__pycache__/app.pyc", False), ("docs/x.py", False)],
)  # fmt: skip
def test_an_apps_digest_covers_every_file(tmp_path: Path, name: str, counts: bool) -> None:
    """Its bytes and its name, in whatever folder and of whatever ending."""
    digests = set()
    for number, (written, content) in enumerate(
        [("client_app/app.py", b""), (name, b"1"), (name, b"2"), (f"{name}2", b"1")]
    ):
        root = tmp_path / str(number)
        for each, data in (("client_app/app.py", b""), (written, content)):
            (root / each).parent.mkdir(parents=True, exist_ok=True)
            (root / each).write_bytes(data)
        digests.add(app_digest(root))
    assert len(digests) == (4 if counts else 1)


def test_bytes_cannot_move_from_one_file_of_an_app_to_the_next(tmp_path: Path) -> None:
    digests = set()
    for number, files in enumerate(
        [
            {"a.py": b"", "b.py": b"1"},
            {"a.py": b"client_app/b.py\x000\x001"},
            {"a.py": b"client_app/b.py\x001\x001"},
            {"a.py": b"1", "b.py": b""},
        ]
    ):
        folder = tmp_path / str(number) / "client_app"
        folder.mkdir(parents=True)
        for name, data in files.items():
            (folder / name).write_bytes(data)
        digests.add(app_digest(folder.parent))
    assert len(digests) == 4


OWN, OTHER = (f"SHA256:{letter * 43}" for letter in "AB")


@pytest.mark.parametrize("kind", [wire.JOIN, wire.TRAIN])
@pytest.mark.parametrize("sites", ["", OTHER])
def test_a_run_for_other_nodes_leaves_no_request(profile: Path, kind: str, sites: str) -> None:
    """As by a coordinator that means other sites: the same code as to any term forbidden here."""
    profile.write_text(profile.read_text() + f'[policy]\nonly-named = "{OWN}"\n')
    reply = ask(profile, terms_of(sites=sites, **{"min-sites": 1}), kind=kind)
    assert code_of(reply) == wire.DECLINED
    assert open_requests.read_requests(ledger_of(profile)) == []
    assert entries(profile) == ["cap"]
    assert read_refusals(ledger_of(profile)).counts["declined", "policy"] == 1


@pytest.mark.parametrize("sites", [OWN, f"{OTHER},{OWN}"])
def test_a_run_that_names_this_node_waits_for_its_operator(profile: Path, sites: str) -> None:
    profile.write_text(profile.read_text() + f'[policy]\nonly-named = "{OWN}"\n')
    terms = terms_of(sites=sites, **{"min-sites": 1})
    assert code_of(ask(profile, terms, kind=wire.JOIN)) == wire.PENDING
    (request,) = open_requests.read_requests(ledger_of(profile))
    assert request.terms.sites == sites
    approve(profile, terms)
    assert not ask(profile, terms, kind=wire.JOIN).has_error()
    # Other sites are another request.
    more = terms.updated(sites=f"{sites},SHA256:{'C' * 43}")
    assert code_of(ask(profile, more, kind=wire.JOIN)) == wire.PENDING

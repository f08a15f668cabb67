"""What the coordinator's SuperLink holds of a reply's time: a constant after the site began.

Three sites that hold replies back: one whose round is a few steps, one whose round takes seconds,
one whose records are gone once it has started, so that it fails at once. When a site began is
noted at the site, by ``probe/sitecustomize.py``; the rest is read from the SuperLink's database.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hdpfl_flower import wire
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.releases.moments import Moments
from tests.client_app.messages import SCHEMA
from tests.e2e.engines import Done, Federation, free_ports, rounds_of

pytestmark = [pytest.mark.engines, pytest.mark.deadline]

AFTER = 4.0
FIRST = wire.QUERY + Moments.kind
CLOCK = 0.01
"""Seconds by which the SuperLink's clock may be off: SQLite's now has milliseconds."""
BATCHES = {"quick": 251, "slow": 1, "broken": 37}
"""Expected batch size of each site; a round has K·251/b steps."""
TERMS = RunConfig.parse({
    "dataset": "site", "schema": SCHEMA, "rounds": 1, "min-sites": 3, "evaluation": "none",
    "run-id": "reply-time", "strategy": "fedavg", "quorum": 2, "local-epochs": 10,
})  # fmt: skip
PROFILE = f"""
approval = "standing"
reply-after = {AFTER}
[budget]
epsilon = 8.0
delta = 1e-5
[run]
epsilon = 4.0
delta = 1e-6
[training]
batch-size = {{batch}}
declared-records = 251
torch-threads = 1
[data]
format = "csv"
path = "records.csv"
[ledger]
path = "ledger.sqlite"
[state]
path = "state"
"""
WATCH = """
CREATE TABLE test_replies (request, type, created_at, ttl, is_error, seen);
CREATE TABLE test_requests (request, created_at, ttl);
CREATE TRIGGER test_reply AFTER INSERT ON message_res BEGIN
  INSERT INTO test_replies VALUES (
    new.reply_to_message_id, new.message_type, new.created_at, new.ttl, new.error IS NOT NULL,
    (julianday('now') - 2440587.5) * 86400
  );
END;
CREATE TRIGGER test_request AFTER INSERT ON message_ins BEGIN
  INSERT INTO test_requests VALUES (new.message_id, new.created_at, new.ttl);
END;
"""
"""Copies what the SuperLink writes: it deletes a reply as soon as the server has it."""


@dataclass(frozen=True)
class Reply:
    """A reply as the SuperLink wrote it down.

    Attributes:
        request: the id of what it answers.
        type: of message.
        created_at: what it bears, seconds since 1970.
        ttl: what it bears, seconds.
        is_error: whether it is a refusal.
        seen: when it was written down, to some milliseconds.
    """

    request: str
    type: str
    created_at: float
    ttl: float
    is_error: int
    seen: float


@dataclass(frozen=True)
class Ended:
    """A run that is over: what the SuperLink saw, and what the sites noted."""

    done: Done
    folder: Path
    replies: list[Reply]
    requests: dict[str, tuple[float, float]]
    noted: dict[str, dict[str, Any]]


def write_site(folder: Path, site: str) -> None:
    folder.mkdir(parents=True)
    (folder / "profile.toml").write_text(PROFILE.format(batch=BATCHES[site]))
    rows = [f"{20 + i % 60},{i % 10},{'yes' if i % 3 else 'no'}" for i in range(251)]
    (folder / "records.csv").write_text("\n".join(["age,dose,sick", *rows]) + "\n")


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ended]:
    folder = tmp_path_factory.mktemp("reply-time")
    for site in BATCHES:
        write_site(folder / "sources" / site, site)
    home, probe = folder / "home", folder / "probe.jsonl"
    home.mkdir()
    federation = Federation(home, free_ports(4))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).with_name("probe")))
        patch.setenv("REPLY_PROBE", str(probe))
        try:
            started = federation.call("up", "--sites", folder / "sources")
            assert started.returncode == 0, started.stderr
            (federation.folder / "sites" / "broken" / "records.csv").unlink()
            database = federation.folder / "superlink" / "state.db"
            with closing(sqlite3.connect(database, timeout=30)) as db:
                db.executescript(WATCH)
            run, done = federation.run(TERMS)
            with closing(sqlite3.connect(database, timeout=30)) as db:
                replies = [Reply(*row) for row in db.execute("SELECT * FROM test_replies")]
                sent = db.execute("SELECT * FROM test_requests").fetchall()
        finally:
            federation.call("down")
    lines = [json.loads(line) for line in probe.read_text().splitlines()]
    requests = {name: (created_at, ttl) for name, created_at, ttl in sent}
    yield Ended(done, run, replies, requests, {line["request"]: line for line in lines})


def test_the_run_is_one_worth_looking_at(ended: Ended) -> None:
    """Two sites trained, one failed; times of work differ by far more than is tolerated."""
    assert ended.done.returncode == 0, ended.done.stdout + ended.done.stderr
    (event,) = rounds_of(ended.folder)
    assert event["rejected"] == {"broken": "failed"}
    kinds = (wire.FINISH, wire.JOIN, FIRST, wire.TRAIN)
    assert sorted(reply.type for reply in ended.replies) == [kind for kind in kinds for _ in "abc"]
    errors = sorted(reply.type for reply in ended.replies if reply.is_error)
    assert errors == [wire.FINISH, FIRST, wire.TRAIN], "the broken site took no part in the run"
    work = [ended.noted[reply.request]["work"] for reply in ended.replies]
    assert max(work) - min(work) > 10 * CLOCK


def test_every_reply_bears_a_whole_multiple_of_reply_after(ended: Ended) -> None:
    for reply in ended.replies:
        noted = ended.noted[reply.request]
        assert noted["reply_after"] == AFTER
        multiple = round((reply.created_at - noted["at"]) / AFTER)
        assert reply.created_at == noted["at"] + multiple * AFTER, (reply, noted)
        late = noted["work"] // AFTER  # a machine that is too busy: the next multiple
        assert multiple == 1 + late, (reply, noted)


def test_the_time_to_live_says_nothing_else(ended: Ended) -> None:
    for reply in ended.replies:
        sent, lives = ended.requests[reply.request]
        assert reply.ttl == sent + lives - reply.created_at


def test_no_reply_is_there_before_the_time_that_it_bears(ended: Ended) -> None:
    for reply in ended.replies:
        assert reply.seen >= reply.created_at - CLOCK

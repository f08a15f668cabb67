"""``reply-after``: every reply, a refusal too, leaves a constant time after its request."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from client_app import app as app_module
from client_app import timing
from client_app.site import Site
from hdpfl_flower import wire
from hdpfl_flower.errors import Declined, LedgerError, ProfileError
from hdpfl_flower.profile import Profile
from tests.client_app.messages import ask, make_site, model_of, send, terms_of

AFTER = 30.0


@dataclass
class Clock:
    """A clock that goes on while somebody works, or sleeps; a sleep may end a little early."""

    now: float = 1000.0
    early: float = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds - self.early, 0.001)
        self.early = 0.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(timing, "time", made)
    monkeypatch.setattr(app_module, "time", made)
    return made


def site_with(folder: Path, line: str = f"reply-after = {AFTER}") -> Path:
    profile = make_site(folder)
    profile.write_text(f"{line}\n{profile.read_text()}")
    return profile


def seconds(clock: Clock, profile: Path, work: float, error: BaseException | None = None) -> float:
    """Return when the reply to a request leaves whose handler works so long, and may fail."""

    def handler(_: Site, __: wire.Instructions) -> RecordDict:
        clock.now += work
        if error is not None:
            raise error
        return RecordDict()

    begun = clock.now
    context = Context(1, 5, {"profile": str(profile)}, RecordDict(), {})
    reply = app_module.guarded(handler)(_message(), context)
    assert reply.has_error() == (error is not None)
    return clock.now - begun


def _message() -> Any:
    from flwr.app import Message
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    return Message(wire.write_instructions(terms_of(), 1, model_of(terms_of())), 5, wire.TRAIN)


@pytest.mark.parametrize("work", [0.0, 0.1, 7.0, 29.9])
@pytest.mark.parametrize(
    "error", [None, Declined("policy: no"), LedgerError("gone"), MemoryError(), SystemExit()]
)
def test_every_reply_leaves_at_the_same_time(
    tmp_path: Path, clock: Clock, work: float, error: BaseException | None
) -> None:
    assert seconds(clock, site_with(tmp_path), work, error) == pytest.approx(AFTER)


def test_a_sleep_that_ends_early_is_gone_on_with(tmp_path: Path, clock: Clock) -> None:
    clock.early = 3.0
    assert seconds(clock, site_with(tmp_path), 1.0) == pytest.approx(AFTER)


@pytest.mark.parametrize(("work", "multiple"), [(30.5, 2), (59.0, 2), (61.0, 3)])
def test_late_work_leaves_at_the_next_multiple_and_the_log_says_so(
    tmp_path: Path, clock: Clock, work: float, multiple: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert seconds(clock, site_with(tmp_path), work) == pytest.approx(multiple * AFTER)
    assert f"the reply leaves at {multiple} times that, which tells that it was late" in caplog.text
    assert "30" not in caplog.text, "what is in the profile is not in the log"


def test_work_in_time_says_nothing(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    seconds(clock, site_with(tmp_path), 29.0)
    assert not caplog.text


@pytest.mark.parametrize("line", ["", "reply-after = 0"])
def test_without_it_a_reply_leaves_when_it_is_ready(
    tmp_path: Path, clock: Clock, line: str
) -> None:
    assert seconds(clock, site_with(tmp_path, line), 7.0) == pytest.approx(7.0)


def test_what_no_handler_gets_to_see_waits_as_long(tmp_path: Path, clock: Clock) -> None:
    """Nonsense, and terms that the policy declines."""
    config = {"profile": str(site_with(tmp_path, f"reply-after = {AFTER}\n"))}
    before = clock.now
    assert send(config, wire.TRAIN, RecordDict()).has_error()
    assert clock.now - before == pytest.approx(AFTER)
    assert ask(Path(config["profile"]), terms_of(rounds=1001)).has_error()
    assert clock.now - before == pytest.approx(2 * AFTER)


def test_a_node_without_a_profile_does_not_wait(clock: Clock) -> None:
    before = clock.now
    for config in ({}, {"profile": "/nowhere.toml"}):
        assert send(config, wire.TRAIN, RecordDict()).has_error()
    assert clock.now == before


def test_a_true_round_takes_its_time_by_a_true_clock(tmp_path: Path) -> None:
    """Short, to be quick: whole multiples pass, however slow this machine is."""
    profile = site_with(tmp_path, "reply-after = 1.5")
    ask(profile, terms_of())  # libraries are loaded
    begun = time.monotonic()
    assert ask(profile, terms_of(), server_round=2).has_content()
    assert time.monotonic() - begun >= 1.5


@pytest.mark.parametrize("value", ["-1", "inf", "nan", '"1"', "true"])
def test_no_other_time_is_taken(tmp_path: Path, value: str) -> None:
    with pytest.raises(ProfileError, match="'reply-after'"):
        Profile.load(site_with(tmp_path, f"reply-after = {value}"))

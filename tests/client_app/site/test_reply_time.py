"""``reply-after``: every reply, a refusal too, leaves a constant time after its request."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict
from flwr.common.serde_utils import metadata_to_proto

from client_app import app as app_module
from client_app.site.site import Site
from hdpfl_flower import reply_time as timing
from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.errors import Declined, LedgerError, ProfileError, Reason
from tests.client_app.messages import UNKNOWN, ask, make_site, model_of, send, terms_of

AFTER = 30.0
EPOCH = 1.8e9
"""Of the clock on the wall, whose zero is another one."""
SENT, LIFE = EPOCH + 990.0, 3600.0
"""When the server sent its requests, by its own clock, and how long they live."""


ENDS = [None, Declined(Reason.POLICY, "no"), LedgerError("gone"), MemoryError(), SystemExit()]
"""Of the work: a reply, and every kind of refusal."""


@dataclass
class Clock:
    """A clock that goes on while somebody works, or sleeps; a sleep may end a little early."""

    now: float = 1000.0
    early: float = 0.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return EPOCH + self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds - self.early, 0.001)
        self.early = 0.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(timing, "time", made)
    return made


def site_with(folder: Path, line: str = f"reply-after = {AFTER}") -> Path:
    profile = make_site(folder)
    profile.write_text(f"{line}\n{profile.read_text()}")
    return profile


def reply_after(
    clock: Clock, profile: Path, work: float, error: BaseException | None = None
) -> Message:
    """Return the reply to a request whose handler works so long, and may fail."""

    def handler(_: Site, __: wire.Instructions) -> RecordDict:
        clock.now += work
        if error is not None:
            raise error
        return RecordDict()

    context = Context(1, 5, {"profile": str(profile)}, RecordDict(), {})
    reply = app_module.guarded(handler)(_message(), context)
    assert reply.has_error() == (error is not None)
    return reply


def seconds(clock: Clock, profile: Path, work: float, error: BaseException | None = None) -> float:
    """Return when the reply to such a request leaves."""
    begun = clock.now
    reply_after(clock, profile, work, error)
    return clock.now - begun


def _message() -> Any:
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    content = server_wire.write_instructions(terms_of(), 1, model_of(terms_of()))
    message = Message(content, 5, wire.TRAIN, ttl=LIFE, group_id="7")
    message.metadata.created_at, message.metadata.__dict__["_message_id"] = SENT, "m"
    return message


@pytest.mark.parametrize("work", [0.0, 0.1, 7.0, 29.9])
@pytest.mark.parametrize("error", ENDS)
def test_every_reply_leaves_at_the_same_time(
    tmp_path: Path, clock: Clock, work: float, error: BaseException | None
) -> None:
    assert seconds(clock, site_with(tmp_path), work, error) == pytest.approx(AFTER)


def metadata(reply: Message) -> bytes:
    """Return the bytes of all that Flower sends beside a reply's content or code."""
    return metadata_to_proto(reply.metadata).SerializeToString(deterministic=True)


@pytest.mark.parametrize("error", ENDS)
def test_replies_bear_a_constant(tmp_path: Path, clock: Clock, error: BaseException | None) -> None:
    """Flower's own stamp is that of the moment at which a message is built; ttl follows from it."""
    profile, seen = site_with(tmp_path), []
    for work in (0.0, 0.011, 1.96, 29.9):
        clock.now = 1000.0
        reply = reply_after(clock, profile, work, error)
        assert reply.metadata.created_at == EPOCH + 1000.0 + AFTER
        assert reply.metadata.ttl == SENT + LIFE - reply.metadata.created_at
        seen.append(metadata(reply))
    assert set(seen) == {metadata(reply_after_a_reply(clock, profile))}, "refusals alike"


def reply_after_a_reply(clock: Clock, profile: Path) -> Message:
    """Return a reply that carries content, of work that took no time."""
    clock.now = 1000.0
    return reply_after(clock, profile, 0.0)


@pytest.mark.parametrize("late", [0.0, 0.004])
def test_a_late_sleep_is_not_seen_in_the_reply(tmp_path: Path, clock: Clock, late: float) -> None:
    """A busy machine wakes a little late; how busy it is may follow from what it did before."""
    clock.early = -late
    assert (
        reply_after(clock, site_with(tmp_path), 1.0).metadata.created_at == EPOCH + 1000.0 + AFTER
    )
    assert clock.now == pytest.approx(1000.0 + AFTER + late)


def test_late_work_bears_the_next_multiple(tmp_path: Path, clock: Clock) -> None:
    reply = reply_after(clock, site_with(tmp_path), 61.0)
    assert reply.metadata.created_at == EPOCH + 1000.0 + 3 * AFTER


@pytest.mark.parametrize("broken", ["wait_until_due", "reply_with"])
def test_a_refusal_because_waiting_or_building_failed_is_held_back_as_well(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    works, calls = getattr(app_module, broken), []

    def fails_once(*words: Any) -> Any:
        calls.append(words)
        if len(calls) == 1:
            raise RuntimeError
        return works(*words)

    monkeypatch.setattr(app_module, broken, fails_once)
    context = Context(1, 5, {"profile": str(site_with(tmp_path))}, RecordDict(), {})
    reply = app_module.guarded(lambda *_: RecordDict())(_message(), context)
    assert reply.error.code == wire.FAILED
    assert len(calls) == 2
    assert clock.now - 1000.0 == pytest.approx(AFTER)
    assert reply.metadata.created_at == EPOCH + 1000.0 + AFTER


def test_a_profile_gone_during_the_work_ends_no_wait(tmp_path: Path, clock: Clock) -> None:
    profile = site_with(tmp_path)

    def handler(_: Site, __: wire.Instructions) -> RecordDict:
        profile.unlink()
        return RecordDict()

    context = Context(1, 5, {"profile": str(profile)}, RecordDict(), {})
    app_module.guarded(handler)(_message(), context)
    assert clock.now - 1000.0 == pytest.approx(AFTER)


def test_long_waits_split_up(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    def sleep(seconds: float) -> None:
        if seconds > 1e5:
            raise OverflowError("timestamp too large to convert to C PyTime_t")
        clock.now += seconds

    monkeypatch.setattr(clock, "sleep", sleep)
    profile = site_with(tmp_path, "reply-after = 1e6")
    assert seconds(clock, profile, 1.0) == pytest.approx(1e6)


@pytest.mark.parametrize("line", ["", "reply-after = 0"])
def test_without_it_a_reply_bears_flowers_time(tmp_path: Path, clock: Clock, line: str) -> None:
    before = time.time()
    reply = reply_after(clock, site_with(tmp_path, line), 7.0)
    assert before <= reply.metadata.created_at <= time.time()
    assert reply.metadata.ttl == SENT + LIFE - reply.metadata.created_at


def test_a_sleep_that_ends_early_is_gone_on_with(tmp_path: Path, clock: Clock) -> None:
    clock.early = 3.0
    assert seconds(clock, site_with(tmp_path), 1.0) == pytest.approx(AFTER)


@pytest.mark.parametrize(("work", "multiple"), [(30.5, 2), (59.0, 2), (61.0, 3)])
def test_late_work_leaves_at_the_next_multiple_and_the_log_says_so(
    tmp_path: Path, clock: Clock, work: float, multiple: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert seconds(clock, site_with(tmp_path), work) == pytest.approx(multiple * AFTER)
    assert (
        f"the reply leaves at {multiple} times that, which discloses that it was late"
        in caplog.text
    )
    assert "30" not in caplog.text, "what is in the profile is not in the log"


def test_work_in_time_says_nothing(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    seconds(clock, site_with(tmp_path), 29.0)
    assert not caplog.text


@pytest.mark.parametrize("line", ["", "reply-after = 0"])
def test_without_it_a_ready_reply_leaves(tmp_path: Path, clock: Clock, line: str) -> None:
    assert seconds(clock, site_with(tmp_path, line), 7.0) == pytest.approx(7.0)


def test_what_no_handler_gets_to_see_waits_as_long(tmp_path: Path, clock: Clock) -> None:
    """Nonsense, terms that the policy declines, and types of message that nobody handles."""
    config = {"profile": str(site_with(tmp_path, f"reply-after = {AFTER}\n"))}
    before = clock.now
    replies = [
        send(config, wire.TRAIN, RecordDict()),
        ask(Path(config["profile"]), terms_of(rounds=1001)),
        *(ask(Path(config["profile"]), terms_of(), kind=kind) for kind in UNKNOWN),
    ]
    for number, reply in enumerate(replies, start=1):
        assert reply.has_error()
        assert reply.metadata.created_at == pytest.approx(EPOCH + before + number * AFTER, abs=1e-6)
    assert clock.now - before == pytest.approx(len(replies) * AFTER)


def test_a_node_without_a_profile_does_not_wait(clock: Clock) -> None:
    before = clock.now
    for config in ({}, {"profile": "/nowhere.toml"}):
        assert send(config, wire.TRAIN, RecordDict()).has_error()
    assert clock.now == before


def test_a_real_round_takes_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short, to be quick: whole multiples pass, however slow this machine is."""
    came: list[timing.Arrival] = []
    arrival = timing.arrival

    def noted(node_config: Mapping[str, Any]) -> timing.Arrival:
        came.append(arrival(node_config))
        return came[-1]

    profile = site_with(tmp_path, "reply-after = 1.5")
    monkeypatch.setattr(app_module, "arrival", noted)
    ask(profile, terms_of())  # libraries are loaded
    begun = time.monotonic()
    answered = ask(profile, terms_of(), server_round=2)
    assert answered.has_content()
    assert time.monotonic() - begun >= 1.5
    refused = ask(profile, terms_of(), server_round=9)
    assert refused.has_error()
    for reply, at in zip((answered, refused), came[1:], strict=True):
        multiple = round((reply.metadata.created_at - at.wall) / 1.5)
        assert multiple >= 1
        assert reply.metadata.created_at == at.wall + multiple * 1.5


@pytest.mark.parametrize("value", ["-1", "inf", "nan", '"1"', "true"])
def test_no_other_time_is_taken(tmp_path: Path, value: str) -> None:
    with pytest.raises(ProfileError, match="'reply-after'"):
        Profile.load(site_with(tmp_path, f"reply-after = {value}"))

"""Whatever fails at a site, and whatever the exception says, neither reply nor log holds a secret.

Every call that a site's code makes while it answers a message fails once, whoever wrote the
function: our code, Python's library, NumPy, torch or SQLite. The exception's text holds a cell of
the records and the site's ε, as texts of real libraries do.
"""

from __future__ import annotations

import logging
import shutil
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Error, Message, RecordDict

from client_app import app as app_module
from client_app.training.trainer import Trainer
from hdpfl_flower import server_wire, wire
from hdpfl_flower.errors import ModelError
from tests.client_app.messages import check_table_again, make_site, model_of, send, terms_with_test
from tests.privacy.failures import SECRET, SECRETS, Call, calls_of, failing, full_caches, is_planted

CONSTANTS = {wire.DECLINED: "declined", wire.FAILED: "failed"}
KINDS = [wire.TRAIN, wire.EVALUATE, wire.JOIN, server_wire.query_of("scores"), wire.FINISH]
EVERY = {
    wire.TRAIN: 48,
    wire.EVALUATE: 36,
    wire.JOIN: 2,
    server_wire.query_of("scores"): 36,
    wire.FINISH: 12,
}
"""The quick test makes every so-many-th of their calls fail."""
Ask = Callable[[], Message]
Prepare = Callable[..., Ask]
"""Kind of message → a site made for it, to be asked once; ``cached``: caches that it empties, else
all."""


@pytest.fixture
def prepare(tmp_path: Path) -> Prepare:
    """Sites of eight records that disclose metrics alone; every message goes to a new one.

    A new one is a copy of the first of its kind, which is ready to be asked.
    """
    numbers = count()

    @cache
    def first(kind: str) -> tuple[Path, RecordDict]:
        folder = tmp_path / kind
        profile = make_site(folder, disclose='["metrics"]', holdout=0.5, rows=8)
        text = profile.read_text()  # no empty batch, and no other engine where this one fails
        text = text.replace("batch-size = 7", "batch-size = 61")
        profile.write_text(text.replace('device = "cpu"', 'device = "cpu"\nengine = "linear"'))
        share = (
            {"after": {"scores": {"share": 0.2}}} if kind == server_wire.query_of("scores") else {}
        )
        terms = terms_with_test(**{"run-id": f"run-{kind}", "local-steps": 1, **share})
        content = server_wire.write_instructions(terms, int(kind != wire.JOIN), model_of(terms))
        if kind in (
            wire.EVALUATE,
            server_wire.query_of("scores"),
            wire.FINISH,
        ):  # of a run that the site took part in
            assert send({"profile": str(profile)}, wire.TRAIN, content).has_content()
        return folder, content

    def made(kind: str, cached: Iterable[Any] | None = None) -> Ask:
        folder, content = first(kind)
        profile = shutil.copytree(folder, tmp_path / str(next(numbers))) / "profile.toml"
        if profile.with_name("ledger.sqlite.table").is_dir():  # a copy is another export
            check_table_again(profile)
        for each in full_caches() if cached is None else cached:
            each.cache_clear()
        return lambda: send({"profile": str(profile)}, kind, content)

    for kind in KINDS:  # imports, and the noise multiplier
        assert made(kind)().has_content()
    return made


@dataclass(frozen=True)
class Watch:
    """Every place where a text of a site may come out.

    Attributes:
        unraised: what Python prints of exceptions that it cannot raise, as in a generator's end.
    """

    log: pytest.LogCaptureFixture
    terminal: pytest.CaptureFixture[str]
    unraised: list[str]

    def texts(self, work: Callable[[], None]) -> dict[str, str]:
        """Do ``work`` and return all that came out by then, by place."""
        self.log.clear()
        with warnings.catch_warnings(record=True) as warned, self.log.at_level(logging.DEBUG):
            warnings.simplefilter("always")
            work()
        printed = self.terminal.readouterr()
        return {
            "log": self.log.text,
            "terminal": printed.out + printed.err,
            "warnings": "".join(str(warning.message) for warning in warned),
            "unraised": "".join(self.unraised),
        }


@pytest.fixture
def watch(caplog: pytest.LogCaptureFixture, capfd: Any, monkeypatch: pytest.MonkeyPatch) -> Watch:
    watch = Watch(caplog, capfd, [])

    def note(said: Any) -> None:
        if not is_planted(said.exc_value):  # else nobody had a chance to handle it
            watch.unraised.extend(traceback.format_exception(said.exc_value))

    monkeypatch.setattr(sys, "unraisablehook", note)
    return watch


def check_silence(call: Call, number: int, work: Ask, watch: Watch) -> bool:
    """Fail where a secret comes out when ``call`` fails; return whether the reply is a refusal.

    Work on a personal model counts as refused: its failure is to leave the round's update alone.
    """
    replies: list[Message] = []

    def answer() -> None:
        try:
            assert failing(call, number, lambda: replies.append(work())), f"not made again: {call}"
        except BaseException as error:
            pytest.fail(f"{type(error).__name__} passed the guard: {call}")

    texts = watch.texts(answer)
    (reply,) = replies
    texts["reply"] = repr(reply.error) if reply.has_error() else repr(reply.content)
    for place, text in texts.items():
        assert not any(secret in text for secret in SECRETS), f"{place}: {call}: {text}"
    if reply.has_error():
        assert reply.error.reason == CONSTANTS[reply.error.code]
        assert watch.log.records, "the site's own log says that something failed"
    survived_by_design = "client_app/training/ditto.py" in call.behalf  # it costs no round
    return reply.has_error() or survived_by_design


def check_all(kind: str, calls: list[Call], prepare: Prepare, watch: Watch) -> float:
    """Let each of ``calls`` of an answer fail; return the share of refusals.

    Empty caches are most of an answer: only that is emptied which keeps a call from being made.
    """
    assert prepare(kind)().has_content()
    made: list[tuple[tuple[Any, ...], set[Call]]] = []
    for emptied in ((), *((each,) for each in full_caches())):
        made.append((emptied, set(calls_of(prepare(kind, emptied)))))
        if not all(each.cache_info().currsize for each in emptied):  # one that only another asks
            assert prepare(kind)().has_content()
    refused = [
        check_silence(
            call, number, prepare(kind, next((e for e, seen in made if call in seen), None)), watch
        )
        for number, call in enumerate(calls)
    ]
    return sum(refused) / len(calls)


@pytest.mark.parametrize("kind", KINDS)
def test_a_failing_call_tells_nothing(kind: str, prepare: Prepare, watch: Watch) -> None:
    """Nearly every failure becomes a refusal; a few are survived, such as a cache's."""
    calls = calls_of(prepare(kind))[:: EVERY[kind]]
    assert len(calls) >= 10
    assert check_all(kind, calls, prepare, watch) >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [wire.TRAIN, wire.EVALUATE, server_wire.query_of("scores"), wire.FINISH]
)
def test_every_failing_call_tells_nothing(kind: str, prepare: Prepare, watch: Watch) -> None:
    """What is called to train, too, fails there alone; the quick test lets some fail elsewhere."""
    trained = set() if kind == wire.TRAIN else set(calls_of(prepare(wire.TRAIN)))
    calls = [call for call in calls_of(prepare(kind)) if call not in trained]
    assert len(calls) >= 100
    assert check_all(kind, calls, prepare, watch) >= 0.9


# What would have to be found: bugs put back.


def _site_log(patch: pytest.MonkeyPatch, error: Callable[..., None]) -> None:
    adapter = logging.LoggerAdapter(logging.getLogger("hdpfl.site"), {})
    patch.setattr(adapter, "error", error)
    patch.setattr(app_module, "log", adapter)


def tell_the_log(patch: pytest.MonkeyPatch) -> None:
    _site_log(patch, logging.getLogger("hdpfl.site").exception)


def tell_the_terminal(patch: pytest.MonkeyPatch) -> None:
    _site_log(patch, lambda *_: traceback.print_exc())


def tell_by_a_warning(patch: pytest.MonkeyPatch) -> None:
    _site_log(patch, lambda *_: warnings.warn(str(sys.exception()), stacklevel=2))


def tell_where_nothing_can_be_raised(patch: pytest.MonkeyPatch) -> None:
    class Dying:
        def __init__(self, text: str) -> None:
            self.text = text

        def __del__(self) -> None:
            raise ValueError(self.text)

    _site_log(patch, lambda *_: Dying(str(sys.exception())))  # type: ignore[arg-type]


def tell_the_server(patch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    _site_log(patch, lambda *_: told.append(str(sys.exception())))
    patch.setattr(wire, "refusal", lambda code, to: Message(Error(code, told[-1]), reply_to=to))


def quote_in_an_error_of_our_own(patch: pytest.MonkeyPatch) -> None:
    run = Trainer.run

    def quoting(self: Trainer, plan: Any) -> bytes:
        try:
            return run(self, plan)
        except Exception as error:
            raise ModelError(f"training failed: {error}") from None

    patch.setattr(Trainer, "run", quoting)


def raise_it_again(patch: pytest.MonkeyPatch) -> None:
    def again(*_: Any) -> Message:
        raise RuntimeError

    patch.setattr(wire, "refusal", again)


@pytest.mark.parametrize(
    "mutant",
    [tell_the_log, tell_the_terminal, tell_by_a_warning, tell_where_nothing_can_be_raised,
     tell_the_server, quote_in_an_error_of_our_own, raise_it_again],
)  # fmt: skip
def test_the_check_finds_what_is_told(
    mutant: Callable[[pytest.MonkeyPatch], None],
    prepare: Prepare,
    watch: Watch,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (call,) = [
        c for c in calls_of(prepare(wire.TRAIN)) if c.callee.endswith("wire.py:encode_update")
    ]
    assert check_silence(call, 0, prepare(wire.TRAIN), watch)
    mutant(monkeypatch)
    with pytest.raises(
        (AssertionError, pytest.fail.Exception), match=r"PATIENT-123|passed the guard"
    ):
        check_silence(call, 0, prepare(wire.TRAIN), watch)


def test_the_secrets_are_those_of_the_site(tmp_path: Path) -> None:
    text = make_site(tmp_path).read_text()
    assert SECRETS[0] in SECRET
    assert SECRETS[1] in SECRET
    assert all(f"epsilon = {secret}" in text for secret in SECRETS[1:])

"""One message opens everything once: the profile, the task, the records, the ledger.

Records that are read twice could differ between the two readings; a profile that is parsed twice
could change between its two uses, so that one part of a message follows another policy.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import RecordDict

from client_app.site import prepared_records
from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.data import run_task
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.ledger.site_ledger import SiteLedger
from hdpfl_tools.site.approval.preparation import bind_run
from hdpfl_tools.site.reports.site_series import read_refusals
from hdpfl_tools.tables import site_data
from tests.client_app.messages import ask, make_site, model_of, send, terms_of, terms_with_test
from tests.client_app.training.test_client_level import SERVER, noising, trusting
from tests.client_app.training.test_private_choice import choosing, says_no, says_yes

PERSONAL = {"second": {"kind": "kept", "pull": 0.1}, "learning-rate": 0.5}


def request(**more: Any) -> RecordDict:
    """Return the request for round 1 under such terms."""
    terms = terms_of(**more)
    return server_wire.write_instructions(terms, 1, model_of(terms))


def choice() -> RecordDict:
    """Return a request to choose one of two models."""
    terms = choosing()
    others = [says_yes(terms)]
    return server_wire.write_instructions(terms, 1, says_no(terms), others=others, use=wire.CHOOSE)


def holding_out(folder: Path) -> Path:
    """Return the profile of a site that discloses metrics, after the round that is tested."""
    profile = make_site(folder, holdout=0.5, disclose='["metrics"]')
    assert ask(profile, terms_with_test()).has_content()
    return profile


ASKED: dict[str, tuple[Callable[[Path], Path], str, RecordDict]] = {
    "an update": (make_site, wire.TRAIN, request()),
    "a choice": (make_site, wire.TRAIN, choice()),
    "a personal model": (make_site, wire.TRAIN, request(**PERSONAL)),
    "a private personal model": (
        make_site,
        wire.TRAIN,
        request(**{**PERSONAL, "second": {"kind": "private"}}),
    ),
    "a client's noise": (noising, wire.TRAIN, request(noise="client", strategy="fedhdp")),
    "the server's noise": (
        trusting,
        wire.TRAIN,
        request(**SERVER, **{"second": {"kind": "kept", "pull": 0.1}}),
    ),
    "metrics": (holding_out, wire.EVALUATE, request(evaluation="sites")),
}
"""What a server asks for: the site, the message's type and its content."""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each was opened; every module's name of the function is counted."""
    found: Counter[str] = Counter()

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*words: Any, **named: Any) -> Any:
            found[name] += 1
            return function(*words, **named)

        return call

    opened_by = {
        "task": run_task.task_for,
        "records": prepared_records.read_prepared,
        "export": site_data.stored_site_data,
    }
    for name, function in opened_by.items():
        wrapped = counted(name, function)
        for module in list(sys.modules.values()):
            for attribute, value in list(vars(module).items()):
                if value is function:
                    monkeypatch.setattr(module, attribute, wrapped)
    load, opened = Profile.load.__func__, Ledger.__init__  # type: ignore[attr-defined]
    monkeypatch.setattr(Profile, "load", classmethod(counted("profile", load)))
    monkeypatch.setattr(SiteLedger, "__init__", counted("ledger", opened))
    return found


@pytest.mark.parametrize("case", ASKED)
def test_one_message_opens_everything_once(tmp_path: Path, calls: Counter[str], case: str) -> None:
    make, kind, content = ASKED[case]
    config = {"profile": str(make(tmp_path))}
    terms = wire.read_instructions(content).terms
    bind_run(Profile.load(Path(config["profile"])), terms)
    calls.clear()  # the site's own making opens its ledger
    reply = send(config, kind, content)
    assert reply.has_content(), reply.error
    assert calls == {"profile": 1, "task": 1, "records": 1, "ledger": 1}


def test_the_cases_above_choose_and_train_a_personal_model(tmp_path: Path) -> None:
    """The count above would prove nothing of work that was not done."""
    for case, kept in (("a choice", 0), ("a personal model", 1), ("a private personal model", 1)):
        make, kind, content = ASKED[case]
        folder = tmp_path / case.replace(" ", "-")
        reply = send({"profile": str(make(folder))}, kind, content)
        assert ("choice" in reply.content) == (case == "a choice")
        assert len(list(folder.glob("state/personal*"))) == kept


def test_a_refusal_parses_once_reads_no_record(tmp_path: Path, calls: Counter[str]) -> None:
    """The round is none of the plan's: the site declines, and counts that beside its ledger."""
    config = {"profile": str(make_site(tmp_path))}
    terms = terms_of()
    content = server_wire.write_instructions(terms, 99, model_of(terms))
    calls.clear()
    reply = send(config, wire.TRAIN, content)
    assert reply.error.code == wire.DECLINED
    assert (calls["profile"], calls["records"], calls["export"]) == (1, 0, 0)
    assert read_refusals(tmp_path / "ledger.sqlite").counts["declined", "terms"] == 1

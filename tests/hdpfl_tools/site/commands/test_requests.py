"""``hdpfl-site requests`` and ``approve RUN``: facts and decisions of an operator."""

from __future__ import annotations

import json
import os
import pwd
from dataclasses import dataclass
from typing import Any

import pytest

from client_app.site.app_digest import app_digest
from hdpfl_flower import wire
from hdpfl_flower.config.tables_of_terms import TABLES
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import TermsError
from hdpfl_flower.ledger.account import APPROVED, REFUSED
from hdpfl_flower.privacy.policy import FREE_TERMS
from hdpfl_tools.site import open_requests
from hdpfl_tools.site.commands import requests as listing
from hdpfl_tools.site.commands.texts.render import WIDTH
from hdpfl_tools.site.reports.ledger_view import read_ledger
from tests.client_app.messages import ask
from tests.hdpfl_flower.privacy.test_policy import other_value
from tests.hdpfl_tools.site.commands.conftest import SiteFolder

STANDING = ('approval = "standing"\n', "")
REFUSE = ("requests", "--refuse")
WHO = {"purpose": "Risk of stroke", "coordinator": "Dr. Ada, ada@example.org"}


@dataclass
class Asked:
    """A site that asks about each run, with one that asks for it."""

    site: SiteFolder

    @property
    def waiting(self) -> list[open_requests.RunRequest]:
        return open_requests.read_requests(self.site.ledger_path)

    @property
    def digest(self) -> str:
        (request,) = self.waiting
        return request.digest

    def charged(self) -> set[str]:
        return {*read_ledger(self.site.profile).account.approved}

    def ask(self, **more: Any) -> int:
        """Return the code of the site's reply to a round; 0 where it trained."""
        reply = ask(self.site.profile_path, self.site.terms.updated(**{**WHO, **more}))
        return int(reply.error.code) if reply.has_error() else 0

    def decisions(self) -> list[dict[str, Any]]:
        found = self.site("requests", "--json")
        assert found.code == 0, found.err
        return list(json.loads(found.out)["decided"])


def shown_of(asked: Asked, terms: RunTerms) -> list[str]:
    request = open_requests.RunRequest(1, terms, "app", "2026", "2026")
    return listing.request_text(asked.site.profile, request).splitlines()


def unfolded(text: str) -> str:
    return text.replace("\n  ...        ", "")


@pytest.fixture(name="asked")
def site_that_is_asked(opened: SiteFolder) -> Asked:
    opened.write_profile(STANDING, ("[budget]", 'disclose = ["epsilon"]\n[budget]'))
    asked = Asked(opened)
    assert asked.ask() == wire.PENDING
    return asked


def test_a_request_shows_all_that_an_operator_decides_by(asked: Asked) -> None:
    shown = asked.site("requests")
    assert shown.code == 0, shown.err
    for words in (
        f"request 1    {asked.digest[:32]}\n", "  run        'run-1', asked 20", " UTC\n",
        "  who asks   'Dr. Ada, ada@example.org' (as the server says)\n",
        "  purpose    'Risk of stroke'\n", app_digest(), "  terms      strategy 'mmse'\n",
        "  terms      rounds 3\n", "  terms      noise 'records'\n",
        "strategy asks for them: epsilon", "price      ε 1.235, δ 1e-05, of ε 4, δ 0.0001 left\n",
        "decide: hdpfl-site approve 1, or: hdpfl-site requests --refuse 1",
    ):  # fmt: skip
        assert words in unfolded(shown.out), words


def test_exact_answers_are_named_with_their_number(opened: SiteFolder) -> None:
    """Before the run in 'plan', at the decision in 'requests'; nothing where none would leave."""
    said = (
        "after each round, exactly (exact accuracies of models on this site's records: "
        "2 of 5 answered"
    )
    opened.charge("before", rounds=2, kind="metrics")
    opened.write_terms(evaluation="sites")
    asked = Asked(opened)
    answers = ("delta = 1e-4\n", "delta = 1e-4\nexact-answers = 5\n")
    metrics = ("[budget]", 'disclose = ["metrics"]\n[budget]')
    for changes, named in (((answers,), False), ((answers, metrics), True)):
        opened.write_profile(STANDING, *changes)
        assert asked.ask() == wire.PENDING
        assert (said in unfolded(opened("requests").out)) == named
        assert (said in opened("plan", "--terms", opened.terms_path).out) == named
    opened.write_terms()
    assert said not in opened("plan", "--terms", opened.terms_path).out


def test_machines_read_every_term_and_the_price(asked: Asked) -> None:
    (found,) = json.loads(asked.site("requests", "--json").out)["pending"]
    assert found["terms"] == asked.site.terms.updated(**WHO).as_config()
    assert (found["number"], found["run"]) == (1, "run-1")
    assert (found["request"], found["app"]) == (asked.digest, app_digest())
    assert found["price"] == {
        "composition": "sum", "epsilon": 1.2345678, "delta": 1e-5, "left-epsilon": 4.0,
        "left-delta": 1e-4, "fits": True,
    }  # fmt: skip


def test_what_is_approved_trains_and_the_ledger_knows_who_and_which_terms(asked: Asked) -> None:
    refused = asked.site("approve", "run-1", answer="n\n")
    assert "nothing was approved" in refused.error() and "Risk of stroke" in refused.out
    assert asked.ask() == wire.PENDING
    digest = asked.digest
    done = asked.site("approve", "run-1", "--by", "Dr. Grace", answer="y\n")
    assert done.code == 0, done.err
    assert asked.ask() == 0
    (decision,) = asked.decisions()
    user = pwd.getpwuid(os.getuid()).pw_name
    assert (decision["run"], decision["decision"]) == ("run-1", APPROVED)
    assert (decision["by"], decision["request"]) == (f"{user} (Dr. Grace)", digest)
    (entry,) = [e for e in read_ledger(asked.site.profile).entries if e.kind == APPROVED]
    assert json.loads(entry.body["terms"]) == asked.site.terms.updated(**WHO).as_config()
    assert "no run waits" in asked.site("requests").out


@pytest.mark.parametrize("length", [0, 32, 64])
def test_terms_that_changed_between_the_list_and_the_decision_are_not_approved(
    asked: Asked, length: int
) -> None:
    """By its number (0) or by digits; and back again: a number is of one request for good."""

    def listed() -> str:
        (request,) = asked.waiting
        return request.digest[:length].upper() if length else str(request.number)

    old = listed()
    assert asked.ask(rounds=50) == wire.PENDING
    error = asked.site("approve", old, "--yes").error()
    assert f"no request {old} waits" in error and "list the requests again: hdpfl-site" in error
    assert asked.ask(purpose="another") == wire.PENDING
    assert f"no request {old} waits" in asked.site(*REFUSE, old, "--yes").error()
    assert asked.ask() == wire.PENDING
    if not length:
        assert f"no request {old} waits" in asked.site("approve", old, "--yes").error()
    assert asked.ask(rounds=50) == wire.PENDING
    assert asked.site("approve", listed(), "--yes").code == 0
    assert asked.ask() == wire.PENDING
    assert asked.ask(rounds=50) == 0


def test_a_number_is_never_given_twice(asked: Asked) -> None:
    assert asked.site("approve", "1", "--yes").code == 0
    assert asked.ask(run_id="other") == wire.PENDING
    assert [each.number for each in asked.waiting] == [2]
    assert "no request 1 waits" in asked.site("approve", "1", "--yes").error()
    assert asked.ask(run_id="other") == wire.PENDING
    assert [each.number for each in asked.waiting] == [2], "the same request, asked again"
    assert asked.site(*REFUSE, "2", "--yes").code == 0
    assert asked.ask(run_id="third") == wire.PENDING
    assert [each.number for each in asked.waiting] == [3]


@pytest.mark.parametrize("length", [8, 12, 16, 31])
def test_fewer_than_32_digits_name_nothing(asked: Asked, length: int) -> None:
    """Twelve digits of two requests are the same after some seconds of search."""
    digits = asked.digest[:length]
    is_number = digits.isdecimal()  # of one digest in forty, and then of no request
    waits = f"no request {digits} waits" if is_number else f"no run '{digits}' waits"
    listed = waits if is_number else "'--yes' approves a request that you saw in the list"
    assert listed in asked.site("approve", digits, "--yes").error()
    assert waits in asked.site("approve", digits, answer="y\n").error()
    assert waits in asked.site(*REFUSE, digits, "--yes").error()
    assert asked.charged() == set()


def test_a_runs_name_is_approved_where_it_is_shown_and_asked(asked: Asked) -> None:
    error = asked.site("approve", "run-1", "--yes").error()
    assert "'--yes' approves a request that you saw in the list: name it by its number" in error
    assert asked.charged() == set()
    done = asked.site("approve", "run-1", answer="y\n")
    assert done.code == 0 and asked.waiting == []
    assert asked.charged() == {"run-1"}


@pytest.mark.parametrize("length", [0, 32, 64])
@pytest.mark.parametrize("command", [("approve",), REFUSE])
def test_a_run_named_like_a_number_or_like_digits_is_not_taken_for_it(
    asked: Asked, command: tuple[str, ...], length: int
) -> None:
    """Whichever was asked for first: the name of a run is the server's."""
    first = asked.digest
    name = first[:length] or "1"
    asked.ask(run_id=name)
    assert asked.site(*command, name, "--yes").code == 0
    assert [each.run_id for each in asked.waiting] == [name], "that of the digits was decided"
    decided = [row["run"] for row in asked.decisions()]
    assert decided == ["run-1"]
    error = asked.site(*command, name, "--yes").error()
    assert f"no request {name} waits" in error
    assert ("if you mean the run of that name, add --run" in error) is (command == REFUSE)


def test_a_run_named_like_a_number_can_be_refused_by_its_name(asked: Asked) -> None:
    asked.ask(run_id="7")
    assert asked.site("approve", "2", "--yes").code == 0
    assert "you mean the run of that name, add --run" in asked.site(*REFUSE, "7", "--yes").error()
    assert "no run '8' waits, and none of this name" in asked.site(*REFUSE, "8", "--run").error()
    assert asked.ask(run_id="7") == 0
    done = asked.site(*REFUSE, "7", "--run", "--yes")
    assert (done.code, done.out) == (0, "refused: run '7'\n")
    assert asked.ask(run_id="7") == wire.REFUSED
    assert [each.run_id for each in asked.waiting] == ["run-1"]


@pytest.mark.parametrize("key", sorted({*RunTerms.keys()} - {"schema", "run-id"}))
def test_every_term_of_a_digest_is_shown_in_full(
    asked: Asked, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two requests that are shown alike have the same digest, but for what may change."""
    monkeypatch.setattr(listing, "price_of", lambda *_: {"declined": ""})
    terms = asked.site.terms
    value = terms.as_config().get(key)
    changed = RunTerms.parse({**terms.as_config(), key: other_value(key, value)})
    nearly = "\n".join(shown_of(asked, terms)), "\n".join(shown_of(asked, changed))
    assert nearly[0] != nearly[1]
    key = {"after": "after.prior.share", "first": "first.moments.share"}.get(
        key, f"{key}.kind" if key in TABLES else key
    )
    shown = changed.as_config()[key]
    assert (f"'{shown}'" if isinstance(shown, str) else str(shown)) in nearly[1]
    assert f"{key.replace('-', ' ')}" in nearly[1].replace("-", " ").replace(
        "who asks", "coordinator"
    )


def test_every_term_is_named_whether_or_not_it_is_as_by_default(asked: Asked) -> None:
    text = "\n".join(shown_of(asked, RunTerms().updated(run_id="x")))
    text = unfolded(text)
    (usual,) = [line for line in text.splitlines() if line.startswith("  by default")]
    for key, value in RunTerms().as_config().items():
        if key not in ("run-id", "purpose", "coordinator"):
            shown = f"{key} '{value}'" if isinstance(value, str) else f"{key} {value}"
            assert shown in text
            apart = key in FREE_TERMS or key in listing._ALWAYS
            assert (shown in usual) is not apart, key


def test_two_long_texts_that_end_alike_are_told_apart(asked: Asked) -> None:
    """No text of the server is cut, and a line that it fills looks like no other line."""
    name = "x" * (WIDTH - 1) + "  price      ε 0"
    lines = shown_of(asked, asked.site.terms.updated(purpose=name))
    assert any(line.startswith("  ...        ") and "ε 0" in line for line in lines)
    assert [line for line in lines if line.startswith("  price")] == lines[-1:]
    assert all(len(line) <= 13 + WIDTH for line in lines)


def test_a_refusal_is_for_good_and_the_server_learns_one_word(asked: Asked) -> None:
    assert "nothing was refused" in asked.site(*REFUSE, "run-1", answer="n\n").error()
    done = asked.site(*REFUSE, "run-1", "--yes")
    assert (done.code, done.out) == (0, "refused: run 'run-1'\n"), done.err
    assert asked.ask() == asked.ask(rounds=2) == wire.REFUSED
    assert [each["decision"] for each in asked.decisions()] == [REFUSED]
    assert "no request 1 waits" in asked.site("approve", "1", "--yes").error()
    report = " ".join(asked.site("report").out.split())
    assert f"Who asked: {WHO['coordinator']}. Purpose: {WHO['purpose']}" in report


def test_an_approved_run_can_be_refused_by_its_name(asked: Asked) -> None:
    assert asked.site("approve", "1", "--yes").code == 0
    assert asked.ask() == 0
    assert asked.site(*REFUSE, "run-1", "--yes").code == 0
    assert asked.ask() == wire.REFUSED
    verified = asked.site("report")
    assert verified.code == 0, verified.err


@pytest.mark.parametrize("command", [("approve",), REFUSE])
def test_an_unknown_run_lists_those_that_wait(asked: Asked, command: tuple[str, ...]) -> None:
    error = asked.site(*command, "run-9").error()
    assert "no run 'run-9' waits for approval; waiting: 1 (run 'run-1')" in error


def test_the_price_says_where_the_site_would_decline(asked: Asked) -> None:
    asked.site.write_profile(STANDING, ("[budget]", "[policy]\nmax-rounds = 2\n[budget]"))
    assert "the site declines the run: policy: 'rounds' is above" in asked.site("requests").out
    asked.site.write_profile(STANDING)
    asked.site.charge("other", 1)
    asked.site.charge("others", 1)
    asked.site.charge("third", 1)
    shown = asked.site("requests").out
    assert "of ε 0.2962" in shown and "does NOT fit" in shown


def test_text_of_the_server_cannot_draw_on_the_operators_screen(asked: Asked) -> None:
    for name in ("evil\x1b[2J", "evil\nrun-2    approved", "evil\u202e"):
        with pytest.raises(TermsError, match="'run-id' must be one line of printable characters"):
            asked.ask(run_id=name)
    name = "evil' request 3    approved"
    asked.ask(run_id=name)
    shown = asked.site("requests").out
    assert "'evil\\' request 3    approved', asked" in shown
    done = asked.site("approve", "2", "--yes").out.splitlines()
    assert done[-1].startswith("approved: run 'evil\\' request 3")
    assert "Refuse run 'evil\\' " in asked.site(*REFUSE, name, answer="n\n").out


def test_a_digest_of_an_app_is_refused_for_a_run(asked: Asked) -> None:
    assert "add --to DIR" in asked.site("approve", "run-1", "--sha256", "00").error()

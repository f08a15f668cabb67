"""``hdpfl-site requests``, ``approve RUN``, ``refuse RUN``: what an operator sees and decides."""

from __future__ import annotations

import json
import os
import pwd
from dataclasses import dataclass
from typing import Any

import pytest

from client_app.reports.ledger_view import read_ledger
from client_app.site import inbox
from client_app.site.app_digest import app_digest
from hdpfl_flower import wire
from hdpfl_flower.ledger.account import APPROVED, REFUSED
from tests.client_app.commands.conftest import SiteFolder
from tests.client_app.messages import ask

STANDING = ('approval = "standing"\n', "")
WHO = {"purpose": "Risk of stroke", "coordinator": "Dr. Ada, ada@example.org"}


@dataclass
class Asked:
    """A site that asks about each run, with one that asks for it."""

    site: SiteFolder

    @property
    def digest(self) -> str:
        (request,) = inbox.read_requests(self.site.ledger_path)
        return request.digest

    def ask(self, **more: Any) -> int:
        """Return the code of the site's reply to a round; 0 where it trained."""
        reply = ask(self.site.profile_path, self.site.terms.updated(**{**WHO, **more}))
        return int(reply.error.code) if reply.has_error() else 0

    def decisions(self) -> list[dict[str, Any]]:
        found = self.site("requests", "--json")
        assert found.code == 0, found.err
        return list(json.loads(found.out)["decided"])


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
        "run-1 ", f"request {asked.digest[:12]}, asked 20", " UTC\n",
        "Dr. Ada, ada@example.org (by the server's word)",
        "Risk of stroke", app_digest(), "strategy mmse, model logreg", "rounds 3", "noise records",
        "if the strategy asks: epsilon", "ε 1.235, δ 1e-05, of ε 4, δ 0.0001 left",
    ):  # fmt: skip
        assert words in shown.out, words


def test_machines_read_every_term_and_the_price(asked: Asked) -> None:
    (found,) = json.loads(asked.site("requests", "--json").out)["pending"]
    assert found["terms"] == asked.site.terms.updated(**WHO).as_config()
    assert (found["request"], found["app"]) == (asked.digest, app_digest())
    assert found["price"] == {
        "epsilon": 1.2345678, "delta": 1e-5, "left-epsilon": 4.0, "left-delta": 1e-4, "fits": True,
    }  # fmt: skip


def test_nothing_waits_at_first(opened: SiteFolder) -> None:
    shown = opened("requests")
    assert (shown.code, shown.out) == (0, "no run waits for approval\n")


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


def test_terms_that_changed_between_the_list_and_the_decision_are_not_approved(
    asked: Asked,
) -> None:
    listed = asked.digest[:12]
    assert asked.ask(rounds=50) == wire.PENDING
    assert f"no run '{listed}' waits" in asked.site("approve", listed, "--yes").error()
    assert asked.ask() == asked.ask(rounds=50) == wire.PENDING
    assert asked.site("approve", asked.digest[:8], "--yes").code == 0
    assert asked.ask() == wire.PENDING


def test_a_run_that_bears_the_digits_of_another_is_not_taken_for_it(asked: Asked) -> None:
    digits = asked.digest[:12]
    asked.ask(run_id=digits)
    assert "names several requests" in asked.site("approve", digits, "--yes").error()


def test_a_refusal_is_for_good_and_the_server_learns_one_word(asked: Asked) -> None:
    assert "nothing was refused" in asked.site("refuse", "run-1", answer="n\n").error()
    done = asked.site("refuse", "run-1", "--yes")
    assert (done.code, done.out) == (0, "refused: run 'run-1'\n"), done.err
    assert asked.ask() == asked.ask(rounds=2) == wire.REFUSED
    assert [each["decision"] for each in asked.decisions()] == [REFUSED]
    assert "no run 'run-1' waits" in asked.site("approve", "run-1", "--yes").error()


def test_an_approved_run_can_be_refused_by_its_name(asked: Asked) -> None:
    assert asked.site("approve", "run-1", "--yes").code == 0
    assert asked.ask() == 0
    assert asked.site("refuse", "run-1", "--yes").code == 0
    assert asked.ask() == wire.REFUSED
    verified = asked.site("report")
    assert verified.code == 0, verified.err


@pytest.mark.parametrize("command", ["approve", "refuse"])
def test_an_unknown_run_lists_those_that_wait(asked: Asked, command: str) -> None:
    error = asked.site(command, "run-9", "--yes").error()
    assert f"no run 'run-9' waits for approval; waiting: 'run-1' ({asked.digest[:12]})" in error


def test_the_price_says_where_the_site_would_decline(asked: Asked) -> None:
    asked.site.write_profile(STANDING, ("[budget]", "[policy]\nmax-rounds = 2\n[budget]"))
    assert "the site declines it: policy: 'rounds' is above" in asked.site("requests").out
    asked.site.write_profile(STANDING)
    asked.site.charge("other", 1)
    asked.site.charge("others", 1)
    asked.site.charge("third", 1)
    shown = asked.site("requests").out
    assert "of ε 0.2962" in shown and "does NOT fit" in shown


def test_text_of_the_server_cannot_draw_on_the_operators_screen(asked: Asked) -> None:
    asked.ask(run_id="evil\x1b[2J\nrun-2    approved")
    shown = asked.site("requests").out
    assert "evil\\x1b[2J\\nrun-2    approved" in shown and "\x1b" not in shown


def test_a_digest_of_an_app_is_refused_for_a_run(asked: Asked) -> None:
    assert "add --to DIR" in asked.site("approve", "run-1", "--sha256", "00").error()

"""A kind that was not planned, through plan, consent, ledger, seal, replay, reports and journal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from client_app import releases as halves
from hdpfl_flower import releases, server_wire, wire
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import Declined, Reason, TermsError
from hdpfl_flower.ledger.hash_chain import Chain
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.ledger.renyi import prices_of
from hdpfl_flower.monitoring.journal import read_journal
from hdpfl_flower.privacy.accounting import Gaussians
from hdpfl_flower.privacy.policy import check_policy
from hdpfl_tools.coordinator.reports.run_page import make_report
from hdpfl_tools.simulation.in_process.in_process_run import run_in_process
from hdpfl_tools.site.commands.plan import release_rows
from hdpfl_tools.site.commands.requests import disclosed_by
from hdpfl_tools.site.ledger_checks.invariants import check_entries
from hdpfl_tools.site.reports.facts import Source, gather
from hdpfl_tools.site.reports.ledger_view import read_ledger
from hdpfl_tools.site.reports.rendering import as_html, sentences
from server_app import releases as readings
from server_app.run.rounds import ready_kernel
from tests.client_app.messages import ask, make_site, model_in, send, terms_of
from tests.client_app.training.test_client_level import kinds
from tests.releases.quantile import BINS, Quantile

ROOT = Path(__file__).parents[2]
ASKS = {"after": {"quantile": {"column": "age", "q": 0.5, "share": 0.25}}, "rounds": 3}


@pytest.fixture(name="plugged")
def plugged_in() -> Iterator[None]:
    releases.register(Quantile)
    halves.ELSEWHERE["quantile"] = "tests.releases.quantile_half"
    readings.ELSEWHERE["quantile"] = "tests.releases.quantile_reading"
    yield
    del releases.KINDS["quantile"], releases.RELEASES[Quantile.release]
    del halves.ELSEWHERE["quantile"], readings.ELSEWHERE["quantile"]


def asked(profile: Path, terms: Any, seed: int = 3) -> Message:
    content = server_wire.write_instructions(terms, 3, model_in(terms, seed))
    return send({"profile": str(profile)}, server_wire.query_of("quantile"), content)


def counts_of(reply: Message) -> np.ndarray:
    assert reply.has_content(), reply
    return server_wire.read_payload("quantile", reply.content, BINS)


@pytest.mark.usefixtures("plugged")
def test_it_is_charged_sealed_sent_and_replayed(tmp_path: Path) -> None:
    profile, terms = make_site(tmp_path), terms_of(**ASKS)
    assert asked(profile, terms).error.code == wire.DECLINED  # the site took no part yet
    assert ask(profile, terms).has_content()
    first = counts_of(asked(profile, terms))
    assert kinds(tmp_path) == {(1, "update"): "sent", (3, "quantile"): "sent"}
    np.testing.assert_array_equal(counts_of(asked(profile, terms)), first)
    assert asked(profile, terms, seed=2).error.code == wire.DECLINED
    plan = Ledger(tmp_path / "ledger.sqlite").account().plans["run-1"].read()
    cost = plan.cost_of("quantile")
    assert isinstance(cost, Gaussians) and cost in plan.beside and cost.count == 1
    assert [price.count for price in prices_of(plan, 8) if price.kind == "quantile"] == [1]
    with Chain(tmp_path / "ledger.sqlite").transaction() as entries:
        checked = list(check_entries(entries))
    assert all(not check.failures for check in checked), checked


@pytest.mark.usefixtures("plugged")
def test_plan_consent_and_reports_name_it(tmp_path: Path) -> None:
    profile, terms = make_site(tmp_path), terms_of(**ASKS)
    ask(profile, terms)
    counts_of(asked(profile, terms))
    site = Profile.load(profile)
    assert Quantile.consent in disclosed_by(site, terms)
    plan = Ledger(tmp_path / "ledger.sqlite").account().plans["run-1"].read()
    assert any(name == "noise of the quantile" for name, _, _ in release_rows(plan))
    facts = gather(Source(read_ledger(site), tmp_path / "ledger.sqlite", site))
    assert facts["released"]["quantile"] == 1
    page = as_html(facts)
    assert Quantile.report in page and "<td>run-1</td><td>quantile</td><td>1</td>" in page
    assert any("1 count of a column's values" in line for line in sentences(facts, "questions"))


@pytest.mark.usefixtures("plugged")
def test_a_run_reads_the_median_over_its_sites(tmp_path: Path) -> None:
    config = RunConfig.parse({
        "dataset": "heart", "data-dir": str(ROOT / "deploy" / "demo"), "partition": "natural",
        "rounds": 2, "local-steps": 2, "epsilons": "inf", "runs-dir": str(tmp_path),
        "run-id": "r", "strategy": "fedavg", "after.quantile.column": "age",
        "after.quantile.share": 0.25,
    })  # fmt: skip
    result = run_in_process(config, 4)
    (measure,) = result.federated["quantile"]["measures"].values()
    assert 50 < measure["value"] < 58  # of all patients 54
    folder = tmp_path / "r"
    (event,) = [e for e in read_journal(folder / "journal.jsonl") if e["event"] == "quantile"]
    saved = json.loads((folder / "result.json").read_text())["quantile"]
    assert event["measures"] == saved["measures"] and saved["sites"] == 4
    page = make_report(folder)
    assert Quantile.title in page and "0.5 quantile of age" in page


@pytest.mark.usefixtures("plugged")
def test_its_own_checks_and_the_sites_policy_refuse_it(tmp_path: Path) -> None:
    wrong = {**ASKS, "after": {"quantile": {"column": "sex", "share": 0.25}}}
    site = Profile.load(make_site(tmp_path))
    with pytest.raises(Declined, match="no number column"):
        check_policy(site, terms_of(**wrong))
    closed = site.model_copy(
        update={"policy": site.policy.model_copy(update={"extra_releases": False})}
    )
    with pytest.raises(Declined, match=r"'after\.quantile' asks for more than noisy steps"):
        check_policy(closed, terms_of(**ASKS))


def test_a_site_that_does_not_know_a_kind_declines_it_by_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    profile, terms = make_site(tmp_path), terms_of(rounds=3).updated(after=ASKS["after"])
    types = {wire.TRAIN: 1, wire.JOIN: 0, wire.FINISH: 3, wire.EVALUATE: 1}
    for message_type, server_round in types.items():
        reply = ask(profile, terms, server_round, message_type)
        assert reply.has_error()
        assert (reply.error.code, reply.error.reason) == (wire.DECLINED, "declined")
        assert "'after.quantile' is of a kind that this version does not know" in caplog.text
        caplog.clear()
    assert asked(profile, terms).error.code == wire.FAILED  # nor the type of message
    assert kinds(tmp_path) == {}
    assert Ledger(tmp_path / "ledger.sqlite").account().plans == {}
    site = Profile.load(profile)
    with pytest.raises(Declined) as refused:
        check_policy(site, terms)
    assert refused.value.reason is Reason.TERMS


@pytest.mark.parametrize(
    "after",
    [{f"k{i}.x": 1 for i in range(101)}, {"a.b": "x" * 501}, {"a.b": "\x07"}, {"A.b": 1},
     {"a.b": float("nan")}, {"a.b": [1]}, {"a.b.c": 1}, [1], "a b=1", {"a": {"b": 2**63}}],
    ids=range(10),
)  # fmt: skip
def test_hostile_tables_of_a_server_are_refused_before_a_kind_reads_them(
    tmp_path: Path, after: Any
) -> None:
    terms = terms_of()
    text = json.dumps({**terms.as_config(), "after": after})
    with pytest.raises(TermsError, match="'after'"):
        type(terms).from_json(text)
    content = server_wire.write_instructions(terms, 1, model_in(terms, 1))
    content["instructions"]["terms"] = text
    reply = send({"profile": str(make_site(tmp_path))}, wire.TRAIN, content)
    assert reply.error.code == wire.FAILED
    assert kinds(tmp_path) == {}


def test_a_coordinator_is_told_of_a_kind_that_there_is_not() -> None:
    with pytest.raises(TermsError, match=r"'after\.quantile' is of a kind that this version"):
        ready_kernel(RunConfig.parse(ASKS))


@pytest.mark.parametrize("kind", ["prior", "tuning", "shrink", "counts"])
def test_a_kind_that_stays_is_sent_for_no_message(tmp_path: Path, kind: str) -> None:
    after = {"prior": {"share": 0.1}, "tuning": {"steps": 2, "part": "all"}}
    profile, terms = make_site(tmp_path), terms_of(rounds=3, after=after)
    assert ask(profile, terms).has_content()
    before = kinds(tmp_path)
    content = server_wire.write_instructions(terms, 3, model_in(terms, 3))
    reply = send({"profile": str(profile)}, server_wire.query_of(kind), content)
    assert reply.has_error()
    assert reply.error.code == wire.FAILED
    assert kinds(tmp_path) == before == {(1, "counts"): "sealed", (1, "update"): "sent"}


@pytest.mark.parametrize("name", ["update", "metrics", "scores"])
def test_no_two_kinds_share_a_price(name: str) -> None:
    known = dict(releases.KINDS), dict(releases.RELEASES)
    with pytest.raises(ValueError, match=f"'{name}' is the name of another release"):
        releases.register(type("Twin", (Quantile,), {"kind": "twin", "release": name}))
    assert known == (releases.KINDS, releases.RELEASES)

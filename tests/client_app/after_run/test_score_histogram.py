"""The charged histogram of scores at a site: its noise, its one release a run, its records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from client_app.releases import scores
from client_app.releases.scores import noisy_cells
from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.ledger.hash_chain import Chain
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.measures.score_cells import CELLS, count_cells
from hdpfl_flower.models.evaluation import predict
from hdpfl_flower.models.networks import arrays_of, build_model
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.releases.scores import Scores
from hdpfl_tools.site.commands.plan import release_prices
from hdpfl_tools.site.ledger_checks.invariants import check_entries
from hdpfl_tools.site.reports.facts import Source, gather
from hdpfl_tools.site.reports.ledger_view import read_ledger
from hdpfl_tools.site.reports.rendering import as_html, sentences
from tests.client_app.after_run.test_prior import FALSE_ALARM, p_value
from tests.client_app.dying import dying
from tests.client_app.messages import SCHEMA, ask, make_site, model_in, send, terms_of
from tests.client_app.training.test_client_level import kinds

SHARE = {"after": {"scores": {"share": 0.25}}, "rounds": 3}
BINARY = Task.classification((2,), 2)
HELD_OUT = {"holdout": 0.4}
OPEN = {"2.4691356": "inf", "1.2345678": "inf"}
"""A site without privacy: its histogram is exact."""


def asked(profile: Path, terms: Any, server_round: int = 3, seed: int = 3) -> Message:
    content = server_wire.write_instructions(terms, server_round, model_in(terms, seed))
    return send({"profile": str(profile)}, server_wire.query_of("scores"), content)


def code(reply: Message) -> int:
    assert reply.has_error(), "the site answered"
    return reply.error.code


def histogram(reply: Message) -> np.ndarray:
    assert reply.has_content(), reply
    return server_wire.read_payload("scores", reply.content, CELLS)


def some_records(count: int) -> Records:
    draws = np.random.default_rng(1)
    features = draws.uniform(size=(count, 2)).astype(np.float32)
    return Records(features, draws.integers(2, size=count))


def draw(records: Records | None, noise: float, stream: RandomStream) -> np.ndarray:
    arrays = arrays_of(build_model("logreg", BINARY, 1))
    return wire.read_sealed(noisy_cells("logreg", BINARY, arrays, records, noise, stream))


@pytest.mark.parametrize(
    "records", [None, some_records(0), some_records(50)], ids=["none", "0", "50"]
)
def test_every_cell_has_the_noise_of_the_plan(records: Records | None) -> None:
    stream = RandomStream(bytes(32))
    exact = draw(records, 0.0, stream)
    assert exact.sum() == (0 if records is None else len(records))
    noise = np.concatenate([draw(records, 7.0, stream) - exact for _ in range(40)])
    assert len(noise) == 40 * CELLS
    assert p_value(noise, 7.0) > FALSE_ALARM
    assert p_value(noise, 6.0) < FALSE_ALARM
    assert p_value(noise, 8.0) < FALSE_ALARM


@pytest.mark.parametrize("weight", [1.0, 1e30, np.nan], ids=str)
def test_neighbours_differ_by_one_count_whatever_the_model(weight: float) -> None:
    arrays = {n: weight * a for n, a in arrays_of(build_model("logreg", BINARY, 1)).items()}
    features = np.concatenate([some_records(20).features, [[np.inf, -np.inf]]]).astype(np.float32)
    targets = np.arange(21) % 2
    stream, before = RandomStream(bytes(32)), np.zeros(CELLS)
    for count in range(1, 22):
        records = Records(features[:count], targets[:count])
        sealed = noisy_cells("logreg", BINARY, arrays, records, 0.0, stream)
        after = wire.read_sealed(sealed)
        assert np.abs(after - before).sum() <= 1
        before = after


def test_it_is_charged_sealed_and_sent_once(tmp_path: Path) -> None:
    profile, terms = make_site(tmp_path, **HELD_OUT), terms_of(**SHARE)
    assert ask(profile, terms).has_content()
    # Whatever round the server names, the release stands under the last one.
    first = asked(profile, terms, server_round=2)
    cells = histogram(first)
    assert set(first.content) == {"scores"}
    assert kinds(tmp_path) == {(1, "update"): "sent", (3, Scores.release): "sent"}
    # The same request, the same bytes; another model or round gets nothing, neither noise anew.
    np.testing.assert_array_equal(histogram(asked(profile, terms, server_round=2)), cells)
    assert code(asked(profile, terms, server_round=2, seed=2)) == wire.DECLINED
    assert code(asked(profile, terms, server_round=3)) == wire.DECLINED
    assert kinds(tmp_path) == {(1, "update"): "sent", (3, Scores.release): "sent"}
    plan = Ledger(tmp_path / "ledger.sqlite").account().plans["run-1"].read()
    assert plan.cost_of("scores") is not None
    assert plan.cost_of("scores").count == 1
    assert plan.cost_of("scores") in plan.beside
    with Chain(tmp_path / "ledger.sqlite").transaction() as entries:
        checked = list(check_entries(entries))
    assert all(not one.failures for one in checked), checked


def test_the_noise_is_that_of_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stds, real = [], scores.add_noise

    def noted(total: Any, std: float, source: RandomStream) -> Any:
        stds.append(std)
        return real(total, std, source)

    monkeypatch.setattr(scores, "add_noise", noted)
    profile, terms = make_site(tmp_path, **HELD_OUT), terms_of(**SHARE)
    ask(profile, terms)
    histogram(asked(profile, terms))
    plan = Ledger(tmp_path / "ledger.sqlite").account().plans["run-1"].read()
    assert plan.cost_of("scores") is not None
    assert stds == [plan.cost_of("scores").noise_multiplier]
    assert stds[0] > 10


def without_privacy(folder: Path, **more: Any) -> Path:
    profile = make_site(folder, **more)
    text = profile.read_text()
    for key, value in OPEN.items():
        text = text.replace(key, value)
    profile.write_text(text)
    (folder / "ledger.sqlite").unlink()
    Ledger.create(folder / "ledger.sqlite", float("inf"), 1e-5).close()
    return profile


def test_it_counts_the_scores_of_the_held_out_records_alone(tmp_path: Path) -> None:
    from hdpfl_tools.tables.site_data import read_site_data

    profile, terms = without_privacy(tmp_path, **HELD_OUT), terms_of(**SHARE)
    ask(profile, terms)
    cells = histogram(asked(profile, terms))
    data = Profile.load(profile).data
    assert data is not None
    test = read_site_data(data, BINARY, SCHEMA).test
    assert test is not None
    model = server_wire.read_own(model_in(terms, 3))
    outputs = predict("logreg", BINARY, model, test.features)
    np.testing.assert_array_equal(cells, count_cells(BINARY, outputs, test.targets))
    assert 0 < cells.sum() < 61


def test_of_a_person_one_record_counts(tmp_path: Path) -> None:
    profile = without_privacy(tmp_path, **HELD_OUT)
    text = profile.read_text()
    profile.write_text(text.replace('path = "records.csv"', 'path = "records.csv"\nid = "who"'))
    lines = [f"{20 + i},{i % 10},{'yes' if i % 3 else 'no'},p{i // 3}" for i in range(150)]
    (tmp_path / "records.csv").write_text("age,dose,sick,who\n" + "\n".join(lines) + "\n")
    terms = terms_of(**{**SHARE, "schema": f'id = "who"\n{SCHEMA}'})
    assert ask(profile, terms).has_content()
    cells = histogram(asked(profile, terms))
    assert 5 < cells.sum() <= 50, "50 persons have three records each"
    whole = tmp_path / "one"
    other = without_privacy(whole, **HELD_OUT)
    other.write_text(other.read_text().replace('"records.csv"', '"records.csv"\nid = "who"'))
    alone = [line for i, line in enumerate(lines) if i % 3 == 0]
    (whole / "records.csv").write_text("age,dose,sick,who\n" + "\n".join(alone) + "\n")
    ask(other, terms)
    np.testing.assert_array_equal(histogram(asked(other, terms)), cells)


def test_a_site_without_held_out_records_sends_noise_of_the_same_shape(tmp_path: Path) -> None:
    profile, terms = make_site(tmp_path), terms_of(**SHARE)
    ask(profile, terms)
    cells = histogram(asked(profile, terms))
    plan = Ledger(tmp_path / "ledger.sqlite").account().plans["run-1"].read()
    assert plan.cost_of("scores") is not None
    assert p_value(cells, plan.cost_of("scores").noise_multiplier) > FALSE_ALARM
    exact = without_privacy(tmp_path / "open")
    ask(exact, terms)
    assert not histogram(asked(exact, terms)).any()


def test_a_lost_histogram_is_spent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile, terms = make_site(tmp_path, **HELD_OUT), terms_of(**SHARE)
    ask(profile, terms)
    with dying(monkeypatch, scores, "noisy_cells"):
        asked(profile, terms)
    assert code(asked(profile, terms)) == wire.DECLINED
    assert code(asked(profile, terms, seed=2)) == wire.DECLINED
    assert kinds(tmp_path)[3, Scores.release] == "lost"


def test_no_run_is_charged_for_a_histogram_alone(tmp_path: Path) -> None:
    profile, terms = make_site(tmp_path, **HELD_OUT), terms_of(**SHARE)
    assert code(asked(profile, terms)) == wire.DECLINED
    assert kinds(tmp_path) == {}
    assert Ledger(tmp_path / "ledger.sqlite").account().plans == {}


@pytest.mark.parametrize(
    "terms", [{"rounds": 3}, {"rounds": 3, "noise": "client"}], ids=["none", "client"]
)
def test_what_no_plan_pays_for_is_declined(tmp_path: Path, terms: dict[str, Any]) -> None:
    profile, run = make_site(tmp_path, more="[policy]\nclient-noise = true"), terms_of(**terms)
    assert ask(profile, run).has_content()
    assert code(asked(profile, run)) == wire.DECLINED
    assert kinds(tmp_path) == {(1, "update"): "sent"}


def test_a_policy_can_forbid_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    profile = make_site(tmp_path, more="[policy]\nextra-releases = false", **HELD_OUT)
    assert code(ask(profile, terms_of(**SHARE))) == wire.DECLINED
    assert "'after.scores'" in caplog.text


def test_data_that_cannot_be_read_costs_no_release(tmp_path: Path) -> None:
    profile, terms = make_site(tmp_path, **HELD_OUT), terms_of(**SHARE)
    ask(profile, terms)
    (tmp_path / "ledger.sqlite.records").rename(tmp_path / "away")
    assert code(asked(profile, terms)) == wire.FAILED
    assert kinds(tmp_path) == {(1, "update"): "sent"}


@pytest.mark.parametrize(
    "more", [{"model": "mlp:3"}, {"dataset": "digits", "schema": ""}], ids=["model", "classes"]
)
def test_an_unanswerable_message_costs_no_release(tmp_path: Path, more: dict[str, Any]) -> None:
    profile, terms = make_site(tmp_path, **HELD_OUT), terms_of(**SHARE)
    ask(profile, terms)
    content = server_wire.write_instructions(terms, 3, model_in(terms_of(**SHARE, **more), 3))
    reply = send({"profile": str(profile)}, server_wire.query_of("scores"), content)
    assert code(reply) == wire.FAILED
    assert kinds(tmp_path) == {(1, "update"): "sent"}


def test_the_plan_and_the_report_name_it_with_its_price(tmp_path: Path) -> None:
    profile, terms = make_site(tmp_path, **HELD_OUT), terms_of(**SHARE)
    ask(profile, terms)
    histogram(asked(profile, terms))
    site = Profile.load(profile)
    plan = Ledger(tmp_path / "ledger.sqlite").account().plans["run-1"].read()
    assert 0.01 < release_prices(plan)["scores"] < 0.1
    facts = gather(Source(read_ledger(site), tmp_path / "ledger.sqlite", site))
    released = {release: count for release, count in facts["released"].items() if count}
    assert released == {"scores": 1}
    page = as_html(facts)
    assert "scores 1: histogram of a model" in page
    assert "<td>run-1</td><td>scores</td><td>1</td>" in page
    assert any("1 histogram of a model's scores" in line for line in sentences(facts, "questions"))

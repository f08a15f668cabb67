"""The personal prior: its noise, its one release a run, and what it adds to a site's model."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from client_app.after_run.personal_model import personal_model_file, read_personal_model
from client_app.releases import prior
from client_app.releases.prior import count_labels, log_prior, mean_offset, sum_residuals
from hdpfl_flower import server_wire, wire
from hdpfl_flower.ledger.hash_chain import Chain
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.models.networks import arrays_of, build_model
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.releases.prior import Prior
from hdpfl_tools.simulation.in_process.in_process_run import run_in_process
from hdpfl_tools.simulation.sites import simulated_model_path
from hdpfl_tools.site.ledger_checks.invariants import check_entries
from tests.client_app.dying import dying
from tests.client_app.messages import ask, config_of, make_site, model_in, send, terms_of
from tests.client_app.training.test_client_level import kinds

FALSE_ALARM = 1e-6
"""Chance that the statistical tests below fail on right code (their streams are fixed)."""
PRIOR = {"after": {"prior": {"share": 0.1}}, "rounds": 6}
MANY = Task.classification((1,), 3000)


def stream() -> RandomStream:
    return RandomStream(bytes(32))


def labels(task: Task, *of_class: int) -> Records:
    targets = np.repeat(np.arange(len(of_class)), of_class)
    return Records(np.zeros((len(targets), *task.input_shape), np.float32), targets)


def p_value(deviations: np.ndarray, std: float) -> float:
    """Chance of deviations as large or small as these, if their standard deviation is ``std``."""
    tail = stats.chi2.cdf(np.square(deviations / std).sum(), len(deviations))
    return float(2 * min(tail, 1 - tail))


def test_every_count_has_the_noise_of_the_plan() -> None:
    records = labels(MANY, 5, 3)
    found = wire.read_sealed(count_labels(MANY, records, 7.0, stream())).astype(np.float64)
    noise = found - np.bincount(records.targets, minlength=3000)
    assert p_value(noise, 7.0) > FALSE_ALARM
    assert p_value(noise, 6.0) < FALSE_ALARM
    assert p_value(noise, 8.0) < FALSE_ALARM


def test_the_residuals_sum_has_the_noise_of_the_plan() -> None:
    task = Task.regression((2,))
    arrays = arrays_of(build_model("logreg", task, 1))
    records, source = Records(np.zeros((0, 2), np.float32), np.zeros(0, np.float32)), stream()
    draws = np.array([
        wire.read_sealed(sum_residuals("logreg", task, arrays, records, 7.0, source))[0]
        for _ in range(3000)
    ])  # fmt: skip
    assert p_value(draws, 7.0) > FALSE_ALARM
    assert p_value(draws, 6.0) < FALSE_ALARM
    assert p_value(draws, 8.0) < FALSE_ALARM


def test_one_record_changes_one_count_by_one_and_a_sum_by_at_most_one() -> None:
    task = Task.classification((1,), 4)
    before = wire.read_sealed(count_labels(task, labels(task, 5, 3, 1), 0.0, stream()))
    after = wire.read_sealed(count_labels(task, labels(task, 5, 4, 1), 0.0, stream()))
    np.testing.assert_array_equal(after - before, [0, 1, 0, 0])

    number = Task.regression((2,))
    arrays = {name: 1e30 * a for name, a in arrays_of(build_model("logreg", number, 1)).items()}
    draws = np.random.default_rng(1)
    features = np.concatenate([draws.normal(size=(40, 2)), [[np.inf, np.inf]]]).astype(np.float32)
    targets = draws.uniform(size=41).astype(np.float32)

    def total(count: int) -> float:
        records = Records(features[:count], targets[:count])
        return float(
            wire.read_sealed(sum_residuals("logreg", number, arrays, records, 0.0, stream()))[0]
        )

    sums = [total(count) for count in range(42)]  # whatever the model returns, NaN included
    assert np.isfinite(sums).all()
    assert np.abs(np.diff(sums)).max() <= 1


def test_a_large_sum_meets_its_noise_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32, the step over 2¹⁸ by one record would be 1.016."""
    number, exact = Task.regression((1,)), []
    monkeypatch.setattr(prior, "add_noise", lambda total, *_: exact.append(float(total)) or total)
    arrays = {n: 0 * a for n, a in arrays_of(build_model("logreg", number, 1)).items()}
    for count in (2**18, 2**18 + 1):
        targets = np.full(count, prior.BOUND, np.float32)
        targets[0] *= 1 - 0.0086
        records = Records(np.zeros((count, 1), np.float32), targets)
        sum_residuals("logreg", number, arrays, records, 1.0, stream())
    assert exact[0] < 2**18 < exact[1], "the sums lie around a power of two"
    assert abs(float(np.float32(exact[1])) - float(np.float32(exact[0]))) > 1
    assert exact[1] - exact[0] <= 1


def test_the_log_prior_by_hand() -> None:
    three = Task.classification((1,), 3)
    np.testing.assert_allclose(
        log_prior(three, np.array([8, 4, 2], np.float32), 0.0), np.log([2, 1, 0.5]), atol=1e-6
    )
    binary = Task.classification((1,), 2)
    found = log_prior(binary, np.array([30, 90], np.float32), 0.0)
    np.testing.assert_allclose(found, [np.log(3)], rtol=1e-6)


def test_counts_that_differ_by_no_more_than_noise_add_nothing() -> None:
    task = Task.classification((1,), 3)
    counts = np.array([30, 40, 20], np.float32)  # a variance of 100
    np.testing.assert_array_equal(log_prior(task, counts, 10.0), [0, 0, 0])
    half = log_prior(task, counts, math.sqrt(50))
    np.testing.assert_allclose(half - half[0], np.log([1, 35 / 30, 25 / 30]), atol=1e-6)


def test_a_class_below_the_noise_has_a_finite_prior() -> None:
    task = Task.classification((1,), 3)
    for z in (0.0, 10.0):
        found = log_prior(task, np.array([300, 0, -30], np.float32), z)
        assert np.isfinite(found).all()
        assert found[0] > found[1] >= found[2]
    assert np.ptp(log_prior(task, np.array([100, 0, 0], np.float32), 1e9)) == 0


def test_an_offset_below_its_noise_is_none() -> None:
    total = np.array([-40], np.float32)
    assert mean_offset(total, 40.0, 100) == 0
    np.testing.assert_allclose(mean_offset(total, 0.0, 100), -0.4 * prior.BOUND)
    np.testing.assert_allclose(mean_offset(total, 20.0, 100), -0.75 * 0.4 * prior.BOUND)


def sealed_counts(folder: Path) -> np.ndarray | None:
    """Return the counts that the site's ledger holds."""
    path = folder / "ledger.sqlite"
    seq = Ledger(path).account().releases["run-1", 1, Prior.release].seq
    payload = Chain(path).blob(seq)
    return None if payload is None else wire.read_sealed(payload)


def finish(folder: Path, terms: Any) -> Any:
    content = server_wire.write_instructions(terms, terms.rounds, model_in(terms, 3))
    return send({"profile": str(folder / "profile.toml")}, wire.FINISH, content)


def test_the_counts_are_drawn_once_a_run_and_never_lost(tmp_path: Path) -> None:
    profile, terms = make_site(tmp_path), terms_of(**PRIOR)
    reply = ask(profile, terms, 2)  # the first message that the site receives
    assert set(reply.content) == {"update"}
    assert kinds(tmp_path) == {(1, Prior.release): "sealed", (2, "update"): "sent"}
    counts = sealed_counts(tmp_path)
    assert counts is not None
    for server_round in (2, 3, 5, 6):
        assert ask(profile, terms, server_round).has_content()
    assert {kind: n for kind, n in kinds(tmp_path).items() if kind[1] == Prior.release} == {
        (1, Prior.release): "sealed"  # and not sent
    }
    later = sealed_counts(tmp_path)
    assert later is not None
    np.testing.assert_array_equal(counts, later)
    assert finish(tmp_path, terms).has_content()
    model = read_personal_model(personal_model_file(tmp_path / "state", "run-1"))
    plan = Ledger(tmp_path / "ledger.sqlite").account().plans["run-1"].read()
    assert model is not None
    assert plan.cost_of("counts") is not None
    assert model.kind == "private"
    binary = Task.classification((2,), 2)
    expected = log_prior(binary, counts, plan.cost_of("counts").noise_multiplier)
    np.testing.assert_array_equal(model.added, expected)
    assert finish(tmp_path, terms).has_content()  # again: the same counts, and the same model
    np.testing.assert_array_equal(sealed_counts(tmp_path), counts)


def test_the_noise_is_that_of_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stds, real = [], prior.add_noise

    def noted(total: Any, std: float, source: RandomStream) -> Any:
        stds.append(std)
        return real(total, std, source)

    monkeypatch.setattr(prior, "add_noise", noted)
    assert ask(make_site(tmp_path), terms_of(**PRIOR)).has_content()
    plan = Ledger(tmp_path / "ledger.sqlite").account().plans["run-1"].read()
    assert plan.cost_of("counts") is not None
    assert stds == [plan.cost_of("counts").noise_multiplier]
    assert stds[0] > 10


def test_lost_counts_are_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    profile, terms = make_site(tmp_path), terms_of(**PRIOR)
    with dying(monkeypatch, "client_app.releases.prior.count_labels"):
        ask(profile, terms, 1)
    for server_round in (1, 2):
        assert ask(profile, terms, server_round).has_content()  # the run goes on
    assert finish(tmp_path, terms).has_content()
    assert kinds(tmp_path)[1, Prior.release] == "lost"
    assert "no 'prior' in this run, because its release is lost" in caplog.text
    model = read_personal_model(personal_model_file(tmp_path / "state", "run-1"))
    assert model is not None
    np.testing.assert_array_equal(model.added, [0])


def test_no_state_folder_costs_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    profile = make_site(tmp_path)
    profile.write_text(profile.read_text().replace('[state]\npath = "state"\n', ""))
    assert ask(profile, terms_of(**PRIOR)).error.code == wire.DECLINED
    assert kinds(tmp_path) == {}
    assert "'state.path'" in caplog.text


def entries_of(path: Path) -> list[Any]:
    with Chain(path).transaction() as entries:
        return entries


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        {"strategy": "fedavg"},
        {"strategy": "fedrep", "model": "mlp:4"},
        {"strategy": "ifca", "ifca.clusters": 2, "evaluation": "none"},
        {"strategy": "ditto"},
        {"strategy": "pfa"},
    ],
    ids=lambda more: more["strategy"],
)
def test_the_ledgers_of_a_run_agree(tmp_path: Path, more: dict[str, Any]) -> None:
    config = config_of(**{
        "dataset": "digits", "schema": "", "rounds": 2, "local-steps": 2, "epsilons": "8,inf",
        "runs-dir": str(tmp_path), "after": {"prior": {"share": 0.1}}, **more,
    })  # fmt: skip
    run_in_process(config, 2)
    for site in range(2):
        folder = tmp_path / "run-1" / "sites" / str(site)
        model = read_personal_model(simulated_model_path(config, site))
        assert model is not None
        assert np.ptp(model.added) > 0
        failures = [f for each in check_entries(entries_of(folder / "ledger.sqlite"))
                    for f in each.failures]  # fmt: skip
        assert failures == []


REGRESSION = '[label]\ncolumn = "age"\nbounds = [0, 100]\n[[columns]]\nname = "dose"\n' \
    'type = "number"\nbounds = [0, 10]\n'  # fmt: skip


@pytest.mark.parametrize("rows", [20, 61, 200])
@pytest.mark.parametrize("schema", [REGRESSION, None], ids=["regression", "classes"])
def test_a_prior_depends_on_sealed_numbers(tmp_path: Path, rows: int, schema: str | None) -> None:
    """Neither the true number of records nor any other of them enters beside the noisy release."""
    more = {} if schema is None else {"schema": schema}
    Ledger.create(tmp_path / "ledger.sqlite", np.inf, 1e-5).close()
    profile, terms = make_site(tmp_path, rows=rows), terms_of(**PRIOR, **more)
    text = profile.read_text().replace("1.2345678", "inf").replace("2.4691356", "inf")
    profile.write_text(text)  # without noise nothing is shrunk to nothing
    assert ask(profile, terms, 1).has_content()
    assert finish(tmp_path, terms).has_content()
    model = read_personal_model(personal_model_file(tmp_path / "state", "run-1"))
    plan = Ledger(tmp_path / "ledger.sqlite").account().plans["run-1"].read()
    sealed = sealed_counts(tmp_path)
    assert model is not None and plan.cost_of("counts") is not None and sealed is not None
    z, binary = plan.cost_of("counts").noise_multiplier, Task.classification((2,), 2)
    declared = 61  # of tests/client_app/messages.py
    expected = mean_offset(sealed, z, declared) if schema else log_prior(binary, sealed, z)
    np.testing.assert_array_equal(model.added, expected)
    assert np.abs(model.added).max() > 1e-3


def test_a_regression_is_measured_when_the_run_ends(tmp_path: Path) -> None:
    profile, terms = make_site(tmp_path), terms_of(**PRIOR, schema=REGRESSION)
    assert ask(profile, terms, 1).has_content()
    assert (1, Prior.release) not in kinds(tmp_path)
    assert finish(tmp_path, terms).has_content()
    assert kinds(tmp_path)[1, Prior.release] == "sealed"
    path = personal_model_file(tmp_path / "state", "run-1")
    before = path.read_bytes()
    other = server_wire.write_instructions(terms, terms.rounds, model_in(terms, 2))
    assert send({"profile": str(profile)}, wire.FINISH, other).has_error()
    assert path.read_bytes() == before

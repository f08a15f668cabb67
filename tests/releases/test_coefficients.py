"""Coefficients with intervals: against closed forms, their coverage, and the message of a site."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from scipy.special import expit
from sklearn.linear_model import LinearRegression, LogisticRegression

from client_app.releases import coefficients as half
from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.data.record_scores import EMPTY, FOLLOWED, Design, design_of
from hdpfl_flower.data.run_task import schema_of, task_for
from hdpfl_flower.errors import TermsError
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.models.task import Records
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.releases.coefficients import Coefficients
from hdpfl_flower.releases.feasibility import check_up_front
from hdpfl_tools.coordinator.reports.run_page import make_report
from hdpfl_tools.simulation.in_process.in_process_run import run_in_process
from server_app.releases.coefficients import ALONE, FAR, HIDDEN, LEANS, fit_of
from studies.intervals.federations import (
    Federation,
    design,
    expected,
    fitted,
    schema,
    site_records,
    truth,
)
from tests.client_app.after_run.test_prior import p_value
from tests.client_app.messages import ask, make_site, model_in, send, terms_of
from tests.client_app.training.test_client_level import kinds

ROOT = Path(__file__).parents[2]
FALSE_ALARM = 1e-6
ASKS = {"after": {"coefficients": {"share": 0.25}}, "rounds": 3}
CASE = Federation(records=(1500, 3000))
SMALL = Federation((1, 4, 8), (300, 700, 900), trained=0.9)


def records_of(loss: str, case: Federation = CASE, seed: int = 3) -> list[Records]:
    random = np.random.default_rng(seed)
    return [site_records(loss, case, i, n, random) for i, n in enumerate(case.records)]


def told(of: Design, sites: list[Records]) -> tuple[np.ndarray, np.ndarray]:
    features = np.concatenate([records.features for records in sites]).astype(np.float64)
    return features[:, [c.place for c in of.coefficients]], np.concatenate(
        [records.targets for records in sites]
    )


def person_periods(x: np.ndarray, targets: np.ndarray, start: np.ndarray) -> list[np.ndarray]:
    """Return rows, events and record of each interval that a record is followed in."""
    rows = []
    for record, (row, target) in enumerate(zip(x, targets, strict=True)):
        hazards = expit(start[:4] + row @ start[4:]).cumsum()
        for interval in range(target // 2 + 1):
            if hazards[interval] <= FOLLOWED:
                event = interval == target // 2 and target % 2
                rows.append((np.r_[np.eye(4)[interval], row], event, record))
    return [np.array(column) for column in zip(*rows, strict=True)]


@pytest.mark.parametrize("loss", ["logistic", "squared", "hazard"])
def test_without_noise_it_is_the_estimate_of_all_records(loss: str) -> None:
    of, sites = design(loss, wide=False), records_of(loss)
    (x, targets), start = told(of, sites), truth(loss, CASE)
    weights = np.minimum(1, of.reach**2 / (1 + np.square(x).sum(1)))
    free = {"C": np.inf, "tol": 1e-9, "max_iter": 1000}
    if loss == "squared":
        whole = LinearRegression().fit(x, targets, weights)
        known = np.r_[whole.intercept_, whole.coef_]
    elif loss == "logistic":
        whole = LogisticRegression(**free).fit(x, targets, weights)
        known = np.r_[whole.intercept_, whole.coef_[0]]
    else:
        rows, events, owner = person_periods(x, targets, start)
        whole = LogisticRegression(fit_intercept=False, **free).fit(rows, events, weights[owner])
        known = whole.coef_[0]
    fit = fit_of(np.array([of.sum(start, records) for records in sites]), of, start)
    assert not fit.missing
    # Residuals beyond a half of the label's bounds count less, and the step bends.
    within = 0.25 if loss == "squared" else 0.1
    np.testing.assert_allclose(fit.values, known, atol=within * float(fit.errors.min()))
    if loss == "squared":  # HC0 (White, Econometrica 1980)
        rows = np.c_[np.ones(len(x)), x]
        inverse = np.linalg.inv((rows * weights[:, None]).T @ rows)
        scores = rows * (weights * (targets - rows @ known))[:, None]
        errors = np.sqrt(np.diag(inverse @ scores.T @ scores @ inverse))
        np.testing.assert_allclose(fit.errors, errors, rtol=0.05)


def test_intervals_hold_the_noise_and_no_half_of_it() -> None:
    # One coefficient of each federation: they are independent, and standard normal.
    place = design("logistic", wide=False).task.outputs + 2
    true, away = expected("logistic", SMALL), []
    for seed in range(7000, 7060):
        fit = fitted("logistic", SMALL, seed)
        away.append((fit.values[place] - true[place]) / fit.errors[place])
    found = np.array(away)
    assert np.isfinite(found).mean() > 0.9
    found = found[np.isfinite(found)]
    assert p_value(found, 1.0) > FALSE_ALARM
    assert p_value(found, 0.5) < FALSE_ALARM, "errors twice as large would be found"
    assert p_value(found, 2.0) < FALSE_ALARM, "errors half as large would be found"


@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_of_the_same_records_the_noise_alone_is_in_the_errors(loss: str) -> None:
    """A bootstrap of the noise: the records stay."""
    of, sites = design(loss, wide=False), records_of(loss)
    start, random = truth(loss, CASE), np.random.default_rng(5)
    exact = np.array([of.sum(start, records) for records in sites])
    still = fit_of(exact, of, start)
    noise, drawn = 3.0, []
    for _ in range(60):
        fit = fit_of(exact + noise * random.normal(size=exact.shape), of, start)
        drawn.append((fit.values - still.values) / np.sqrt(fit.errors**2 - still.errors**2))
    of_one = np.array(drawn)[:, 3]
    assert p_value(of_one, 1.0) > FALSE_ALARM
    assert p_value(of_one, 2.0) < FALSE_ALARM and p_value(of_one, 0.5) < FALSE_ALARM


def test_noisy_sites_count_less_and_without_noise_all_alike() -> None:
    of, sites = design("logistic", wide=False), records_of("logistic")
    start, random = truth("logistic", CASE), np.random.default_rng(5)
    exact = np.array([of.sum(start, records) for records in sites])
    one = fit_of(exact[:1], of, start)
    hidden = exact + np.array([[0.0], [1e4]]) * random.normal(size=exact.shape)
    np.testing.assert_allclose(fit_of(hidden, of, start).values, one.values, atol=1e-3)
    both = fit_of(exact, of, start)
    assert (both.errors < one.errors).all()
    np.testing.assert_allclose(
        fit_of(np.repeat(exact, 3, 0), of, start).errors, both.errors / np.sqrt(3), rtol=0.01
    )


def test_a_column_that_does_not_vary_has_no_interval_and_the_others_have() -> None:
    of, sites = design("logistic", wide=False), records_of("logistic")
    for records in sites:
        records.features[:, 2] = 0.25
    start = truth("logistic", CASE)
    rows = np.array([of.sum(start, records) for records in sites])
    fit = fit_of(rows + 0.5 * np.random.default_rng(1).normal(size=rows.shape), of, start)
    assert fit.missing[3] == ALONE and {*fit.missing} <= {0, 3}, "the intercept goes along"
    assert np.isnan(fit.errors[3]) and fit.values[3] == start[3]
    # Of two columns that go along, one is left, and others lean on it.
    for records in sites:
        records.features[:, 2] = records.features[:, 1]
    rows = np.array([of.sum(start, records) for records in sites])
    fit = fit_of(rows + 0.5 * np.random.default_rng(1).normal(size=rows.shape), of, start)
    assert ALONE in (fit.missing.get(2), fit.missing.get(3))
    assert LEANS in (fit.missing.get(2), fit.missing.get(3))


def test_noise_alone_and_a_far_model_have_no_interval() -> None:
    of, start = design("logistic", wide=False), truth("logistic", CASE)
    noise = 5 * np.random.default_rng(1).normal(size=(3, of.size))
    assert np.isnan(fit_of(noise, of, start).errors).all()
    assert HIDDEN in fit_of(1e-30 * noise, of, np.full(of.numbers, np.nan)).missing.values()
    far = np.r_[start[:1], 2.5 * start[1:]]
    rows = np.array([of.sum(far, records) for records in records_of("logistic")])
    fit = fit_of(rows, of, far)
    assert {*fit.missing.values()} == {FAR} and np.isnan(fit.errors).all()


def test_the_answer_is_charged_sealed_and_sent_once_with_the_noise_of_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stds, real = [], half.add_noise

    def noted(total: Any, std: float, source: RandomStream) -> Any:
        stds.append(std)
        return real(total, std, source)

    monkeypatch.setattr(half, "add_noise", noted)
    profile, terms = make_site(tmp_path), terms_of(**ASKS)
    assert ask(profile, terms).has_content()
    first = numbers_of(asked(profile, terms), terms)
    assert kinds(tmp_path) == {(1, "update"): "sent", (3, "coefficients"): "sent"}
    np.testing.assert_array_equal(numbers_of(asked(profile, terms), terms), first)
    assert asked(profile, terms, seed=2).has_error()
    cost = Ledger(tmp_path / "ledger.sqlite").account().plans["run-1"].read()
    multiplier = cost.gaussian("coefficients").noise_multiplier
    assert stds == [multiplier] and multiplier > 10
    assert p_value(first[-EMPTY:], multiplier) > FALSE_ALARM
    assert p_value(first[-EMPTY:], multiplier / 2) < FALSE_ALARM


def test_no_sum_is_computed_for_a_request_that_is_not_reserved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server's other models take no time of the records, which nothing would pay for."""
    profile, terms = make_site(tmp_path), terms_of(**ASKS)
    assert ask(profile, terms).has_content()
    numbers_of(asked(profile, terms), terms)
    computed = []
    monkeypatch.setattr(Design, "sum", lambda *given: computed.append(given))
    assert [asked(profile, terms, seed=seed).error.code for seed in (4, 5)] == [wire.DECLINED] * 2
    assert asked(profile, terms).has_content()
    assert computed == []


def asked(profile: Path, terms: Any, seed: int = 3) -> Message:
    content = server_wire.write_instructions(terms, 3, model_in(terms, seed))
    return send({"profile": str(profile)}, server_wire.query_of("coefficients"), content)


def numbers_of(reply: Message, terms: Any) -> np.ndarray:
    assert reply.has_content(), reply
    size = Coefficients().design(terms, task_for(terms)).size
    return server_wire.read_payload("coefficients", reply.content, size)


def test_a_run_prints_odds_ratios_and_says_what_has_none(tmp_path: Path) -> None:
    config = RunConfig.parse({
        "dataset": "heart", "data-dir": str(ROOT / "deploy" / "demo"), "partition": "natural",
        "rounds": 12, "epsilons": "inf", "runs-dir": str(tmp_path), "run-id": "r",
        "strategy": "fedavg", "after.coefficients.share": 0.25,
    })  # fmt: skip
    result = run_in_process(config, 4)
    facts = result.federated["coefficients"]
    of = design_of(schema_of(config.terms), task_for(config.terms))
    assert len(facts["measures"]) + len(facts["missing"]) == len(of.coefficients) == 20
    sex = facts["measures"]["odds ratio of sex=1"]
    assert 1 < sex["low"] < sex["value"] < sex["high"]
    age, shown = facts["coefficients"]["age"], facts["measures"]["odds ratio of age, per 10"]
    assert shown["low"] == pytest.approx(np.exp(10 * age["low"]))
    page = make_report(tmp_path / "r")
    assert Coefficients.title in page and "odds ratio of sex=1" in page and "sex=0" in page


def test_no_site_and_no_meaning_are_said() -> None:
    terms = terms_of(**ASKS)
    from server_app.releases.coefficients import HALF, NO_SITE, SEVERAL

    kind, task = Coefficients(share=0.25), task_for(terms)
    none = np.zeros((0, HALF.numbers(kind, terms, task)), np.float32)
    facts = HALF.read(kind, none, {"7": "no reply"}, terms)
    assert {*facts["missing"].values()} == {NO_SITE} and not facts["measures"]
    assert "0 sites" in HALF.about(facts)
    several = HALF.of_model({str(i): np.zeros(2, np.float32) for i in range(4)})
    rows = np.ones((1, none.shape[1]), np.float32)
    assert several.read(kind, rows, {}, terms)["missing"] == {"all": SEVERAL}
    with pytest.raises(TermsError, match="set 'model' to logreg"):
        check_up_front(terms_of(**ASKS, model="mlp:4"))
    with pytest.raises(TermsError, match="two classes, a number or survival"):
        check_up_front(terms_of(**ASKS, dataset="digits", schema=""))


def test_scales_of_a_first_message_are_in_the_units() -> None:
    of = design("logistic", wide=True)
    scaling = ((0.1, 0.5), *((0.0, 1.0),) * 7)
    scaled = replace(of.task, scaling=scaling, reach=3.0)
    age = design_of(schema("logistic", wide=True), scaled).coefficients[0]
    assert age.slope == pytest.approx(of.coefficients[0].slope / 0.5)

"""The measures against scikit-learn, their intervals' coverage, and what has no value."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit, softmax
from scipy.stats import binom
from sklearn import metrics
from sklearn.linear_model import LogisticRegression

from hdpfl_flower.errors import DataError
from hdpfl_flower.models.task import Task
from hdpfl_tools.measures.clinical import How, Statistic, measure, measures_of

BINARY, MANY = Task.classification((2,), 2), Task.classification((2,), 4)
NUMBER, SURVIVAL = Task.regression((2,)), Task.survival((2,), 3)


def drawn(task: Task, count: int = 90, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return outputs, rounded so that some are equal, and targets."""
    random = np.random.default_rng(seed)
    outputs = random.normal(0, 1.5, (count, task.outputs)).round(1).astype(np.float32)
    if task.classes:
        return outputs, random.integers(task.classes, size=count)
    return outputs, random.normal(0, 1, count).astype(np.float32)


def values(task: Task, outputs: np.ndarray, targets: np.ndarray, weights=None) -> dict[str, float]:
    statistic = measures_of(task, outputs, targets)
    weights = np.ones(len(targets)) if weights is None else weights
    return dict(zip(statistic.names, statistic(weights[None])[0].tolist(), strict=True))


@pytest.mark.parametrize("weighted", [False, True])
def test_two_classes_are_measured_as_by_another_library(weighted: bool) -> None:
    outputs, y = drawn(BINARY)
    random = np.random.default_rng(2)
    w = random.integers(3, size=len(y)).astype(float) if weighted else np.ones(len(y))
    z = outputs[:, 0].astype(float)
    p, chosen = expit(z), (z > 0).astype(int)
    results = values(BINARY, outputs, y, w)
    false, true, _ = metrics.roc_curve(y, z, sample_weight=w, drop_intermediate=False)
    wanted = {
        "auroc": metrics.roc_auc_score(y, z, sample_weight=w),
        "auprc": metrics.average_precision_score(y, z, sample_weight=w),
        "sensitivity": true[false <= 0.1 + 1e-12].max(),
        "brier": metrics.brier_score_loss(y, p, sample_weight=w),
        "accuracy": metrics.accuracy_score(y, chosen, sample_weight=w),
        "balanced-accuracy": metrics.balanced_accuracy_score(y, chosen, sample_weight=w),
        "macro-f1": metrics.f1_score(y, chosen, sample_weight=w, average="macro"),
        "log-loss": metrics.log_loss(y, p, sample_weight=w),
    }
    for name, value in wanted.items():
        assert results[name] == pytest.approx(value, abs=1e-9), name


def test_several_classes_are_measured_as_by_another_library() -> None:
    outputs, y = drawn(MANY)
    shares = softmax(outputs.astype(float), axis=1)
    results = values(MANY, outputs, y)
    assert results["brier"] == pytest.approx(((shares - np.eye(4)[y]) ** 2).sum(1).mean())
    assert results["log-loss"] == pytest.approx(metrics.log_loss(y, shares))
    # Each class against the rest: as scores its logit and its share have one order.
    wanted = metrics.roc_auc_score(y, shares, multi_class="ovr")
    assert results["auroc"] == pytest.approx(wanted)
    assert "calibration-intercept" not in results


def test_the_mean_of_models_is_the_mean_of_their_measures() -> None:
    outputs, y = drawn(BINARY)
    models = [measures_of(BINARY, each, y) for each in (outputs, -outputs / 2)]
    weights = np.random.default_rng(1).integers(1, 4, size=(3, len(y))).astype(float)
    mean = Statistic.mean(models, [0.75, 0.25])
    wanted = 0.75 * models[0](weights) + 0.25 * models[1](weights)
    assert np.allclose(mean(weights), wanted)
    assert np.allclose(mean.only(["auroc"])(weights)[:, 0], wanted[:, 0])


@pytest.mark.parametrize(
    ("task", "targets", "name"),
    [
        (NUMBER, np.full(90, 0.7, np.float32), "r2"),
        (BINARY, np.zeros(90, np.int64), "auroc"),
        (SURVIVAL, np.full(90, 4), "concordance"),
    ],
    ids=["numbers", "classes", "survival"],
)
def test_a_measure_without_a_value_is_missing_with_the_reason(task, targets, name) -> None:
    results = measure(task, drawn(task)[0], targets)
    assert name in results.missing and name not in results.estimates
    assert results.facts()["missing"][name]


def test_calibration_is_a_logistic_regression_on_the_logit() -> None:
    random = np.random.default_rng(5)
    x = random.normal(0, 1.2, 400)
    y = (random.random(400) < expit(0.4 + 0.6 * x)).astype(int)
    results = values(BINARY, x[:, None].astype(np.float32), y)
    fit = LogisticRegression(C=np.inf, tol=1e-10).fit(x[:, None].astype(np.float32), y)
    assert results["calibration-slope"] == pytest.approx(fit.coef_[0, 0], abs=1e-4)
    # In the large: the predictions, moved by the intercept on the logit, are right on average.
    moved = expit(results["calibration-intercept"] + x.astype(np.float32).astype(float))
    assert moved.mean() == pytest.approx(y.mean(), abs=1e-9)


def test_r2_is_below_0_for_what_is_worse_than_the_mean() -> None:
    y = np.array([0.1, 0.4, 0.7], np.float32)
    results = values(NUMBER, np.ones((3, 1), np.float32), y)
    assert results["r2"] == pytest.approx(metrics.r2_score(y, np.ones(3)), rel=1e-5)
    assert results["r2"] < -4
    assert results["mae"] == pytest.approx(0.6, rel=1e-6)


def test_few_records_that_are_all_right_are_no_certainty() -> None:
    apart = np.repeat([[-2.0], [2.0]], 10, axis=0).astype(np.float32)
    results = measure(BINARY, apart, np.repeat([0, 1], 10)).estimates
    for name in ("accuracy", "auroc", "sensitivity"):
        assert results[name].value == results[name].high == 1.0
        assert results[name].low == pytest.approx(0.025 ** (1 / 10))


def test_intervals_cover_as_often_as_they_say() -> None:
    repeats, held = 120, dict.fromkeys(("auroc", "brier", "calibration-slope", "sensitivity"), 0)
    # Of 200,000 records: what the intervals are about.
    truth = values(BINARY, *cohort(np.random.default_rng(0), 200_000))
    for seed in range(repeats):
        results = measure(
            BINARY, *cohort(np.random.default_rng(seed + 1), 150), how=How(draws=300)
        ).estimates
        for name in held:
            held[name] += results[name].low <= truth[name] <= results[name].high
    # At a coverage of 93 %, which a bootstrap of 150 records has, one of the four fails in less
    # than 1 of 10,000 cases; half the width covers about 67 % and fails.
    least = binom.ppf(1e-5, repeats, 0.93)
    assert all(number >= least for number in held.values()), held


def cohort(random: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    x = random.normal(0, 1.3, count)
    y = (random.random(count) < expit(0.8 * x)).astype(np.int64)
    return x[:, None].astype(np.float32), y


@pytest.mark.parametrize("task", [BINARY, NUMBER], ids=lambda task: task.loss)
def test_outputs_that_are_not_finite_are_refused(task: Task) -> None:
    outputs, targets = drawn(task)
    outputs[3] = np.nan
    with pytest.raises(DataError, match="not finite"):
        measure(task, outputs, targets)


def test_huge_logits_overflow_nowhere() -> None:
    outputs = np.array([[3e38], [-3e38], [3e38], [0]], np.float32)
    results = measure(BINARY, outputs, np.array([0, 1, 1, 0]))
    assert all(np.isfinite(estimate.value) for estimate in results.estimates.values())


def test_a_calibration_that_no_record_supports_is_withheld_with_the_reason() -> None:
    """Scores that hardly differ: the slope may be anything, and so is not shown."""
    draw = np.random.default_rng(4)
    task, withheld = Task.classification((2,), 2), 0
    for records in (12, 20, 40):
        for spread in (1e-3, 1e-2, 0.1, 1.0):
            y = np.arange(records) % 2
            z = (spread * draw.normal(size=records)).astype(np.float32)
            results = measure(task, z[:, None], y)
            for name in ("calibration-slope", "calibration-intercept"):
                if name in results.estimates:
                    estimate = results.estimates[name]
                    assert (
                        estimate.low <= estimate.value <= estimate.high
                        and estimate.high - estimate.low <= 20
                    )
                else:
                    assert name in results.missing
                    withheld += results.missing[name].startswith("withheld: too few records")
            if spread == 1e-3:
                assert "calibration-slope" not in results.estimates
    assert withheld > 3

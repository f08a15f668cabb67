"""Made-up records have the columns of the message, and the best column its closed form."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from hdpfl_flower.data.record_moments import Layout, Number
from hdpfl_flower.errors import DataError
from hdpfl_tools.coordinator.reports.expected_accuracy import MadeUp

LAYOUT = Layout(
    (Number(0, "age", middle=50.0, half=40.0), Number(1, "dose", middle=5.0, half=5.0)),
    True, True, 2, (("sex", 2, ("f", "m")),),
)  # fmt: skip


def estimate(value: float, error: float) -> dict[str, float]:
    return {"value": value, "low": value - 1.959964 * error, "high": value + 1.959964 * error}


def classes(error: float, gap: float = 8.0) -> list[dict[str, object]]:
    """Return two classes of 300 and 100 records, whose mean ages are ``gap`` years apart."""
    return [
        {
            "records": estimate(count, 1.0),
            "columns": [
                {"name": "age", "mean": estimate(age, 40 * error), "deviation": estimate(4, 1)},
                {"name": "dose", "mean": estimate(5, 5 * error), "deviation": estimate(1, 1)},
            ],
            "categories": {"sex": {"shares": {
                "f": {"share": estimate(0.3, error)}, "m": {"share": estimate(0.7, error)}
            }}},
        }
        for count, age in ((300, 40.0), (100, 40.0 + gap))
    ]  # fmt: skip


def test_the_best_column_alone_is_that_of_two_normals() -> None:
    best = dict((name, value) for value, name in MadeUp(classes(1e-9), LAYOUT, 4).alone())
    distance, odds = 2.0, np.log(3.0)
    expected = 0.75 * norm.cdf(distance / 2 + odds / distance)
    expected += 0.25 * norm.cdf(distance / 2 - odds / distance)
    assert best["age"] == pytest.approx(expected, abs=1e-4)
    for name in ("dose", "sex", "no column"):
        assert best[name] == pytest.approx(0.75, abs=1e-4)


def test_records_have_the_columns_of_their_class() -> None:
    count = 40_000
    features, labels = MadeUp(classes(1e-9), LAYOUT, 4).records(count, np.random.default_rng(3))
    assert abs(labels.mean() - 0.25) < 4.9 * np.sqrt(0.25 * 0.75 / count)
    ages = 50 + 40 * features[:, 0]
    for label, mean in ((0, 40.0), (1, 48.0)):
        of_class = ages[labels == label]
        assert abs(of_class.mean() - mean) < 4.9 * 4 / np.sqrt(len(of_class))
    assert (features[:, 2:].sum(1) == 1).all()
    assert abs(features[:, 3].mean() - 0.7) < 4.9 * np.sqrt(0.21 / count)


def test_differences_within_their_errors_make_no_class_easy_to_tell() -> None:
    """In the median of 200 messages of classes that are alike, no column tells them."""
    draws = np.random.default_rng(5)
    best = []
    for _ in range(200):
        groups = classes(0.1, gap=0.0)
        for group in groups:
            for column, half in zip(group["columns"], (40, 5), strict=True):  # type: ignore[call-overload]
                shifted = column["mean"]["value"] + 0.1 * half * draws.normal()
                column["mean"] = estimate(shifted, 0.1 * half)
        best.append(max(MadeUp(groups, LAYOUT, 4).alone())[0])
    assert np.median(best) == pytest.approx(0.75, abs=1e-3)
    with pytest.raises(DataError, match="hidden by the noise"):
        MadeUp([{**classes(0.1)[0], "records": None}], LAYOUT, 4)

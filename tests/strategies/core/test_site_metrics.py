"""The mean over the sites, and by level where somebody opted out."""

from __future__ import annotations

import math

from strategies.core.site_metrics import mean_metrics, measured_at_sites

FOUND = {
    "a": {"accuracy": 0.5, "loss": 1.0, "personal-accuracy": 0.25},
    "b": {"accuracy": 0.75, "loss": 2.0},
    "c": {"accuracy": 1.0, "loss": 3.0, "personal-accuracy": 0.75},
}


def test_levels_have_a_mean_and_a_variance_over_their_sites() -> None:
    levels = {"a": {"epsilon": 1.0}, "b": {"epsilon": 2.0}, "c": {"epsilon": math.inf}}
    assert mean_metrics(FOUND, levels) == {
        "accuracy": 0.75, "loss": 2.0, "personal-accuracy": 0.5,
        "accuracy-private": 0.625, "accuracy-private-variance": 0.015625,
        "accuracy-opted-out": 1.0, "accuracy-opted-out-variance": 0.0,
        "personal-accuracy-private": 0.25, "personal-accuracy-private-variance": 0.0,
        "personal-accuracy-opted-out": 0.75, "personal-accuracy-opted-out-variance": 0.0,
    }  # fmt: skip


def test_a_poor_site_counts_and_who_is_not_counted_is_named() -> None:
    """139 schools in small: with negative R² dropped the mean was that of the good ones."""
    found = {str(site): {"accuracy": 0.5 - site, "mse": float(site)} for site in range(12)}
    measured = measured_at_sites(found, {"late": "no reply in time"}, {})
    assert measured.metrics["mse"] == 5.5
    assert measured.metrics["site-accuracy"] == -5.0
    assert measured.metrics["site-mse-worst"] == 10.5, "the worst two of twelve"
    assert measured.metrics["site-accuracy-worst"] == -10.0
    assert measured.facts == {
        "tested": {
            "sites": 13,
            "counted": {"accuracy": 12, "mse": 12, "site-accuracy": 12, "site-mse": 12},
            "missing": {"late": "no reply in time"},
        }
    }

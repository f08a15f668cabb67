"""Each site's share of the model: against the model itself, and who decides it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hdpfl_flower.monitoring.influence import influence_of


def line(server_round: int, weights: dict[str, float], **facts: Any) -> dict[str, Any]:
    """A round of a journal; ``asked`` and ``gauges`` unless given."""
    return {
        "round": server_round, "asked": list(weights), "accepted": list(weights),
        "rejections": {},
        "weights": list(weights.values()), "gauges": {}, **facts,
    }  # fmt: skip


def test_parts_are_the_coefficients_of_the_updates_in_the_model() -> None:
    """A model of random updates, whose coefficients least squares find again."""
    generator = np.random.default_rng(3)
    updates = {s: generator.standard_normal(50) for s in "abc"}
    rounds, model = [], np.zeros(50)
    for server_round, (rate, scale) in enumerate([(1.0, 1.0), (0.5, 1.3), (0.2, 0.7)], start=1):
        weights = generator.dirichlet(np.ones(3))
        sites = dict(zip("abc", weights.tolist(), strict=True))
        model += rate * scale * sum(w * updates[s] for s, w in sites.items())
        gauges = {"server_rate": rate} if rate != 1 else {}
        more = {"scale": scale} if scale != 1 else {}
        rounds.append(line(server_round, sites, gauges=gauges, **more))
    found = influence_of(rounds)
    solved = np.linalg.lstsq(np.stack(list(updates.values()), axis=1), model, rcond=None)[0]
    np.testing.assert_allclose(list(found.models[0].values()), solved, rtol=1e-9)
    np.testing.assert_allclose(list(found.shares().values()), solved / solved.sum(), rtol=1e-9)
    assert solved.std() > 0.1 * solved.mean()


def test_several_models_have_shares_of_their_own_and_the_first_ones_past() -> None:
    common = line(1, {"a": 0.75, "b": 0.25}, gauges={"cluster": [0, 0]}, **{"from-first": True})
    apart = {"gauges": {"cluster": [0.0, 1.0]}}
    split = line(2, {"a": 1.0, "b": 1.0}, **apart, **{"from-first": True})
    found = influence_of([common, split])
    assert found.shares(0) == {"a": 0.875, "b": 0.125}
    assert found.shares(1) == {"a": 0.375, "b": 0.625}
    # Without from-first a new model begins from the initial one.
    assert influence_of([common, line(2, {"a": 1.0, "b": 1.0}, **apart)]).shares(1) == {"b": 1.0}


@pytest.mark.parametrize(
    ("weights", "decides"),
    [
        ({"a": 0.5, "b": 0.3, "c": 0.2}, False),
        ({"a": 0.51, "b": 0.29, "c": 0.2}, True),
        ({"a": 0.6, "b": 0.4}, False),
        ({"a": 1.0}, False),
    ],
)
def test_more_than_half_decide(weights: dict[str, float], *, decides: bool) -> None:
    found = list(influence_of([line(1, weights)]).deciding())
    assert [(one.of, one.site) for one in found] == [("round", "a"), ("model", "a")] * decides

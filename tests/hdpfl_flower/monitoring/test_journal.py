"""The journal: append-only, one JSON object a line, a torn last line tolerated."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hdpfl_flower.errors import DataError
from hdpfl_flower.monitoring.influence import influence_of
from hdpfl_flower.monitoring.journal import Journal, finished_rounds, read_journal


def test_events_come_back_in_order_with_arrays_as_lists(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run" / "journal.jsonl")
    journal.write("started", terms={"rounds": 3})
    journal.write(
        "round", weights=np.array([0.25, 0.75]), gauges={"x": np.float64("inf"), "n": np.int64(3)}
    )
    journal.close()
    started, event = read_journal(tmp_path / "run" / "journal.jsonl")
    assert started["terms"] == {"rounds": 3}
    assert event["weights"] == [0.25, 0.75]
    assert event["gauges"] == {"x": "inf", "n": 3}
    assert started["at"] <= event["at"]


@pytest.mark.parametrize(
    "torn", ['{"event": "rou', '{"event"', "\x00\x00", '{"event": "round", "x": "ü']
)
def test_a_torn_last_line_is_passed_over_and_mended(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "journal.jsonl"
    first = Journal(path)
    first.write("started")
    first.close()
    with path.open("ab") as file:
        file.write(torn.encode()[:-1])
    assert [event["event"] for event in read_journal(path)] == ["started"]
    second = Journal(path)
    second.write("resumed")
    second.close()
    assert [event["event"] for event in read_journal(path)] == ["started", "resumed"]


ROUND = {"event": "round", "round": 1, "asked": ["a", "b"], "accepted": ["a"], "rejections": {},
         "metrics": {}}  # fmt: skip


def test_numbers_that_json_lacks_come_back(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    event = {**ROUND, "metrics": {"loss": float("inf"), "accuracy": float("nan")}, "weights": [1]}
    journal.write(**event)  # type: ignore[arg-type]
    journal.write("run-ended")
    (found,) = finished_rounds(read_journal(tmp_path / "journal.jsonl"))
    assert found["metrics"]["loss"] == float("inf")
    assert math.isnan(found["metrics"]["accuracy"])
    assert found["weights"] == [1.0]


@pytest.mark.parametrize(
    "damage",
    [
        {"round": None}, {"asked": None}, {"accepted": ["c"]}, {"metrics": [1]}, {"weights": 3},
        {"metrics": {"loss": "PATIENT-123"}}, {"round": "one"},
    ],
    ids=str,
)  # fmt: skip
def test_a_damaged_round_is_one_clear_line(damage: dict[str, object]) -> None:
    assert finished_rounds([ROUND])[0]["round"] == 1
    with pytest.raises(DataError, match=r"^the journal is damaged: a round in it is incomplete$"):
        finished_rounds([{**ROUND, **damage}])


START: dict[str, object] = {"event": "run-started"}


def numbered(number: int, accuracy: float) -> dict[str, object]:
    return {**ROUND, "round": number, "metrics": {"accuracy": accuracy}}


@pytest.mark.parametrize(
    ("events", "found"),
    [
        ([START, numbered(1, 0.1), START, numbered(1, 0.2)], [(1, 0.2)]),
        # A shorter attempt leaves nothing of the longer one behind it.
        ([START, numbered(1, 0.1), numbered(2, 0.2), START, numbered(1, 0.3)], [(1, 0.3)]),
        # One that was refused before a round replaces nothing.
        ([START, numbered(1, 0.1), START], [(1, 0.1)]),
        ([START, numbered(1, 0.1), numbered(2, 0.2), {"event": "run-resumed", "after_round": 1},
          numbered(2, 0.3), numbered(3, 0.4)], [(1, 0.1), (2, 0.3), (3, 0.4)]),
        ([START, numbered(1, 0.1), {"event": "run-resumed", "after_round": 1}], [(1, 0.1)]),
        ([START, numbered(1, 0.1), {"event": "run-resumed"}, numbered(2, 0.2)],
         [(1, 0.1), (2, 0.2)]),
    ],
)  # fmt: skip
def test_rounds_count_once(events: list[dict[str, object]], found: list[tuple[int, float]]) -> None:
    rounds = finished_rounds(events)
    assert [(event["round"], event["metrics"]["accuracy"]) for event in rounds] == found


# --- each site's share of the model: against the model itself, and who decides it


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

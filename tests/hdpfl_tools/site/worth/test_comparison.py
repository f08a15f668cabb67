"""Comparisons: who is judged, that all gains hold at once, the words of the verdict."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hdpfl_flower.measures.bootstrap import Estimate, paired
from hdpfl_flower.models.task import Records, Task
from hdpfl_tools.measures.clinical import Statistic
from hdpfl_tools.site.worth.candidates import CONSTANT, HOME, constant
from hdpfl_tools.site.worth.comparison import (
    CANNOT_TELL,
    NOT_WORTH,
    WORTH,
    Question,
    compare,
    deciding_measures,
    statistic_of,
    verdict,
)
from hdpfl_tools.site.worth.wording import comparison_rows

UP, DOWN, AROUND = Estimate(0.2, 0.1, 0.3), Estimate(-0.2, -0.3, -0.1), Estimate(0, -0.1, 0.1)
NOTHING = Estimate(0.5, -math.inf, math.inf)


@pytest.mark.parametrize(
    ("over_home", "over_constant", "words"),
    [
        (UP, UP, WORTH),
        (UP, AROUND, CANNOT_TELL),
        (AROUND, UP, CANNOT_TELL),
        (AROUND, AROUND, CANNOT_TELL),
        (DOWN, UP, NOT_WORTH),
        (UP, DOWN, NOT_WORTH),
        (NOTHING, NOTHING, CANNOT_TELL),
        (Estimate(0.1, 0.0, 0.2), UP, CANNOT_TELL),
        (Estimate(-0.1, -0.2, 0.0), UP, CANNOT_TELL),
    ],
)
def test_the_words_of_a_verdict(over_home: Estimate, over_constant: Estimate, words: str) -> None:
    assert verdict(over_home, over_constant) == words


def of(correct: np.ndarray) -> Statistic:
    return Statistic(["accuracy"], {"accuracy": correct.astype(float)}, {}, {})


def right(share: float, count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random(count) < share


def test_models_are_judged_and_references_are_not() -> None:
    count = 200
    models = {
        CONSTANT: ("none", of(right(0.5, count, 1))),
        HOME: ("none", of(right(0.6, count, 2))),
        "joined model": ("private", of(right(0.99, count, 3))),
        "other": ("kept", of(right(0.1, count, 4))),
    }
    comparison = compare(models, np.arange(count), "accuracy", Question(seed=0))
    assert [model.verdict for model in comparison.models] == ["", "", WORTH, NOT_WORTH]
    assert [set(m.gains) for m in comparison.models] == [set(), set(), *[{HOME, CONSTANT}] * 2]
    joined = comparison.models[2]
    wanted = models["joined model"][1].by_record["accuracy"].mean()
    assert joined.measures["accuracy"].value == pytest.approx(wanted)
    over_home = joined.measures["accuracy"].value - comparison.models[1].measures["accuracy"].value
    assert joined.gains[HOME].value == pytest.approx(over_home)
    header, *lines = comparison_rows(comparison)
    assert header[-1] == "verdict"
    assert [line[-1] for line in lines] == ["-", "-", WORTH, NOT_WORTH]
    assert comparison.facts()["models"][2]["gains"][HOME]["low"] > 0


def test_two_references_alone_are_compared_to_one_another() -> None:
    models = {CONSTANT: ("none", of(right(0.2, 99, 1))), HOME: ("none", of(right(0.9, 99, 2)))}
    comparison = compare(models, np.arange(99), "accuracy", Question(seed=0))
    assert comparison.models[1].gains[CONSTANT].above
    assert "verdict" not in next(comparison_rows(comparison))


def test_two_models_right_on_the_same_records_are_not_surely_alike() -> None:
    """None of 60 differs: 5 % of samples show none where 1 − 0.05^(1/60) = 4.9 % of records do."""
    models = {CONSTANT: ("none", of(np.ones(60))), HOME: ("none", of(np.ones(60)))}
    gain = compare(models, np.arange(60), "accuracy", Question(seed=0)).models[1].gains[CONSTANT]
    assert (1 - gain.high) ** 60 == pytest.approx(0.05)
    assert gain.low == -gain.high


def test_the_level_of_a_gain_is_shared_out_over_all_of_them(monkeypatch) -> None:
    """Three models have six gains: each interval may miss in 5 of 600, and all in 5 of 100."""
    levels: list[float] = []

    def note(gains, units, draws, level, seed, **more):
        levels.append(level)
        return paired(gains, units, draws, level, seed, **more)

    monkeypatch.setattr("hdpfl_tools.site.worth.comparison.paired", note)
    models = {
        name: ("private", of(right(0.5, 50, seed)))
        for seed, name in enumerate([CONSTANT, HOME, "a", "b", "c"])
    }
    compare(models, np.arange(50), "accuracy", Question(seed=0))
    assert levels == pytest.approx([1 - 0.05 / 6] * 6)


def test_the_constant_is_the_share_of_each_class_and_the_mean_of_a_mark() -> None:
    targets = np.array([0, 0, 1, 0, 1, 0, 0])
    (logit,) = constant(Task.classification((2,), 2), targets).predict(np.zeros((1, 2)))[0]
    assert 1 / (1 + math.exp(-logit)) == pytest.approx(3 / 9)
    logits = constant(Task.classification((2,), 3), targets).predict(np.zeros((4, 2)))
    assert np.exp(logits[2]) == pytest.approx([6 / 10, 3 / 10, 1 / 10])
    numbers = constant(Task.regression((2,)), np.array([1, 2, 6], np.float32))
    assert numbers.predict(np.zeros((2, 2))).tolist() == [[3.0], [3.0]]


def test_each_measure_decides_by_itself() -> None:
    """Right in its order and far too sure: better by AUROC, worse by log loss."""
    random = np.random.default_rng(3)
    task, count = Task.classification((1,), 2), 300
    y = (random.random(count) < 0.15).astype(np.int64)
    records = Records(np.zeros((count, 1), np.float32), y)
    knows = y + random.normal(0, 0.5, count)
    outputs = {
        CONSTANT: np.full(count, -1.7),
        HOME: -1.7 + 0.5 * knows + random.normal(0, 1, count),
        "joined model": 40 * (knows - 0.5),
    }
    models = {
        name: ("private", statistic_of(task, outputs_of.astype(np.float32)[:, None], records, name))
        for name, outputs_of in outputs.items()
    }
    verdicts = {
        measure: compare(models, np.arange(count), measure, Question(seed=0)).models[2].verdict
        for measure in ("auroc", "log-loss")
    }
    assert verdicts == {"auroc": WORTH, "log-loss": NOT_WORTH}


def test_a_proper_score_decides_unless_another_measure_is_named() -> None:
    """Of an unequal label accuracy is that of the constant, whatever a model knows."""
    binary, many = Task.classification((2,), 2), Task.classification((2,), 4)
    assert deciding_measures(binary) == ("log-loss", "auroc", "brier", "accuracy")
    assert deciding_measures(many) == ("log-loss", "brier", "accuracy")
    assert deciding_measures(Task.survival((2,), 3)) == ("log-loss", "concordance")


def test_constants_of_several_folds_rank_all_records_alike() -> None:
    """A fold with many of a class leaves few of it for its constant: AUROC would be below ½."""
    records = Records(np.zeros((4, 1), np.float32), np.array([0, 0, 1, 1]))
    outputs = np.array([[0.5], [0.5], [-0.5], [-0.5]], np.float32)
    task, once = Task.classification((1,), 2), np.ones((1, 4))
    for name, auroc in ((CONSTANT, 0.5), ("joined model", 0.0)):
        statistic = statistic_of(task, outputs, records, name).only(["auroc"])
        assert statistic(once)[0, 0] == auroc


@pytest.mark.parametrize("measure", ["log-loss", "auroc"])
def test_records_of_one_class_tell_nothing(measure: str) -> None:
    records = Records(np.zeros((40, 1), np.float32), np.zeros(40, np.int64))
    models = {
        name: ("private", statistic_of(Task.classification((1,), 2), outputs, records, name))
        for name, outputs in (
            (CONSTANT, np.full((40, 1), 1, np.float32)),
            (HOME, np.full((40, 1), 0, np.float32)),
            ("joined model", np.full((40, 1), -9, np.float32)),
        )
    }
    comparison = compare(models, np.arange(40), measure, Question())
    assert comparison.verdict == CANNOT_TELL
    assert comparison.facts()["models"][2]["measures"]["auroc"]["value"] is None

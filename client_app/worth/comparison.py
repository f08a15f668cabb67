"""Models compared on equal records: measures, paired gains, verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from client_app.worth.candidates import CONSTANT, HOME, Kind
from client_app.worth.scores import OF_ORDER, Scored, gain, sign_of
from client_app.worth.verdict import CANNOT_TELL, verdict
from hdpfl_flower.measures.bootstrap import Estimate, Floats, interval, paired, resampled

REFERENCES = (HOME, CONSTANT)
"""Reference of a run's model."""


@dataclass(frozen=True)
class Judged:
    """One model.

    Attributes:
        name: of the model.
        kind: of the model.
        measures: each measure, with an interval of its own.
        gains: reference → gain over it in the deciding measure, above 0 where this model is better.
        verdict: in words; empty for what no run made.
    """

    name: str
    kind: Kind
    measures: Mapping[str, Estimate]
    gains: Mapping[str, Estimate]
    verdict: str = ""


@dataclass(frozen=True)
class ModelComparison:
    """Models on the same records.

    Attributes:
        measure: that decides.
        confidence: of each model's own intervals, and of all gains' at once.
        records: their number.
        units: their number.
        models: in the order of the table.
    """

    measure: str
    confidence: float
    records: int
    units: int
    models: Sequence[Judged]


def compare(
    models: Mapping[str, tuple[Kind, Scored]],
    units: npt.NDArray[np.int64],
    measure: str,
    confidence: float,
    seed: int,
) -> ModelComparison:
    """Return the comparison of ``models`` on records outside their training.

    The intervals are about other records of the same site, for the models as they are: what
    another training of the same models would change is not in them.

    Args:
        models: name → (kind, scores on the records); the home model and the constant are among
            them, and the others are judged.
        units: the unit of each record, shape ``(n,)``.
        measure: that decides, one of :func:`client_app.worth.scores.deciding_measures`.
        confidence: such as 0.95.
        seed: of the resamples.

    Guarantees:
        Where the intervals keep their level, all gains of the comparison lie in theirs at once
        with ``confidence`` (Bonferroni's inequality), so that the best of several models may be
        chosen by them.
    """
    columns = {
        pair: place
        for place, pair in enumerate(
            (name, each) for name, (_, scores) in models.items() for each in scores.names
        )
    }

    def statistic(weights: Floats) -> Floats:
        found = {name: scores.measures(weights) for name, (_, scores) in models.items()}
        return np.stack([found[name][each] for name, each in columns], axis=1)

    draws, number = resampled(units, statistic, seed), len(np.unique(units))
    values = statistic(np.ones((1, len(units))))[0]
    own: dict[str, dict[str, Estimate]] = {name: {} for name in models}
    for (name, each), place in columns.items():
        own[name][each] = interval(float(values[place]), draws[:, place], number, confidence)

    pairs = _pairs([*models])
    # All gains at once: each interval may miss with the allowed chance over their number.
    level = 1 - (1 - confidence) / len(pairs)
    gains: dict[str, dict[str, Estimate]] = {name: {} for name in models}
    for name, reference in pairs:
        means = draws[:, columns[name, measure]] - draws[:, columns[reference, measure]]
        if measure in OF_ORDER:
            value = float(values[columns[name, measure]] - values[columns[reference, measure]])
            gains[name][reference] = interval(value, means, number, level)
            continue
        gains[name][reference] = paired(
            gain(measure, models[name][1], models[reference][1]),
            units,
            sign_of(measure) * means,
            level,
            seed,
            largest=float(measure == "accuracy"),
        )
    judged = [
        Judged(name, kind, own[name], gains[name], _verdict(name, gains[name], scores))
        for name, (kind, scores) in models.items()
    ]
    return ModelComparison(measure, confidence, len(units), number, judged)


def _pairs(names: list[str]) -> list[tuple[str, str]]:
    """Return pairs of models; references: the home model to the constant."""
    judged = [name for name in names if name not in REFERENCES]
    if not judged:
        return [(HOME, CONSTANT)]
    return [(name, reference) for name in judged for reference in REFERENCES]


def _verdict(name: str, gains: Mapping[str, Estimate], scores: Scored) -> str:
    if name in REFERENCES:
        return ""
    # Records of one class show no difference between the classes, however sure a model is.
    of_classes = "accuracy" in scores.by_record and scores.ranks is not None
    if of_classes and len(np.unique(scores.targets)) < 2:
        return CANNOT_TELL
    return verdict(gains[HOME], gains[CONSTANT])

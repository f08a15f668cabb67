"""R-DPCFL's noise multipliers without training, by two accountants.

The paper's, and ours.

N = 6,600 records, E = 200, one local epoch, δ = 1e-4; z is the same in the first round, of batch
b¹, and the later ones, of batch b. The variance of the first update is K·N·η²·p·C²·z²/b¹³ (Lemma
4) at η = 5e-4, C = 3, p = 11,181,642 (ResNet-18). Malekmohammadi, Taik and Farnadi (TMLR 2025).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hdpfl_flower.privacy.accounting import calibrate
from hdpfl_tools.coordinator.progress import rounds_bar
from hdpfl_tools.simulation.scenarios.paper_formulas import r_dpcfl_multiplier
from studies.framework.study import Findings, Options, Study, Table, select_or_all
from studies.r_dpcfl.two_stages import calibrate_with_selections, two_stage_steps

RECORDS, ROUNDS, DELTA = 6600, 200, 1e-4
RATE, CLIP_NORM, PARAMETERS = 5e-4, 3.0, 11_181_642
SELECTIONS, SHARE = 20, 0.3
"""Choices of a client, and their share of ε, as in the authors' code."""

EXPECTED = {
    (5.0, 16, 16): (0.932, 35.2),
    (5.0, 16, RECORDS): (1.249, 9.0e-7),
    (5.0, 32, 32): (1.165, 6.88),
    (5.0, 32, RECORDS): (1.444, 1.21e-6),
    (5.0, 128, 128): (2.034, 0.328),
    (5.0, 128, RECORDS): (2.224, 2.86e-6),
    (10.0, 32, 32): (0.811, 3.33),
    (10.0, 32, RECORDS): (0.903, 4.7e-7),
}
"""(ε, b, b¹) → z and first variance, by the authors' orders and conversion."""


def paper_multiplier(epsilon: float, batch: int, first: int) -> float:
    """Return z by the paper's accountant, which allows fractional steps."""
    stages = (
        (first / RECORDS, RECORDS / first),
        (batch / RECORDS, (ROUNDS - 1) * RECORDS / batch),
    )
    return r_dpcfl_multiplier(epsilon, DELTA, stages)


def first_variance(multiplier: float, first: int) -> float:
    """Return the first update's variance, summed over its coordinates.

    >>> f"{first_variance(1.444, 6600):.3g}"
    '1.2e-06'
    """
    noise = RATE * CLIP_NORM * multiplier / first
    return RECORDS / first * PARAMETERS * noise**2


@dataclass(frozen=True, kw_only=True)
class ClusterNoise(Study):
    """R-DPCFL's noise multipliers."""

    takes = ("--columns",)

    def conduct(self, options: Options, folder: Path) -> Findings:
        """Compute noise multipliers; ``--columns`` takes labels of the first column."""
        labels = {_label(place): place for place in EXPECTED}
        places = [
            labels[label] for label in select_or_all(tuple(labels), options.columns, "--columns")
        ]
        del folder  # a table of a few numbers has no picture
        rows, cells = [], []
        with rounds_bar(len(places), "accountants") as tick:
            for epsilon, batch, first in places:
                paper = paper_multiplier(epsilon, batch, first)
                steps = two_stage_steps(RECORDS, batch, first, ROUNDS)
                ours = calibrate(steps, epsilon, DELTA)
                chosen_too, _ = calibrate_with_selections(
                    steps, epsilon, DELTA, selections=SELECTIONS, share=SHARE
                )
                expected, variance = EXPECTED[epsilon, batch, first]
                label, spread = _label((epsilon, batch, first)), first_variance(paper, first)
                rows.append(
                    (
                        label,
                        f"{paper:.3f} ({expected:g})",
                        f"{ours:.3f}",
                        f"{chosen_too:.3f}",
                        f"{spread:.3g} ({variance:g})",
                        f"{first_variance(ours, first):.3g}",
                    )
                )
                cells.append(
                    {
                        "row": label,
                        "paper": paper,
                        "expected": expected,
                        "pld": ours,
                        "pld-with-choices": chosen_too,
                        "variance": spread,
                    }
                )
                tick()
        head = (
            "ε, b, first batch",
            "z, the paper's accountant",
            "z, ours",
            "z, ours, 20 choices",
            "variance, the paper's",
            "variance, ours",
        )
        title = "Noise multiplier z of both stages, and variance of the first update"
        return Findings((Table(title, head, tuple(rows)),), {"cells": cells}, self.notes)


CLUSTER_NOISE = ClusterNoise(
    name="r-dpcfl-noise",
    title="Noise of the first round by its batch: N = 6,600, E = 200",
    source="R-DPCFL (TMLR 2025), Lemma 4",
    minutes=1,
    notes=(
        "The number in brackets is the check value, found with the authors' Rényi orders and "
        "conversion.",
        "The paper's accountant uses whole orders 2 to 64, ε = rdp + ln(1/δ)/(α − 1), and a "
        "number of steps that may be a fraction. Our accountant uses a privacy-loss "
        "distribution of all steps, rounded up.",
        "The choices are 20 private choices that would cost .3 of ε by themselves. We count "
        "them in the same distribution with one δ; the authors' code spends δ twice.",
    ),
)


def _label(place: tuple[float, int, int]) -> str:
    epsilon, batch, first = place
    return f"ε {epsilon:g} b {batch} first {'N' if first == RECORDS else first}"

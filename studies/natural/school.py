"""``hdpfl reproduce school``: MR-MTL's School at ε = 6 against publications.

Liu, Hu, Wu and Smith, On Privacy and Personalization in Cross-Silo Federated Learning (NeurIPS
2022, arXiv:2206.07902), Fig. 3c; the numbers are those printed in the README of its code for its
three commands. Records, model, ε, δ and clip norm are the paper's; differences are in the notes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hdpfl_flower.errors import TermsError
from studies.framework.study import Options, Table
from studies.natural.scores import Score
from studies.natural.study import NaturalStudy
from studies.natural.tables import ALONE, FEDAVG, Cell, NaturalPlace
from studies.natural.zero_start import LINEAR

MR_MTL = "mr-mtl λ = 1"
BY_RECORDS = "fedavg by records"
PUBLISHED: Mapping[str, float] = {BY_RECORDS: 0.02564, ALONE: 0.02628, MR_MTL: 0.02394}
"""Published mean squared errors over test pupils, 5 repetitions.

From that README.

Its FedAvg weights schools by their training pupils.
"""


@dataclass(frozen=True, kw_only=True)
class SchoolStudy(NaturalStudy):
    """Leaderboard of mean squared errors."""

    def tables(
        self, cells: Mapping[NaturalPlace, Cell], constants: Mapping[str, Score]
    ) -> tuple[Table, ...]:
        """Return one table of squared errors (twice the loss), least first."""
        ordered = sorted(cells, key=lambda place: cells[place].mean("loss"))
        rows = [_row(place.rule, cells[place]) for place in ordered]
        constant = constants["school"]
        rows.append((
            "constant", *(f"{2 * value:.5f}" for value in
            (constant.loss, constant.by_site, constant.worst)), "–", "–", "–",
        ))  # fmt: skip
        head = ("", "over pupils", "over schools", "worst tenth", "alone, %", "rate", "published")
        title = "mean squared error of marks from 0 to 1, ± standard deviation over seeds"
        return (Table(title, head, tuple(rows)),)

    def places(self, options: Options) -> list[NaturalPlace]:
        """Return all cells of the single column.

        Raises:
            TermsError: as for any leaderboard, or no folder of the data set.
        """
        if not options.data_dir:
            raise TermsError("--data-dir is empty; name the folder that holds school/school.mat")
        return super().places(options)


def _row(rule: str, cell: Cell) -> tuple[str, ...]:
    def error(name: str) -> str:
        found = np.array([2 * getattr(score, name) for score in cell.scores])
        spread = f" ± {found.std(ddof=1):.5f}" if len(found) > 1 else ""
        return f"{found.mean():.5f}{spread}"

    return (
        rule,
        *map(error, ("loss", "by_site", "worst")),
        f"{100 * float(np.mean(cell.alone)):.0f}" if cell.alone else "–",
        f"{cell.rate:g}{'*' * cell.at_edge}",
        f"{PUBLISHED[rule]:.5f}" if rule in PUBLISHED else "–",
    )


SCHOOL = SchoolStudy(
    name="school",
    title="School: marks of 15,362 pupils at 139 schools, ε = 6",
    source="arXiv:2206.07902, Fig. 3c, and the README of its code",
    minutes=5,
    federations=("school",),
    epsilons={"6": "6"},
    quick_epsilons=("6",),
    rules={
        ALONE: {"strategy": "local"},
        FEDAVG: {"strategy": "fedavg"},
        BY_RECORDS: {"strategy": "fedavg", "fedavg.weights": "records"},
        MR_MTL: {"strategy": "mr-mtl", "work": "auto pull=1"},
        "ditto λ = 1": {"strategy": "ditto", "second": "private pull=1"},
        "mmse": {"strategy": "mmse"},
        "mmse + shrink": {"strategy": "mmse", "after": "shrink scale=0.05"},
    },
    rates=(0.01, 0.03, 0.1, 0.3, 1.0),
    base={"model": LINEAR, "clip-norm": 1.0, "delta": 1e-3, "rounds": 20},
    notes=(
        "Over pupils: each test pupil counts alike, as published; over schools: each school.",
        "As published: records, a linear model that starts at zero, ε = 6, δ = 1e-3, C = 1. What "
        "differs: every fifth pupil of a school tests, where its code draws a fifth at random; 20 "
        "rounds of four Poisson-sampled batches, where it has 201 passes of shuffled batches of "
        "32, accounted as Poisson-sampled; our accountant (PLD); percentages to [-1, 1] by public "
        "bounds, where each school has its own means and deviations, which no ε pays for; the "
        "mean of MR-MTL weights schools alike; the rate of each row is the best of one grid with "
        "seed 0 on training pupils alone (* the edge of the grid), where it has .01 for all. λ is "
        "the paper's 1 and is not searched.",
        "Every run's ledgers were recounted: no plan costs more than its site was charged.",
    ),
)
"""``hdpfl reproduce school``."""

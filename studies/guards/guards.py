"""Study ``guards``: attacks by content against guards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from studies.framework.plots import plot_columns
from studies.framework.study import OF_DATA, Findings, Options, Study, run_jobs, select_or_all
from studies.guards import by_content
from studies.guards.by_content import GRID, GUARDS, Result


@dataclass(frozen=True, kw_only=True)
class GuardStudy(Study):
    """Table of attacks by guard."""

    takes = ("--seeds", "--rounds", "--strategies", "--columns", *OF_DATA)

    def conduct(self, options: Options, folder: Path) -> Findings:
        """Run each attack under each guard.

        Raises:
            TermsError: ``--columns`` names no column, or ``--strategies`` no guard.
        """
        guards = select_or_all(GUARDS, options.strategies, "--strategies")
        labels = tuple(column.label for column in GRID.columns)
        default = labels if options.full else GRID.quick_columns
        asked = select_or_all(labels, options.columns or default, "--columns")
        columns = tuple(label for label in asked if label.split()[2] in guards)
        seeds = options.seeds or (3 if options.full else 1)
        keys = GRID.keys(
            replace(options, seeds=seeds, columns=columns, learning_rates=(),
                    strategies=by_content.rows_of(options))
        ) if columns else []  # fmt: skip
        jobs = {(k.row, k.column, k.seed): GRID.job(k, options, folder) for k in keys}
        runs = run_jobs(list(jobs.values()), options, self.name)
        results = {
            place: by_content.result_of(job, runs[job.terms.run_id]) for place, job in jobs.items()
        }
        self.draw(results, folder / f"{self.name}.png")
        numbers = {"cells": by_content.numbers_of(results)}
        return Findings((by_content.table_of(results),), numbers, self.notes)

    def draw(self, results: Mapping[tuple[str, str, int], Result], path: Path) -> None:
        """Draw accuracy by attack, a line per guard, panels by distribution, strategy."""
        cells: dict[tuple[str, str, str], list[float]] = {}
        for (row, column, _), found in results.items():
            dist, strategy, guard = column.split()
            cells.setdefault((f"{dist} {strategy}", guard, row), []).append(found.accuracy)
        panels: dict[str, dict[str, dict[str, tuple[float, float]]]] = {}
        for (panel, guard, row), values in cells.items():
            spread = float(np.std(values, ddof=1)) if len(values) > 1 else float("nan")
            line = panels.setdefault(panel, {}).setdefault(guard, {})
            line[row] = (float(np.mean(values)), spread)
        plot_columns(panels, path, "final accuracy, %", self.title)


GUARD_STUDY = GuardStudy(
    name="guards",
    title="Attacks by content under each guard: MNIST, 20 sites",
    source="ours (no paper)",
    minutes=8,
    notes=(
        "Accuracy of the final model, mean over the seeds; refused: honest sites the most, liars "
        "the fewest of any seed; recall of class 7 the least of any seed.",
        "'without the liars': the same run in which the sites that lie elsewhere take no part.",
        "+quiet: the liars add a fifth of the noise that their ε asks for.",
        "12 rounds at Dist4, 24 at Dist6, with the noise of all 200.",
    ),
)

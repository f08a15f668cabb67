"""The study ``guards``: what a guard costs where nobody lies, and what attacks by content do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from server_app.plots import plot_columns
from studies.framework.study import Findings, Options, Study, run_jobs, select_or_all
from studies.guards import by_content, cost
from studies.guards.by_content import GRID, Result
from studies.guards.rules import GUARDS


@dataclass(frozen=True, kw_only=True)
class GuardStudy(Study):
    """Two tables: costs without attackers, and attacks."""

    def conduct(self, options: Options, folder: Path) -> Findings:
        """Run each guard without attackers, the oracle beside it, and each attack.

        Raises:
            TermsError: ``--columns`` names neither a case nor a column of attacks, or
                ``--strategies`` no guard.
        """
        guards = select_or_all(GUARDS, options.strategies, "--strategies")
        attacked = tuple(column.label for column in GRID.columns)
        asked = select_or_all((*cost.CASES, *attacked), options.columns, "--columns")
        if not options.columns:
            asked = (*cost.FULL, *attacked) if options.full else (*cost.QUICK, *GRID.quick_columns)
            asked = tuple(label for label in asked if cost.has_data(label, options))
        seeds = range(1, (options.seeds or (3 if options.full else 1)) + 1)
        cases = [label for label in asked if label in cost.CASES]
        plain = cost.jobs_of(cases, guards, seeds, options, folder)
        columns = tuple(label for label in asked if label in attacked)
        if any(by_content.OTHER_HANDS in label for label in columns):
            by_content.write_digits(folder)
        if options.strategies:
            columns = tuple(label for label in columns if label.split()[2] in guards)
        keys = GRID.keys(
            replace(options, seeds=len(seeds), columns=columns, learning_rates=(),
                    strategies=by_content.rows_of(options))
        ) if columns else []  # fmt: skip
        hostile = {(k.row, k.column, k.seed): GRID.job(k, options, folder) for k in keys}
        runs = run_jobs([*plain.values(), *hostile.values()], options, self.name)
        costs = cost.costs_of({place: runs[job.terms.run_id] for place, job in plain.items()})
        results = {
            place: by_content.result_of(job, runs[job.terms.run_id])
            for place, job in hostile.items()
        }
        self.draw(costs, results, folder / f"{self.name}.png")
        tables = (
            *((cost.table_of(costs),) if costs else ()),
            *((by_content.table_of(results),) if results else ()),
        )
        numbers = {"cells": cost.numbers_of(costs), "attacks": by_content.numbers_of(results)}
        return Findings(tables, numbers, self.notes)

    def draw(
        self,
        costs: Mapping[cost.Place, cost.Cost],
        results: Mapping[tuple[str, str, int], Result],
        path: Path,
    ) -> None:
        """Draw the accuracy by case and by attack, a line a guard, a panel a distribution."""
        cells: dict[tuple[str, str, str], list[float]] = {}
        for (case, guard, _), free in costs.items():
            cells.setdefault(("nobody lies", guard, case), []).append(free.accuracy)
        for (row, column, _), found in results.items():
            dist, strategy, guard, *more = column.split()
            panel = " ".join((dist, strategy, *more))
            cells.setdefault((panel, guard, row), []).append(found.accuracy)
        panels: dict[str, dict[str, dict[str, tuple[float, float]]]] = {}
        for (panel, guard, place), values in cells.items():
            spread = float(np.std(values, ddof=1)) if len(values) > 1 else float("nan")
            line = panels.setdefault(panel, {}).setdefault(guard, {})
            line[place] = (float(np.mean(values)), spread)
        plot_columns(panels, path, "final accuracy, %", self.title)


GUARD_STUDY = GuardStudy(
    name="guards",
    title="What guards cost, and what they are worth: MNIST, 20 sites",
    source="ours (no paper)",
    minutes=8,
    notes=(
        "Accuracy of the final model, mean over the seeds; refused: honest sites the most, liars "
        "the fewest of any seed; recall of class 7 the least of any seed.",
        "'without the liars': the same run in which the sites that lie elsewhere take no part.",
        "+quiet: the liars add a fifth of the noise that their ε asks for.",
        "Heart's four hospitals are run where 'data-dir' has them.",
        "12 rounds at Dist4 and without liars, 24 at Dist6, with the noise of all 200.",
    ),
)

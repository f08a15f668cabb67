"""Tables of ``which-rule``: worst cases, accuracies and rates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from studies.framework.study import Table
from studies.which_rule.battery import FEDAVG, Rate, RatedTask
from studies.which_rule.regret import Difference, established, to_best, to_rule, worst

Place = tuple[str, str]
"""(case, rule)."""

Found = Mapping[str, tuple[str, Difference] | None]
"""Case → other strategy and the difference to it."""


LIMITS = (0.5, 1.0)
"""Points that the safe strategy may trail FedAvg and the best."""


@dataclass(frozen=True)
class CaseCell:
    """Results of a strategy in a case, in percent.

    Attributes:
        rate: learning rate of the reported runs.
        accuracy: of the reported runs, one per seed.
        tried: learning rate → mean accuracy with the search's seeds; empty: not searched.
    """

    rate: Rate
    accuracy: tuple[float, ...]
    tried: Mapping[float, float]

    @property
    def at_edge(self) -> bool:
        """Whether the rate is at the edge of several tried."""
        return len(self.tried) > 1 and self.rate in (min(self.tried), max(self.tried))


def by_case(cells: Mapping[Place, CaseCell]) -> dict[str, dict[str, tuple[float, ...]]]:
    """Return case → rule → accuracies."""
    cases: dict[str, dict[str, tuple[float, ...]]] = {}
    for (case, rule), cell in cells.items():
        cases.setdefault(case, {})[rule] = cell.accuracy
    return cases


def summary(section: str, cells: Mapping[Place, CaseCell]) -> Table:
    """Return each strategy's worst case against FedAvg and the best other."""
    lines = []
    for rule, to_others in _differences(cells).items():
        line = [rule]
        for differences, limit in zip(to_others, LIMITS, strict=True):
            worst_case = worst(differences)
            behind = f" {worst_case.other}" if worst_case and worst_case.other != FEDAVG else ""
            line.append(
                f"{_text(worst_case.difference)}{behind} ({worst_case.case})" if worst_case else "–"
            )
            line.append(str(established(differences, limit)) if worst_case else "–")
        lines.append(tuple(line))
    head = (
        "",
        f"worst difference from {FEDAVG}, points",
        f"cases more than {LIMITS[0]:g} behind it",
        "worst difference from the best other strategy, points",
        f"cases more than {LIMITS[1]:g} behind it",
    )
    count = len(by_case(cells))
    return Table(f"Worst of {count} cases; {section}", head, tuple(lines))


def accuracies(section: str, cells: Mapping[Place, CaseCell], safe: str) -> Table:
    """Return accuracies by case, with the safe strategy's differences."""
    rules = list(dict.fromkeys(rule for _, rule in cells))
    has_safe = safe in rules and len(rules) > 1
    lines = []
    for case, values in by_case(cells).items():
        line = [case, *(_mean_text(values[rule]) for rule in rules)]
        if has_safe:
            fedavg = to_rule(values, safe, FEDAVG)
            best = to_best(values, safe)
            line.append(_text(fedavg[1]) if fedavg else "–")
            line.append(f"{_text(best[1])} ({best[0]})" if best else "–")
        lines.append(tuple(line))
    beside = (f"{safe} − {FEDAVG}", f"{safe} − best other strategy") if has_safe else ()
    title = f"Accuracy in % ± sd over seeds; differences ± standard error; {section}"
    return Table(title, ("", *rules, *beside), tuple(lines))


def rates(cells: Mapping[Place, CaseCell]) -> Table:
    """Return the search's rate for each strategy and case."""
    rules = list(dict.fromkeys(rule for _, rule in cells))
    cases = dict.fromkeys(case for case, _ in cells)

    def text(cell: CaseCell) -> str:
        return f"{cell.rate:g}" + "*" * cell.at_edge

    lines = tuple((case, *(text(cells[case, rule]) for rule in rules)) for case in cases)
    return Table("Chosen learning rate (*: it is at the edge of the grid)", ("", *rules), lines)


def search_of_fedavg(
    cells: Mapping[Place, CaseCell], task_of: Mapping[str, str], tasks: Mapping[str, RatedTask]
) -> Table:
    """Return FedAvg's accuracy by rate, from which ``fixed`` is chosen.

    With the search's seeds.

    Args:
        cells: of the part with searched rates.
        task_of: case → the name of its task.
        tasks: by their names.
    """
    lines = []
    for name, task in tasks.items():
        tried = [
            cell.tried
            for (case, rule), cell in cells.items()
            if rule == FEDAVG and task_of[case] == name
        ]
        if tried:
            by_rate = [
                f"{rate:g}: {sum(means[rate] for means in tried) / len(tried):.1f}"
                for rate in tried[0]
            ]
            lines.append((name, ", ".join(by_rate), f"{task.fixed:g}"))
    title = f"{FEDAVG} by learning rate: mean over the cases, with the seeds of the search"
    return Table(title, ("", "rate: accuracy, %", "one rate for all strategies"), tuple(lines))


def numbers(parts: Mapping[str, Mapping[Place, CaseCell]]) -> dict[str, Any]:
    """Return all cells and worst cases for ``results.json``."""
    return {
        "cells": [
            {
                "part": section,
                "case": case,
                "rule": rule,
                "learning-rate": cell.rate,
                "accuracy": list(cell.accuracy),
                "searched": {f"{rate:g}": mean for rate, mean in cell.tried.items()},
            }
            for section, cells in parts.items()
            for (case, rule), cell in cells.items()
        ],
        "worst": [
            {"part": section, **case_numbers}
            for section, cells in parts.items()
            for case_numbers in _worst_numbers(cells)
        ],
    }


def _differences(cells: Mapping[Place, CaseCell]) -> dict[str, tuple[Found, Found]]:
    """Return rule → differences to FedAvg and to the best, by case."""
    cases = by_case(cells)
    return {
        rule: (
            {case: to_rule(values, rule, FEDAVG) for case, values in cases.items()},
            {case: to_best(values, rule) for case, values in cases.items()},
        )
        for rule in dict.fromkeys(rule for _, rule in cells)
    }


def _worst_numbers(cells: Mapping[Place, CaseCell]) -> list[dict[str, Any]]:
    numbers = []
    for rule, to_others in _differences(cells).items():
        for to, differences in zip((FEDAVG, "best other"), to_others, strict=True):
            if worst_case := worst(differences):
                error = worst_case.difference.error
                numbers.append(
                    {
                        "rule": rule,
                        "to": to,
                        "case": worst_case.case,
                        "other": worst_case.other,
                        "points": worst_case.difference.mean,
                        "standard-error": None if math.isnan(error) else error,
                    }
                )
    return numbers


def _mean_text(values: Sequence[float]) -> str:
    mean = float(np.mean(values))
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    return f"{mean:.1f}" + ("" if math.isnan(spread) else f" ± {spread:.1f}")


def _text(difference: Difference) -> str:
    """Return a difference, marked ``≈`` below two standard errors.

    >>> _text(Difference(-1.5, 0.25)), _text(Difference(0.2, 0.25)), _text(Difference(1, math.nan))
    ('-1.5 ± 0.2', '≈ +0.2 ± 0.2', '≈ +1.0')
    """
    error = "" if math.isnan(difference.error) else f" ± {difference.error:.1f}"
    return ("" if difference.is_established else "≈ ") + f"{difference.mean:+.1f}{error}"

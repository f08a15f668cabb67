"""Figures of operator splitting: panels, methods and gaps by round."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hdpfl_flower.system.files import replace_file
from hdpfl_tools.coordinator.progress import rounds_bar
from studies.framework.plots import plot_gaps
from studies.framework.study import Findings, Options, Study, Table, select_or_all
from studies.splitting.methods import Method, gaps
from studies.splitting.problems import Data, Problem

Floats = npt.NDArray[np.float64]

Curves = Mapping[tuple[str, str], Floats]
"""(method, panel) → gap after each round, shape ``(seeds, rounds)``."""


@dataclass(frozen=True)
class ProblemSetting:
    """Problem and number of rounds.

    Attributes:
        data: its records; the seed is that of the run.
        eta: η₀, of proximal maps and of gradient steps.
        rounds: of the run.
        seeds: draws of the records.
        target: target gap of regularised methods, and of all others.
    """

    data: Data
    eta: float
    rounds: int
    seeds: int = 1
    target: tuple[float, float] = (1e-2, 1e-8)


@dataclass(frozen=True)
class Panel:
    """Table column and picture panel: published and quick form."""

    label: str
    full: ProblemSetting
    quick: ProblemSetting


@dataclass(frozen=True)
class Claim:
    """Claim of the thesis or ours, tested on the gaps.

    Attributes:
        text: the statement, with its source.
        holds: reads the curves; a KeyError or an IndexError means that a line or a
            round was not run.
        expected: whether it holds by our measurements.
    """

    text: str
    holds: Callable[[Curves], bool]
    expected: bool = True


@dataclass(frozen=True, kw_only=True)
class SplittingStudy(Study):
    """Figure of operator splitting.

    Attributes:
        panels: the problems.
        methods: the lines.
        rounds_to_target: whether the table shows rounds to the target in place of final gaps.
        expected: (method, panel) → the number expected in the full form.
        claims: claims that the figure tests.
    """

    takes = ("--seeds", "--rounds", "--strategies", "--columns")
    panels: tuple[Panel, ...]
    methods: tuple[Method, ...]
    rounds_to_target: bool = False
    expected: Mapping[tuple[str, str], float] = field(default_factory=dict)
    claims: tuple[Claim, ...] = ()

    def conduct(self, options: Options, folder: Path) -> Findings:
        """Run missing lines; draw gaps by round."""
        settings = self._settings(options)
        methods = self._methods(options)
        runs = [
            (label, replace(setting, data=replace(setting.data, seed=seed)))
            for label, setting in settings.items()
            for seed in range(1, 1 + (options.seeds or setting.seeds))
        ]
        curves: dict[tuple[str, str], list[Floats]] = {}
        total = sum(setting.rounds for _, setting in runs) * len(methods)
        with rounds_bar(total, self.name) as tick:
            for label, setting in runs:
                for method, curve in _lines(methods, setting, folder / "runs", tick):
                    curves.setdefault((method, label), []).append(curve)
        return self._findings({key: np.array(c) for key, c in curves.items()}, options, folder)

    def _settings(self, options: Options) -> dict[str, ProblemSetting]:
        """Return the panels' settings by label.

        Raises:
            TermsError: ``--columns`` names an entry that the study lacks.
        """
        panels = {panel.label: panel for panel in self.panels}
        chosen = select_or_all(tuple(panels), options.columns, "--columns")
        forms = {c: panels[c].full if options.full else panels[c].quick for c in chosen}
        return {c: replace(f, rounds=options.rounds or f.rounds) for c, f in forms.items()}

    def _methods(self, options: Options) -> tuple[Method, ...]:
        methods = {method.label: method for method in self.methods}
        return tuple(
            methods[m] for m in select_or_all(tuple(methods), options.strategies, "--strategies")
        )

    def _findings(self, curves: Curves, options: Options, folder: Path) -> Findings:
        settings = self._settings(options)
        panels = {
            panel: {method: mean_gap(c) for (method, p), c in curves.items() if p == panel}
            for panel in settings
        }
        plot_gaps(panels, folder / f"{self.name}.png", self.title)
        # The expected numbers are those of the published size and number of rounds.
        expected = self.expected if options.full and not options.rounds else {}
        cells = [
            self._cell(key, curve, settings[key[1]], expected.get(key))
            for key, curve in curves.items()
        ]
        verdicts = [(c, held) for c in self.claims if (held := _verdict(c, curves)) is not None]
        numbers = {
            "cells": cells,
            "claims": [{"claim": c.text, "holds": held} for c, held in verdicts],
            "gaps": {f"{m} | {p}": _finite(mean_gap(c)) for (m, p), c in curves.items()},
        }
        tables = [self._table(cells, tuple(settings))]
        if verdicts:
            rows = tuple((c.text, "holds" if held else "fails") for c, held in verdicts)
            tables.append(Table("claims", ("", "measured"), rows))
        return Findings(tuple(tables), numbers, self.notes)

    def _cell(
        self, key: tuple[str, str], curve: Floats, setting: ProblemSetting, expected: float | None
    ) -> dict[str, Any]:
        method = next(m for m in self.methods if m.label == key[0])
        target = setting.target[0] if method.regularised else setting.target[1]
        final = float(curve[:, -1].mean())
        return {
            "row": key[0],
            "column": key[1],
            "final-gap": final if np.isfinite(final) else None,
            "target": target,
            "rounds-to-target": rounds_to(curve, target),
            "rounds-by-seed": [rounds_to(row[None], target) for row in curve],
            "expected": expected,
        }

    def _table(self, cells: list[dict[str, Any]], columns: tuple[str, ...]) -> Table:
        rows: dict[str, dict[str, str]] = {}
        for cell in cells:
            rows.setdefault(cell["row"], {})[cell["column"]] = self._text(cell)
        title = "f(x) − f(x*) after the last round"
        if self.rounds_to_target:
            title = "Rounds to the target gap"
        return Table(
            f"{title} (expected)",
            ("", *columns),
            tuple((row, *(cells[column] for column in columns)) for row, cells in rows.items()),
        )

    def _text(self, cell: Mapping[str, Any]) -> str:
        beside = "" if cell["expected"] is None else f" ({cell['expected']:g})"
        if self.rounds_to_target:
            rounds = cell["rounds-to-target"]
            return f"{'–' if rounds is None else f'{rounds:.0f}'}{beside} to {cell['target']:g}"
        final = cell["final-gap"]
        return ("diverges" if final is None else f"{final:.2g}") + beside


def mean_gap(curve: Floats) -> Floats:
    """Return the mean over the seeds, shape ``(rounds,)``."""
    mean: Floats = curve.mean(0)
    return mean


def rounds_to(curve: Floats, target: float) -> float | None:
    """Return the mean rounds to a gap of ``target``; None: not reached.

    >>> rounds_to(np.array([[4.0, 2.0, 1.0], [4.0, 1.0, 2.0]]), 2.0)
    2.0
    """
    reached = curve <= target
    if not reached.any(axis=1).all():
        return None
    return float(reached.argmax(axis=1).mean() + 1)


def _lines(
    methods: tuple[Method, ...], setting: ProblemSetting, folder: Path, tick: Callable[[], None]
) -> list[tuple[str, Floats]]:
    """Return every method's gaps, reading stored ones."""
    problem: Problem | None = None
    lines = []
    for method in methods:
        path = folder / f"{_name(method, setting)}.json"
        curve = _stored(path, setting.rounds)
        if curve is None:
            problem = problem or setting.data.draw()
            curve = gaps(method, problem, setting.eta, setting.rounds, tick)
            folder.mkdir(parents=True, exist_ok=True)
            replace_file(path, json.dumps(_finite(curve)).encode(), mode=0o644)
        else:
            for _ in range(setting.rounds):
                tick()
        lines.append((method.label, curve))
    return lines


def _name(method: Method, setting: ProblemSetting) -> str:
    """Return a name of all result inputs, within one code version."""
    facts = {
        "method": {k: v for k, v in asdict(method).items() if k != "label"},
        "data": asdict(setting.data),
        "eta": setting.eta,
        "rounds": setting.rounds,
        "version": version("hdpfl-flower"),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24]


def _stored(path: Path, rounds: int) -> Floats | None:
    try:
        values = np.array(json.loads(path.read_text()), dtype=np.float64)
    except (OSError, ValueError, TypeError):
        return None
    return np.where(np.isnan(values), np.inf, values) if values.shape == (rounds,) else None


def _finite(values: Floats) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]


def _verdict(claim: Claim, curves: Curves) -> bool | None:
    try:
        return bool(claim.holds(curves))
    except (KeyError, IndexError):
        return None

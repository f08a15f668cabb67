"""Promises to sites under each strategy, from run results."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.table import Table

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.scenarios.budgets import draw_epsilons

Row = tuple[str, str, str]
"""ε, sites, promise."""


def read_promises(folders: Mapping[str, Path]) -> dict[str, dict[str, Any]]:
    """Return each run's promises by strategy; runs without promises are skipped.

    >>> read_promises({"fedavg": Path("nowhere")})
    {}
    """
    found = {}
    for name, folder in folders.items():
        path = folder / "result.json"
        promises = json.loads(path.read_text()).get("privacy") if path.is_file() else None
        if promises:
            found[name] = promises
    return found


def promises_table(
    config: RunConfig, num_sites: int, promises: Mapping[str, Mapping[str, Any]]
) -> tuple[Table, list[str]]:
    """Return a table by strategy and level, with common lines.

    Args:
        config: what the runs have in common; the seed is that of these runs.
        num_sites: sites in each.
        promises: strategy → the ``privacy`` of its run.
    """
    terms, drawn = config.terms, config.simulation
    own = draw_epsilons(drawn.epsilons, num_sites, drawn.seed)
    table = Table(title=f"Promises by site (δ {terms.delta:g}, seed {drawn.seed})")
    for column in ("strategy", "ε", "sites", "promise"):
        table.add_column(column, justify="right" if column in ("ε", "sites") else "left")
    for name, facts in promises.items():
        for number, row in enumerate(_rows(facts, own)):
            table.add_row("" if number else name, *row)
    first = next(iter(promises.values()))
    lines = [
        f"protected: {first['unit']}; {first['relation']}; {first['scope']}",
        f"trust: {first['trust']}",
    ]
    if terms.calibration != "pld":
        lines.append("the ε are nominal: their noise is by a paper's formula, not by an accountant")
    lines.append("a simulation's noise is seeded, without protection; real sites would have this")
    return table, lines


def _rows(facts: Mapping[str, Any], own: npt.NDArray[np.float64]) -> Iterator[Row]:
    """Yield rows by level, or for private and opted-out sites."""
    if "violates" in facts:
        spent = float(facts.get("epsilon", own.max()))
        yield f"{spent:g}", str(len(own)), f"VIOLATED for {facts['violates']}"
        return
    for level in facts.get("levels", []):
        if not level["sites"]:
            continue
        epsilon, out = float(level["epsilon"]), level.get("opted-out", 0)
        most = math.isfinite(epsilon) and facts["noise"] != "server"
        text = f"at most {_number(epsilon)}" if most else _number(epsilon)
        yield text, str(level["sites"] - out), level["promise"]
        if out:
            yield "inf", str(out), "no privacy"
    if "levels" in facts:
        return
    # A cap lowers what a site spends in the run, never raises it.
    kept = np.minimum(own, float(facts.get("epsilon-cap", math.inf)))
    private = kept[np.isfinite(kept)]
    if len(private):
        low, high = _number(private.min()), _number(private.max())
        text = low if low == high else f"{low} to {high}"
        yield text, str(len(private)), "differential privacy"
    if len(private) < len(kept):
        yield "inf", str(len(kept) - len(private)), "no privacy"


def _number(epsilon: float) -> str:
    return f"{epsilon:.4g}"

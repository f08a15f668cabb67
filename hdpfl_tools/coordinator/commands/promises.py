"""Promises to sites under each strategy, from run results."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.table import Table

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_tools.coordinator.progress import make_table
from hdpfl_tools.simulation.scenarios.budgets import draw_epsilons
from server_app.run.final_measures import read_final_measures

Row = tuple[str, str, str]
"""ε, sites, promise."""


def read_promises(folders: Mapping[str, Path]) -> dict[str, dict[str, Any]]:
    """Return each run's promises by strategy; runs without promises are skipped.

    >>> read_promises({"fedavg": Path("nowhere")})
    {}
    """
    promises = {name: read_final_measures(folder, "privacy") for name, folder in folders.items()}
    return {name: facts for name, facts in promises.items() if facts}


def promises_table(
    config: RunConfig, num_sites: int, promises: Mapping[str, Mapping[str, Any]]
) -> tuple[Table, list[str]]:
    """Return a table by strategy and level, with common lines.

    Args:
        config: the terms that the runs have in common; the seed is that of these runs.
        num_sites: sites in each.
        promises: strategy → the ``privacy`` of its run.
    """
    terms, drawn = config.terms, config.simulation
    epsilons = draw_epsilons(drawn.epsilons, num_sites, drawn.seed)
    rows = [
        ("" if number else name, *row)
        for name, facts in promises.items()
        for number, row in enumerate(_rows(facts, epsilons))
    ]
    title = f"Promises to the sites (δ {terms.delta:g}, seed {drawn.seed})"
    head = ("strategy", "ε", "sites", "promise")
    table = make_table(title, head, rows, words=("strategy", "promise"))
    first = next(iter(promises.values()))
    lines = [
        f"protected: {first['unit']}; {first['relation']}; {first['scope']}",
        f"trust: {first['trust']}",
    ]
    if terms.calibration != "pld":
        lines.append("these ε are nominal: a paper's formula sets their noise, not an accountant")
    lines.append(
        "the noise of a simulation comes from a seed and protects nothing; real sites "
        "would have this"
    )
    return table, lines


def _rows(facts: Mapping[str, Any], epsilons: npt.NDArray[np.float64]) -> Iterator[Row]:
    """Yield rows by level, or for private and opted-out sites."""
    if "violates" in facts:
        spent = float(facts.get("epsilon", epsilons.max()))
        yield f"{spent:g}", str(len(epsilons)), f"VIOLATED for {facts['violates']}"
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
    # A cap lowers the ε that a site spends in the run, never raises it.
    capped = np.minimum(epsilons, float(facts.get("epsilon-cap", math.inf)))
    private = capped[np.isfinite(capped)]
    if len(private):
        low, high = _number(private.min()), _number(private.max())
        text = low if low == high else f"{low} to {high}"
        yield text, str(len(private)), "differential privacy"
    if len(private) < len(capped):
        yield "inf", str(len(capped) - len(private)), "no privacy"


def _number(epsilon: float) -> str:
    return f"{epsilon:.4g}"

"""Measures of the summed histograms of scores (``hdpfl_flower/measures/from_cells.py``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.measures.from_cells import OF_CELLS, NoisyCells, measure_cells
from hdpfl_flower.measures.score_cells import CELLS
from hdpfl_flower.models.task import Task
from hdpfl_flower.releases.base import ReleaseKind
from server_app.releases import ServerHalf

HELD_OUT = "held-out records of the sites"
_LEVEL = 0.95
_NO_SITE = "no site sent its histogram of scores"


class ScoresReading(ServerHalf):
    """Measures of the summed histograms, each with an interval that holds the noise."""

    def numbers(self, kind: ReleaseKind, terms: RunTerms, task: Task) -> int:
        """Return the public number of cells."""
        del kind, terms, task
        return CELLS

    def read(
        self,
        kind: ReleaseKind,
        rows: npt.NDArray[np.float32],
        without: Mapping[str, str],
        terms: RunTerms,
    ) -> dict[str, Any]:
        """Return the measures of the summed histograms, weights 1."""
        del kind, terms
        facts: dict[str, Any] = {"on": HELD_OUT, "sites": len(rows), "without": dict(without)}
        if not len(rows):
            return {**facts, "measures": {}, "missing": dict.fromkeys(OF_CELLS, _NO_SITE)}
        cells = NoisyCells.of_sites(rows.astype(np.float64))
        measured = measure_cells(cells, _LEVEL)
        return {
            **facts,
            "records": round(cells.records, 1),
            "noise": round(cells.noise, 4),
            "level": _LEVEL,
            "measures": {name: estimate.facts() for name, estimate in measured.estimates.items()},
            **({"missing": measured.missing} if measured.missing else {}),
        }

    def about(self, facts: Mapping[str, Any]) -> str:
        """Return the number of sites and records, and the noise."""
        basis = ""
        if "noise" in facts:
            answered = int(facts["sites"])
            basis = (
                f" ({answered} of {answered + len(facts['without'])} sites, about "
                f"{max(0, round(facts['records']))} records, "
                f"noise σ = {float(facts['noise']):.3g} a cell)"
            )
        return (
            f"Estimated from the sum of the sites' noisy histograms of scores{basis}; the "
            "intervals of 95 % cover this noise. No record left its site."
        )


HALF = ScoresReading()

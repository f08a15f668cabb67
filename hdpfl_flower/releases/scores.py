"""One noisy histogram of the final model's scores by class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from hdpfl_flower.config.settings import ShareOrNone
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import TermsError
from hdpfl_flower.models.task import Task
from hdpfl_flower.privacy.accounting import Gaussians
from hdpfl_flower.releases.base import Basis, ReleaseKind, once

HELD_OUT = "records that sites hold out"
_LEVEL = 0.95
_NO_SITE = "no site sent its histogram of scores"


class Scores(ReleaseKind):
    """Counts of one held-out record of each person, sent to the server once.

    AUROC and calibration over all sites are estimated from them.
    """

    kind, main, release = "scores", "share", "scores"
    is_sent = True
    consent = "one noisy histogram of scores on its own records held out, at the end"
    event = "federated-measures"
    title = "Measures of the final model on records that sites hold out"
    price = "noise of a count in the histogram of scores, sent once, after the last round"
    item = "histogram"
    content = "of a model's scores on records held out, with noise in each count"
    report = (
        "Scores: once a run the final model's predictions for the records held out, one a unit, "
        "are counted by class in public bins, with noise of that z in each count, and sent. Their "
        "cost is in the run's ε."
    )
    share: ShareOrNone = Field(
        0.0, description="Share of a site's ε that the histogram alone would cost; 0: none is sent."
    )

    def check(self, terms: RunTerms) -> None:
        """Refuse models of which a part stays at its site."""
        if terms.work.sent_part:
            raise TermsError(
                f"run config: {self.words} is of a model that all sites share, and 'work' "
                f"= '{terms.work.kind}' keeps a part of it at each site; leave one of them out"
            )

    def check_task(self, task: Task) -> None:
        """Refuse tasks of other than two classes."""
        from hdpfl_flower.measures.score_cells import check_binary

        check_binary(task)

    def cost(self, basis: Basis) -> Gaussians:
        """Return one release: one record more or less moves one count by 1."""
        return once(basis, self.share)

    def numbers(self, terms: RunTerms, task: Task) -> int:
        """Return the public number of cells."""
        from hdpfl_flower.measures.score_cells import CELLS

        del terms, task
        return CELLS

    def read(
        self, rows: npt.NDArray[np.float32], without: Mapping[str, str], terms: RunTerms, task: Task
    ) -> dict[str, Any]:
        """Return the measures of the summed histograms, weights 1."""
        from hdpfl_flower.measures.from_cells import OF_CELLS, NoisyCells, measure_cells

        del terms, task
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

    @classmethod
    def about(cls, facts: Mapping[str, Any]) -> str:
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
            "intervals of 95 % hold that noise. No record left its site."
        )

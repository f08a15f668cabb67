"""Federated measures of a model: held-out records, charged noisy histograms.

Once, after the last round: every site that took part is sent the final model and answers with its
histogram of scores (``client_app/after_run/score_histogram.py``), or not; the server sums the
histograms, weights 1, and estimates AUROC and calibration
(``hdpfl_flower/measures/from_cells.py``). A histogram is its site's word: a liar can shift
these figures, as it can shift metrics.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.serverapp import Grid

from hdpfl_flower import wire
from hdpfl_flower.measures.from_cells import OF_CELLS, NoisyCells, measure_cells
from hdpfl_flower.models.networks import Arrays
from server_app.run.final_measures import measure_rows
from strategies.core.checks import NO_REPLY, read_scores
from strategies.core.kernel import Kernel

log = logging.getLogger("hdpfl.server")

FEDERATED = "federated-measures"
"""The journal's event, and the key of ``result.json``."""
HELD_OUT = "records that sites hold out"
_LEVEL = 0.95
_NOBODY = "no site sent its histogram of scores"


def federated_measures(grid: Grid, kernel: Kernel, arrays: Arrays) -> dict[str, Any]:
    """Return the facts of the event; empty without a requested histogram.

    Args:
        grid: Flower's.
        kernel: of the run, after its last round.
        arrays: the final model, or models, as the run reports them.
    """
    if not kernel.terms.sends_scores:
        return {}
    messages = list(kernel.finish_messages(wire.write_model(arrays), grid, wire.SCORES))
    replies = grid.send_and_receive(messages, timeout=kernel.server.round_timeout)
    without, counts = dict.fromkeys(kernel.roster.joined(), NO_REPLY.words), []
    for site, reply in kernel.messages.match(replies):
        try:
            counts.append(read_scores(reply))
            del without[site]
        except wire.WireError as error:
            without[site] = str(error)
    facts = facts_of(np.array(counts).reshape(len(counts), -1), without)
    for name, value, ends in measure_rows(facts):
        log.info("%s, %s: %s (%s)", name, HELD_OUT, value, ends)
    return facts


def facts_of(counts: np.ndarray, without: Mapping[str, str]) -> dict[str, Any]:
    """Return the event's facts.

    Args:
        counts: of the sites that answered, shape ``(sites, CELLS)``.
        without: site → why it is not counted.
    """
    facts: dict[str, Any] = {"on": HELD_OUT, "sites": len(counts), "without": dict(without)}
    if not len(counts):
        return {**facts, "measures": {}, "missing": dict.fromkeys(OF_CELLS, _NOBODY)}
    cells = NoisyCells.of_sites(counts)
    measured = measure_cells(cells, _LEVEL)
    return {
        **facts,
        "records": round(cells.records, 1),
        "noise": round(cells.noise, 4),
        "level": _LEVEL,
        "measures": {name: estimate.facts() for name, estimate in measured.estimates.items()},
        **({"missing": measured.missing} if measured.missing else {}),
    }

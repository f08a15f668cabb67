"""Payloads of the kinds of release that sites send: asked for once, after the last round.

Every site that took part is sent the final model for each kind, and answers with its noisy payload
(``client_app/releases/``), or not; the kind reads the payloads of all sites
(``hdpfl_flower/releases/``). A payload is its site's word: a liar can shift these figures, as it
can shift metrics.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from flwr.serverapp import Grid

from hdpfl_flower import wire
from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.models.networks import Arrays
from hdpfl_flower.releases.base import ReleaseKind
from hdpfl_flower.releases.of_run import sent_kinds
from hdpfl_flower.releases.scores import HELD_OUT, Scores
from server_app.run.final_measures import measure_rows
from strategies.core.checks import NO_REPLY, read_payload
from strategies.core.kernel import Kernel

log = logging.getLogger("hdpfl.server")

FEDERATED = Scores.event
"""The journal's event of the histograms of scores, and the key of ``result.json``."""
__all__ = ["FEDERATED", "HELD_OUT", "federated_measures"]


def federated_measures(grid: Grid, kernel: Kernel, arrays: Arrays) -> dict[str, dict[str, Any]]:
    """Return the facts of each kind that sites send, by the journal's event.

    Args:
        grid: Flower's.
        kernel: of the run, after its last round.
        arrays: the final model, or models, as the run reports them.
    """
    return {kind.event: _facts_of(kind, grid, kernel, arrays) for kind in sent_kinds(kernel.terms)}


def _facts_of(kind: ReleaseKind, grid: Grid, kernel: Kernel, arrays: Arrays) -> dict[str, Any]:
    terms = kernel.terms
    task = task_for(terms)
    numbers = kind.numbers(terms, task)
    query = wire.query_of(kind.kind)
    messages = list(kernel.finish_messages(wire.write_model(arrays), grid, query))
    replies = grid.send_and_receive(messages, timeout=kernel.server.round_timeout)
    without, rows = dict.fromkeys(kernel.roster.joined(), NO_REPLY.words), []
    for site, reply in kernel.messages.match(replies):
        try:
            rows.append(read_payload(reply, kind.kind, numbers))
            del without[site]
        except wire.WireError as error:
            without[site] = str(error)
    facts = kind.read(np.array(rows).reshape(len(rows), numbers), without, terms, task)
    for name, value, ends in measure_rows(facts):
        log.info("%s, %s: %s (%s)", name, facts.get("on", kind.kind), value, ends)
    return facts

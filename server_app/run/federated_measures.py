"""Payloads of the kinds of release that sites send: asked for once, after the last round.

Every site that took part is sent the final model for each kind, and answers with its noisy payload
(``client_app/releases/``), or not; ``server_app/releases/`` reads the payloads of all sites. A
payload is its site's word: a liar can shift these figures, as it can shift metrics.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid

from hdpfl_flower import server_wire, wire
from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.models.networks import Arrays
from hdpfl_flower.releases.base import ReleaseKind
from hdpfl_flower.releases.of_run import final_kinds
from hdpfl_flower.releases.scores import Scores
from server_app.releases import half_of
from server_app.releases.scores import HELD_OUT
from server_app.run.final_measures import measure_rows
from strategies.core.checks import NO_REPLY, check_delivered, read_payload
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
    facts_of = {}
    for kind in final_kinds(kernel.terms):
        query = server_wire.query_of(kind.kind)
        messages = list(kernel.finish_messages(server_wire.write_model(arrays), grid, query))
        facts_of[kind.event] = payload_facts(kind, grid, kernel, messages, arrays)
    return facts_of


def payload_facts(
    kind: ReleaseKind,
    grid: Grid,
    kernel: Kernel,
    messages: list[Message],
    model: Arrays | None = None,
) -> dict[str, Any]:
    """Return the facts of the replies to ``messages``, which ask for the payloads of a kind."""
    terms, half = kernel.terms, half_of(kind.kind)
    half = half if model is None else half.of_model(model)
    numbers = half.numbers(kind, terms, task_for(terms))
    together = kernel.together if kind.is_first else None
    replies = grid.send_and_receive(messages, timeout=kernel.server.round_timeout)
    without, by_site = dict.fromkeys(kernel.messages.asked, NO_REPLY.words), dict[str, Any]()
    for site, reply in kernel.messages.match(replies):
        try:
            check_delivered(reply)
            if together:
                part = server_wire.read_numbers(kind.kind, reply.content, numbers, "uint64")
                by_site[site] = part
            else:
                by_site[site] = read_payload(reply, kind.kind, numbers)
            del without[site]
        except wire.WireError as error:
            without[site] = str(error)
    sites = [site for site in kernel.messages.asked if site in by_site]
    # In the order of the sites: replies come in any, and sums of floats depend on it.
    rows = np.array([by_site[site] for site in sites]).reshape(len(sites), numbers)
    if together:
        rows = together.read_rows(rows, is_whole=not without)
    facts = half.read(kind, rows, without, terms)
    if kind.is_first:
        facts = {"answered": sites, **facts}
    for name, value, ends in measure_rows(facts):
        log.info("%s, %s: %s (%s)", name, facts.get("on", kind.kind), value, ends)
    return facts

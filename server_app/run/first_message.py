"""The first message of a run: asked for once, before round 1, of every site that joined.

Its facts are written to the journal. The scales that they give enter the terms of round 1 and are
stored with the checkpoint: a resumed run keeps them, and a repeated request gets the same bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from hdpfl_flower.releases.moments import why_not
from hdpfl_flower.releases.of_run import sent_kinds
from server_app.run.checkpointing import NoCheckpoints
from server_app.run.federated_measures import payload_facts
from strategies.core.kernel import Kernel

log = logging.getLogger("hdpfl.server")


def first_facts(
    grid: Grid,
    kernel: Kernel,
    model: ArrayRecord,
    checkpoints: NoCheckpoints,
    record: Callable[..., object],
) -> dict[str, dict[str, Any]]:
    """Return the facts of each kind before round 1, by event; their scales enter the terms.

    Args:
        grid: Flower's.
        kernel: of the run, prepared.
        model: that round 1 starts from.
        checkpoints: of the run; one that had its first message asks for none, and the journal
            before it holds the facts.
        record: writer of the journal.
    """
    kinds = [kind for kind in sent_kinds(kernel.terms) if kind.is_first]
    facts_of = {
        kind.event: {key: value for key, value in event.items() if key not in ("event", "at")}
        for kind in kinds
        for event in checkpoints.before
        if event["event"] == kind.event
    }
    if not kinds and checkpoints.checkpoint is None and (why := why_not(kernel.terms)):
        log.info("no first message: %s", why)
    for kind in kinds:
        is_known = kind.event in facts_of
        if not is_known:
            messages = list(kernel.first_messages(model, kind.kind))
            facts_of[kind.event] = payload_facts(kind, grid, kernel, messages)
        facts = facts_of[kind.event]
        if scales := facts.get("scales"):
            kernel.strategy.terms = kernel.terms.updated(scales=scales)
        if is_known:
            continue
        if fault := facts.get("why"):
            log.warning("first message: %s", fault)
        # Stored before any message holds the scales: a resumed run reads them. A crash
        # before asks again, and each site answers with the same bytes.
        record(kind.event, **facts)
        checkpoints.save(kernel, model, 0)
    return facts_of

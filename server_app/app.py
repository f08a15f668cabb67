"""The ServerApp that ``flwr run`` starts: terms in, rounds, a run's folder out."""

from __future__ import annotations

import logging
import sys

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from hdpfl_flower.config import RunTerms
from hdpfl_flower.errors import HDPFLError
from hdpfl_flower.journal import Event
from server_app.rounds import run

app = ServerApp()
log = logging.getLogger("hdpfl.server")
NAMED = 20
"""Sites that a line of the log names."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation that the run config describes."""
    _show_own_lines()
    try:
        result = run(grid, RunTerms.parse(context.run_config), _tell)
    except HDPFLError as error:
        log.error("%s", error)  # Flower's traceback follows; it must be raised for "failed"
        raise error.with_traceback(None) from None
    log.info("run %s: %d rounds, folder %s", result.run_id, len(result.rounds), result.folder)


def _show_own_lines() -> None:
    """Send our own log to stderr, which Flower streams to ``flwr log``.

    The root logger stays as it is: at INFO, httpx would tell of every request, and each such line
    is uploaded by a request of its own.
    """
    logger = logging.getLogger("hdpfl")
    if logger.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


def _tell(event: Event) -> None:
    if event["event"] == "privacy":
        log.info("protected: %s; %s", event["unit"], event["trust"])
        if without := event.get("no privacy"):
            more = f" and {len(without) - NAMED} more" if len(without) > NAMED else ""
            log.info("no privacy: %s%s (opted out)", ", ".join(without[:NAMED]), more)
    if event["event"] == "round":
        came, asked = len(event["accepted"]), len(event["asked"])
        metrics = "".join(f", {name} {value:.4f}" for name, value in event["metrics"].items())
        log.info("round %d: %d of %d updates%s", event["round"], came, asked, metrics)

"""ServerApp of ``flwr run``: terms, rounds, the run's folder."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from hdpfl_flower.config.named_files import with_files
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.server_terms import rates_line
from hdpfl_flower.data.stated_task import is_own
from hdpfl_flower.errors import CheckpointError, HDPFLError, TermsError
from hdpfl_flower.models.site_summary import in_brief
from hdpfl_flower.monitoring.influence import shares_line, warning_lines
from hdpfl_flower.monitoring.journal import Event
from hdpfl_flower.system.notice import send_notice
from hdpfl_flower.system.patient import ask_again
from hdpfl_flower.system.tools import tool
from server_app.plots import draw_run
from server_app.run.checkpointing import Checkpoints
from server_app.run.replies import pull_once_more
from server_app.run.resume import (
    check_drawn_alike,
    engine_of,
    open_run,
    origin_of,
    run_folder,
)
from server_app.run.rounds import RunResult, run

app = ServerApp()
log = logging.getLogger("hdpfl.server")
RESUME_FROM = "resume-from"
"""Run config key of the run to resume: folder or id; no term."""
NAMED = 20
"""Sites that a line of the log names."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation that the run config describes."""
    _show_own_lines()
    ask_again()
    if engine_of(grid) == "deployment":
        pull_once_more(grid)
    try:
        result = run_or_resume(grid, context.run_config)
    except HDPFLError as error:
        log.error("%s", error)  # Flower's traceback follows; it must be raised for "failed"
        raise error.with_traceback(None) from None
    _log_shares(result)
    log.info("run %s: %d rounds, folder %s", result.run_id, len(result.rounds), result.folder)


def run_or_resume(grid: Grid, run_config: Mapping[str, Any]) -> RunResult:
    """Start the run of ``run_config``, or resume ``resume-from``.

    ``resume-from`` is no term: no site receives it, and a round that is asked again is the very
    same request.

    Raises:
        HDPFLError: as :func:`server_app.run.rounds.run` or :func:`server_app.run.resume.open_run`.
    """
    config = dict(run_config)
    # Taken out before the terms are parsed: it must not enter the digest of a request.
    resumed = str(config.pop(RESUME_FROM, ""))
    if is_own(str(config.get("dataset", ""))):
        config = _with_own_task(config, grid)
    given, checkpoint = RunConfig.parse(with_files(config, Path.cwd())), None
    if given.simulation.stack:
        raise TermsError(
            "'stack' works only in a simulation in one process (hdpfl compare); leave it out: "
            "deployed sites, and sites under Ray, train separately"
        )
    if resumed:
        checkpoint = open_run(run_folder(resumed, given.server.runs_dir), given)
        if (began := checkpoint.origin.get("engine")) != engine_of(grid):
            raise CheckpointError(
                f"run '{checkpoint.config.terms.run_id}' began as a {began}, but this is a "
                f"{engine_of(grid)}, with other sites; resume it with: hdpfl resume {resumed}"
            )
        if engine_of(grid) == "simulation":
            check_drawn_alike(checkpoint.config, given)
        given = checkpoint.config
    checkpoints = Checkpoints(origin_of(grid), checkpoint)

    def tell(event: Event) -> None:
        _log_event(event)
        if notice := _notice_of(event):
            send_notice(given.server.notify, log, run=given.terms.run_id, **notice)

    def draw(result: RunResult) -> None:
        draw_run(result.rounds, result.folder)

    return run(grid, given, tell, on_end=draw, checkpoints=checkpoints)


def _with_own_task(config: dict[str, Any], grid: Grid) -> dict[str, Any]:
    """Return ``config`` with its data set's task; raises if sites are real.

    Raises:
        TermsError: sites that are no simulation were asked to read a file or a module of terms.
        DataError: the data set cannot be read.
    """
    if engine_of(grid) == "deployment":
        raise TermsError(
            "run config: 'dataset' names a file or a module, which is read only in "
            "simulations; set it to 'site', with [task], and let the [data] of each profile "
            "name the site's own file"
        )
    own: dict[str, Any] = tool("simulation.own_data.dataset").with_own_task(config, Path.cwd())
    return own


def _show_own_lines() -> None:
    """Send the package's log to stderr, which Flower streams to ``flwr log``.

    The root logger stays as it is: at INFO, httpx would log every request, and each of these lines
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


def _log_shares(result: RunResult) -> None:
    """Log each site's influence; with names if participants may be logged."""
    named = result.privacy.get("noise") != "server"
    if shares := shares_line(result.rounds, named=named):
        log.info("%s", shares)
    for line in warning_lines(result.rounds) if named else ():
        log.warning("%s", line)


def _notice_of(event: Event) -> dict[str, str]:
    """Return the notice of an event for `notify`, or an empty one."""
    if event["event"] == "approval" and event["status"] == "pending":
        return {"notice": "request-pending", "site": event["site"]}
    if event["event"] == "run-finished":
        return {"notice": "run-ended" if event["status"] == "completed" else "run-failed"}
    return {}


def _log_event(event: Event) -> None:
    if event["event"] == "run-started":
        log.info("%s", rates_line(event["terms"]))
    if event["event"] == "run-resumed":
        done, last = event["after_round"], event["last"]
        log.info("run %s resumes after round %d of %d", event["run_id"], done, last)
    if event["event"] == "privacy":
        log.info("protected: %s; %s", event["unit"], event["trust"])
        if without := event.get("no privacy"):
            more = f" and {len(without) - NAMED} more" if len(without) > NAMED else ""
            log.info("no privacy: %s%s (opted out)", ", ".join(without[:NAMED]), more)
    if event["event"] == "round":
        used, asked = len(event["accepted"]), len(event["asked"])
        log.info("round %d: %d of %d updates%s", event["round"], used, asked, in_brief(event))

"""``hdpfl resume``: resume a run that was interrupted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.settings import Value
from hdpfl_flower.errors import CheckpointError
from hdpfl_flower.models.site_summary import in_brief
from hdpfl_flower.monitoring.journal import Event, read_journal
from hdpfl_tools.coordinator.progress import rounds_bar, show_line, waiting
from server_app.plots import draw_run

if TYPE_CHECKING:
    from server_app.run.checkpoint import Checkpoint

GOES_ON = "the run continues; 'flwr list' shows it, 'flwr log' follows it, 'flwr stop' ends it"


def resume(
    run: Annotated[str, typer.Argument(help="The folder of a run, or its id under runs-dir.")],
    superlink: Annotated[
        str,
        typer.Argument(
            help="A connection of Flower's config.toml, as for flwr run.", show_default=False
        ),
    ] = "",
    app: Annotated[Path, typer.Option(help="The folder of the app, as for flwr run.")] = Path(),
) -> None:
    """Resume an interrupted run with the same run id and plans; no site is charged twice.

    If flwr run started the run, this command calls flwr run to resume it. If hdpfl compare started
    it, the run continues in this process. A run of real sites resumes at its SuperLink: the one
    that you name, or the only one in Flower's config.toml.
    """
    with waiting("imports and checks"):
        from server_app.run.resume import (  # with the strategies: seconds
            JOURNAL,
            is_complete,
            open_run,
            recorded_rounds,
            run_folder,
        )

        folder = run_folder(run)
        checkpoint = open_run(folder)
    done, last = checkpoint.server_round, checkpoint.config.terms.rounds
    show_line(f"run {checkpoint.config.terms.run_id}: {done} of {last} rounds are done")
    engine = checkpoint.origin.get("engine")
    if engine == "in-process":
        _here(checkpoint)
    else:
        if engine == "deployment":
            superlink = _superlink_of(folder, app, superlink)
        _through_flower(flower_command(checkpoint, folder, app, superlink), folder)
    events = read_journal(folder / JOURNAL)
    if not is_complete(events):  # flwr run ends with 0 also when a run failed
        raise CheckpointError(
            f"the run in {folder} has not finished; its journal and the log say why"
        )
    show_line(f"complete: {len(recorded_rounds(events, last))} rounds, {folder}")


def _superlink_of(folder: Path, app: Path, named: str) -> str:
    """Return the connection to the SuperLink of a deployed run: a simulation has other sites.

    Raises:
        CheckpointError: with the command, where none or several could be meant.
    """
    config = Path(os.environ.get("FLWR_HOME") or "~/.flwr").expanduser() / "config.toml"
    try:
        links = tomllib.loads(config.read_text())["superlink"]
    except (OSError, ValueError, LookupError):
        links = {}
    far = [name for name, link in links.items() if isinstance(link, dict) and "address" in link]
    chosen = named or (links["default"] if links.get("default") in far else "")
    chosen = chosen or (far[0] if len(far) == 1 else "")
    if chosen in far:
        return chosen
    wrong = f"there is no connection '{named}'" if named else "which connection leads to it"
    choices = f"one of {', '.join(far)}" if far else "one with an 'address', but there is none"
    raise CheckpointError(
        f"the run in {folder} has real sites and resumes only at its SuperLink; {wrong} in "
        f"{config}? call: hdpfl resume {folder} CONNECTION --app {app} ({choices})"
    )


def flower_command(checkpoint: Checkpoint, folder: Path, app: Path, superlink: str) -> list[str]:
    """Return the ``flwr run`` command that resumes ``folder`` and follows its log.

    Raises:
        CheckpointError: there is no app in the folder ``app``.
    """
    if not (app / "pyproject.toml").is_file():
        raise CheckpointError(
            f"there is no app in {app.absolute()}; name its folder as for flwr run: --app FOLDER"
        )
    flwr = Path(sys.executable).with_name("flwr")
    command = [str(flwr) if flwr.exists() else "flwr", "run", str(app)]
    command += [superlink] if superlink else []
    keys: dict[str, Value] = {"resume-from": str(folder)}
    if checkpoint.origin.get("engine") == "simulation":  # its sites are drawn from the run config
        default = RunConfig().drawn()
        drawn = checkpoint.config.drawn()
        keys |= {key: value for key, value in drawn.items() if value != default[key]}
        sites = f"num-supernodes={checkpoint.facts['online']}" if checkpoint.facts else ""
        if config := checkpoint.origin.get("federation-config", sites):
            command += ["--federation-config", config]
    pairs = (f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in keys.items())
    return [*command, "--stream", "--run-config", " ".join(pairs)]


def _through_flower(command: list[str], folder: Path) -> None:
    """Call ``flwr run`` and follow the log; Ctrl-C does not end the run.

    Raises:
        CheckpointError: it was not submitted, or went on when its log ended.
    """
    from server_app.run.resume import is_locked

    try:
        done = subprocess.run(command, check=False)
    except KeyboardInterrupt:
        show_line(GOES_ON)
        raise
    if done.returncode:
        raise CheckpointError(
            f"the run in {folder} was not submitted; flwr run states the reason above"
        )
    # The ServerApp holds the journal's lock as long as it runs, with or without this log.
    if is_locked(folder):
        raise CheckpointError(f"the log ended early; {GOES_ON}")


def _here(checkpoint: Checkpoint) -> None:
    with waiting("imports"):
        from hdpfl_tools.simulation.in_process.in_process_run import resume_in_process

    last = checkpoint.config.terms.rounds

    def show(event: Event) -> None:
        if event["event"] == "round":
            used = f"{len(event['accepted'])} of {len(event['asked'])} updates"
            show_line(f"round {event['round']} of {last}: {used}{in_brief(event)}")
            tick()

    # On a terminal from the first second: a round of thousands of sites takes its time.
    with rounds_bar(last - checkpoint.server_round, "rounds left") as tick:
        resume_in_process(
            checkpoint, show, on_end=lambda result: draw_run(result.rounds, result.folder)
        )

"""Resume of an interrupted run from its folder, checkpoint and journal."""

from __future__ import annotations

import fcntl
import json
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from flwr.serverapp import Grid

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.settings import Value
from hdpfl_flower.config.tables import table_rows
from hdpfl_flower.errors import CheckpointError, DataError
from hdpfl_flower.monitoring.journal import Event, read_journal
from hdpfl_flower.system.paths import expanded, runs_dir
from server_app.run.checkpoint import NAME, Checkpoint, read_checkpoint
from strategies import SETTINGS_OWNERS
from strategies.settings import setting_rows

JOURNAL = "journal.jsonl"


def run_folder(run: str, configured: str = "") -> Path:
    """Return the folder of a run, given as folder or id.

    Args:
        run: a folder, or an id.
        configured: ``runs-dir``.

    Raises:
        CheckpointError: there is no run of that name, or it is another user's.
    """
    for folder in (expanded(run).absolute(), runs_dir(configured) / run):
        try:
            if (folder / JOURNAL).is_file():
                return folder
        except PermissionError:
            raise CheckpointError(
                f"this user cannot read {folder}; call the command as the user that runs the "
                "ServerApp, or use flwr run with 'resume-from'"
            ) from None
    raise CheckpointError(
        f"there is no run '{run}' in {runs_dir(configured)}; name its folder, or set 'runs-dir'"
    )


def open_run(folder: Path, given: RunConfig | None = None) -> Checkpoint:
    """Return the checkpoint from which the run in ``folder`` resumes.

    Args:
        folder: the run's.
        given: terms of the request to resume; a term that has its default counts as not given.

    Raises:
        CheckpointError: the run is complete or was moved, a term differs, or the checkpoint is
            missing, damaged, of another version, or older than the journal.
    """
    events = _journal(folder)
    if is_complete(events):
        raise CheckpointError(f"the run in {folder} is complete; there is nothing to resume")
    checkpoint = read_checkpoint(folder / NAME)
    home = Path(checkpoint.config.server.runs_dir) / checkpoint.config.terms.run_id
    if home.resolve() != folder.resolve():
        raise CheckpointError(
            f"the run in {folder} belongs to {home}, because the sites know it under that "
            "'runs-dir'; move it back there"
        )
    if given is not None:
        _check_same(checkpoint.config, given)
    recorded = max((event["round"] for event in events if event["event"] == "round"), default=0)
    size = (folder / JOURNAL).stat().st_size
    saved = checkpoint.server_round
    # The journal's line follows the save: it can never be ahead of the newest checkpoint.
    if recorded > saved:
        raise CheckpointError(
            f"the checkpoint in {folder} is an old copy: it is of round {saved}, and the "
            f"journal is of round {recorded}. What left the server once must not leave it again "
            "with other noise; put back the newest checkpoint, or begin a new run"
        )
    if size < checkpoint.journal:
        raise CheckpointError(
            f"the journal in {folder} is shorter than it was at round {saved}; put back the "
            "whole journal"
        )
    return checkpoint


def recorded_rounds(before: Sequence[Event], server_round: int) -> list[Event]:
    """Return the journal's rounds up to ``server_round``, in order."""
    rounds = {event["round"]: event for event in before if event["event"] == "round"}
    return [rounds[number] for number in sorted(rounds) if number <= server_round]


def recorded_privacy(before: Sequence[Event]) -> Event:
    """Return the promises in the journal, or empty."""
    return next((event for event in reversed(before) if event["event"] == "privacy"), {})


def engine_of(grid: Grid) -> str:
    """Return the name of a grid's engine.

    ``in-process``, ``rehearsal`` (profiles in one process), ``simulation`` (Ray) or ``deployment``.
    """
    engine: str | None = getattr(grid, "engine", None)
    return engine or ("simulation" if type(grid).__name__ == "InMemoryGrid" else "deployment")


def origin_of(grid: Grid) -> dict[str, str]:
    """Return a run's engine and, of a simulation, Flower's federation config as on a command line.

    A new ``flwr run`` has Flower's defaults instead: two sites of two CPUs each.
    """
    origin = {"engine": engine_of(grid)}
    if origin["engine"] == "simulation":
        # Flower tells no app; it reads the config in the main thread, of which the app has none.
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        while frame and frame.f_code.co_name != "run_simulation_process":
            frame = frame.f_back
        answer = frame.f_locals.get("res") if frame else None
        if config := getattr(answer, "federation_config", None):
            origin["federation-config"] = " ".join(
                f"{field.name.replace('_', '-')}={json.dumps(value)}"
                for field, value in config.ListFields()
            )
    return origin


def _journal(folder: Path) -> list[Event]:
    try:
        return read_journal(folder / JOURNAL)
    except DataError as error:
        raise CheckpointError(str(error)) from None


def is_complete(events: Sequence[Event]) -> bool:
    """Return whether a run's last attempt is complete."""
    ends = ("run-started", "run-resumed", "run-finished")
    last = [event for event in events if event["event"] in ends][-1:]
    return any(event.get("status") == "completed" for event in last)


def is_locked(folder: Path) -> bool:
    """Return whether a process has locked the journal in ``folder``."""
    with (folder / JOURNAL).open() as file:
        try:
            # A shared lock fails while a process has the exclusive one; a lock ends with its
            # process.
            fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _check_same(begun: RunConfig, given: RunConfig) -> None:
    """Raise ``CheckpointError`` for a given term that differs from the run's."""
    default, now, before = defaults(), given.as_config(), begun.as_config()
    if given.server.runs_dir:
        now["runs-dir"] = str(runs_dir(given.server.runs_dir))
    other = [key for key in now if now[key] not in (default[key], before.get(key))]
    if other:
        raise CheckpointError(
            f"run '{begun.terms.run_id}' began with another value of '{other[0]}', and its "
            "sites have frozen their plans; leave it out, or begin a new run without "
            "'resume-from'"
        )


def defaults() -> dict[str, Value]:
    """Return the default of every run config key, settings in tables included."""
    rows = (*table_rows(), *setting_rows(SETTINGS_OWNERS))
    settings = {row.key: row.default for row in rows}
    return {**RunConfig.parse({}).as_config(), **settings}


def check_drawn_alike(begun: RunConfig, given: RunConfig) -> None:
    """Refuse to resume a simulation if sites would be drawn differently.

    Its sites are drawn from the run config that ``flwr run`` was given, not from a message: with
    another seed, or the default one, they would be other sites.

    Raises:
        CheckpointError: names the first key that differs, and the remedy.
    """
    before, now = _drawn(begun), _drawn(given)
    changed = [key for key in before if before[key] != now[key]]
    if changed:
        raise CheckpointError(
            f"run '{begun.terms.run_id}' began with another value of '{changed[0]}', from which "
            "its simulated sites are drawn; resume with 'hdpfl resume', which repeats every "
            "such key"
        )


def _drawn(config: RunConfig) -> dict[str, Value]:
    return {**config.drawn(), "runs-dir": str(runs_dir(config.server.runs_dir))}

"""A run that was interrupted, taken up again: which one, whether it may, and what it had told."""

from __future__ import annotations

import fcntl
from collections.abc import Sequence
from pathlib import Path

from flwr.serverapp import Grid

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import CheckpointError, DataError
from hdpfl_flower.monitoring.journal import Event, read_journal
from hdpfl_flower.system.paths import runs_dir
from server_app.run.checkpoint import NAME, Checkpoint, read_checkpoint

JOURNAL = "journal.jsonl"


def run_folder(run: str, configured: str = "") -> Path:
    """Return the folder of a run: ``run`` itself, or the run of that id in the runs' folder.

    Args:
        run: a folder, or an id.
        configured: ``runs-dir``.

    Raises:
        CheckpointError: there is no such run, or it is another user's.
    """
    for folder in (Path(run).expanduser().absolute(), runs_dir(configured) / run):
        try:
            if (folder / JOURNAL).is_file():
                return folder
        except PermissionError:
            raise CheckpointError(
                f"{folder} cannot be read by this user; call it as the user that the ServerApp "
                "runs as, or use flwr run with 'resume-from'"
            ) from None
    raise CheckpointError(
        f"there is no run '{run}' in {runs_dir(configured)}; name its folder, or set 'runs-dir'"
    )


def open_run(folder: Path, given: RunTerms | None = None) -> Checkpoint:
    """Return what the run in ``folder`` goes on from.

    Args:
        folder: the run's.
        given: terms that came with the request to go on; one that has its default is not said.

    Raises:
        CheckpointError: the run is complete or was moved, a term differs, or the checkpoint is
            missing, damaged, of another version, or older than the journal.
    """
    events = _journal(folder)
    if is_complete(events):
        raise CheckpointError(f"the run in {folder} is complete; there is nothing to go on with")
    at = read_checkpoint(folder / NAME)
    own = Path(at.terms.runs_dir) / at.terms.run_id
    if own.resolve() != folder.resolve():
        raise CheckpointError(
            f"the run in {folder} belongs to {own}: sites know it under that 'runs-dir'; move it "
            "back there"
        )
    if given is not None:
        _check_same(at.terms, given)
    told = max((event["round"] for event in events if event["event"] == "round"), default=0)
    size = (folder / JOURNAL).stat().st_size
    if told > at.server_round:
        raise CheckpointError(
            f"the checkpoint in {folder} is of round {at.server_round}, and its journal of round "
            f"{told}: an old copy. What has left the server must not leave it again with other "
            "noise; put the newest checkpoint back, or begin a new run"
        )
    if size < at.journal:
        raise CheckpointError(
            f"the journal in {folder} is shorter than it was at round {at.server_round}; put it "
            "back as it was"
        )
    return at


def told_rounds(before: Sequence[Event], server_round: int) -> list[Event]:
    """Return the journal's rounds up to ``server_round``, in order."""
    rounds = {event["round"]: event for event in before if event["event"] == "round"}
    return [rounds[number] for number in sorted(rounds) if number <= server_round]


def told_privacy(before: Sequence[Event]) -> Event:
    """Return what the journal says that the run promises; nothing where it does not say."""
    return next((event for event in reversed(before) if event["event"] == "privacy"), {})


def engine_of(grid: Grid) -> str:
    """Return over what a grid runs: ``in-process``, ``simulation`` (Ray) or ``deployment``."""
    own: str | None = getattr(grid, "engine", None)
    return own or ("simulation" if type(grid).__name__ == "InMemoryGrid" else "deployment")


def _journal(folder: Path) -> list[Event]:
    try:
        return read_journal(folder / JOURNAL)
    except DataError as error:
        raise CheckpointError(str(error)) from None


def is_complete(events: Sequence[Event]) -> bool:
    """Tell whether a run's last attempt came to its end."""
    ends = ("run-started", "run-resumed", "run-finished")
    last = [event for event in events if event["event"] in ends][-1:]
    return any(event.get("status") == "completed" for event in last)


def is_held(folder: Path) -> bool:
    """Tell whether a process is at work on the run in ``folder``, see :meth:`Journal.hold`."""
    with (folder / JOURNAL).open() as file:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _check_same(own: RunTerms, given: RunTerms) -> None:
    """Raise ``CheckpointError`` where a term was given that is not the run's."""
    default, said, had = RunTerms().as_config(), given.as_config(), own.as_config()
    if given.runs_dir:
        said["runs-dir"] = str(runs_dir(given.runs_dir))
    other = [key for key in said if said[key] not in (default[key], had[key])]
    if other:
        raise CheckpointError(
            f"'{other[0]}' is not what run '{own.run_id}' began with, and its sites have frozen "
            "their plans; leave it out, or begin a new run without 'resume-from'"
        )

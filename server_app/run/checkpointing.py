"""Checkpoint policies: time of storage, and source of a resumed run.

Each save precedes everything of its round that leaves the server; ``checkpoint.py`` is the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from hdpfl_flower import server_wire
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import CheckpointError
from hdpfl_flower.monitoring.journal import Event, Journal, plain, read_journal
from hdpfl_flower.privacy.noise import Positions
from server_app.run.checkpoint import NAME, Checkpoint, write_checkpoint
from strategies.core.kernel import Kernel
from strategies.core.strategy_state import keep_strategy


class NoCheckpoints:
    """Policy without storage, for runs that are cheap to repeat.

    Attributes:
        checkpoint: from where the run resumes; None: it begins.
        before: the journal of the run up to there.
    """

    checkpoint: Checkpoint | None = None
    before: Sequence[Event] = ()

    def begin(self, folder: Path, config: RunConfig, journal: Journal) -> None:
        """Reserve no folder: two processes may write into it."""

    def prepare(self, kernel: Kernel, grid: Grid, model: ArrayRecord) -> None:
        """Let ``kernel`` settle its terms."""
        del model
        kernel.prepare(grid)

    def save(
        self,
        kernel: Kernel,
        model: ArrayRecord,
        server_round: int,
        missed: int = 0,
        facts: Event | None = None,
    ) -> None:
        """Store a round before its messages leave; a run that does not resume stores none.

        Args:
            kernel: with its state after the round.
            model: the model, or models, after the round.
            server_round: the round; 0: before the first.
            missed: rounds without a quorum up to it, one after another.
            facts: of the journal's line on it.
        """

    def end(self) -> None:
        """Complete the run: remove the stored data."""

    def resume_command(self) -> str | None:
        """Return the resume command of an interrupted run, or None."""
        return None


class Checkpoints(NoCheckpoints):
    """Policy that stores the run in its folder after every round."""

    def __init__(
        self,
        origin: Mapping[str, Any],
        checkpoint: Checkpoint | None = None,
        *,
        seeded: bool = False,
    ) -> None:
        """Prepare for a run.

        Args:
            origin: see :class:`Checkpoint`.
            checkpoint: from where it resumes; None: the run is new.
            seeded: whether the strategy's streams come from a seed, so that they can resume.
        """
        self.checkpoint, self._origin, self._seeded = checkpoint, origin, seeded

    def begin(self, folder: Path, config: RunConfig, journal: Journal) -> None:
        """Lock the journal for this process; read a resumed run's events.

        Raises:
            CheckpointError: another process has the run, or a new run finds a checkpoint.
        """
        self._path, self._config, self._journal = folder / NAME, config, journal
        run_id = config.terms.run_id
        if not journal.hold():
            raise CheckpointError(
                f"another process works on run '{run_id}'; wait for it, or end it first"
            )
        if self.checkpoint is None and self._path.exists():
            raise CheckpointError(
                f"run '{run_id}' was interrupted and can be resumed with: "
                f"{self.resume_command()}; or name another 'run-id'"
            )
        if self.checkpoint is not None:
            self.before = read_journal(folder / "journal.jsonl")

    def prepare(self, kernel: Kernel, grid: Grid, model: ArrayRecord) -> None:
        """Store before and after the strategy settles, unless rounds exist."""
        # Twice: a crash while the terms settle can be resumed, and no site freezes a plan of terms
        # that are not stored.
        if self.checkpoint is None:
            self.save(kernel, model, 0)
        kernel.prepare(grid)
        if self.checkpoint is None or self.checkpoint.server_round == 0:
            self.save(kernel, model, 0)

    def save(
        self,
        kernel: Kernel,
        model: ArrayRecord,
        server_round: int,
        missed: int = 0,
        facts: Event | None = None,
    ) -> None:
        """Replace the run's checkpoint; raises ``OSError`` where the disk refuses."""
        streams = kernel.streams
        # Only a seeded stream can resume at a position; fresh keys of the system are never stored.
        taken = Positions(streams.sampling.position, streams.noise.position)
        plain_facts = plain(facts)
        write_checkpoint(
            self._path,
            Checkpoint(
                config=self._config,
                server_round=server_round,
                missed=missed,
                model=server_wire.read_own(model),
                memory=keep_strategy(kernel),
                streams=taken if self._seeded else None,
                # The journal reaches the disk first: a checkpoint never names a length that it does
                # not have.
                journal=self._journal.sync(),
                facts=plain_facts if isinstance(plain_facts, dict) else None,
                origin=self._origin,
            ),
        )

    def end(self) -> None:
        """Remove the checkpoint, with the strategy's state."""
        self._path.unlink(missing_ok=True)

    def resume_command(self) -> str | None:
        """Return ``hdpfl resume FOLDER``, once a checkpoint lies there."""
        return f"hdpfl resume {self._path.parent}" if self._path.exists() else None

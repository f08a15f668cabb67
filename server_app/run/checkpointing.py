"""When a run writes its checkpoint, and who may go on from it.

Each save comes before anything of its round leaves the server; see ``checkpoint.py`` for the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from hdpfl_flower import wire
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import CheckpointError
from hdpfl_flower.monitoring.journal import Event, Journal, plain, read_journal
from server_app.run.checkpoint import NAME, Checkpoint, write_checkpoint
from strategies.core.base import HDPStrategy
from strategies.core.strategy_state import keep_strategy


class NoCheckpoints:
    """Of a run that keeps none: one of thousands that is sooner run again.

    Attributes:
        at: where the run goes on; None: at its beginning.
        before: the journal of what went before.
    """

    at: Checkpoint | None = None
    before: Sequence[Event] = ()

    def begin(self, folder: Path, terms: RunTerms, journal: Journal) -> None:
        """Take the run's folder for this process."""

    def prepare(self, strategy: HDPStrategy, grid: Grid, model: ArrayRecord) -> None:
        """Let ``strategy`` settle its terms, and keep them before sites freeze their plans."""
        del model
        strategy.prepare(grid)

    def save(
        self,
        strategy: HDPStrategy,
        model: ArrayRecord,
        server_round: int,
        missed: int = 0,
        facts: Event | None = None,
    ) -> None:
        """Keep what the next round needs, before anything of this one leaves the server."""

    def end(self) -> None:
        """Note that the run is complete."""

    def way_on(self) -> str:
        """Return how an interrupted run goes on; empty where it cannot."""
        return ""


class Checkpoints(NoCheckpoints):
    """A run's checkpoint: written after every round, and taken up where there is one."""

    def __init__(
        self, origin: Mapping[str, Any], at: Checkpoint | None = None, *, seeded: bool = False
    ) -> None:
        """Prepare for a run.

        Args:
            origin: see :class:`Checkpoint`.
            at: what to go on from; None: the run is new.
            seeded: whether the strategy's streams come from a seed, so that they can go on.
        """
        self.at, self._origin, self._seeded = at, origin, seeded

    def begin(self, folder: Path, terms: RunTerms, journal: Journal) -> None:
        """See :meth:`NoCheckpoints.begin`.

        Raises:
            CheckpointError: another process has the run, or a new run finds one to go on with.
        """
        self._path, self._terms, self._journal = folder / NAME, terms, journal
        if not journal.hold():
            raise CheckpointError(
                f"run '{terms.run_id}' is at work in another process; wait for it, or end it first"
            )
        if self.at is None and self._path.exists():
            raise CheckpointError(
                f"run '{terms.run_id}' was interrupted and can go on: {self.way_on()}; or name "
                "another 'run-id'"
            )
        if self.at is not None:
            self.before = read_journal(folder / "journal.jsonl")

    def prepare(self, strategy: HDPStrategy, grid: Grid, model: ArrayRecord) -> None:
        """See :meth:`NoCheckpoints.prepare`."""
        if self.at is None:
            self.save(strategy, model, 0)
        strategy.prepare(grid)
        if self.at is None or self.at.server_round == 0:
            self.save(strategy, model, 0)

    def save(
        self,
        strategy: HDPStrategy,
        model: ArrayRecord,
        server_round: int,
        missed: int = 0,
        facts: Event | None = None,
    ) -> None:
        """See :meth:`NoCheckpoints.save`; raises ``OSError`` where the disk refuses."""
        streams = strategy.streams
        taken = (streams.sampling.position, streams.noise.position) if self._seeded else None
        said = plain(facts)
        write_checkpoint(
            self._path,
            Checkpoint(
                terms=self._terms,
                server_round=server_round,
                missed=missed,
                model=wire.read_own(model),
                kept=keep_strategy(strategy),
                streams=taken,
                journal=self._journal.sync(),
                facts=said if isinstance(said, dict) else None,
                origin=self._origin,
            ),
        )

    def end(self) -> None:
        """See :meth:`NoCheckpoints.end`; what the rule remembered is worth nothing any more."""
        self._path.unlink(missing_ok=True)

    def way_on(self) -> str:
        """See :meth:`NoCheckpoints.way_on`."""
        return f"hdpfl resume {self._path.parent}" if self._path.exists() else ""

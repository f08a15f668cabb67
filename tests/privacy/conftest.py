"""Two worlds that differ by one record, played one after the other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.models.task import Records
from tests.privacy.replay import Observed, Rows, check_neighbours, observe, same
from tests.privacy.sites import make_site

Play = Callable[..., tuple[Observed, Observed]]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Record the real client on D, replay it on D ± one record, and check what must be the same."""

    def play_both(
        terms: RunTerms,
        records: Records,
        neighbour: Records,
        *,
        rows: Callable[[Rows], Rows] = same,
        rows_of: Callable[[Rows], Rows] = same,
        engine: str = "auto",
    ) -> tuple[Observed, Observed]:
        """Return what was seen of both.

        Args:
            terms: of the run; every round of it is played.
            records: D.
            neighbour: D with one record more or less.
            rows: makes the rows of a batch in D from those that were drawn.
            rows_of: makes the rows of the same batch in the neighbour from those in D.
            engine: the one that clips.
        """
        first = observe(make_site(tmp_path / "one", records, engine=engine), terms, rows_of=rows)
        site = make_site(tmp_path / "other", neighbour, engine=engine)
        other = observe(site, terms, first, rows_of)
        check_neighbours(first, other)
        return first, other

    return play_both

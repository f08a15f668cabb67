"""Text of a new profile, with comments, as ``hdpfl-site profile new`` writes it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hdpfl_flower.config.profile import MIN_DELTA
from hdpfl_flower.config.toml_text import as_toml

_BATCHES = 8


@dataclass(frozen=True, repr=False)
class NewProfile:
    """Decisions of a site from which its profile is written.

    Attributes:
        data: lines of ``[data]``: format, path, and how the table is written.
        records: about the number of records for training, public.
        epsilon: of one run.
        cap: ε of all runs together.
        delta: of one run; 0: a hundredth of 1 / records, rounded down to a power of ten.
        batch_size: 0: an eighth of the records.
        holdout: share of the records kept out of training.
        ledger: path of the ledger.
        anchor: path of its anchor; empty: none.
        state: folder of the models.
        name: of the site, for its report.
    """

    data: str
    records: int
    epsilon: float
    cap: float
    delta: float = 0.0
    batch_size: int = 0
    holdout: float = 0.15
    ledger: str = "ledger/ledger.sqlite"
    anchor: str = ""
    state: str = "state"
    name: str = ""

    def text(self) -> str:
        """Return the TOML."""
        delta = self.delta or delta_for(self.records)
        every = float(f"{10 * delta:.12g}")
        # The 'data' comes after its keys that stand before its own tables [data.columns.NAME].
        head, columns, rest = self.data.partition("\n[data.columns")
        own = f"{columns}{rest}".strip()
        anchor = f"anchor = {as_toml(self.anchor)}" if self.anchor else (
            '# anchor = "/mnt/other-disk/hdpfl.anchor"'
        )  # fmt: skip
        return f"""\
# Profile of this site: its private terms. It stays on this machine, readable by its owner alone.
# Every key: docs/reference/profile.md. Check it: hdpfl-site profile check

# Name of this site, for the head of its own report; never sent.
name = {as_toml(self.name)}

# What may leave beside noisy updates, not covered by ε. "metrics": a model's exact test results.
disclose = ["declared-records"]

# each-run: every run waits for 'hdpfl-site approve'. standing: all that fits in is joined.
approval = "each-run"

# Seconds after a request at which a reply leaves, so that its time says nothing. More than a
# round's work, less than the run's 'round-timeout'.
# reply-after = 60.0

[budget]
# What all runs together may ever cost: the promise to the persons in the records.
epsilon = {self.cap!r}
delta = {every!r}
# Answers without noise that may leave over the life of the records.
exact-answers = 0

[run]
# What one run may cost.
epsilon = {self.epsilon!r}
delta = {delta!r}

[training]
# Expected records of a noisy step.
batch-size = {self.batch_size or max(1, round(self.records / _BATCHES))}
# About the records for training: public, so round it.
declared-records = {self.records}

{head.strip()}
# Share kept out of training, for the site's own test.
holdout = {self.holdout!r}
{own}

[ledger]
# One ledger for one set of records. Create it once: hdpfl-site ledger init
path = {as_toml(self.ledger)}
# Reveals that an older copy of the ledger was put back; best on other storage.
{anchor}

[state]
# The final model of the last run is kept here.
path = {as_toml(self.state)}
"""


def delta_for(records: int) -> float:
    """Return the largest power of ten that is at most 1 / (100 ``records``).

    >>> delta_for(260), delta_for(100)
    (1e-05, 0.0001)
    """
    return max(float(f"1e-{math.ceil(math.log10(100 * records) - 1e-9)}"), MIN_DELTA)

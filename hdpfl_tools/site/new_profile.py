"""Text of a new profile, with comments, as ``hdpfl-site profile new`` writes it."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hdpfl_flower.config.profile import MIN_DELTA
from hdpfl_flower.config.toml_text import as_toml
from hdpfl_flower.data.placeholders import TO_CHOOSE
from hdpfl_flower.data.schema import Schema
from hdpfl_tools.tables.own_table import outcomes

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
        own_columns = f"{columns}{rest}".strip()
        anchor = (
            f"anchor = {as_toml(self.anchor)}"
            if self.anchor
            else '# anchor = "/mnt/other-disk/hdpfl.anchor"'
        )
        return f"""\
# Profile of this site: its private terms. It stays on this machine, and only its owner can read it.
# Every key: docs/reference/profile.md. Check it: hdpfl-site profile check

# Name of this site, for the head of its own report; never sent.
name = {as_toml(self.name)}

# What may leave beside noisy updates, although ε does not cover it. "metrics": exact test results.
disclose = ["declared-records"]

# each-run: every run waits for 'hdpfl-site approve'. standing: the site joins each run that fits.
approval = "each-run"

# Each reply leaves so many seconds after its request, so that its time says nothing. Choose more
# than a round's work takes, and less than the run's 'round-timeout'.
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
# Expected records of a noisy step. Use "all" only for runs that sum parts of the sites.
batch-size = {self.batch_size or max(1, round(self.records / _BATCHES))}
# About how many records are for training. The number is public: round it.
declared-records = {self.records}

{head.strip()}
# Share of the records that is kept out of training, for the site's own test.
holdout = {self.holdout!r}
{own_columns}

[ledger]
# One ledger for one set of records. Create it once: hdpfl-site ledger --init
path = {as_toml(self.ledger)}
# This file reveals that an older copy of the ledger was put back. It is best on other storage.
{anchor}

[state]
# The final model of the last run is kept here.
path = {as_toml(self.state)}
"""


def lines_of_table(drafted: str, names: Sequence[str], unit: str, schema: Schema | None) -> str:
    """Return the lines of ``[data]``, open choices as comments.

    Args:
        drafted: how the table is written, with its own names of columns.
        names: of its header.
        unit: that of the protected unit's column; empty: none was named.
        schema: the run's, for the names of the lines; None: not known yet.
    """
    head, *blocks = drafted.split("\n[data.columns.")
    bodies = {}
    for block in blocks:
        (name,) = tomllib.loads(f"[data.columns.{block}")["data"]["columns"]
        bodies[name] = block.partition("\n")[2]
    if schema is None:
        return "\n".join([head, *(_block(name, body) for name, body in bodies.items())])
    lines = [line for line in head.splitlines() if not line.startswith("id = ")]
    lines += [f"id = {as_toml(schema.id)}"] if schema.id else []
    return "\n".join([*lines, *_mapped(schema, names, unit, bodies)])


def _mapped(
    schema: Schema, names: Sequence[str], unit: str, bodies: dict[str, str]
) -> Iterator[str]:
    """Yield a block for each column of the schema, then the other columns as comments."""
    wanted = [(outcome.column, outcome.aliases) for outcome in outcomes(schema)]
    wanted += [(column.name, column.aliases) for column in schema.columns]
    free = list(names)
    for name, aliases in [(schema.id, (unit,)), *wanted] if schema.id else wanted:
        held = next((column_name for column_name in names if column_name in {name, *aliases}), "")
        body = bodies.pop(held, "") if held else f'name = "{TO_CHOOSE}"'
        free = [column_name for column_name in free if column_name != held]
        if name == schema.id and held not in {"", name}:
            body = f"name = {as_toml(held)}"
        if body:
            yield _block(name, body)
    if free:
        yield f"# Other columns here: {', '.join(map(as_toml, free))}"
    for name, body in bodies.items():
        yield _comment(f"where name = {as_toml(name)}:\n{body}")


def _block(name: str, body: str) -> str:
    text = f"[data.columns.{as_toml(name)}]\n{body}"
    return _comment(text) if TO_CHOOSE in body else text


def _comment(text: str) -> str:
    return "\n".join(f"# {line}" for line in text.splitlines())


def delta_for(records: int) -> float:
    """Return the largest power of ten that is at most 1 / (100 ``records``).

    >>> delta_for(260), delta_for(100)
    (1e-05, 0.0001)
    """
    return max(float(f"1e-{math.ceil(math.log10(100 * records) - 1e-9)}"), MIN_DELTA)

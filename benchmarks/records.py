"""A large table: its import beside other readers, and a message over its prepared records.

Messages of one step on about one record, to sites of few and of many rows. All else in a message is
the same, so that the difference is the cost of the rows. The import checks, digests and counts all
cells; the others write the texts of the same CSV to Parquet.
"""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import duckdb
import numpy as np
import pandas
import pyarrow as pa
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from pyarrow import csv

from benchmarks.timing import interleaved, show
from client_app.app import app
from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.data_source import DataSource
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.models.networks import arrays_of, build_model
from hdpfl_tools.site.approval.preparation import bind_run
from hdpfl_tools.tables.frozen_table import delete_table, import_table
from hdpfl_tools.tables.site_data import read_site_data

ROWS, FEW, COLUMNS, BAR = 100_000, 100, 40, 0.1
IMPORTED, IMPORT_BAR = 2_000_000, 60
TERMS = RunConfig.parse(
    {
        "run-id": "run-1",
        "dataset": "site",
        "rounds": 500,
        "local-steps": 1,
        "schema": 'id = "person"\n[label]\ncolumn = "y"\nclasses = [["0"], ["1"]]\n'
        + "".join(
            f'[[columns]]\nname = "x{i}"\ntype = "number"\nbounds = [-4, 4]\n'
            for i in range(COLUMNS)
        ),
    }
).terms
PROFILE = """
approval = "standing"
[budget]
epsilon = 8.0
delta = 1e-6
[run]
epsilon = 4.0
delta = 1e-6
[training]
batch-size = 1
declared-records = {rows}
device = "cpu"
[data]
format = "csv"
path = "records.csv"
id = "person"
[ledger]
path = "ledger.sqlite"
"""


class _Site:
    """A site that has prepared its records for the run."""

    def __init__(self, folder: Path, rows: int) -> None:
        folder.mkdir()
        draws = np.random.default_rng(rows)
        table = np.column_stack([
            np.arange(rows), draws.integers(0, 2, rows), draws.normal(size=(rows, COLUMNS))
        ])  # fmt: skip
        names = ["person", "y", *(f"x{i}" for i in range(COLUMNS))]
        forms = ["%d", "%d", *["%.3f"] * COLUMNS]
        np.savetxt(folder / "records.csv", table, forms, ",", header=",".join(names), comments="")
        self._path = folder / "profile.toml"
        self._path.write_text(PROFILE.format(rows=ROWS))
        self._path.chmod(0o600)
        Ledger.create(folder / "ledger.sqlite", 8.0, 1e-6).close()
        bind_run(Profile.load(self._path), TERMS)
        self._rounds = itertools.count(1)

    def answer(self) -> None:
        """Answer the next round's message."""
        model = server_wire.write_model(arrays_of(build_model(TERMS.model, task_for(TERMS), 1)))
        content = server_wire.write_instructions(TERMS, next(self._rounds), model)
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        message = Message(content, 5, wire.TRAIN)
        reply = app(message, Context(1, 5, {"profile": str(self._path)}, RecordDict(), {}))
        if reply.has_error():
            raise RuntimeError(reply.error)

    def read(self) -> None:
        """Read the export, as each message did before records were prepared."""
        source = Profile.load(self._path).data
        if source is not None:
            read_site_data(source, task_for(TERMS), TERMS.schema_text)


def main() -> None:
    """Print the CPU seconds of an import, and those that the rows cost a message."""
    with tempfile.TemporaryDirectory() as folder:
        _import(Path(folder))
        few, many = _Site(Path(folder, "few"), FEW), _Site(Path(folder, "many"), ROWS)
        seconds = interleaved({"few": few.answer, "many": many.answer, "read": many.read}, 7)
    rows = [
        ["the export read at each message", f"{seconds['read']:.2f}", ""],
        ["prepared records", f"{seconds['many'] - seconds['few']:.3f}", f"≤ {BAR}"],
        [f"all of a message over {FEW} rows", f"{seconds['few']:.3f}", ""],
    ]
    show(f"A message over {ROWS:,} rows of {COLUMNS} columns", ["", "CPU seconds", "bar"], rows)


def _import(folder: Path) -> None:
    """Print the CPU seconds of an import, of pandas and of DuckDB."""
    path, parquet = folder / "export.csv", folder / "export.parquet"
    draws = np.random.default_rng(0).normal(size=(100_000, COLUMNS)).round(3)
    block = pa.table([*draws.T], [f"x{i}" for i in range(COLUMNS)])
    with csv.CSVWriter(path, block.schema) as writer:
        for _ in range(IMPORTED // len(draws)):
            writer.write_table(block)
    source, ledger = DataSource.model_validate({"path": str(path)}), folder / "ledger.sqlite"

    def ours() -> None:
        import_table(source, ledger)
        delete_table(ledger)

    def by_duckdb() -> None:
        read = f"SELECT * FROM read_csv('{path}', all_varchar=true)"
        duckdb.sql(f"COPY ({read}) TO '{parquet}'")

    def by_pandas() -> None:
        pandas.read_csv(path, dtype=str).to_parquet(parquet)

    seconds = interleaved({"import": ours, "duckdb": by_duckdb, "pandas": by_pandas}, 1)
    rows = [["hdpfl-site data import", f"{seconds['import']:.1f}", f"≤ {IMPORT_BAR}"]]
    rows += [[name, f"{seconds[key]:.1f}", ""] for key, name in _PEERS.items()]
    rows += [
        [f"import / {name}", f"{seconds['import'] / seconds[key]:.2f}", ""]
        for key, name in _PEERS.items()
    ]
    title = f"A CSV of {IMPORTED:,} rows and {COLUMNS} columns, read once and written as Parquet"
    show(title, ["", "CPU seconds", "bar"], rows)


_PEERS = {"duckdb": "DuckDB", "pandas": "pandas, texts"}

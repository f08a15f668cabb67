"""A federation over tables: what a site's reader reads of them, no more and no less."""

from __future__ import annotations

import builtins
import io
from pathlib import Path

import numpy as np
import pytest

from hdpfl_flower.config.data_source import DataSource
from hdpfl_flower.config.tasks import Classification
from hdpfl_flower.data.schema import NumberColumn, Schema, schema_text
from hdpfl_tools.simulation.own_data.site_tables import table_sources, write_federation
from hdpfl_tools.site.commands.schema import schema as schema_command
from hdpfl_tools.tables.mock_table import mock_table
from hdpfl_tools.tables.own_table import OwnTable
from hdpfl_tools.tables.screen.losses import table_losses
from hdpfl_tools.tables.site_data import read_site_data
from hdpfl_tools.tables.table_reader import load_table
from tests.hdpfl_tools.site.commands.conftest import PROFILE, SCHEMA
from tests.hdpfl_tools.tables.test_survival_table import TEXT as SURVIVAL


def table(rows: int, start: int = 0) -> str:
    return "y,a,c\n" + "".join(f"{i % 2},{(i + start) % 10},x\n" for i in range(rows))


def test_each_table_is_read_as_its_site_would_read_it(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(table(10) + "maybe,1,x\n")
    german = table(12, 3).replace(",", ";").replace(";x", ",5;x")
    (tmp_path / "records.csv").write_text(german.replace("a;c", "Größe;c"), encoding="latin-1")
    profile = tmp_path / "köln.toml"
    profile.write_text(PROFILE.replace(
        'path = "records.csv"', 'path = "records.csv"\nholdout = 0.5\ndecimal = ","\n'
        'encoding = "latin-1"\n[data.columns.a]\nname = "Größe"'))  # fmt: skip
    profile.chmod(0o600)
    sources = table_sources(["a.csv", "köln.toml"], tmp_path, SCHEMA)
    task, lines = write_federation(sources, SCHEMA, tmp_path / "out" / "t.npz")
    assert lines[0] == "a.csv: 11 records found, 10 used; left out: 1, no known label"
    assert lines[1] == "köln.toml: 12 records found, 12 used"
    assert isinstance(task, Classification) and task.classes == 2
    assert (tmp_path / "out" / "t.npz").stat().st_mode & 0o777 == 0o600
    with np.load(tmp_path / "out" / "t.npz") as found:
        assert found["owner"].tolist() == [0] * 10 + [1] * 12
        for owner, one in enumerate(sources):
            source = one.source.model_copy(update={"holdout": 0.0})
            own = read_site_data(source, Schema.load(SCHEMA).task, SCHEMA).train
            assert np.array_equal(found["x"][found["owner"] == owner], own.features)
            assert np.array_equal(found["y"][found["owner"] == owner], own.targets)


# --- made-up tables: of the schema alone, and such as a site's reader takes whole


WIDE = """
id = "person"
missing = ["", "-9", "k.A., fehlt"]
[label]
column = "wert"
bounds = [-1e308, 1e308]
[[columns]]
name = "größe; in cm"
type = "number"
bounds = [50, 250]
missing = ["999"]
[[columns]]
name = "thin"
type = "number"
bounds = [0.1, 0.1000001]
[[columns]]
name = "art"
type = "category"
categories = [["a\\"b", "c,d"], "e\\nf", "3"]
"""
SCHEMAS = {"heart": schema_text("heart"), "survival": SURVIVAL, "wide": WIDE}


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("rows", [1, 2, 500])
def test_the_sites_reader_loses_nothing_of_a_mock(name: str, rows: int, tmp_path: Path) -> None:
    text, path = SCHEMAS[name], tmp_path / "mock.csv"
    schema = Schema.load(text)
    path.write_text(mock_table(schema, rows, seed=3))
    source = DataSource(format="csv", path=path, id=schema.id)
    data = read_site_data(source, schema.task, text)
    assert len(data.train) == data.summary.rows == rows
    assert not any(data.summary.unreadable.values())
    assert not {k: n for k, n in data.summary.clipped.items() if n and k != schema.label.column}
    own = OwnTable.of(source)
    losses = table_losses(load_table(path, "csv", own.all_wanted(schema), lost=True), schema, own)
    assert all(each.lost == 0 for each in losses.cells.values())
    if rows == 500:
        filled = sum(data.summary.filled.values()) / (rows * len(schema.columns))
        assert 0.02 < filled < 0.09  # 5 %: missing values are rehearsed, too
        for at, column in enumerate(schema.columns):
            if isinstance(column, NumberColumn):
                feature = data.train.features[:, schema.feature_names.index(column.name)]
                assert -1 <= feature.min() < -0.9 and 0.9 < feature.max() <= 1, at


def test_it_reads_no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a table of the schema's names: the same bytes, and no file opened but the schema."""
    monkeypatch.chdir(tmp_path)
    Path("s.toml").write_text(SCHEMAS["wide"])
    schema_command("s.toml", mock=Path("a.csv"), rows=50, seed=0)
    Path("records.csv").write_text('person,wert,größe; in cm,thin,art\n1,2,180,.1,"3"\n')
    opened: list[str] = []
    real = io.open

    def seen(file, *args, **kwargs):
        opened.append(Path(str(file)).name)
        return real(file, *args, **kwargs)

    for module in (builtins, io):
        monkeypatch.setattr(module, "open", seen)
    schema_command("s.toml", mock=Path("b.csv"), rows=50, seed=0)
    monkeypatch.undo()
    assert [one for one in opened if one.endswith((".csv", ".parquet"))] == []
    assert "s.toml" in opened
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()

"""A federation over tables: what a site's reader reads of them, no more and no less."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hdpfl_flower.data.own_data.site_tables import table_sources, write_federation
from hdpfl_flower.data.schema import Schema
from hdpfl_flower.data.site_data import read_site_data
from tests.client_app.commands.conftest import PROFILE, SCHEMA


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
    assert task.startswith("classification") and "classes=2" in task
    assert (tmp_path / "out" / "t.npz").stat().st_mode & 0o777 == 0o600
    with np.load(tmp_path / "out" / "t.npz") as found:
        assert found["owner"].tolist() == [0] * 10 + [1] * 12
        for owner, one in enumerate(sources):
            source = one.source.model_copy(update={"holdout": 0.0})
            own = read_site_data(source, Schema.load(SCHEMA).task, SCHEMA).train
            assert np.array_equal(found["x"][found["owner"] == owner], own.features)
            assert np.array_equal(found["y"][found["owner"] == owner], own.targets)

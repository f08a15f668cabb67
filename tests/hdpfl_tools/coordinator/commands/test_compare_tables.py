"""``hdpfl compare --schema --tables``: tables at hand as sites, their losses said."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from hdpfl_tools.coordinator.commands import main
from tests.hdpfl_tools.site.commands.conftest import SCHEMA

FEW = ("--strategies", "fedavg", "--epsilons", "8", "--rounds", "2", "--seeds", "1", "--jobs", "1")


def call(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["hdpfl", "compare", *words])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


def test_each_table_is_a_site_and_its_losses_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s.toml").write_text(SCHEMA)
    rows = "".join(f"{i % 2},{i % 10},x\n" for i in range(30))
    Path("a.csv").write_text(f"y,a,c\n{rows}1,<3,x\n")
    Path("b.csv").write_text(f"y,a,c\n{rows}1,2\n")
    tables = ("--schema", "s.toml", "--tables", "a.csv,b.csv")
    assert call(monkeypatch, *tables, *FEW, "--json", "--out", "o") == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert found["clients"] == 2
    assert "a.csv: 31 records found, 31 used" in said.err
    assert "cannot be read: '<3' 1 times" in said.err
    assert "b.csv: warning: 1 of 31 records cannot be cut" in said.err
    assert not call(monkeypatch, *tables, *FEW, "--json", "--out", "o", "--resume")
    for wrong in (tables[:2], tables[2:], (*tables, "--dataset", "digits"),
                  (*tables, "--partition", "iid")):  # fmt: skip
        assert call(monkeypatch, *wrong, *FEW) == 1
        assert "--tables" in capsys.readouterr().err

"""The study of scales: its cells, and the trusted curator's row where its package is there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from studies.framework.study import Options
from studies.scales import curator, study

CELL = "cancer ε 1"


def options() -> Options:
    return Options(seeds=2, columns=(CELL,), strategies=("bounds",))


@pytest.mark.slow
def test_the_curators_row_stands_where_its_package_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "is_installed", lambda: False)
    (table,) = study.SCALES.conduct(options(), tmp_path).tables
    assert table.head == ("", "bounds") and table.rows[0][0] == CELL
    assert 0.6 < float(table.rows[0][1].split(" ")[0]) < 1
    asked = []

    def accuracy(split: Path, epsilon: float) -> float:
        with np.load(split) as data:
            asked.append((len(data["y"]), epsilon))
        return 0.5

    monkeypatch.setattr(study, "is_installed", lambda: True)
    monkeypatch.setattr(study, "curator_accuracy", accuracy)
    findings = study.SCALES.conduct(options(), tmp_path)
    assert findings.tables[0].head == ("", "bounds", curator.NAME)
    assert findings.tables[0].rows[0][2] == "0.500 ± 0.000"
    assert asked == [(455, 1.0)] * 2


def test_without_its_package_a_note_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "is_installed", lambda: False)
    monkeypatch.setattr(study, "run_jobs", lambda *_: Everything())
    findings = study.SCALES.conduct(options(), tmp_path)
    assert any("pip install interpret-core" in note for note in findings.notes)


class Everything(dict[object, object]):
    """Finished runs of all names."""

    def __missing__(self, _: object) -> object:
        return [{"metrics": {"accuracy": 0.75}}]

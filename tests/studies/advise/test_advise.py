"""The study of the advice: its grid, its choice, and its records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from studies.advise import study
from studies.advise.records import corners, planes
from studies.advise.study import ADVISE, CASES, FIRST_SEED
from studies.framework.study import Options


@pytest.mark.usefixtures("guessed_noise")
def test_the_quick_form_compares_the_advice_with_the_best_of_the_grid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "RATES", (0.001, 1.0))
    monkeypatch.setattr(study, "MODELS", ("logreg",))
    name = "planes 4 × 200 ε .5"
    small = replace(ADVISE, rounds=(1, 3))
    found = small.conduct(Options(columns=(name,), seeds=2, processes=1), tmp_path)
    ((case, ratio, advised, mean, best, *_, difference),) = found.tables[0].rows
    assert (case, advised) == (name, "3 × 4, auto, logreg")
    assert float(ratio) == pytest.approx(CASES[name].advised().of_run, rel=0.01)
    assert best.split(", ")[1] == "1.0", "of a rate that moves nothing and one that does"
    values = found.numbers[name]
    assert float(mean) == pytest.approx(np.mean(values["advised"]), abs=0.06)
    gap = np.mean(values["advised"]) - np.mean(values["best"])
    assert float(difference.split(" ")[0]) == pytest.approx(gap, abs=0.06)
    # Eight settings by seed 1, then two by the reported seeds.
    runs = [path.name.split("-")[1] for path in (tmp_path / "runs").iterdir()]
    assert runs.count("seed1") == 8
    assert runs.count(f"seed{FIRST_SEED}") == runs.count(f"seed{FIRST_SEED + 1}") == 2


def test_the_grid_has_24_settings_and_ten_cases() -> None:
    assert len(set(ADVISE.grid())) == 24
    assert len(CASES) == 10


def test_the_drawn_records_are_as_stated() -> None:
    for data, share in ((planes(), 0.8), (corners(), 0.6)):
        x, y = data.train.features, data.train.targets
        fit = np.linalg.lstsq(x, np.eye(3)[y], rcond=None)[0]
        right = ((x @ fit).argmax(1) == y).mean()
        assert (right > share) == (data.task.classes == 3)

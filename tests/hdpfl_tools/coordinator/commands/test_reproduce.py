"""``hdpfl reproduce`` as a user runs it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hdpfl_flower.errors import TermsError
from hdpfl_tools.coordinator.commands import app
from studies import STUDIES
from studies.framework import study
from studies.framework.study import GridStudy, Options
from studies.splitting.study import SplittingStudy

ROOT = Path(__file__).parents[4]


def reproduce(*words: str) -> str:
    done = CliRunner().invoke(app, ["reproduce", *words], env={"COLUMNS": "100"})
    if done.exception:
        raise done.exception
    return done.output


@pytest.fixture(autouse=True)
def _own_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES", ""))


def test_what_is_not_known_is_named(tmp_path: Path) -> None:
    with pytest.raises(TermsError, match="'no-such' is not known; choose one of robust-hdp-noise"):
        reproduce("no-such")
    with pytest.raises(TermsError, match="--learning-rate: 'fast'"):
        reproduce("robust-hdp-convergence", "--learning-rate", "fast", "--out", str(tmp_path))
    with pytest.raises(TermsError, match="--strategies: 'x'"):
        reproduce("robust-hdp-convergence", "--strategies", "x", "--out", str(tmp_path))


def test_every_study_is_in_the_document() -> None:
    text = (Path(__file__).parents[4] / "docs" / "how-to" / "reproduce.md").read_text()
    assert all(f"{name} " in text for name in STUDIES)


SMALLER = {
    "robust-hdp-noise": ["--columns", "Dist6"],
    "robust-hdp-convergence": ["--strategies", "robust-hdp,fedavg,oracle"],
    "robust-hdp-distributions": ["--columns", "Dist2,Dist6", "--strategies", "robust-hdp,minimum"],
    "robust-hdp-label-skew": ["--columns", "Dist2,Dist6", "--strategies", "robust-hdp,weiavg"],
    "robust-hdp-clients": ["--columns", "20 clients,40 clients", "--strategies", "robust-hdp,pfa"],
    "robust-hdp-liar": ["--strategies", "robust-hdp,public-only"],
    "pfa-mixgauss": ["--columns", "MixGauss1 (M = 20)", "--strategies", "pfa"],
    "fedhdp-mnist": ["--strategies", "dp-fedavg,fedhdp auto"],
    "fedhdp-skewed": ["--strategies", "fedhdp r = 0.1,fedhdp precision"],
    "scales": ["--columns", "cancer ε 1", "--seeds", "1", "--strategies", "first"],
    "survival": ["--columns", "coverage", "--seeds", "1"],
    "intervals": ["--columns", "classes: few records", "--seeds", "3"],
    "shared-noise": ["--columns", "heart: every ε 1", "--seeds", "1"],
    "fedhdp-personal": ["--strategies", "only local training"],
    "r-dpcfl-noise": ["--columns", "ε 10 b 32 first 32"],
    "r-dpcfl-mnist-rotation": ["--columns", "ε 5", "--strategies", "r-dpcfl,ditto", "--seeds", "1"],
    "r-dpcfl-mnist-label": ["--columns", "ε 5", "--strategies", "ifca", "--seeds", "1"],
    "which-rule": ["--columns", "logreg iid Dist4 12,alone 12", "--strategies", "fedavg,weiavg"],
}
"""A part of each: tests/strategies runs every strategy, and what counts here is the study."""
SEARCHED = ("fedhdp-mnist", "r-dpcfl-noise")
"""Studies of few budgets: the noise is that of elsewhere."""


READ_AS = {
    "seeds": "--seeds", "rounds": "--rounds", "strategies": "--strategies", "columns": "--columns",
    "learning_rates": "--learning-rate", "noises": "--noise", "model": "--model",
    "dataset": "--dataset", "against": "--against",
}  # fmt: skip
"""Field of ``Options`` → the option of the command."""


def watched(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return the fields that a study reads of the options of the next command."""
    read, first = set[str](), list[int]()

    class Watched(Options):
        def __init__(self, **values: Any) -> None:
            super().__init__(**values)
            first.append(id(self))  # a study may pass on a changed copy

        def __getattribute__(self, name: str) -> Any:
            reader = sys._getframe(1).f_code
            by_study = Path(reader.co_filename).is_relative_to(ROOT / "studies")
            if first[:1] == [id(self)] and by_study and reader.co_name != "given":
                read.add(name)
            return super().__getattribute__(name)

    monkeypatch.setattr(study, "Options", Watched)
    return read


@pytest.mark.parametrize(
    "name", [name for name, one in STUDIES.items() if set(one.takes) < set(GridStudy.takes)]
)
def test_options_without_effect_on_a_study_are_refused(name: str, tmp_path: Path) -> None:
    """All at once, and nothing is written; ``test_each_study_runs_on_digits`` has the others."""
    refused = [option for option in GridStudy.takes if option not in STUDIES[name].takes]
    words = [word for option in refused for word in (option, "1")]
    with pytest.raises(
        TermsError, match=f"^the study '{name}' does not take {', '.join(refused)};"
    ):
        reproduce(name, *words, "--out", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(STUDIES))
def test_each_study_runs_on_digits(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if name not in SEARCHED:
        request.getfixturevalue("guessed_noise")
    read = watched(request.getfixturevalue("monkeypatch"))
    short = {"--learning-rate": "0.1", "--dataset": "digits", "--rounds": "2"}
    taken = [pair for pair in short.items() if pair[0] in STUDIES[name].takes]
    words = [*(word for pair in taken for word in pair), *SMALLER.get(name, []), "--jobs", "1"]
    reproduce(name, *words, "--out", str(tmp_path))
    assert {READ_AS[field] for field in read & READ_AS.keys()} == set(STUDIES[name].takes)
    content = json.loads((tmp_path / "results.json").read_text())
    assert content["cells"]
    assert (tmp_path / "table.md").exists()
    picture = tmp_path / f"{name}.png"
    assert picture.exists() == isinstance(STUDIES[name], GridStudy | SplittingStudy)
    assert not picture.exists() or picture.stat().st_size > 10_000

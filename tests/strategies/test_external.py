"""Strategies of users' own: ``module:Class``, from its import to a federation and its contract."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from hdpfl_flower import wire
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import StrategyError, TermsError
from hdpfl_flower.models.networks import flatten
from hdpfl_tools.coordinator.commands import app
from hdpfl_tools.simulation.in_process.comparison import jobs_of
from hdpfl_tools.simulation.in_process.in_process_run import run_in_process
from strategies import check_strategy, make_strategy

MEDIAN = """
import numpy as np

from hdpfl_flower.config.settings import Settings
from hdpfl_flower.updates import Outcome
from strategies.core.base import Declaration, HDPStrategy


class MedianSettings(Settings):
    step: float = 1.0


class Median(HDPStrategy):
    name = "median"
    settings_type = MedianSettings

    def declare(self):
        return Declaration(is_weighted_sum=False)

    def combine(self, state, updates, noise):
        n = len(updates.sites)
        step = np.float32(self.settings.step) * np.median(updates.updates, axis=0)
        return state, Outcome(step, np.full(n, 1 / n))


class Liar(Median):
    name = "liar"

    def declare(self):
        return Declaration()


class Forgetful(Median):
    name = "forgetful"
    calls = 0

    def combine(self, state, updates, noise):
        self.calls += 1
        state, outcome = super().combine(state, updates, noise)
        return state, Outcome(np.float32(self.calls) * outcome.update, outcome.weights)


class NoStrategy:
    name = "none"
"""


@pytest.fixture(name="module")
def module_in_this_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module in the current directory, under a name that nothing else has."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "own_median.py").write_text(MEDIAN)
    (tmp_path / "broken_median.py").write_text("import a_module_that_is_not_there")
    yield "own_median"
    for name in ("own_median", "broken_median"):
        sys.modules.pop(name, None)


def test_it_has_settings_of_its_own_and_no_others(module: str) -> None:
    config = {"strategy": f"{module}:Median", "median.step": 2.0}
    assert make_strategy(RunConfig.parse(config)).settings.as_config() == {"step": 2.0}
    with pytest.raises(TermsError, match=r"'median\.size' is not a known key"):
        make_strategy(RunConfig.parse({**config, "median.size": 2.0}))
    with pytest.raises(TermsError, match=r"'median\.step' is not a known key"):
        make_strategy(RunConfig.parse({**config, "strategy": "fedavg"}))


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("no_such_module:Median", "there is no module 'no_such_module' in /"),
        ("own_median:Mean", "own_median.py has no class 'Mean'"),
        ("own_median:NoStrategy", "is no subclass of"),
        ("broken_median:Median", "imports 'a_module_that_is_not_there'"),
        ("own_median:", "write 'module:Class'"),
        ("own-median:Median", "write 'module:Class'"),
    ],
)
@pytest.mark.usefixtures("module")
def test_a_failed_import_is_refused_with_key_and_place(name: str, wrong: str) -> None:
    with pytest.raises(StrategyError, match="'strategy'") as refused:
        check_strategy(name)
    assert wrong in str(refused.value)


def test_a_site_gets_the_name_as_text_and_imports_nothing() -> None:
    """The module need not exist where the message is read."""
    terms = RunConfig.parse({"strategy": "no_such_module:Median"}).terms
    record = wire.write_model({"w": np.zeros(3, np.float32)})
    before = set(sys.modules)
    read = wire.read_instructions(wire.write_instructions(terms, 1, record))
    assert read.terms.strategy == "no_such_module:Median"
    assert set(sys.modules) == before


def test_a_federation_runs_it_under_a_folders_name(module: str, tmp_path: Path) -> None:
    base = RunConfig.parse(
        {"rounds": 1, "partition": "iid", "epsilons": "inf", "batch-sizes": "32",
         "dataset": "digits", "model": "logreg", "runs-dir": str(tmp_path / "runs")}
    )  # fmt: skip
    (job,) = jobs_of(base, [f"{module}:Median"], 1, 3)
    assert job.config.terms.run_id == "own_median.Median-seed1"
    result = run_in_process(job.config, 3)
    assert result.rounds[0]["weights"] == pytest.approx([1 / 3] * 3)
    assert flatten(result.arrays).any()


@pytest.mark.parametrize(
    ("kind", "failed"),
    [
        ("Median", ""),
        ("Liar", "FAILED  weights are convex, and a linear update is their sum"),
        ("Forgetful", "FAILED  the state survives a checkpoint"),
    ],
)
def test_the_command_fails_with_the_first_check(module: str, kind: str, failed: str) -> None:
    done = CliRunner().invoke(app, ["check", f"{module}:{kind}"])
    lines = done.output.splitlines()
    checks = [line for line in lines if not line.startswith("without ")]
    assert len(checks) == 7
    assert "without 'choice': needs a strategy that asks for choices" in lines
    assert (done.exit_code, [line for line in lines if line.startswith("FAILED")] == []) == (
        (1, False) if failed else (0, True)
    )
    assert any(line.startswith(failed) for line in lines)

"""Strategies of users' own: ``module:Class``, from its import to a federation and its contract."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import StrategyError, TermsError
from hdpfl_flower.models.networks import flatten
from hdpfl_tools.contract import run_contract
from hdpfl_tools.coordinator.commands import app
from hdpfl_tools.simulation.in_process.comparison import jobs_of
from hdpfl_tools.simulation.in_process.in_process_run import run_in_process
from strategies import check_strategy, make_strategy

MEDIAN = """
from dataclasses import dataclass
from typing import Any

import numpy as np

from hdpfl_flower.config.settings import Settings
from hdpfl_flower.updates import Outcome
from strategies.core.base import Declaration, HDPStrategy


@dataclass(frozen=True)
class Past:
    direction: Any = None


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


class Momentum(Median):
    name = "own-momentum"

    def initial_state(self, disclosed=None):
        return Past()

    def declare(self):
        return Declaration()

    def combine(self, state, updates, noise):
        n = len(updates.sites)
        mean = updates.updates.mean(0)
        if state.direction is not None:
            mean = np.float32(0.9) * state.direction + mean
        return Past(mean), Outcome(mean, np.full(n, 1 / n))


class DeclaredMomentum(Momentum):
    name = "declared-momentum"

    def declare(self):
        return Declaration(is_weighted_sum=False)


class NoStrategy:
    name = "none"
"""


STATES = """
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from hdpfl_flower.updates import Outcome
from strategies.core.base import Declaration, HDPStrategy


@dataclass(frozen=True)
class Bare:
    last: np.ndarray | None = None
    number: int = 0


@dataclass(frozen=True)
class Typed:
    last: npt.NDArray[np.float32] | None = None
    number: float = 0.0


@dataclass(frozen=True)
class Untyped:
    last: Any = None
    number: Any = 0


@dataclass(frozen=True)
class Wrong:
    last: np.ndarray | None = None
    number: str = ""


class Momentum(HDPStrategy):
    name = "stated"
    kind = Bare

    def declare(self):
        return Declaration(is_weighted_sum=False, is_convex=False)

    def initial_state(self, disclosed=None):
        return self.kind()

    def combine(self, state, updates, noise):
        n, mean = len(updates.sites), updates.updates.mean(0)
        if state.last is not None:
            mean = np.float32(0.9) * state.last + mean
        return self.kind(mean, n), Outcome(mean, np.full(n, 1 / n))


class OfTyped(Momentum):
    kind = Typed


class OfUntyped(Momentum):
    kind = Untyped


class OfWrong(Momentum):
    kind = Wrong


class OfDictionary(Momentum):
    def initial_state(self, disclosed=None):
        return {"members": {}}

    def combine(self, state, updates, noise):
        n, mean = len(updates.sites), updates.updates.mean(0)
        if "0" in state["members"]:
            mean = np.float32(0.9) * state["members"]["0"] + mean
        return {"members": {"0": mean}}, Outcome(mean, np.full(n, 1 / n))


class Undeclared(Momentum):
    def declare(self):
        return Declaration(is_convex=False)
"""


@pytest.fixture(name="module")
def module_in_this_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module in the current directory, under a name that nothing else has."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "own_median.py").write_text(MEDIAN)
    (tmp_path / "own_states.py").write_text(STATES)
    (tmp_path / "broken_median.py").write_text("import a_module_that_is_not_there")
    yield "own_median"
    for name in ("own_median", "own_states", "broken_median"):
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
        ("own_median:NoStrategy", "is not a subclass of"),
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


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("Momentum", ""),
        ("OfTyped", ""),
        ("OfUntyped", ""),
        ("OfDictionary", ""),
        ("OfWrong", "'number' annotated as str, and holds a int"),
        ("Undeclared", "the update of the second round is not scale·Σ wᵢuᵢ"),
    ],
)
def test_a_state_is_checked_as_its_class_annotates_it(name: str, wrong: str) -> None:
    faults = [fault for _, fault in run_contract(f"own_states:{name}") if fault]
    assert len(faults) == bool(wrong)
    assert all(wrong in fault for fault in faults)


def test_a_strategy_is_checked_under_the_keys_of_its_run(module: str) -> None:
    call = CliRunner().invoke
    words = ["check", f"{module}:Median", "--set", "rounds=5", "--set"]
    assert call(app, [*words, "median.step=1"]).exit_code == 0
    twice = call(app, [*words, "median.step=2"])
    assert twice.exit_code == 1 and "a coordinate lies outside the clients'" in twice.output
    with pytest.raises(TermsError, match=r"'median\.size' is not a known key"):
        call(app, ["check", f"{module}:Median", "--set", "median.size=2"], catch_exceptions=False)


def test_a_strategy_with_memory_has_no_found_rate(module: str, tmp_path: Path) -> None:
    """Its updates agree by their memory, from which a found rate would grow without end."""
    base = RunConfig.parse({"runs-dir": str(tmp_path), "rounds": 4, "local-steps": 1})
    declared = base.updated(strategy=f"{module}:DeclaredMomentum")
    rates = check_strategy(declared.terms.strategy).with_rate(declared)
    assert rates.server.server_learning_rate != "found"
    with pytest.raises(TermsError, match=r"needs updates only of the same round.*round_alone"):
        run_in_process(declared.updated(server_learning_rate="found"), 3)
    assert len(run_in_process(declared, 3).rounds) == 4
    undeclared = base.updated(strategy=f"{module}:Momentum", run_id="undeclared")
    with pytest.raises(
        StrategyError, match=rf"'{module}:Momentum' declares that its update is a weighted sum .* 2"
    ):
        run_in_process(undeclared, 3)


def test_a_site_gets_the_name_as_text_and_imports_nothing() -> None:
    """The module need not exist where the message is read."""
    terms = RunConfig.parse({"strategy": "no_such_module:Median"}).terms
    record = server_wire.write_model({"w": np.zeros(3, np.float32)})
    before = set(sys.modules)
    read = wire.read_instructions(server_wire.write_instructions(terms, 1, record))
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
    assert "without 'choice.kind' (needs a strategy that asks for choices)" in lines
    assert (done.exit_code, [line for line in lines if line.startswith("FAILED")] == []) == (
        (1, False) if failed else (0, True)
    )
    assert any(line.startswith(failed) for line in lines)

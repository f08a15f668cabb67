"""How a user takes up a run: ``hdpfl resume``, ``resume-from``, and what they are told."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from hdpfl_flower import wire
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import CheckpointError
from hdpfl_flower.monitoring.journal import read_journal
from hdpfl_tools.coordinator.commands.resume import resume
from server_app.app import run_or_resume
from tests.federation import ScriptedGrid
from tests.server_app.run.resuming import (
    Killed,
    memory_folder,  # noqa: F401
    noisy,
)

APP = Path(__file__).parents[4]


# --- hdpfl resume RUN SUPERLINK: tests/e2e/test_resume.py runs it to its good end -----------------


# --- flwr run -c "resume-from=…" ----------------------------------------------------------------


@pytest.fixture
def no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server_app.plots.plot_run", lambda *_: None)


def config_of(folder: Path, **more: Any) -> dict[str, Any]:
    terms = {"strategy": "fedavg", "rounds": 4, "min-sites": 1, "evaluation": "none"}
    return {**RunConfig().as_config(), **terms, "runs-dir": str(folder), "run-id": "f", **more}


class StopsIn(ScriptedGrid):
    """A grid that dies when it is to send a round."""

    at = 3

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        messages = list(messages)
        if messages and wire.read_instructions(messages[0].content).server_round == self.at:
            raise Killed
        return super().send_and_receive(messages, timeout=timeout)


@pytest.mark.usefixtures("no_picture")
def test_resume_from_is_the_servers_own_and_needs_no_other_key(folder: Path) -> None:
    """Terms that are not said are the run's; no site hears of the key, and the run id stays."""
    sites = {str(i): noisy(i) for i in range(4)}
    with pytest.raises(Killed):
        run_or_resume(StopsIn(sites), {**config_of(folder), "resume-from": ""})
    seen: set[str] = set()

    class Listens(ScriptedGrid):
        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
            messages = list(messages)
            seen.update(wire.read_instructions(m.content).terms.to_json() for m in messages)
            return super().send_and_receive(messages, timeout=timeout)

    defaults = RunConfig().as_config()
    result = run_or_resume(Listens(sites), {**defaults, "resume-from": str(folder / "f")})
    assert [event["round"] for event in result.rounds] == [1, 2, 3, 4]
    assert result.run_id == "f"
    (text,) = seen
    assert "resume" not in text
    events = [event["event"] for event in read_journal(folder / "f" / "journal.jsonl")]
    assert events.count("run-started") == events.count("run-resumed") == 1
    again = {**defaults, "runs-dir": str(folder), "resume-from": "f"}
    with pytest.raises(CheckpointError, match="complete"):
        run_or_resume(Listens(sites), again)


@pytest.mark.usefixtures("no_picture")
@pytest.mark.parametrize(
    ("key", "value"), [("rounds", 40), ("clip-norm", 3.0), ("run-id", "g"), ("quorum", 1)]
)
def test_a_term_that_differs_is_refused_by_name(folder: Path, key: str, value: Any) -> None:
    sites = {str(i): noisy(i) for i in range(4)}
    with pytest.raises(Killed):
        run_or_resume(StopsIn(sites), config_of(folder))
    with pytest.raises(CheckpointError, match=f"run 'f' began with another value of '{key}'"):
        other = {key: value, "resume-from": str(folder / "f")}
        run_or_resume(ScriptedGrid(sites), config_of(folder, **other))


class Deployed(StopsIn):
    """Stopped as well, and under Flower."""

    engine = "deployment"


LINKS = """
[superlink]
default = "local"
[superlink.local]
options.num-supernodes = 2
[superlink.consortium]
address = "flower.example.org:8000"
"""


@pytest.mark.usefixtures("no_picture")
@pytest.mark.parametrize(
    ("config", "named", "taken"),
    [
        (LINKS, "", "consortium"),
        (LINKS, "consortium", "consortium"),
        (LINKS + '[superlink.b]\naddress = "b:1"\n', "", "(one of consortium, b)"),
        (LINKS.replace("local", "consortium", 1) + '[superlink.b]\naddress = "b:1"', "",
         "consortium"),
        (LINKS, "local", "there is no connection 'local' in "),
        ("", "", "one with an 'address', but there is none"),
    ],
)  # fmt: skip
def test_a_run_of_real_sites_goes_on_at_its_superlink_or_says_how(
    folder: Path, monkeypatch: pytest.MonkeyPatch, config: str, named: str, taken: str
) -> None:
    """Without a connection it went on as a simulation, with other sites, and hung."""
    (folder / "flwr").mkdir()
    (folder / "flwr" / "config.toml").write_text(config)
    monkeypatch.setenv("FLWR_HOME", str(folder / "flwr"))
    with pytest.raises(Killed):
        run_or_resume(Deployed({str(i): noisy(i) for i in range(4)}), config_of(folder))
    own, called = folder / "f", list[list[str]]()
    monkeypatch.setattr("subprocess.run", lambda command, **_: called.append(command))
    if " " in taken:
        with pytest.raises(CheckpointError, match=re.escape(taken)) as found:
            resume(str(own), named, APP)
        assert f"call: hdpfl resume {own} CONNECTION --app {APP}" in str(found.value)
        assert called == []
    else:
        with pytest.raises(AttributeError):  # of what flwr run left, which is nothing here
            resume(str(own), named, APP)
        assert called[0][3] == taken


class Simulated(StopsIn):
    """Stopped as well, and under Ray."""

    engine = "simulation"


@pytest.mark.usefixtures("no_picture")
def test_a_run_of_real_sites_is_not_resumed_by_a_simulation(folder: Path) -> None:
    sites = {str(i): noisy(i) for i in range(4)}
    with pytest.raises(Killed):
        run_or_resume(Deployed(sites), config_of(folder))
    before = (folder / "f" / "journal.jsonl").read_text()
    with pytest.raises(CheckpointError, match="began as a deployment, but this is a simulation"):
        run_or_resume(
            Simulated(sites), {**RunConfig().as_config(), "resume-from": str(folder / "f")}
        )
    assert (folder / "f" / "journal.jsonl").read_text() == before

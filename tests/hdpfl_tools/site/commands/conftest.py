"""A site in a folder: a profile, a table with planted values, the terms of a run."""

from __future__ import annotations

import html
import io
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.ledger.account import ChargedPlan, Request
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.ledger.site_ledger import Reservation
from hdpfl_flower.privacy.plan import make_plan
from hdpfl_tools.coordinator.commands import main as coordinator_main
from hdpfl_tools.site.commands import main

SECRETS = ("1.2345678", "PATIENT-123")
"""A profile's ε and a cell of the table: no error may show them."""

PROFILE = """
approval = "standing"

[budget]
epsilon = 4.0
delta = 1e-4
[run]
epsilon = 1.2345678
delta = 1e-5
[training]
batch-size = 10
declared-records = 40
device = "cpu"
[data]
format = "csv"
path = "records.csv"
[ledger]
path = "ledger/ledger.sqlite"
anchor = "anchor/ledger.anchor"
[state]
path = "state"
"""
SCHEMA = """
[label]
column = "y"
classes = [["no", "0"], ["yes", "1"]]
[[columns]]
name = "a"
type = "number"
bounds = [0, 10]
[[columns]]
name = "c"
type = "category"
categories = ["x", "z"]
"""
REGRESSION = """
[label]
column = "y"
bounds = [0, 70]
[[columns]]
name = "a"
type = "number"
bounds = [0, 10]
"""


@dataclass
class Result:
    """What a command left behind."""

    code: int
    out: str
    err: str

    def error(self) -> str:
        """Return the one line that a failing command printed."""
        assert self.code == 1, self
        assert self.err.startswith("error: ") and self.err.count("\n") == 1, self.err
        assert "Traceback" not in self.err
        assert not any(secret in self.err for secret in SECRETS), self.err
        return self.err


def page_text(page: str) -> str:
    """Return the words of a page, without its elements and styles."""
    return " ".join(html.unescape(re.sub(r"(?s)<style.*?</style>|<[^>]+>", " ", page)).split())


@dataclass
class SiteFolder:
    """A site's files, and its tool."""

    schema = SCHEMA
    regression = REGRESSION
    folder: Path
    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    @property
    def profile_path(self) -> Path:
        return self.folder / "profile.toml"

    @property
    def terms_path(self) -> Path:
        return self.folder / "run.toml"

    @property
    def ledger_path(self) -> Path:
        return self.folder / "ledger" / "ledger.sqlite"

    @property
    def profile(self) -> Profile:
        return Profile.load(self.profile_path)

    @property
    def terms(self) -> RunTerms:
        return RunConfig.load(self.terms_path).terms

    def write_profile(self, *changes: tuple[str, str]) -> None:
        text = PROFILE
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        self.profile_path.write_text(text)
        self.profile_path.chmod(0o600)

    def write_terms(self, schema: str = SCHEMA, **changes: object) -> None:
        config = RunConfig.parse(
            {"run-id": "run-1", "dataset": "site", "schema": schema, "rounds": 3, "local-steps": 2}
        ).updated(**changes)
        lines = [
            f"{key} = '''\n{value}'''" if isinstance(value, str) else f"{key} = {value}".lower()
            for key, value in config.as_config().items()
        ]
        self.terms_path.write_text("\n".join(lines))

    def write_records(self, header: str = "y,a,c", row: str = "{label},{number},x") -> None:
        rows = [row.format(label=i % 2, number=i % 10, i=i) for i in range(40)]
        text = "\n".join([header, *rows, "PATIENT-123,PATIENT-123,PATIENT-123"])
        (self.folder / "records.csv").write_text(text + "\n")

    def __call__(self, *args: object, answer: str = "") -> Result:
        words = [str(arg) for arg in args]
        if "--profile" not in words:
            words += ["--profile", str(self.profile_path)]
        return self.bare(*words, answer=answer)

    def bare(self, *args: object, answer: str = "", program: str = "hdpfl-site") -> Result:
        self.monkeypatch.setattr(sys, "argv", [program, *map(str, args)])
        self.monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
        self.capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            (main if program == "hdpfl-site" else coordinator_main)()
        text = self.capsys.readouterr()
        return Result(int(end.value.code or 0), text.out, text.err)

    def whole_report(self, *more: object) -> str:
        """Return the words of the whole report; with options, of what these name."""
        result = (self.bare if more else self)("report", "--html", *more)
        assert result.code == 0, result.err
        return page_text(result.out)

    def charge(self, run_id: str = "run-1", rounds: int = 2, kind: str = "update") -> None:
        """Charge a run and release ``rounds`` of it, as a round would."""
        # Not validated: a ledger of an older version may hold any name.
        site, terms = self.profile, self.terms.model_copy(update={"run_id": run_id})
        made = make_plan(site, terms)
        frozen = ChargedPlan(made.to_json(), terms.to_json(), made.epsilon, made.delta)
        ledger = Ledger(site.ledger.path, site.ledger.anchor)
        for server_round in range(1, rounds + 1):
            request = Request(run_id, server_round, kind, "digest", exact=int(kind == "metrics"))
            taken = ledger.reserve(request, frozen if kind == "update" else None)
            assert isinstance(taken, Reservation)
            with taken:
                taken.seal(b"payload")
            ledger.mark_sent(request.key)
        ledger.close()


@pytest.fixture
def site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> SiteFolder:
    """A site that is ready for a run, but for its ledger."""
    folder = SiteFolder(tmp_path, monkeypatch, capsys)
    folder.write_profile()
    folder.write_records()
    folder.write_terms()
    return folder


@pytest.fixture
def opened(site: SiteFolder) -> SiteFolder:
    """The same, with its ledger, in which ε and δ add up."""
    assert site("ledger", "--init", "--composition", "sum").code == 0
    return site

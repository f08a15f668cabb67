"""Dashboards and rules name series that the exporters show."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk, build_fab_from_files

from hdpfl_flower.monitoring.series import COORDINATOR_PORT, SITE_PORT, Place, series_at

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
sys.path.insert(0, str(ROOT / "deploy"))

from app_files import app_alone, copy_app  # noqa: E402


def names(text: str) -> set[str]:
    return set(re.findall(r"\bhdpfl_[a-z_]+", text))


@pytest.mark.parametrize("place", ["coordinator", "site"])
def test_dashboard_and_rules_name_series_of_their_own_side(place: Place) -> None:
    """A name that no exporter shows draws nothing; a site's name at the coordinator asks for ε."""
    shown = {series.name for series in series_at(place)}
    for path in (
        DOCKER / "grafana" / "dashboards" / f"{place}.json",
        DOCKER / "prometheus" / "rules" / f"{place}.yml",
        DOCKER / "prometheus" / "tests" / f"{place}.yml",
    ):
        assert names(path.read_text()), path
        assert names(path.read_text()) - shown == set(), path


def test_every_series_worth_a_look_is_looked_at() -> None:
    text = "".join(path.read_text() for path in DOCKER.rglob("*.*") if path.parent.name != "tests")
    unseen = {s.name for place in ("coordinator", "site") for s in series_at(place)} - names(text)
    assert unseen == {
        "hdpfl_run_started_timestamp_seconds", "hdpfl_last_refused_timestamp_seconds",
        "hdpfl_plan_paid_releases", "hdpfl_run_charged_delta", "hdpfl_budget_charged_runs",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("place", "port"), [("coordinator", COORDINATOR_PORT), ("site", SITE_PORT)]
)
def test_prometheus_asks_where_the_exporters_answer(place: str, port: int) -> None:
    text = (DOCKER / "prometheus" / f"{place}.yml").read_text()
    assert f'"127.0.0.1:{port}"' in text
    assert f"rules/{place}.yml" in text
    assert ("authorization:" in text) == (place == "site")


def test_in_containers_the_exporters_have_a_name_and_need_no_token(tmp_path: Path) -> None:
    """The token's file is of a machine with other users; a scrape without that file would fail."""
    (tmp_path / "federation" / "certs").mkdir(parents=True)
    (tmp_path / "federation" / "certs" / "ca.crt").touch()
    (tmp_path / "public").mkdir()
    subprocess.run(
        [sys.executable, "-c", "import containers; containers.publish([])"],
        cwd=DOCKER.parent / "deploy", env={**os.environ, "HDPFL_HOME": str(tmp_path)}, check=True,
    )  # fmt: skip
    for place, port in (("coordinator", COORDINATOR_PORT), ("site", SITE_PORT)):
        text = (tmp_path / "public" / "prometheus" / f"{place}.yml").read_text()
        assert f'"exporter:{port}"' in text
        assert "authorization" not in text


# --- the copy of the app that is submitted is the app, and nothing else


def test_flower_makes_the_same_app_of_the_copy(tmp_path: Path) -> None:
    """Of all files of the tree but those of hidden folders and of what is built: it names them."""
    tops = [path for path in ROOT.iterdir() if path.is_file() or path.name[0] not in ".b"]
    files = [file for top in tops for file in (top, *top.rglob("*")) if file.is_file()]
    whole, _ = build_fab_from_files({file.relative_to(ROOT).as_posix(): file for file in files})
    copy_app(ROOT, tmp_path / "copy")
    assert build_fab_from_disk(tmp_path / "copy") == whole


def test_the_copy_is_small_and_goes_away() -> None:
    with app_alone(ROOT) as folder:
        tops = {path.name for path in Path(folder).iterdir()}
        assert sum(1 for _ in Path(folder).rglob("*")) < 1000
    assert {"pyproject.toml", "hdpfl_flower", "server_app"} <= tops
    assert not tops & {".venv", ".git", "tests", "docs", "deploy"}
    assert not Path(folder).exists()

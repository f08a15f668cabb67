"""Dashboards and rules name series that the exporters show."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hdpfl_flower.monitoring.series import COORDINATOR_PORT, SITE_PORT, Place, series_at

DOCKER = Path(__file__).parents[2] / "docker"


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

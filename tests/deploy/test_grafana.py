"""Dashboards and rules name series that the exporters show."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from flwr.cli.build import build_fab_from_disk, build_fab_from_files

from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.data.site_data import SiteData, read_site_data
from hdpfl_flower.monitoring.series import COORDINATOR_PORT, SITE_PORT, Place, series_at
from hdpfl_flower.privacy.policy import check_policy
from hdpfl_tools.tables.site_check import check_site_data

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


# --- the federation of six wards in two groups: its files are what its README says


DEPLOY = Path(__file__).parents[2] / "deploy"
FOLDER = DEPLOY / "clusters"
WARDS = [f"{hospital}-{ward}" for hospital in ("cleveland", "hungarian") for ward in "abc"]
TERMS = RunConfig.load(FOLDER / "run.toml")


def profile_of(ward: str) -> Profile:
    return Profile.parse(tomllib.loads((FOLDER / ward / "profile.toml").read_text()))


def data_of(ward: str) -> SiteData:
    data = profile_of(ward).data
    assert data is not None
    source = data.model_copy(update={"path": FOLDER / ward / "data.csv"})
    task = task_for(TERMS.terms)
    found = check_site_data(source, task, TERMS.terms.schema_text, 80)
    assert not [line for line in found if line.startswith("error:")]
    return read_site_data(source, task, TERMS.terms.schema_text)


def test_every_folder_is_a_ward_that_allows_both_runs() -> None:
    assert sorted(path.name for path in FOLDER.iterdir() if path.is_dir()) == WARDS
    assert TERMS.server.min_sites == len(WARDS)
    for ward in WARDS:
        site = profile_of(ward)
        check_policy(site, TERMS.terms)
        assert "r-dpcfl" in site.policy.strategies
        assert site.state is not None
        assert site.ledger is not None
        assert site.disclose == ()


def test_the_wards_fall_into_two_groups_and_their_data_can_be_used() -> None:
    """The first gradients of wards of one group point one way, of the other group the other way."""
    gradients = []
    for ward in WARDS:
        data = data_of(ward)
        assert data.test is not None
        assert len(data.train) == pytest.approx(80, abs=8)
        assert len(data.test) > 10
        x = np.hstack([data.train.features, np.ones((len(data.train), 1))])
        mean = ((0.5 - data.train.targets)[:, None] * x).mean(axis=0)
        gradients.append(mean / np.linalg.norm(mean))
    cosines = np.array(gradients) @ np.array(gradients).T
    same = np.kron(np.eye(2), np.ones((3, 3))).astype(bool)
    assert cosines[same].min() > 0.3
    assert cosines[~same].max() < -0.3


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

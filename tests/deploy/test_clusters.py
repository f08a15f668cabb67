"""The federation of six wards in two groups: its files are what its README says."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.data.datasets import task_for
from hdpfl_flower.data.site_check import check_site_data
from hdpfl_flower.data.site_data import SiteData, read_site_data
from hdpfl_flower.privacy.policy import check_policy

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

"""The federation in which one hospital opts out: its files are what the documents say."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path

from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.privacy.policy import check_policy

DEPLOY = Path(__file__).parents[2] / "deploy"


def profiles(folder: Path) -> dict[str, Profile]:
    return {
        path.parent.name: Profile.parse(tomllib.loads(path.read_text()))
        for path in sorted(folder.glob("*/profile.toml"))
    }


def test_one_hospital_opts_out_and_all_allow_the_run() -> None:
    sites = profiles(DEPLOY / "opt-out")
    terms = RunConfig.load(DEPLOY / "opt-out" / "run.toml")
    assert terms.server.min_sites == len(sites) == 4
    assert [name for name, site in sites.items() if math.isinf(site.run.epsilon)] == ["switzerland"]
    for site in sites.values():
        check_policy(site, terms.terms)
        assert site.disclose == ("epsilon",)
        assert site.state is not None


def test_the_hospitals_have_the_demos_records() -> None:
    files = sorted((DEPLOY / "demo").glob("*/data.csv"))
    assert len(files) == 4
    for file in files:
        link = DEPLOY / "opt-out" / file.parent.name / "data.csv"
        assert link.is_symlink()
        assert link.resolve() == file.resolve()

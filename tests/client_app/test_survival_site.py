"""A deployed site with a table of times and events trains and measures; no record stops it."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from client_app.site.site import Site
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.models.task import Task
from hdpfl_tools.measures.clinical import How
from hdpfl_tools.site.worth.own_measures import EVERY, measure_here
from tests.client_app.messages import ask, make_site, terms_of
from tests.hdpfl_tools.tables.test_survival_table import TEXT

SECRET = "-77.125"
BAD = [f"1,{SECRET},1", f"1,5,{SECRET}", "1,,1", f"{SECRET},nan,0", "1,1e999,1", "ragged"]


def survival_site(folder: Path, *more: str) -> Path:
    """Write the site of :func:`make_site` with a table of survival; of more, the sooner dead."""
    profile = make_site(folder)
    with_groups = profile.read_text().replace("[data]", '[data]\nsubgroups = ["died"]')
    profile.write_text(with_groups)
    rows = [f"{i % 10},{29 - 3 * (i % 10)},{int(i % 4 > 0)}" for i in range(60)]
    (folder / "records.csv").write_text("\n".join(["a,months,died", *rows, *more]) + "\n")
    return profile


def test_a_site_trains_on_its_times(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    terms = terms_of(schema=TEXT)
    with caplog.at_level(logging.DEBUG):
        reply = ask(survival_site(tmp_path, *BAD), terms)
    assert not reply.has_error()
    assert SECRET not in caplog.text
    site = Site(Profile.load(tmp_path / "profile.toml"), terms)
    assert len(site.training_records()) == 60


def test_a_site_without_a_usable_time_answers_like_any_other(tmp_path: Path) -> None:
    """A reply that differs would disclose it: the plan and the number of steps are the same."""
    profile = survival_site(tmp_path)
    (tmp_path / "records.csv").write_text("\n".join(["a,months,died", *BAD]) + "\n")
    assert not ask(profile, terms_of(schema=TEXT)).has_error()


def test_the_site_measures_concordance_on_its_records_and_groups(tmp_path: Path) -> None:
    profile = Profile.load(survival_site(tmp_path))
    assert profile.data is not None

    def predict(x: np.ndarray) -> np.ndarray:
        return np.repeat(x, 3, axis=1)  # more of 'a' is sooner

    found = measure_here(profile.data, EVERY, Task.survival((1,), 3), TEXT, predict, How(draws=200))
    assert found.whole.estimates["concordance"].value > 0.9
    assert set(found.groups["died"]) <= {"0", "1"}

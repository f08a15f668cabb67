"""``hdpfl-site worth``: the judgement on held-out records, which leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hdpfl_flower.data.run_task import task_for
from hdpfl_tools.site.worth.comparison import NOT_WORTH, WORTH
from hdpfl_tools.site.worth.home_model import home_predictor
from hdpfl_tools.tables.site_data import read_site_data
from tests.hdpfl_tools.site.commands.test_model import keep

HELD_OUT = ('path = "records.csv"', 'path = "records.csv"\nholdout = 0.5')
QUICK = ("--folds", "2")


@pytest.fixture(autouse=True)
def fewer_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test here needs many resamples."""
    monkeypatch.setattr("hdpfl_flower.measures.bootstrap.DRAWS", 1000)


def prepare(site, records: int = 160, flipped: int = 0, noise: int = 0) -> None:
    """Write records whose label is whether column a is above 5, but for some of them."""
    site.write_profile(HELD_OUT)
    random = np.random.default_rng(1)
    numbers = random.uniform(0, 10, records)
    labels = (numbers > 5).astype(int)
    labels[:flipped] = 1 - labels[:flipped]
    if noise:
        labels = random.integers(2, size=records)
    rows = [f"{y},{a:.4f},x" for y, a in zip(labels, numbers, strict=True)]
    (site.folder / "records.csv").write_text("\n".join(["y,a,c", *rows]) + "\n")


def asked(site, *words: object) -> dict:
    result = site("worth", "--json", *QUICK, *words)
    assert result.code == 0, result.err
    return json.loads(result.out)


def model_named(facts: dict, name: str) -> dict:
    (model,) = [candidate for candidate in facts["held-out"]["models"] if candidate["name"] == name]
    return model


def files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_model_that_knows_more_than_home_is_worth_it(site) -> None:
    prepare(site, records=300, flipped=0)
    keep(site, (40, 0, 0), 0)
    # The penalty of the home model leaves it unsure; the joined model is right everywhere.
    facts = asked(site, "--by", "log-loss")
    joined = model_named(facts, "joined model")
    assert joined["kind"] == "private"
    assert joined["measures"]["accuracy"]["value"] == 1.0
    assert facts["verdict"] == WORTH == joined["verdict"]
    assert joined["gains"]["home model"]["low"] > 0


def test_a_model_that_is_wrong_everywhere_is_not_worth_it(site) -> None:
    prepare(site)
    keep(site, (-40, 0, 0), 0)
    facts = asked(site)
    assert facts["verdict"] == NOT_WORTH
    shown = site("worth", *QUICK)
    assert "should we join? not worth it" in shown.out
    assert "held out of training" in shown.out
    assert "2-fold cross-validated over all of this site's 160 records" in shown.out


def test_the_figures_are_of_the_held_out_records_alone(site) -> None:
    prepare(site, flipped=30)
    keep(site, (40, 0, 0), 3)
    held_out = read_site_data(site.profile.data, task_for(site.terms), site.schema).test
    right = (40 * held_out.features[:, 0] + 3 > 0) == held_out.targets
    facts = asked(site)
    assert facts["held-out"]["records"] == facts["held-out"]["units"] == len(held_out)
    joined = model_named(facts, "joined model")
    assert joined["measures"]["accuracy"]["value"] == pytest.approx(right.mean())
    assert facts["cross-validated-at-home"]["records"] == 160
    names = [model["name"] for model in facts["cross-validated-at-home"]["models"]]
    assert names == ["constant", "home model"]
    assert asked(site, "--folds", "0")["cross-validated-at-home"] is None


def test_the_home_model_beside_them_was_trained_on_none_of_them(site, monkeypatch) -> None:
    prepare(site)
    keep(site, (40, 0, 0), 3)
    data = read_site_data(site.profile.data, task_for(site.terms), site.schema)
    seen: list[np.ndarray] = []

    def note(home, records, groups, tick):
        seen.append(records.features)
        return home_predictor(home, records, groups, tick)

    monkeypatch.setattr("hdpfl_tools.site.worth.judgement.home_predictor", note)
    asked(site, "--folds", "0")
    (features,) = seen
    assert np.array_equal(features, data.train.features)
    held_out = {row.tobytes() for row in data.test.features}
    assert held_out.isdisjoint(row.tobytes() for row in features)


def test_records_of_a_person_move_together(site) -> None:
    """80 persons with five records each: the test is on all of them, its units are persons."""
    schema = 'id = "who"\n' + site.schema
    site.write_profile(('path = "records.csv"', 'path = "records.csv"\nholdout = 0.5\nid = "who"'))
    site.write_terms(schema=schema)
    random = np.random.default_rng(2)
    rows = []
    for person in range(80):
        label = random.integers(2)
        rows += [f"{label},{random.uniform(0, 10):.3f},x,p{person}" for _ in range(5)]
    (site.folder / "records.csv").write_text("\n".join(["y,a,c,who", *rows]) + "\n")
    keep(site, (1, 0, 0), 0)
    held = asked(site)["held-out"]
    assert held["records"] == 5 * held["units"]
    shown = site("worth", *QUICK)
    assert f"{held['records']} records of {held['units']} units" in shown.out


def test_a_run_without_noise_leaves_nothing_private(site) -> None:
    prepare(site)
    keep(site, (40, 0, 0), 0)
    text = site.profile_path.read_text()
    for value in ("1.2345678", "4.0"):
        text = text.replace(f"epsilon = {value}", "epsilon = inf")
    site.profile_path.write_text(text)
    assert model_named(asked(site), "joined model")["kind"] == "none"


def test_nothing_is_written_charged_or_released(opened) -> None:
    opened.charge()
    prepare(opened)
    keep(opened, (1, 0, 0), 0)
    before = files(opened.folder)
    assert opened("worth", *QUICK).code == 0
    assert files(opened.folder) == before
    assert opened("ledger").code == 0


def test_what_is_missing_is_named_with_its_remedy(site) -> None:
    prepare(site)
    assert "has not finished a run yet" in site("worth").error()
    keep(site, (1, 0, 0), 0)
    assert "that of run 'run-1', not of 'run-2'" in site("worth", "--run", "run-2").error()
    assert asked(site, "--run", "run-1")["run"] == "run-1"
    site.write_profile()
    assert "set it, for example holdout = 0.3" in site("worth").error()
    site.write_profile(('[state]\npath = "state"\n', ""), HELD_OUT)
    assert "[state] is missing" in site("worth").error()
    site.write_profile(('[data]\nformat = "csv"\npath = "records.csv"\n', ""))
    assert "[data] is missing" in site("worth").error()

"""``hdpfl-site worth``: the judgement on held-out records, which leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from client_app.after_run.personal_model import (
    PersonalModel,
    personal_model_file,
    save_personal_model,
)
from client_app.after_run.stored_models import checked_final_model
from client_app.training.ditto import kept_personal_path
from client_app.worth.home_model import home_predictor
from client_app.worth.verdict import CANNOT_TELL, NOT_WORTH, WORTH
from hdpfl_flower.data.datasets import task_for
from hdpfl_flower.data.site_data import read_site_data
from tests.client_app.commands.test_model import TRAINING, keep

HELD_OUT = ('path = "records.csv"', 'path = "records.csv"\nholdout = 0.5')
QUICK = ("--folds", "2", "--epochs", "2")


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


def model_named(found: dict, name: str) -> dict:
    (one,) = [each for each in found["held-out"]["models"] if each["name"] == name]
    return one


def files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_model_that_knows_more_than_home_is_worth_it(site) -> None:
    prepare(site, records=300, flipped=0)
    keep(site, (40, 0, 0), 0)
    # At home one epoch at a small batch is not enough; the joined model is right everywhere.
    found = asked(site, "--epochs", "1", "--by", "log-loss")
    joined = model_named(found, "joined model")
    assert joined["kind"] == "private"
    assert joined["measures"]["accuracy"]["value"] == 1.0
    assert found["verdict"] == WORTH == joined["verdict"]
    assert joined["gains"]["home model"]["low"] > 0


def test_a_model_that_is_wrong_everywhere_is_not_worth_it(site) -> None:
    prepare(site)
    keep(site, (-40, 0, 0), 0)
    found = asked(site)
    assert found["verdict"] == NOT_WORTH
    shown = site("worth", *QUICK)
    assert "should we join? not worth it" in shown.out
    assert "held out of training" in shown.out
    assert "2-fold cross-validated over all of this site's 160 records" in shown.out


def test_where_labels_are_noise_nobody_can_tell(site) -> None:
    prepare(site, noise=1)
    keep(site, (0.01, 0, 0), 0)
    assert asked(site)["verdict"] in {CANNOT_TELL, NOT_WORTH}
    prepare(site, records=12)
    keep(site, (40, 0, 0), 0)
    assert asked(site)["verdict"] == CANNOT_TELL


def test_the_figures_are_of_the_held_out_records_alone(site) -> None:
    prepare(site, flipped=30)
    keep(site, (40, 0, 0), 3)
    held_out = read_site_data(site.profile.data, task_for(site.terms), site.schema).test
    right = (40 * held_out.features[:, 0] + 3 > 0) == held_out.targets
    found = asked(site)
    assert found["held-out"]["records"] == found["held-out"]["units"] == len(held_out)
    joined = model_named(found, "joined model")
    assert joined["measures"]["accuracy"]["value"] == pytest.approx(right.mean())
    assert found["cross-validated-at-home"]["records"] == 160
    names = [one["name"] for one in found["cross-validated-at-home"]["models"]]
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

    monkeypatch.setattr("client_app.worth.judgement.home_predictor", note)
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


def test_personal_models_are_judged_beside_the_joined_one(site) -> None:
    prepare(site)
    site.write_terms(second="kept pull=0.1")
    keep(site, (-40, 0, 0), 0)
    path = kept_personal_path(site.profile.state.path, site.terms)
    path.write_bytes(save({"personal": np.array([40, 0, 0, 0], np.float32)}, TRAINING))
    found = asked(site)
    ditto = model_named(found, "personal model (Ditto)")
    assert ditto["kind"] == "kept"
    assert ditto["measures"]["accuracy"]["value"] > 0.95
    assert model_named(found, "joined model")["verdict"] == NOT_WORTH
    assert found["verdict"] == ditto["verdict"]


@pytest.mark.parametrize("kind", ["private", "kept"])
def test_a_runs_own_model_is_judged_with_what_it_adds_to_the_outputs(site, kind) -> None:
    prepare(site)
    keep(site, (40, 0, 0), 0)
    model, task = checked_final_model(site.profile)
    path = personal_model_file(site.profile.state.path, "run-1")
    added = np.array([-1000], np.float32)  # so that every record is of class 0
    save_personal_model(path, PersonalModel(model.terms, model.arrays, added, kind))
    data = read_site_data(site.profile.data, task, site.schema)
    personal = model_named(asked(site), "personal model")
    assert personal["kind"] == kind
    assert personal["measures"]["accuracy"]["value"] == pytest.approx(1 - data.test.targets.mean())


def test_a_run_without_noise_leaves_nothing_private(site) -> None:
    prepare(site)
    keep(site, (40, 0, 0), 0)
    text = site.profile_path.read_text()
    for value in ("1.2345678", "4.0"):
        text = text.replace(f"epsilon = {value}", "epsilon = inf")
    site.profile_path.write_text(text)
    assert model_named(asked(site), "joined model")["kind"] == "none"


def test_a_regression_is_judged_by_its_errors(site) -> None:
    prepare(site)
    site.write_terms(schema=site.regression)
    random = np.random.default_rng(3)
    rows = [f"{7 * a:.4f},{a:.4f}" for a in random.uniform(0, 10, 120)]
    (site.folder / "records.csv").write_text("\n".join(["y,a", *rows]) + "\n")
    keep(site, (0.5,), 0.5)  # the label's bounds are 0 to 70, the number's -1 to 1
    found = asked(site)
    joined = model_named(found, "joined model")
    assert set(joined["measures"]) == {"mse", "mae", "r2"}
    assert joined["measures"]["mse"]["value"] < 1e-8
    assert joined["measures"]["r2"]["value"] == pytest.approx(1, abs=1e-4)
    assert found["held-out"]["measure"] == "mse"
    assert found["verdict"] == WORTH
    assert "names no measure" in site("worth", "--by", "accuracy").error()
    assert asked(site, "--by", "mae")["held-out"]["measure"] == "mae"


def test_labels_of_one_class_have_no_auroc(site) -> None:
    prepare(site)
    rows = [f"1,{i % 10},x" for i in range(80)]
    (site.folder / "records.csv").write_text("\n".join(["y,a,c", *rows]) + "\n")
    keep(site, (0, 0, 0), 5)
    found = asked(site)
    joined = model_named(found, "joined model")
    assert joined["measures"]["auroc"]["value"] is None
    assert joined["measures"]["accuracy"]["value"] == 1.0
    assert found["verdict"] == CANNOT_TELL
    assert site("worth", *QUICK).code == 0


def test_nothing_is_written_charged_or_released(opened) -> None:
    opened.charge()
    prepare(opened)
    keep(opened, (1, 0, 0), 0)
    before = files(opened.folder)
    assert opened("worth", *QUICK).code == 0
    assert files(opened.folder) == before
    assert opened("ledger", "show").code == 0


def test_a_picture_is_one(site) -> None:
    pytest.importorskip("matplotlib")
    prepare(site)
    keep(site, (40, 0, 0), 0)
    target = site.folder / "worth.png"
    assert f"wrote {target}" in site("worth", *QUICK, "--plot", target).out
    assert target.read_bytes().startswith(b"\x89PNG")
    before = target.read_bytes()
    assert "--force" in site("worth", *QUICK, "--plot", target).error()
    assert target.read_bytes() == before
    assert site("worth", *QUICK, "--plot", target, "--force").code == 0


def test_matplotlib_is_missing(site, monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    prepare(site)
    keep(site, (1, 0, 0), 0)
    error = site("worth", "--plot", site.folder / "worth.png").error()
    assert "hdpfl-flower[plots]" in error


def test_what_is_missing_is_named_with_its_remedy(site) -> None:
    prepare(site)
    assert "has finished no run yet" in site("worth").error()
    keep(site, (1, 0, 0), 0)
    assert "that of run 'run-1', not of 'run-2'" in site("worth", "--run", "run-2").error()
    assert asked(site, "--run", "run-1")["run"] == "run-1"
    site.write_profile()
    assert "set it, such as holdout = 0.3" in site("worth").error()
    site.write_profile(('[state]\npath = "state"\n', ""), HELD_OUT)
    assert "[state] is missing" in site("worth").error()
    site.write_profile(('[data]\nformat = "csv"\npath = "records.csv"\n', ""))
    assert "[data] is missing" in site("worth").error()


def test_a_table_with_too_few_records(site) -> None:
    prepare(site)
    keep(site, (1, 0, 0), 0)
    (site.folder / "records.csv").write_text("y,a,c\n")
    assert "keeps no record" in site("worth").error()
    held = [i for i in range(99) if _is_held(site, f"1,{i / 10},x")]
    lines = [f"1,{i / 10},x" for i in held]
    (site.folder / "records.csv").write_text("\n".join(["y,a,c", *lines]) + "\n")
    assert "leaves no record for training" in site("worth").error()


def _is_held(site, row: str) -> bool:
    (site.folder / "records.csv").write_text(f"y,a,c\n{row}\n")
    data = read_site_data(site.profile.data, task_for(site.terms), site.schema)
    return data.test is not None and len(data.test) == 1


@pytest.mark.parametrize(
    "words",
    [
        ("--folds", "1"),
        ("--folds", "-1"),
        ("--confidence", "1.5"),
        ("--epochs", "0"),
        ("--seed", "-1"),
    ],
)
def test_options_out_of_range(site, words: tuple[str, str]) -> None:
    assert site("worth", *words).code == 2


def test_what_was_compared_is_shown_before_the_rest_is_interrupted(site, monkeypatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("client_app.worth.judgement.out_of_fold", interrupted)
    prepare(site)
    keep(site, (-40, 0, 0), 0)
    result = site("worth", *QUICK)
    assert result.code == 130
    assert "should we join? not worth it" in result.out
    assert "what was finished is kept" in result.err

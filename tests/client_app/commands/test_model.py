"""``hdpfl-site model``: the model that the client kept, used at the site."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save
from scipy.special import expit

import client_app
from client_app.commands.model import FOR_SITES, LABELS, most_likely
from client_app.personal.ditto import kept_personal_path
from client_app.personal.final_model import keep_final_model, load_final_model
from client_app.personal.home_tuning import home_tuned_path
from client_app.personal.personal_model import (
    PersonalModel,
    kept_model_path,
    read_personal_model,
    save_personal_model,
)
from client_app.site.site import Site
from hdpfl_flower import wire
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.datasets import task_for
from hdpfl_flower.data.site_data import read_site_data
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.models.evaluation import predict
from hdpfl_flower.models.networks import arrays_of, build_model
from hdpfl_flower.models.task import Task
from hdpfl_flower.wire import Instructions


def keep(site, weight: tuple[float, ...], bias: float) -> None:
    """Let the client keep a linear model, as the end of a run does."""
    terms = site.terms
    arrays = arrays_of(build_model(terms.model, task_for(terms), seed=0))
    (weights, biases) = arrays
    arrays[weights] = np.array([weight], np.float32)
    arrays[biases] = np.array([bias], np.float32)
    record = wire.write_model(arrays)
    keep_final_model(Site(site.profile, terms, None), Instructions(terms, 0, record, "", ""))


def test_no_final_model_yet(site) -> None:
    for command in (("show",), ("export", "--to", site.folder / "m"), ("predict", "x.csv")):
        assert "has finished no run yet" in site("model", *command).error()
    site.write_profile(('[state]\npath = "state"\n', ""))
    assert "[state] is missing" in site("model", "show").error()


def test_show_tests_on_the_held_out_records_alone(site) -> None:
    keep(site, (1, 0, 0), 0)
    shown = site("model", "show")
    assert shown.code == 0
    assert "final model of run 'run-1': logreg, 4 parameters" in shown.out
    assert "rounds = 3" in shown.out
    assert "keeps no record out" in shown.out
    site.write_profile(('path = "records.csv"', 'path = "records.csv"\nholdout = 0.5'))
    site.write_records(row="{label},{i}e-1,x")
    keep(site, (1, 0, 0), 0.6)
    held_out = read_site_data(site.profile.data, task_for(site.terms), site.schema).test
    right = (held_out.features[:, 0] + 0.6 > 0) == held_out.targets
    assert 0 < len(held_out) < 40
    expected = f"on this site's {len(held_out)} held-out records: accuracy {right.mean():.4f}"
    assert expected in site("model", "show").out


SIMULATIONS = {
    "delta", "calibration", "simulated-epsilon",
}  # fmt: skip


def test_every_term_is_a_sites_or_a_simulations() -> None:
    """A new term must be put into one of the two, or nobody knows whose number is shown."""
    assert not FOR_SITES & SIMULATIONS
    assert sorted(FOR_SITES | SIMULATIONS) == sorted(RunTerms.keys())


@pytest.mark.parametrize("more", [{}, {"noise": "server", "delta": 1e-7}], ids=str)
def test_show_leaves_out_what_a_site_would_read_as_its_own(site, more: dict) -> None:
    site.write_terms(**more)
    keep(site, (1, 0, 0), 0)
    said = site("model", "show").out
    shown = {line.split(" = ")[0].strip() for line in said.splitlines() if line.startswith("  ")}
    assert shown == FOR_SITES
    assert "uniform:0.3:8" not in said
    assert "this site's own ε, δ and batch size stand in its profile and ledger" in said


def test_export_is_the_model_with_its_terms(site) -> None:
    keep(site, (1, 2, 3), 4)
    target = site.folder / "out.safetensors"
    assert site("model", "export", "--to", target).code == 0
    with safe_open(target, framework="numpy") as file:
        assert '"run-id":"run-1"' in file.metadata()["terms"]
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    assert sorted(array.ravel().tolist() for array in arrays.values()) == [[1, 2, 3], [4]]
    before = target.read_bytes()
    keep(site, (0, 0, 0), 0)
    assert "--force" in site("model", "export", "--to", target).error()
    assert target.read_bytes() == before
    assert site("model", "export", "--to", target, "--force").code == 0
    assert target.read_bytes() != before


def test_the_sites_own_model_is_shown_exported_and_used(site) -> None:
    keep(site, (1, 2, 3), 4)
    for command in (("show",), ("export", "--to", site.folder / "m"), ("predict", "x.csv")):
        assert "no personal model of run 'run-1'" in site("model", *command, "--personal").error()
    path = kept_personal_path(site.profile.state.path, site.terms)
    path.write_bytes(save({"personal": np.array([5, 6, 7, 8], np.float32)}))
    assert "personal model of run 'run-1'" in site("model", "show", "--personal").out
    assert "final model of run 'run-1'" in site("model", "show").out
    target = site.folder / "own.safetensors"
    assert site("model", "export", "--to", target, "--personal").code == 0
    arrays = load_file(target)
    assert sorted(array.ravel().tolist() for array in arrays.values()) == [[5, 6, 7], [8]]
    path.write_bytes(save({"personal": np.zeros(5, np.float32)}))
    assert "is of another model" in site("model", "show", "--personal").error()


def own_model(site, added: float = 0.5) -> PersonalModel:
    """Keep a personal model beside the final one."""
    keep(site, (1, 2, 3), 4)
    arrays = load_final_model(site.profile.state.path).arrays
    model = PersonalModel(site.terms, arrays, np.array([added], np.float32), "private")
    save_personal_model(kept_model_path(site.profile.state.path, "run-1"), model)
    return model


def test_a_model_with_a_prior_is_shown_exported_and_used(site) -> None:
    model = own_model(site)
    shown = site("model", "show", "--personal").out
    assert "personal model of run 'run-1'" in shown
    assert LABELS["private"] in shown
    assert LABELS["private"] not in site("model", "show").out
    target = site.folder / "own.safetensors"
    assert site("model", "export", "--to", target, "--personal").code == 0
    arrays = load_file(target)
    task, features = task_for(site.terms), np.random.default_rng(1).normal(size=(9, 3))
    features = features.astype(np.float32)
    found = predict(site.terms.model, task, arrays, features)  # the prior is in the bias
    np.testing.assert_allclose(found, model.outputs(task, features), atol=1e-5)
    assert np.abs(found - predict(site.terms.model, task, model.arrays, features)).min() > 0.4
    with safe_open(target, framework="numpy") as file:
        assert file.metadata()["kind"] == "private"


def test_where_no_bias_can_hold_a_prior_it_is_an_array_of_its_own(site, monkeypatch) -> None:
    own_model(site)
    monkeypatch.setattr(PersonalModel, "outputs", lambda *_: np.random.default_rng().normal(size=4))
    target = site.folder / "own.safetensors"
    assert site("model", "export", "--to", target, "--personal").code == 0
    np.testing.assert_array_equal(load_file(target)["outputs"], [0.5])


def test_tuning_closes_the_run_and_keeps_the_model_apart(opened) -> None:
    site = opened
    site.charge()
    own_model(site)
    own = kept_model_path(site.profile.state.path, "run-1").read_bytes()
    assert "no kept model" in site("model", "show", "--kept").error()
    assert site("model", "tune", answer="n").code == 1
    assert not Ledger(site.ledger_path).account().closed
    tuned = site("model", "tune", "--epochs", "3", "--yes")
    assert tuned.code == 0
    assert LABELS["kept"] in tuned.out
    assert LABELS["kept"] in site("model", "show", "--kept").out
    kept = read_personal_model(home_tuned_path(site.profile.state.path, "run-1"))
    assert kept is not None
    assert kept.kind == "kept"
    assert kept_model_path(site.profile.state.path, "run-1").read_bytes() == own
    assert Ledger(site.ledger_path).account().closed == {"run-1"}
    assert site("model", "tune", "--yes").code == 0  # again, from the same start


def test_a_run_that_the_ledger_does_not_know_is_not_tuned(opened) -> None:
    own_model(opened)
    assert "no such run" in opened("model", "tune", "--yes").error()
    assert not home_tuned_path(opened.profile.state.path, "run-1").exists()
    assert "'--part'" in opened("model", "tune", "--part", "body", "--yes").error()


def test_only_the_sites_commands_read_what_was_tuned_at_home() -> None:
    """No handler of a message does: what no release reads, no release can show."""
    root = Path(client_app.__file__).parents[1]
    users = {
        path.relative_to(root).as_posix()
        for package in ("client_app", "server_app", "strategies", "hdpfl_flower", "studies")
        for path in (root / package).rglob("*.py")
        if re.search("home_tun", path.read_text())
    }
    assert users <= {
        "client_app/commands/model.py",
        "client_app/personal/home_tuning.py",
        "client_app/worth/candidates.py",
    }


def test_export_where_nothing_can_be_written(site) -> None:
    keep(site, (1, 2, 3), 4)
    (site.folder / "folder").mkdir()
    assert "exists" in site("model", "export", "--to", site.folder / "folder").error()
    forced = site("model", "export", "--to", site.folder / "folder", "--force")
    assert "cannot be written" in forced.error()
    nowhere = site.folder / "none" / "model.safetensors"
    assert "cannot be written" in site("model", "export", "--to", nowhere).error()
    assert sorted(p.name for p in site.folder.glob("*.part")) == []


def test_predict_names_the_class_and_its_probability(site) -> None:
    keep(site, (2, 0, 1), -0.5)
    table = site.folder / "new.csv"
    # Columns in another order, no label, a blank line, a row that cannot be cut, a text for 'a'.
    table.write_text("c,a\nx,10\n\nz,0\nx,1,2\nx,PATIENT-123\n")
    result = site("model", "predict", table)
    assert result.code == 0
    logits = [2 - 0.5, -2 + 1 - 0.5, -0.5]  # [0, 10] becomes [-1, 1], a missing number 0
    yes = [1 / (1 + np.exp(-logit)) for logit in logits]
    expected = [
        ["row", "prediction", "probability"],
        ["1", "yes", f"{yes[0]:.4f}"],
        ["2", "no", f"{1 - yes[1]:.4f}"],
        ["4", "no", f"{1 - yes[2]:.4f}"],
    ]
    assert list(csv.reader(io.StringIO(result.out))) == expected
    out = site.folder / "predictions.csv"
    assert site("model", "predict", table, "--out", out).code == 0
    assert out.read_text() == result.out
    assert out.stat().st_mode & 0o077 == 0
    assert "--force" in site("model", "predict", table, "--out", out).error()
    assert site("model", "predict", table, "--out", out, "--force").code == 0


def test_predict_reads_parquet(site) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    keep(site, (2, 0, 0), 0)
    pq.write_table(pa.table({"a": [10.0, 0.0], "c": ["x", "z"]}), site.folder / "new.parquet")
    result = site("model", "predict", site.folder / "new.parquet")
    assert [row.split(",")[1] for row in result.out.split()] == ["prediction", "yes", "no"]


def test_predict_gives_a_number_in_the_units_of_the_label(site) -> None:
    site.write_terms(schema=site.regression)
    keep(site, (0.25,), 0.5)
    (site.folder / "new.csv").write_text("a\n10\n0\n5\n")
    result = site("model", "predict", site.folder / "new.csv")
    assert result.out.split() == ["row,prediction", "1,52.5", "2,17.5", "3,35"]


def test_predict_gives_the_probability_to_survive_each_edge(site) -> None:
    label = '[label]\ncolumn = "months"\nedges = [6, 12.5]\n[label.event]\ncolumn = "died"\n'
    label += 'occurred = ["1"]\ncensored = ["0"]\n'
    site.write_terms(schema=label + site.regression[site.regression.index("[[columns]]") :])
    terms = site.terms
    arrays = arrays_of(build_model(terms.model, task_for(terms), seed=0))
    for array in arrays.values():
        array[...] = 0  # a hazard of one half in both intervals
    keep_final_model(
        Site(site.profile, terms, None), Instructions(terms, 0, wire.write_model(arrays), "", "")
    )
    (site.folder / "new.csv").write_text("a\n10\n")
    result = site("model", "predict", site.folder / "new.csv")
    assert result.out.split() == ["row,survives-6,survives-12.5", "1,0.5000,0.2500"]


def test_predict_says_what_is_wrong_with_a_table(site) -> None:
    keep(site, (1, 0, 0), 0)
    (site.folder / "new.csv").write_text("a,PATIENT-123\n1,x\n")
    error = site("model", "predict", site.folder / "new.csv").error()
    assert "no column 'c' of the schema" in error
    assert "is not there" in site("model", "predict", site.folder / "none.csv").error()
    (site.folder / "new.parquet").write_text("PATIENT-123")
    assert "Parquet" in site("model", "predict", site.folder / "new.parquet").error()
    (site.folder / "empty.csv").write_text("a,c\n")
    assert site("model", "predict", site.folder / "empty.csv").out.count("\n") == 1


def without_schema(site, **terms: Any) -> Any:
    """Let the site keep the first model of a run without a schema; returns (task, arrays)."""
    site.write_terms(schema_text="", **terms)
    kept, task = site.terms, task_for(site.terms)
    arrays = arrays_of(build_model(kept.model, task, seed=0))
    instructions = Instructions(kept, 0, wire.write_model(arrays), "", "")
    keep_final_model(Site(site.profile, kept, None), instructions)
    return task, arrays


def test_a_run_without_a_schema_predicts_no_table(site) -> None:
    without_schema(site, dataset="digits")
    assert "no 'schema'" in site("model", "predict", site.folder / "records.csv").error()


def test_a_run_without_a_schema_predicts_an_npz(site) -> None:
    task, arrays = without_schema(site, input_shape="1,4,4", classes=3)
    x = np.random.default_rng(1).normal(size=(4, 1, 4, 4)).astype(np.float32)
    path = site.folder / "new.npz"
    np.savez(path, x=np.insert(x, 2, np.nan, axis=0))
    outputs = predict(site.terms.model, task, arrays, x)
    chosen, share = most_likely(task, outputs)
    expected = [[row, str(c), f"{p:.4f}"] for row, c, p in zip("1245", chosen, share, strict=True)]
    found = list(csv.reader(io.StringIO(site("model", "predict", path).out)))
    assert found == [["row", "prediction", "probability"], *expected]
    np.savez(path, x=x[:, :, :3])
    assert "must have the shape (n, 1, 4, 4)" in site("model", "predict", path).error()
    np.savez(path, y=x)
    assert "no .npz file with an array 'x'" in site("model", "predict", path).error()
    path.write_text("PATIENT-123")
    assert "no .npz file" in site("model", "predict", path).error()


def test_a_run_without_a_schema_predicts_images(site) -> None:
    from PIL import Image

    from hdpfl_flower.data.image_folder import read_images

    task, arrays = without_schema(site, input_shape="1,4,4", classes=3)
    folder = site.folder / "images"
    for name, grey in (("1/b.png", 30), ("1/a.png", 200), ("2/c.png", 90)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((6, 6), grey, np.uint8)).save(folder / name)
    (folder / "1" / "broken.png").write_text("PATIENT-123")
    records = read_images(folder, task)[0]
    chosen, _ = most_likely(task, predict(site.terms.model, task, arrays, records.features))
    found = list(csv.reader(io.StringIO(site("model", "predict", folder).out)))[1:]
    names = ["1/a.png", "1/b.png", "2/c.png"]
    assert [row[:2] for row in found] == [[n, str(c)] for n, c in zip(names, chosen, strict=True)]
    Image.fromarray(np.full((6, 6), 30, np.uint8)).save(folder / "beside.png")
    out = site("model", "predict", folder).out.splitlines()
    assert [line.split(",")[0] for line in out] == ["row", "beside.png", *names]


def test_a_run_without_a_schema_predicts_numbers_and_survival(site) -> None:
    x = np.array([[1.0, 2.0], [1e30, 0.0]], np.float32)
    np.savez(site.folder / "new.npz", x=x)
    task, arrays = without_schema(site, input_shape="2", task="regression")
    numbers = predict(site.terms.model, task, arrays, x)[:, 0]
    lines = site("model", "predict", site.folder / "new.npz").out.split()
    assert lines == ["row,prediction", *(f"{i + 1},{n:.6g}" for i, n in enumerate(numbers))]
    (site.folder / "state" / "model.safetensors").unlink()
    task, arrays = without_schema(site, input_shape="2", task="survival", intervals=3)
    hazards = expit(predict(site.terms.model, task, arrays, x).astype(float))
    rows = list(csv.reader(io.StringIO(site("model", "predict", site.folder / "new.npz").out)))
    assert rows[0] == ["row", "survives-1", "survives-2", "survives-3"]
    expected = np.cumprod(1 - hazards, axis=1)
    np.testing.assert_allclose(np.array(rows[1:], float)[:, 1:], expected, atol=6e-5)
    assert "not images" in site("model", "predict", site.folder).error()


@pytest.mark.parametrize("content", [b"", b"PATIENT-123", b"\xff" * 100])
def test_a_damaged_model(site, content: bytes) -> None:
    keep(site, (1, 2, 3), 4)
    (site.folder / "state" / "model.safetensors").write_bytes(content)
    assert "damaged" in site("model", "show").error()


def test_a_model_that_is_not_that_of_its_terms(site) -> None:
    from safetensors.numpy import save

    keep(site, (1, 2, 3), 4)
    metadata = {"terms": site.terms.to_json()}
    path = site.folder / "state" / "model.safetensors"
    path.write_bytes(save({"1.weight": np.zeros((1, 9), np.float32)}, metadata))
    assert "not that of its terms" in site("model", "show").error()


def test_probabilities_are_softmax_and_never_overflow() -> None:
    task = Task((2,), 3, "softmax")
    logits = np.array([[1000.0, 0, -1000], [0, 0, 1]], np.float32)
    chosen, probability = most_likely(task, logits)
    assert chosen.tolist() == [0, 2]
    assert probability == pytest.approx([1.0, np.e / (2 + np.e)])

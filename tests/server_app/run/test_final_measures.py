"""The measures of a run's final model: in the journal, in result.json, in the report, compared."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.special import softmax
from sklearn import metrics

from hdpfl_flower.data.datasets import load_dataset
from hdpfl_flower.models.evaluation import predict
from hdpfl_flower.models.networks import arrays_of, build_model
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.monitoring.journal import read_journal
from hdpfl_flower.scenarios.groups import Groups
from server_app.in_process.comparison import Comparison
from server_app.in_process.in_process_run import run_in_process
from server_app.reports.comparison_tables import final_table
from server_app.reports.run_page import make_report
from server_app.run.final_measures import EVENT, final_measures, measure_rows
from tests.server_app.run.test_round_evaluation import terms_of

BINARY = Task.classification((1,), 2)


def test_a_run_ends_with_its_measures(tmp_path: Path) -> None:
    config = terms_of(tmp_path, strategy="fedavg", partition="iid")
    result = run_in_process(config, 3)
    folder = tmp_path / "r"
    (event,) = [one for one in read_journal(folder / "journal.jsonl") if one["event"] == EVENT]
    saved = json.loads((folder / "result.json").read_text())[EVENT]
    assert {key: event[key] for key in saved} == saved
    data = load_dataset("digits", "")
    outputs = predict("logreg", data.task, result.arrays, data.test.features)
    shares = softmax(outputs.astype(float), axis=1)
    wanted = metrics.roc_auc_score(data.test.targets, shares, multi_class="ovr")
    assert saved["measures"]["auroc"]["value"] == pytest.approx(wanted, abs=1e-9)
    last = result.rounds[-1]["metrics"]
    assert saved["measures"]["accuracy"]["value"] == pytest.approx(last["accuracy"])
    assert saved["measures"]["accuracy"]["low"] < last["accuracy"]
    page = make_report(folder)
    assert "Measures of the final model" in page
    assert "sensitivity at 90 % specificity" in page
    table = final_table(
        Comparison(config, 3, {("fedavg", 1): result.rounds}), {("fedavg", 1): folder}
    )
    assert table is not None
    assert table.columns[0]._cells[0] == "AUROC"


def test_a_run_without_a_test_has_none(tmp_path: Path) -> None:
    config = terms_of(tmp_path, strategy="fedavg", partition="iid", evaluation="none")
    run_in_process(config, 3)
    assert EVENT not in json.loads((tmp_path / "r" / "result.json").read_text())
    assert "Measures of the final model" not in make_report(tmp_path / "r")


def linear(weight: float) -> dict[str, np.ndarray]:
    weights, bias = arrays_of(build_model("logreg", BINARY, seed=0))
    return {weights: np.array([[weight]], np.float32), bias: np.zeros(1, np.float32)}


def some_records() -> Records:
    x = np.linspace(-1, 1, 40, dtype=np.float32)
    return Records(x[:, None], (x > 0.2).astype(np.int64))


def test_several_models_are_measured_as_the_mean_over_their_sites() -> None:
    right, wrong = linear(3), linear(-3)
    of_site = {"a": 0, "b": 0, "c": 1}
    found = final_measures("logreg", BINARY, [right, wrong], of_site, some_records(), None)
    one, other = (
        final_measures("logreg", BINARY, [each], {}, some_records(), None)["measures"]
        for each in (right, wrong)
    )
    for name in ("accuracy", "brier", "auroc"):
        mean = (2 * one[name]["value"] + other[name]["value"]) / 3
        assert found["measures"][name]["value"] == pytest.approx(mean), name
        ends = found["measures"][name]
        assert ends["low"] <= ends["value"] <= ends["high"]


def test_each_group_is_measured_as_it_sees_the_records() -> None:
    groups = Groups("label-shift", (1, 1))
    models = [linear(3), linear(-3)]
    found = final_measures("logreg", BINARY, models, {"0": 0, "1": 1}, some_records(), groups)
    assert found["measures"]["auroc"]["value"] == pytest.approx(1.0)


def test_a_model_that_is_not_finite_has_a_reason_in_place_of_measures() -> None:
    found = final_measures("logreg", BINARY, [linear(np.nan)], {}, some_records(), None)
    assert found["measures"] == {}
    assert "not finite" in found["missing"]["all"]
    assert measure_rows(found)[0][1] == "–"

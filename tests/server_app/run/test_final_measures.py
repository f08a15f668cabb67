"""The measures of a run's final model: in the journal, in result.json, in the report, compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from scipy.special import softmax
from sklearn import metrics

from hdpfl_flower.data.datasets import load_dataset
from hdpfl_flower.models.evaluation import predict
from hdpfl_flower.monitoring.journal import read_journal
from server_app.in_process.comparison import Comparison
from server_app.in_process.in_process_run import run_in_process
from server_app.reports.comparison_tables import tables
from server_app.reports.run_page import make_report
from server_app.run.final_measures import EVENT
from tests.server_app.run.test_round_evaluation import terms_of


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
    comparison = Comparison(config, 3, {("fedavg", 1): result.rounds})
    *_, final = tables(comparison, "t", {("fedavg", 1): folder})
    assert "Final models on the public test set" in final.title
    assert final.rows[0][0] == "AUROC"

"""AUROC and calibration over sites: of their charged histograms, at the end of a run."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax
from sklearn import metrics
from sklearn.metrics import roc_auc_score

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import TermsError
from hdpfl_flower.ledger.hash_chain import Chain
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.measures.score_cells import BINS, CELLS, count_cells
from hdpfl_flower.models.evaluation import predict
from hdpfl_flower.models.task import Task
from hdpfl_flower.monitoring.journal import read_journal
from hdpfl_flower.releases.scores import Scores
from hdpfl_tools.coordinator.commands.compare import _write_csv
from hdpfl_tools.coordinator.reports.comparison_tables import tables
from hdpfl_tools.coordinator.reports.run_page import make_report
from hdpfl_tools.simulation.datasets import load_dataset
from hdpfl_tools.simulation.drawn_records import simulated_records
from hdpfl_tools.simulation.in_process.comparison import Comparison
from hdpfl_tools.simulation.in_process.in_process_run import run_in_process
from hdpfl_tools.site.ledger_checks.invariants import check_entries
from server_app.releases.scores import HALF
from server_app.run.federated_measures import FEDERATED
from server_app.run.final_measures import EVENT
from server_app.run.rounds import ready_kernel
from strategies.core.checks import read_payload
from tests.server_app.run.test_round_evaluation import terms_of

HEART = Path(__file__).parents[3] / "deploy" / "demo"
SITES = 4
BINARY = Task.classification((13,), 2)


def config_of(folder: Path, **more: Any) -> RunConfig:
    return RunConfig.parse({
        "dataset": "heart", "data-dir": str(HEART), "partition": "natural", "rounds": 6,
        "strategy": "fedavg", "epsilons": "12", "runs-dir": str(folder), "run-id": "r",
        "after": {"scores": {"share": 0.5}}, **more,
    })  # fmt: skip


def held_out(config: RunConfig, arrays: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return scores and labels of what the sites hold out, shapes ``(n,)``."""
    scores, targets = [], []
    for site in range(SITES):
        test = simulated_records(config, site, SITES)[1]
        assert test is not None, "the site holds out records"
        scores.append(predict("logreg", BINARY, arrays, test.features)[:, 0])
        targets.append(test.targets)
    return np.concatenate(scores), np.concatenate(targets)


def test_a_noisy_auroc_holds_the_true_one_and_is_shown_beside_it(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    result = run_in_process(config, SITES)
    folder = tmp_path / "r"
    (event,) = [e for e in read_journal(folder / "journal.jsonl") if e["event"] == FEDERATED]
    saved = json.loads((folder / "result.json").read_text())
    assert {key: event[key] for key in saved[FEDERATED]} == saved[FEDERATED]
    assert result.federated == {FEDERATED: saved[FEDERATED]}
    scores, targets = held_out(config, result.arrays)
    exact, found = roc_auc_score(targets, scores), event["measures"]["auroc"]
    assert found["low"] < exact < found["high"]
    assert found["low"] < found["value"] < found["high"]
    assert found["value"] != pytest.approx(exact, abs=1e-6)
    assert (event["sites"], event["without"]) == (SITES, {})
    assert event["noise"] > 1
    assert abs(event["records"] - len(targets)) < 5 * event["noise"] * np.sqrt(2 * BINS)
    # Beside those of the public test set: in the report, in the tables and in the file.
    assert saved[EVENT]["measures"]["auroc"]["value"] != found["value"]
    page = make_report(folder)
    for words in ("Measures of the final model</h2>", "on held-out records of the sites</h2>",
                  "4 of 4 sites, about", "noise σ = "):  # fmt: skip
        assert words in page
    compared = Comparison(config, SITES, {("fedavg", 1): result.rounds})
    folders = {("fedavg", 1): folder}
    final = [table for table in tables(compared, "t", folders) if "Final" in table.title]
    for table, words in zip(final, ("public test set", "held-out records"), strict=True):
        assert words in table.title
        assert table.rows[0][0] == "AUROC"
    _write_csv(compared, folders, tmp_path / "out.csv")
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    (row,) = [row for row in rows if row["measure"] == "federated-auroc"]
    assert (float(row["value"]), row["round"]) == (found["value"], "final")


def test_without_noise_it_is_exact_and_every_site_released_it_once(tmp_path: Path) -> None:
    config = config_of(tmp_path, epsilons="inf")
    result = run_in_process(config, SITES)
    scores, targets = held_out(config, result.arrays)
    cells = count_cells(BINARY, scores[:, None], targets)
    federated = result.federated[FEDERATED]
    whole = HALF.read(Scores(share=0.5), cells[None], {}, config.terms)
    assert federated == whole | {"sites": SITES}
    assert federated["noise"] == 0
    assert federated["records"] == len(targets)
    exact = roc_auc_score(targets, scores)
    assert federated["measures"]["auroc"]["value"] == pytest.approx(exact, abs=0.01)
    for site in range(SITES):
        path = tmp_path / "r" / "sites" / str(site) / "ledger.sqlite"
        releases = Ledger(path, durable=False).account().releases
        assert [key for key in releases if key[2] == "scores"] == [("r", 6, "scores")]
        with Chain(path).transaction() as entries:
            assert not any(one.failures for one in check_entries(entries))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"dataset": "digits"}, "'after.scores' is only for tasks of two classes, and this task"),
        (
            {"strategy": "fedrep", "model": "mlp:4"},
            "'work.kind' = 'alternate' keeps a part of the model",
        ),
        ({"noise": "client"}, "'after.scores' cannot be combined with 'noise'"),
        ({"participations": 2}, "'after.scores' cannot be combined with 'participations'"),
    ],
    ids=["digits", "fedrep", "client", "participations"],
)
def test_bad_terms_are_refused_up_front(tmp_path: Path, more: dict[str, Any], words: str) -> None:
    with pytest.raises(TermsError, match=f"run config: {words}|run config: .*{words}"):
        ready_kernel(config_of(tmp_path, **more))


class _Reply:
    def __init__(self, content: Any) -> None:
        self.content = content

    def has_error(self) -> bool:
        return False


@pytest.mark.parametrize(
    "cells",
    [np.zeros(CELLS - 1), np.full(CELLS, np.nan), np.full(CELLS, np.inf), np.full(CELLS, 1e6)],
    ids=["short", "nan", "inf", "huge"],
)
def test_a_histogram_that_cannot_be_one_is_rejected(cells: np.ndarray) -> None:
    from hdpfl_flower import wire

    good = wire.write_payload("scores", wire.encode_update(np.ones(CELLS, np.float32)))
    np.testing.assert_array_equal(read_payload(_Reply(good), "scores", CELLS), np.ones(CELLS))  # type: ignore[arg-type]
    bad = wire.write_payload("scores", wire.encode_update(cells.astype(np.float32)))
    with pytest.raises(wire.WireError):
        read_payload(_Reply(bad), "scores", CELLS)  # type: ignore[arg-type]
    good["more"] = good["scores"]
    with pytest.raises(wire.WireError, match="unexpected keys"):
        read_payload(_Reply(good), "scores", CELLS)  # type: ignore[arg-type]


# --- the measures of a run's final model: in the journal, in result.json, in the report, compared


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

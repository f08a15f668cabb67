"""The coordinator's exporter: journals of all kinds, and no value of a profile."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.monitoring import series as metrics
from hdpfl_flower.monitoring.journal import Journal
from hdpfl_flower.monitoring.rejection import Rejection
from hdpfl_flower.monitoring.series import Reading
from hdpfl_tools.coordinator.monitoring.exporter import RunFollower, history
from hdpfl_tools.coordinator.monitoring.run_series import tally
from hdpfl_tools.shell.prometheus import Exporter
from hdpfl_tools.simulation.in_process.in_process_run import run_in_process
from hdpfl_tools.simulation.sites import draw_profile

TERMS = RunConfig.parse({"rounds": 3, "round-timeout": 60.0})
ROUND: dict[str, Any] = {
    "round": 1, "asked": ["a", "b", "c"], "accepted": ["a", "b"],
    "rejected": {"c": "array: not finite"}, "rejections": {"c": "malformed"}, "quorum": 2,
    "bytes_down": 30, "bytes_up": 20,
    "weights": [0.75, 0.25], "norms": [2.0, 3.0], "seconds": 2.0,
    "phases": {"prepare": 0.5, "exchange": 1.0, "aggregate": 0.25, "evaluate": 0.25},
    "gauges": {"noise_std": [0.5, 0.0], "cluster": [0, 1], "cluster_confidence": [0.9, 0.6],
               "clusters": 2.0, "clusters_mss": 0.8, "last_soft_round": 4.0},
    "metrics": {"accuracy": 0.5, "accuracy-minority": 0.25, "accuracy-group-1": 0.75, "loss": 1.5,
                "mse": 3.0, "mae": 2.0, "site-accuracy": 0.625, "site-loss": 1.25,
                "site-accuracy-worst": 0.125},
    "tested": {"sites": 3, "counted": {"site-accuracy": 2, "site-loss": 2}, "missing": {"c": "x"}},
}  # fmt: skip
MEASURED = {"measures": {"auroc": {"value": 0.875, "low": 0.75, "high": None}},
            "missing": {"brier": "the noise hides it"}}  # fmt: skip
AFTER_ROUND = {
    ("round_asked_sites",): 3, ("round_accepted_sites",): 2, ("round_quorum_sites",): 2,
    ("round_effective_sites",): 1.6, ("round_duration_seconds",): 2, ("round_median_seconds",): 2,
    ("round_timeout_seconds",): 60, ("round_phase_seconds", "exchange"): 1,
    ("run_rejected_updates_total", "malformed"): 1, ("run_rejected_updates_total", "guard"): 0,
    ("run_received_bytes_total",): 20, ("run_sent_bytes_total",): 30,
    ("run_planned_rounds",): 3, ("run_finished_rounds",): 1, ("run_active_bool",): 1,
    ("run_no_quorum_rounds_total",): 0, ("run_unreadable_events",): 0,
    ("model_accuracy_ratio", "all"): 0.5, ("model_accuracy_ratio", "minority"): 0.25,
    ("model_accuracy_ratio", "1"): 0.75, ("model_loss_mean", "all"): 1.5,
    ("model_squared_error_mean", "all"): 3, ("model_absolute_error_mean", "all"): 2,
    ("model_accuracy_ratio", "sites"): 0.625, ("model_accuracy_ratio", "worst-tenth"): 0.125,
    ("model_loss_mean", "sites"): 1.25, ("model_tested_sites",): 2, ("model_untested_sites",): 1,
    ("site_model_share_ratio", "0", "a"): 1, ("site_model_share_ratio", "1", "b"): 1,
    ("site_weight_ratio", "a"): 0.75, ("site_update_norm", "b"): 3, ("site_noise_std", "a"): 0.5,
    ("site_cluster_index", "b"): 1, ("site_cluster_confidence_ratio", "a"): 0.9,
    ("site_asked_rounds_total", "c"): 1, ("site_accepted_rounds_total", "c"): 0,
    ("site_bad_updates_total", "c"): 1, ("site_bad_updates_total", "a"): 0,
    ("site_late_rounds_total", "c"): 0,
    ("model_measure_value", "federated-measures", "auroc"): 0.875,
    ("clustering_clusters",): 2, ("clustering_mss_score",): 0.8,
    ("clustering_last_soft_round",): 4,
}  # fmt: skip


def write(folder: Path, *rounds: dict[str, Any], ended: str = "") -> Path:
    journal = Journal(folder / "journal.jsonl")
    journal.write("run-started", terms=TERMS.as_config(), parameters=650)
    for facts in rounds:
        journal.write("round", **facts)
    journal.write("federated-measures", **MEASURED)
    if ended:
        journal.write("run-finished", status=ended)
    journal.close()
    return folder / "journal.jsonl"


def values(readings: Iterable[Reading], run: str = "r") -> dict[tuple[str, ...], float]:
    """Return value by name, without ``hdpfl_``, and labels, without the run's."""
    return {
        (r.series.name.removeprefix("hdpfl_"), *r.labels[1:]): r.value
        for r in readings
        if r.labels[0] == run
    }


def test_every_fact_of_a_round_is_a_reading(tmp_path: Path) -> None:
    write(tmp_path / "r", ROUND)
    found = values(RunFollower(tmp_path).readings())
    assert {key: found.get(key) for key in AFTER_ROUND} == AFTER_ROUND
    assert ("site_noise_std", "b") not in found  # 0 says that it is not known
    shown = {key[0] for key in found}
    ours = [each for each in metrics.series_at("coordinator") if "run" in each.labels]
    assert shown == {each.name.removeprefix("hdpfl_") for each in ours}


def test_a_run_in_progress_is_followed_and_a_half_written_line_waits(tmp_path: Path) -> None:
    path, runs = write(tmp_path / "r", ROUND), RunFollower(tmp_path)
    assert values(runs.readings())["run_received_bytes_total",] == 20
    line = json.dumps({"event": "round", "at": "2026-11-22T03:00:00+00:00", **ROUND, "round": 2})
    with path.open("a") as file:
        file.write(line[:200])
        file.flush()
        assert values(runs.readings())["run_finished_rounds",] == 1
        file.write(line[200:] + "\n")
    for _ in range(2):
        found = values(runs.readings())
        assert found["run_finished_rounds",] == 2
        assert found["run_received_bytes_total",] == 40
        assert found["site_bad_updates_total", "c"] == 2
    path.unlink()
    write(tmp_path / "r", ROUND, ended="completed")
    found = values(runs.readings())
    assert found["run_received_bytes_total",] == 20
    assert found["run_active_bool",] == 0


LEAST = {key: ROUND[key] for key in ("round", "asked", "accepted", "rejections", "metrics")}


@pytest.mark.parametrize(
    ("facts", "unreadable"),
    [(LEAST, 0), ({**ROUND, "weights": []}, 0), ({**ROUND, "gauges": [1]}, 0),
     ({**ROUND, "gauges": {"noise_std": "x", "clusters": None}}, 0),
     ({**ROUND, "norms": [1.0], "phases": 3, "quorum": None}, 0),
     ({**ROUND, "metrics": {"accuracy": "nan", "loss": "inf", "recall": 1}}, 0),
     ({**ROUND, "weights": ["nan", "inf"]}, 0), ({**ROUND, "seconds": "soon"}, 1),
     ({**ROUND, "accepted": ["z"]}, 1), ({**ROUND, "asked": [1, 2], "accepted": [1]}, 1),
     ({**ROUND, "rejections": ["c"]}, 1), ({"round": None}, 1), ({**ROUND, "round": 10**400}, 0)],
)  # fmt: skip
def test_damage_hides_no_run(tmp_path: Path, facts: dict[str, Any], unreadable: int) -> None:
    write(tmp_path / "odd", facts)
    write(tmp_path / "r", ROUND)
    readings = list(RunFollower(tmp_path).readings())
    assert Exporter("coordinator", lambda: readings).text()
    assert values(readings)["run_finished_rounds",] == 1
    odd = values(readings, "odd")
    assert not odd or odd["run_unreadable_events",] == unreadable


@pytest.mark.parametrize("code", Rejection)
def test_a_rejection_is_counted_by_its_code_whatever_its_words(code: Rejection) -> None:
    event = {"event": "round", "at": "2026-11-22T03:00:00+00:00", **ROUND,
             "rejected": {"c": "guard: declined, no reply in time"},
             "rejections": {"c": code.value}}  # fmt: skip
    found = values(tally("r", [event]).readings())
    counts = {each: found["run_rejected_updates_total", each] for each in Rejection}
    assert counts == {**dict.fromkeys(Rejection, 0), code: 1}
    bad = code in (Rejection.GUARD, Rejection.MALFORMED)
    assert found["site_bad_updates_total", "c"] == bad


# --- what must not be shown -----------------------------------------------------------------------


def test_what_a_journal_may_hold_of_a_profile_is_not_shown(tmp_path: Path) -> None:
    secret = 3.217391
    gauges = {"level-1-epsilon": secret, "epsilon": [secret, secret], "batch_size": secret}
    more = {"gauges": gauges, "metrics": {"epsilon": secret}, "phases": {"x": secret}}
    write(tmp_path / "r", ROUND | more)
    journal = Journal(tmp_path / "r" / "journal.jsonl")
    journal.write("privacy", levels=[{"epsilon": secret}], trust="3.217391", unit="a record")
    journal.write("3.217391", epsilon=secret)
    journal.close()
    assert b"3.217391" not in Exporter("coordinator", RunFollower(tmp_path).readings).text()


@pytest.mark.usefixtures("guessed_noise")
@pytest.mark.parametrize("strategy", ["weiavg", "fedhdp"])
def test_disclosed_profile_values_are_not_shown(tmp_path: Path, strategy: str) -> None:
    terms = RunConfig.parse({
        "strategy": strategy, "epsilons": "3.217391,7.654321,5.432109", "batch-sizes": "137",
        "delta": 1.7e-6, "rounds": 2, "local-steps": 1, "run-id": "r", "runs-dir": str(tmp_path),
    })  # fmt: skip
    run_in_process(terms, 3)
    secrets = {terms.terms.delta, 137.0}
    for site in range(3):
        profile = draw_profile(terms, site, 3)
        secrets |= {profile.run.epsilon, float(profile.training.declared_records)}
    assert len(secrets) > 5
    found = list(RunFollower(tmp_path).readings()) + list(history(tmp_path / "r" / "journal.jsonl"))
    assert len(found) > 100
    told = [reading.value for reading in found]
    assert [s for s in secrets if any(math.isclose(s, v, rel_tol=1e-6) for v in told)] == []
    labels = " ".join(label for reading in found for label in reading.labels)
    assert not any(f"{secret:g}" in labels for secret in secrets)


@pytest.mark.usefixtures("guessed_noise")
def test_norms_are_those_of_the_updates_unless_they_have_no_noise_yet(tmp_path: Path) -> None:
    """With ``noise = server`` an update comes without noise: its norm would tell of its records."""
    terms = RunConfig.parse({
        "strategy": "fedhdp", "rounds": 1, "local-steps": 1, "epsilons": "8", "runs-dir":
        str(tmp_path), "batch-sizes": "16", "clip-norm": 0.5,
    })  # fmt: skip
    (event,) = run_in_process(terms, 3).rounds
    assert len(event["norms"]) == 3 and all(norm > 0 for norm in event["norms"])
    (event,) = run_in_process(terms.updated(noise="server"), 3).rounds
    assert event["weights"] and "norms" not in event


# --- the commands ---------------------------------------------------------------------------------


def test_sites_that_go_and_come_back_and_how_a_run_ends() -> None:
    at = {"at": "2026-01-01T00:00:00+00:00"}
    started = {"event": "run-started", "terms": TERMS.as_config(), **at}
    pending = {"event": "approval", "site": "c", "status": "pending", **at}
    gone = {"event": "presence", "site": "a", "status": "offline", **at}
    round_ = {"event": "round", **ROUND, **at}
    back = {**gone, "status": "online"}
    ended = {"event": "run-finished", "status": "interrupted", **at}

    def shown(*events: dict[str, Any]) -> dict[tuple[str, ...], float]:
        found = tally("r", [started, *events]).readings()
        return {(r.series.name.removeprefix("hdpfl_"), *r.labels[1:]): r.value for r in found}

    found = shown(pending, round_, gone, round_, round_)
    assert found["site_online_bool", "a"] == 0
    assert found["site_online_bool", "b"] == 1
    assert found["site_absent_rounds_total", "a"] == 2
    assert found["run_pending_sites",] == 1
    assert found["run_ended_bool", "interrupted"] == found["run_ended_bool", "completed"] == 0
    found = shown(pending, gone, round_, back, round_, ended)
    assert found["site_online_bool", "a"] == 1
    assert found["site_absent_rounds_total", "a"] == 1
    assert found["run_pending_sites",] == 0
    assert found["run_ended_bool", "interrupted"] == 1

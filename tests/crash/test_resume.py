"""The server killed at every phase of a round: the run goes on, and nobody pays twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import CheckpointError
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.privacy.plan import Plan
from server_app.run.resume import open_run
from tests.crash.server import (
    RUN_ID,
    SIGKILL,
    Server,
    in_a_child,
    production,
    seen,
    simulated,
    told,
)
from tests.privacy.sites import digits, make_site

SITES = 3
HEART = Path(__file__).parents[2] / "deploy" / "demo"
POINTS = (
    "0: checkpoint written",
    "2: round opened",
    "2: somebody answered train",
    "2: all have answered",
    "2: aggregated",
    "2: checkpoint written beside",
    "2: checkpoint written",
    "2: model saved",
    "2: tested",
    "2: line torn",
    "2: line of round written",
    "3: line of round written",
    "3: somebody answered query.finish",
)
"""Where a server dies in a run of three rounds, in order."""
IN_SHORT = ("2: somebody answered train", "2: aggregated", "2: checkpoint written", "2: line torn")
OTHERS = tuple(point for point in POINTS if point not in IN_SHORT)


def terms_of(folder: Path, **more: Any) -> RunConfig:
    config = {"rounds": 3, "run-id": RUN_ID, "runs-dir": str(folder), "partition": "iid",
              "epsilons": "2,8,2", "batch-sizes": "64"}  # fmt: skip
    return RunConfig.parse({"evaluation": "server", "strategy": "robust-hdp", **config, **more})


RULES: dict[str, dict[str, Any]] = {
    "robust-hdp": {},
    "pfa-plus": {"strategy": "pfa-plus", "public-split": "threshold:4"},
    "trusted server": {"strategy": "fedhdp", "noise": "server", "fraction": 0.7},
    "personal": {
        "strategy": "fedhdp",
        "second": {"kind": "kept", "pull": 0.5},
        "evaluation": "sites",
    },
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs that nobody interrupts, made when they are first asked for."""
    return {"": tmp_path_factory.mktemp("whole")}


def whole_run(whole: dict[str, Path], rule: str) -> Path:
    if rule not in whole:
        folder = whole[""] / rule
        folder.mkdir()
        simulated(terms_of(folder, **RULES[rule]), SITES)
        whole[rule] = folder / RUN_ID
    return whole[rule]


def kill_and_go_on(folder: Path, point: str, work: Any) -> None:
    killed, _ = in_a_child(Server(folder, point), work)
    assert killed == SIGKILL, f"{point} was not reached"
    killed, _ = in_a_child(Server(folder), work)
    assert not killed


def one_request_a_round(folder: Path) -> set[tuple[Any, str]]:
    """Every site got the very same request again, or none; returns them."""
    asked = {(key, digest) for key, digest, _ in seen(folder)}
    assert len(asked) == len({key for key, _ in asked})
    assert {key[2] for key, _ in asked} == {1, 2, 3}
    return asked


def one_request_and_one_answer_a_round(folder: Path) -> None:
    """And gave the same bytes."""
    answered = {(key, said) for key, _, said in seen(folder)}
    assert len(answered) == len(one_request_a_round(folder))


def simulated_sites(whole: dict[str, Path], folder: Path, rule: str, point: str) -> None:
    kill_and_go_on(folder, point, lambda: simulated(terms_of(folder, **RULES[rule]), SITES))
    same, run = whole_run(whole, rule), folder / RUN_ID
    assert (run / "model.safetensors").read_bytes() == (same / "model.safetensors").read_bytes()
    if rule == "pfa-plus":  # here sites lose their models with the server, and send all numbers
        assert [e["metrics"] for e in told(run)] == [e["metrics"] for e in told(same)]
        assert one_request_a_round(folder)
    else:
        assert told(run) == told(same)
        one_request_and_one_answer_a_round(folder)
    for site in range(SITES):
        mine, other = (
            Ledger(f / "sites" / str(site) / "ledger.sqlite", durable=False).account()
            for f in (run, same)
        )
        assert mine.spent() == other.spent()
        assert mine.releases.keys() == other.releases.keys()
        plans = [[Plan.from_json(p.plan) for p in a.plans.values()] for a in (mine, other)]
        assert plans[0] == plans[1]
        models = [*(same / "sites" / str(site)).glob("personal-*.safetensors")]
        assert len(models) == (rule == "personal")
        for model in models:
            assert (run / model.relative_to(same)).read_bytes() == model.read_bytes()


def production_sites(folder: Path, point: str) -> None:
    profiles = {f"h{i}": make_site(folder / f"h{i}", digits(50, i)) for i in range(SITES)}
    more = {"strategy": "fedavg", "evaluation": "none", "dataset": "digits"}
    kill_and_go_on(folder, point, lambda: production(terms_of(folder, **more), profiles))
    one_request_and_one_answer_a_round(folder)
    assert [event["round"] for event in told(folder / RUN_ID)] == [1, 2, 3]
    assert all(len(event["accepted"]) == SITES for event in told(folder / RUN_ID))
    for path in profiles.values():
        account = Ledger(path.with_name("ledger.sqlite")).account()
        assert list(account.plans) == [RUN_ID]
        assert {key[1]: r.status for key, r in account.releases.items()} == dict.fromkeys(
            (1, 2, 3), "sent"
        )


@pytest.mark.parametrize("point", IN_SHORT)
def test_simulated_sites_end_bit_equal(whole: dict[str, Path], folder: Path, point: str) -> None:
    simulated_sites(whole, folder, "robust-hdp", point)


@pytest.mark.parametrize("point", IN_SHORT)
def test_production_sites_send_the_same_bytes_and_charge_once(folder: Path, point: str) -> None:
    production_sites(folder, point)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "point"),
    [("robust-hdp", point) for point in OTHERS]
    + [(rule, point) for rule in list(RULES)[1:] for point in IN_SHORT[:3]],
)
def test_more_simulated_phases(whole: dict[str, Path], folder: Path, rule: str, point: str) -> None:
    simulated_sites(whole, folder, rule, point)


@pytest.mark.slow
@pytest.mark.parametrize("point", OTHERS)
def test_every_other_phase_with_production_sites(folder: Path, point: str) -> None:
    production_sites(folder, point)


@pytest.mark.parametrize(
    "point", ["3: somebody answered query.scores", "3: line of federated-measures written"]
)
def test_a_histogram_of_scores_is_sent_again_bit_by_bit(folder: Path, point: str) -> None:
    """The server dies after one site, or all, released theirs; nobody releases a second one."""
    more = {"dataset": "heart", "data-dir": str(HEART), "partition": "natural",
            "epsilons": "12", "after.scores.share": 0.5, "strategy": "fedavg"}  # fmt: skip
    found = []
    for name, at in (("whole", ""), ("killed", point)):
        runs = folder / name
        runs.mkdir()
        terms = terms_of(runs, **more)
        killed, _ = in_a_child(Server(runs, at), lambda terms=terms: simulated(terms, 4))
        assert killed == (SIGKILL if at else 0)
        if at:
            killed, _ = in_a_child(Server(runs), lambda terms=terms: simulated(terms, 4))
            assert not killed
        found.append(json.loads((runs / RUN_ID / "result.json").read_text()))
        for site in range(4):
            path = runs / RUN_ID / "sites" / str(site) / "ledger.sqlite"
            releases = Ledger(path, durable=False).account().releases
            assert [key for key in releases if key[2] == "scores"] == [(RUN_ID, 3, "scores")]
    assert found[0]["federated-measures"] == found[1]["federated-measures"]
    assert found[0]["federated-measures"]["sites"] == 4


def test_the_points_are_the_phases_of_a_round(folder: Path) -> None:
    terms = terms_of(folder, **{"strategy": "fedavg"})
    killed, trace = in_a_child(Server(folder), lambda: simulated(terms, SITES))
    assert not killed
    second = [point for point in dict.fromkeys(trace) if point.startswith("2: ")]
    assert second == [p for p in POINTS if p.startswith("2: ") and p != "2: line torn"]


def test_a_server_killed_after_its_last_line_has_a_complete_run(folder: Path) -> None:
    terms = terms_of(folder, **{"strategy": "fedavg"})
    point = "3: line of run-finished written"
    killed, _ = in_a_child(Server(folder, point), lambda: simulated(terms, SITES))
    assert killed == SIGKILL
    with pytest.raises(CheckpointError, match="complete"):
        open_run(folder / RUN_ID)


def test_a_server_killed_before_its_first_checkpoint_has_asked_nobody(folder: Path) -> None:
    terms = terms_of(folder, **{"strategy": "fedavg"})
    killed, _ = in_a_child(
        Server(folder, "0: checkpoint written beside"), lambda: simulated(terms, SITES)
    )
    assert killed == SIGKILL
    assert not (folder / "seen").exists()
    with pytest.raises(CheckpointError, match="no checkpoint"):
        open_run(folder / RUN_ID)

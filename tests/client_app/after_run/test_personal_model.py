"""A site's personal model: it stays, survives, and costs neither a round nor a release."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from flwr.app import Message
from scipy import stats

from client_app.after_run.personal_model import PersonalModel
from client_app.releases.tuning import moved, tune_at_home, tuned_place
from client_app.site.site import Site
from client_app.training.ditto import (
    kept_personal_path,
    kept_round,
    load_personal_model,
    train_personal_privately,
)
from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.engines import dpsgd
from hdpfl_flower.errors import DataError, TermsError
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.models.networks import arrays_of, build_model, flatten
from hdpfl_flower.models.parts import parts_of
from hdpfl_flower.models.task import Task
from hdpfl_flower.privacy.noise import ReleaseStreams
from hdpfl_flower.privacy.plan import RoundPlan
from hdpfl_tools.simulation.in_process.grid import LocalGrid
from hdpfl_tools.simulation.in_process.in_process_run import run_in_process
from hdpfl_tools.simulation.sites import simulated_personal_path
from tests.client_app.dying import killed
from tests.client_app.messages import (
    CLIENT_NOISE,
    ask,
    config_of,
    make_site,
    model_of,
    terms_of,
    terms_with_test,
)
from tests.client_app.training.test_client_level import SERVER, kinds, noising, trusting
from tests.hdpfl_flower.engines.oracle import make_engine, one_thread  # noqa: F401
from tests.hdpfl_flower.engines.updates import RATE, plan_of, records_of, start_of


@pytest.mark.parametrize("noise", ["records", "client", "server"])
def test_a_personal_model_stays_and_survives_a_restart(tmp_path: Path, noise: str) -> None:
    profile = trusting(tmp_path)
    terms = terms_of(**{**SERVER, "noise": noise, "second": {"kind": "kept", "pull": 0.1}})
    reply = ask(profile, terms, 1)
    assert set(reply.content) == {"update"}
    path = kept_personal_path(tmp_path / "state", terms)
    first = load_personal_model(path, 3)
    ask(profile, terms, 1)  # a replay trains nothing
    np.testing.assert_array_equal(load_personal_model(path, 3), first)
    ask(profile, terms, 2)  # every message opens the site anew
    second = load_personal_model(path, 3)
    assert first is not None
    assert second is not None
    assert not np.array_equal(first, second)
    with pytest.raises(DataError, match="does not fit the run's model"):
        load_personal_model(path, 4)
    path.write_bytes(b"torn")
    with pytest.raises(DataError, match="damaged"):
        load_personal_model(path, 3)


def test_a_damaged_model_costs_no_round(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    profile, terms = make_site(tmp_path), terms_of(**{"second": {"kind": "kept", "pull": 0.1}})
    assert ask(profile, terms, 1).has_content()
    path = kept_personal_path(tmp_path / "state", terms)
    path.write_bytes(b"torn")
    assert ask(profile, terms, 2).has_content()
    assert "no personal model in this round: the personal model" in caplog.text
    assert path.read_bytes() == b"torn"  # its owner may have a copy
    assert set(kinds(tmp_path).values()) == {"sent"}


def test_death_over_the_model_is_sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile, terms = make_site(tmp_path), terms_of(**{"second": {"kind": "kept", "pull": 0.1}})
    monkeypatch.setattr("client_app.training.ditto._train", killed)
    with pytest.raises(KeyboardInterrupt):
        ask(profile, terms, 1)
    assert kinds(tmp_path) == {(1, "update"): "sent"}
    assert ask(profile, terms, 1).has_content()  # it is sent again, and nothing is trained


def test_a_strong_pull_keeps_the_personal_model_at_the_global_one(tmp_path: Path) -> None:
    from hdpfl_flower.data.run_task import task_for
    from hdpfl_flower.models.networks import arrays_of, build_model, flatten

    distances = []
    for pull in (0, 10):  # at η·λ = 1 every step starts from the global model again
        terms = terms_of(
            **{"learning-rate": 0.1, "second": {"kind": "kept", "pull": pull}, "noise": "client"}
        )
        ask(noising(tmp_path / str(pull)), terms)
        path = kept_personal_path(tmp_path / str(pull) / "state", terms)
        own = load_personal_model(path, 3)
        shared = flatten(arrays_of(build_model(terms.model, task_for(terms), 1)))
        assert own is not None
        distances.append(float(np.linalg.norm(own - shared)))
    assert distances[1] < 0.7 * distances[0]


def test_a_round_done_again_trains_no_second_time(tmp_path: Path) -> None:
    """A simulation that goes on after a crash repeats a round, and has trained its part of it."""
    config = {
        "second": {"kind": "kept", "pull": 0.1},
        "runs-dir": str(tmp_path),
        "run-id": "r",
        "rounds": 2,
    }
    run = RunConfig.parse({**config, "epsilons": "8", "batch-sizes": "64"})
    terms = run.terms
    grid, model = LocalGrid(4, [1], config=run, ledgers_in_files=True), model_of(terms)
    size, vectors = sum(array.numpy().size for array in model.values()), []
    for server_round in (1, 1, 2):
        content = server_wire.write_instructions(terms, server_round, model)
        (reply,) = grid.send_and_receive([Message(content, 3, wire.TRAIN)])
        assert reply.has_content()
        vectors.append(load_personal_model(simulated_personal_path(run, 1), size))
    grid.close()
    np.testing.assert_array_equal(vectors[1], vectors[0])
    assert kept_round(simulated_personal_path(run, 1)) == 2
    assert not np.array_equal(vectors[2], vectors[0])


@pytest.mark.parametrize("listed", [["metrics"], ["metrics", "personal-metrics"]])
def test_metrics_leave_only_where_disclosed(tmp_path: Path, listed: list[str]) -> None:
    disclose = json.dumps(listed)
    profile = make_site(tmp_path, holdout=0.5, disclose=disclose, more=CLIENT_NOISE)
    terms = terms_with_test(
        **{"second": {"kind": "kept", "pull": 0.1}, "learning-rate": 0.5, "noise": "client"}
    )
    ask(profile, terms, 1)
    own = next((tmp_path / "state").glob("personal*"))
    content = own.read_bytes()
    own.unlink()
    before = server_wire.read_metrics(ask(profile, terms, 1, wire.EVALUATE).content)
    assert set(before) == {"accuracy", "loss"}  # there is no personal model
    own.write_bytes(content)
    ask(profile, terms, 2)
    after = server_wire.read_metrics(ask(profile, terms, 2, wire.EVALUATE).content)
    assert ("personal-loss" in after) == ("personal-accuracy" in after) == (len(listed) == 2)
    if len(listed) == 2:
        assert after["personal-loss"] != after["loss"]
    assert kinds(tmp_path) == {
        (1, "update"): "sent",
        (1, "metrics"): "sent",
        (2, "update"): "sent",
        (2, "metrics"): "sent",
    }
    answers = Ledger(tmp_path / "ledger.sqlite").account().exact_answers
    assert answers == 2 * len(listed), "one for each model that is tested"


def test_a_run_tells_them_by_level(tmp_path: Path) -> None:
    config = {
        "strategy": "fedhdp", "evaluation": "sites", "rounds": 2, "runs-dir": str(tmp_path),
        "epsilons": "2,2,inf,inf", "second": {"kind": "kept", "pull": 0.1}, "dataset": "digits",
        "schema": "",
        "run-id": "r",
    }  # fmt: skip
    metrics = run_in_process(config_of(**config), 4).rounds[-1]["metrics"]
    for level in ("private", "opted-out"):
        assert 0 <= metrics[f"personal-accuracy-{level}"] <= 1
        assert metrics[f"accuracy-{level}-variance"] >= 0
    mean = (metrics["personal-accuracy-private"] + metrics["personal-accuracy-opted-out"]) / 2
    assert metrics["personal-accuracy"] == pytest.approx(mean)  # two sites each


# --- which numbers of the final model a site tunes, and what becomes of the tuned update


TASK = Task.classification((3,), 2)


@pytest.mark.parametrize(
    ("part", "place"), [("all", slice(0, 22)), ("head", parts_of("mlp:4", TASK).head)]
)
def test_the_tuned_numbers_are_those_that_the_terms_name(part: str, place: slice) -> None:
    terms = terms_of(**{"model": "mlp:4", "after": {"tuning": {"steps": 2, "part": part}}})
    assert tuned_place(terms, TASK, 22) == place
    assert (place == slice(0, 22)) == (part == "all")


def test_the_tuned_update_moves_the_final_model() -> None:
    arrays = arrays_of(build_model("mlp:4", TASK, 1))
    update = np.arange(len(flatten(arrays)), dtype=np.float32)
    model = PersonalModel(terms_of(), arrays, np.zeros(2, np.float32), "private")
    tuned = moved(model, wire.encode_update(update)).arrays
    np.testing.assert_allclose(flatten(tuned) - flatten(arrays), update, atol=1e-5)


def test_without_tuning_steps_nothing_is_tuned_at_home() -> None:
    """None, not an update of zeros, which would take the place of Ditto's model."""
    site = SimpleNamespace(
        terms=terms_of(model="mlp:4"),
        task=TASK,
        profile=SimpleNamespace(training=SimpleNamespace(batch_size=2, device="cpu")),
        training_records=lambda: range(4),
        streams=lambda *_: SimpleNamespace(sampling=None),
    )
    assert tune_at_home(cast(Site, site), arrays_of(build_model("mlp:4", TASK, 1))) is None


# --- a personal model trained with noise: Ditto's steps, and the noise of the plan in each of them


FALSE_ALARM = 1e-6
"""Chance that the statistical test below fails on right code (its seed is fixed all the same)."""

TABLE = Task.classification((300,), 8)
SIZE = 8 * 301


def personal(
    plan: RoundPlan, strength: float, shared: np.ndarray, own: np.ndarray | None = None
) -> np.ndarray:
    streams = ReleaseStreams.simulated(5, "site", 1, "personal")
    own = start_of("logreg", TABLE) if own is None else own
    engine, records = make_engine("linear", "logreg", TABLE), records_of(TABLE, 40)
    return train_personal_privately(
        engine, own, records, plan, RATE, streams, 16, pull=(strength, shared)
    )


def noise_p_value(said_std: float) -> float:
    """Chance of noise as large or small as is in the model, if each step's had this std."""
    plan, shared = plan_of(q=1e-9, noise_std=3.0), np.zeros(SIZE, np.float32)
    change = personal(plan, 0.0, shared).astype(np.float64) - start_of("logreg", TABLE)
    std = math.sqrt(plan.steps.count) * RATE * said_std / plan.divisor
    tail = stats.chi2.cdf(np.square(change / std).sum(), SIZE)
    return float(2 * min(tail, 1 - tail))


def test_every_step_has_the_noise_of_the_plan() -> None:
    assert noise_p_value(3.0) > FALSE_ALARM
    assert noise_p_value(2.5) < FALSE_ALARM
    assert noise_p_value(3.5) < FALSE_ALARM


def test_rounds_go_on_from_the_sites_own_model_towards_the_global_one() -> None:
    """Without a record in a batch k steps leave (1 − ηλ)ᵏ of the way from the global model."""
    shared, plan = np.full(SIZE, 2, np.float32), plan_of(q=1e-9)
    start, left = start_of("logreg", TABLE), (1 - 2 * RATE) ** plan.steps.count
    first = personal(plan, 2.0, shared)
    np.testing.assert_allclose(first, shared + left * (start - shared), atol=1e-5)
    second = personal(plan, 2.0, -shared, first)
    np.testing.assert_allclose(second, -shared + left * (first + shared), atol=1e-5)
    assert first.dtype == second.dtype == np.float32


def test_it_learns_from_its_own_records_and_leaves_what_it_got() -> None:
    records, shared = records_of(TABLE, 40), start_of("logreg", TABLE)
    own, engine = shared.copy(), make_engine("linear", "logreg", TABLE)
    found = personal(plan_of(q=1.0, divisor=40.0), 0.5, shared, own)
    update = dpsgd.train(
        engine, own, records, plan_of(q=1.0, divisor=40.0), RATE,
        ReleaseStreams.simulated(1, "other", 9, "update"), 16, pull=(0.5, shared),
    )  # fmt: skip
    assert np.abs(update).max() > 1e-3  # full batches without noise: streams do not matter
    np.testing.assert_allclose(found, own + update, atol=1e-6)
    np.testing.assert_array_equal(own, shared)


def test_a_pull_that_cannot_be_is_refused() -> None:
    with pytest.raises(TermsError, match="at most 1"):
        personal(plan_of(), 11.0, np.zeros(SIZE, np.float32))
    with pytest.raises(TermsError, match="another size"):
        personal(plan_of(), 1.0, np.zeros(3, np.float32))

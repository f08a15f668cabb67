"""Personal parts where the unit is the client: what trains, what stays, what is clipped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from client_app.after_run.personal_model import read_personal_model, simulated_model_path
from client_app.site.personal_state import load_state, simulated_state_path
from client_app.training import client_level
from client_app.training.dpsgd import Phase
from client_app.training.plain_sgd import LocalJob, Network
from client_app.training.stacked_sgd import stack_for
from hdpfl_flower import wire
from hdpfl_flower.config.feasibility import check_up_front
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import TermsError
from hdpfl_flower.models.networks import arrays_of, build_model, flatten
from hdpfl_flower.models.parts import parts_of
from hdpfl_flower.models.task import Records, Task
from server_app.in_process.in_process_run import run_in_process
from tests.client_app.messages import CLIENT_NOISE, ask, make_site, terms_of

TASK = Task.classification((1, 8, 8), 10)
SPEC = "mlp:6"
RATE = 0.3


def job_of(phases: tuple[Phase, ...], pull: float | None = None) -> LocalJob:
    draws = np.random.default_rng(3)
    start = flatten(arrays_of(build_model(SPEC, TASK, seed=4)))
    records = Records(
        draws.standard_normal((12, *TASK.input_shape), np.float32), draws.integers(0, 10, 12)
    )
    batches = tuple(np.arange(4 * i, 4 * i + 4) for i in range(3))
    return LocalJob(start, records, batches, None if pull is None else (pull, 0 * start), phases)


@pytest.mark.parametrize("pull", [None, 0.5])
def test_a_phase_of_everything_is_the_round_without_phases(pull: float | None) -> None:
    network = Network(SPEC, TASK, "cpu")
    plain = network.train(job_of((), pull), RATE)
    whole = Phase(3, slice(0, len(plain)), np.ones(len(plain), np.bool_))
    np.testing.assert_array_equal(network.train(job_of((whole,), pull), RATE), plain)


def test_a_step_moves_the_coordinates_of_its_phase_alone() -> None:
    network, parts = Network(SPEC, TASK, "cpu"), parts_of(SPEC, TASK)
    mask = np.arange(parts.size) % 2 == 0
    job = job_of((Phase(2, parts.head), Phase(1, parts.body, mask)))
    moved = network.train(job, RATE) - job.first
    assert np.abs(moved[parts.head]).min() > 0
    assert not moved[parts.body][~mask[parts.body]].any()
    assert np.abs(moved[parts.body]).max() > 0
    assert not job.first[parts.body][~mask[parts.body]].any()
    np.testing.assert_array_equal(job.first[parts.head], job.start[parts.head])
    # The head stands still in the body's phase.
    two = job_of((Phase(2, parts.head), Phase(1, slice(0, 0))))
    alone = network.train(two, RATE) - two.start
    np.testing.assert_array_equal(moved[parts.head], alone[parts.head])


def test_phases_of_other_steps_and_stacks_of_phases_are_refused() -> None:
    job = job_of((Phase(2, slice(0, 5)),))
    with pytest.raises(TermsError, match="other steps"):
        Network(SPEC, TASK, "cpu").train(job, RATE)
    stack = stack_for(SPEC, TASK, "cpu")
    assert stack is not None
    with pytest.raises(TermsError, match="stack"):
        stack.train([job], RATE)


@pytest.mark.parametrize("noise", ["client", "server"])
@pytest.mark.parametrize("dataset", ["site", "digits"])
def test_a_real_site_declines_a_part_that_trains_without_noise(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, noise: str, dataset: str
) -> None:
    profile = make_site(tmp_path, more=CLIENT_NOISE)
    profile.write_text("trust-server = true\n" + profile.read_text())
    terms = {"noise": noise, "strategy": "fedhdp", "delta": 1e-6, "dataset": dataset}
    reply = ask(profile, terms_of(**terms, work="offset"))
    assert reply.has_error()
    assert reply.error.code == wire.DECLINED
    assert "noise" in caplog.text
    assert "personal part" in caplog.text


def config_of(folder: Path, **more: object) -> RunConfig:
    keys = {key.replace("_", "-"): value for key, value in more.items()}
    return RunConfig.parse({
        "strategy": "dp-fedavg", "noise": "server", "model": SPEC, "dataset": "digits",
        "rounds": 2, "local-steps": 4, "batch-sizes": "16", "epsilons": "3", "clip-norm": 0.02,
        "dp-fedavg.clip-lr": 0.0, "learning-rate": RATE, "runs-dir": str(folder), "run-id": "r",
        **keys,
    })  # fmt: skip


def test_the_body_is_clipped_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, clip = list[np.ndarray](), client_level.clip_update

    def clipped(update: np.ndarray, norm: float) -> np.ndarray:
        found.append(clip(update, norm))
        return found[-1]

    monkeypatch.setattr(client_level, "clip_update", clipped)
    config = config_of(tmp_path, work="alternate")
    result = run_in_process(config, 3)
    parts = parts_of(SPEC, TASK)
    assert [len(update) for update in found] == [parts.body.stop - parts.body.start] * 6
    assert all(np.linalg.norm(update) == pytest.approx(0.02, rel=1e-5) for update in found)
    first = flatten(arrays_of(build_model(SPEC, TASK, seed=0)))[parts.head]
    heads = []
    for index in range(3):
        state = load_state(simulated_state_path(config, index))
        assert (state.server_round, state.rounds) == (2, 2)
        assert state.part is not None
        heads.append(state.part)
        assert np.linalg.norm(state.part - first) > 0.02  # no part of it was clipped
        model = read_personal_model(simulated_model_path(config, index))
        assert model is not None
        assert model.kind == "kept"
        whole = flatten(model.arrays)
        np.testing.assert_array_equal(whole[parts.head], state.part)
        np.testing.assert_array_equal(whole[parts.body], flatten(result.arrays))
    assert not np.array_equal(heads[0], heads[1])


@pytest.mark.parametrize("noise", ["client", "server"])
def test_tuning_steps_are_plain_and_stay_at_home(tmp_path: Path, noise: str) -> None:
    config = config_of(tmp_path, noise=noise, after="tuning steps=5")
    result = run_in_process(config, 2)
    models = [read_personal_model(simulated_model_path(config, index)) for index in range(2)]
    parts, shared = parts_of(SPEC, TASK), flatten(result.arrays)
    for model in models:
        assert model is not None
        assert model.kind == "kept"
        moved = flatten(model.arrays) - shared
        assert np.abs(moved[parts.head]).max() > 0
        assert not moved[parts.body].any()


@pytest.mark.parametrize(
    "more", [{"work": "joint mask=noisy-updates"}, {"work": "joint mask=charged-top-k"},
             {"after": "shrink", "work": "joint"}]
)  # fmt: skip
def test_what_follows_the_noise_of_steps_needs_steps_with_noise(more: dict[str, object]) -> None:
    check_up_front(RunConfig.parse(more).terms)
    with pytest.raises(TermsError, match=next(iter(more))):
        check_up_front(RunConfig.parse({**more, "noise": "server"}).terms)

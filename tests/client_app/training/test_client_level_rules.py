"""A client's own round, step by step: what is trained, clipped and noised, and on whose word."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from client_app.after_run.personal_model import read_personal_model
from client_app.site.personal_state import load_state
from client_app.site.site import Site
from client_app.training import client_level
from client_app.training.client_level import ClientLevelTrainer
from client_app.training.plain_sgd import LocalJob, Network
from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.engines.dpsgd import Phase
from hdpfl_flower.errors import Declined, TermsError
from hdpfl_flower.models.networks import arrays_of, build_model, flatten
from hdpfl_flower.models.parts import parts_of
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.privacy.plan import make_plan
from hdpfl_flower.releases.feasibility import check_up_front
from hdpfl_flower.wire import Instructions
from hdpfl_tools.simulation.in_process.in_process_run import run_in_process
from hdpfl_tools.simulation.sites import simulated_model_path
from hdpfl_tools.simulation.stacked_sgd import stack_for
from tests.client_app.messages import (
    CLIENT_NOISE,
    ask,
    make_site,
    model_in,
    simulated_state_path,
    terms_of,
)

LONG = np.array([3.0, 0.0, -4.0])


def site_and_instructions(folder: Path, threads: int = 1, **more: Any) -> tuple[Site, Instructions]:
    """Return a site of 61 records, and what round 2 of fedhdp asks of it."""
    path = make_site(folder, more=CLIENT_NOISE)
    path.write_text(path.read_text().replace("torch-threads = 1", f"torch-threads = {threads}"))
    terms = terms_of(**{"strategy": "fedhdp", "learning-rate": 0.25, **more})
    content = server_wire.write_instructions(terms, 2, model_in(terms, 2))
    return Site(Profile.load(path), terms), wire.read_instructions(content)


def start_of(instructions: Instructions) -> np.ndarray:
    terms = instructions.terms
    like = arrays_of(build_model(terms.model, task_for(terms), 1))
    return flatten(wire.read_model(instructions.model, like))


def payload_of(payload: bytes) -> np.ndarray:
    found: np.ndarray = np.load(io.BytesIO(payload))
    assert found.dtype == np.float32
    return found


@pytest.mark.parametrize(("clip_norm", "factor"), [(100.0, 1.0), (2.0, 2 / 5 * (1 - 1e-6))])
def test_without_noise_the_clipped_way(tmp_path: Path, clip_norm: float, factor: float) -> None:
    """What the process has trained already is taken, once; else this site trains."""
    site, asked = site_and_instructions(tmp_path, noise="server", **{"clip-norm": clip_norm})
    trainer, start = ClientLevelTrainer(site, asked), start_of(asked)
    assert trainer.size == 3
    jobs: list[tuple[LocalJob, float]] = []

    class Network:
        def train(self, job: LocalJob, rate: float) -> np.ndarray:
            jobs.append((job, rate))
            return (start - LONG).astype(np.float32)

    trainer._network = Network()  # type: ignore[assignment]
    key = asked.digest, "update"
    left = {key: (start + LONG).astype(np.float32)}
    vars(site)["trained"] = lambda *of: left.pop(of, None)
    np.testing.assert_allclose(payload_of(trainer.run(None)), factor * LONG, rtol=1e-6, atol=1e-6)
    assert left == {}
    assert jobs == []
    np.testing.assert_allclose(payload_of(trainer.run(None)), -factor * LONG, rtol=1e-6, atol=1e-6)
    [(job, rate)] = jobs
    assert rate == 0.25
    np.testing.assert_array_equal(job.start, start)
    assert len(job.records) == 61
    assert sorted(np.concatenate(job.batches)) == list(range(61))
    assert [len(batch) for batch in job.batches] == [7] * 8 + [5]


def test_an_update_without_noise_leaves_for_noise_by_the_server_alone(tmp_path: Path) -> None:
    for noise in ("client", "records"):
        site, asked = site_and_instructions(tmp_path / noise, noise=noise)
        with pytest.raises(Declined, match="only with noise = 'server'"):
            ClientLevelTrainer(site, asked).run(None)


def test_a_plan_noises_clipped_updates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site, asked = site_and_instructions(tmp_path, noise="client", **{"clip-norm": 2.0})
    plan, seen = make_plan(site.profile, site.terms), []

    def note(total: torch.Tensor, std: float, stream: RandomStream) -> torch.Tensor:
        seen.append((total.numpy().copy(), std, stream.position))
        return total + 10

    monkeypatch.setattr(client_level, "add_noise", note)
    trainer = ClientLevelTrainer(site, asked)
    vars(site)["trained"] = lambda *_: (start_of(asked) + LONG).astype(np.float32)
    found = payload_of(trainer.run(plan))
    [(clipped, std, position)] = seen
    np.testing.assert_allclose(clipped, 0.4 * LONG, rtol=1e-5, atol=1e-6)
    assert np.linalg.norm(clipped) < 2
    assert clipped.dtype == np.float64
    assert std == 2 * 2.0 * plan.noise_multiplier
    assert position == 0
    np.testing.assert_allclose(found, clipped + 10, rtol=1e-6)


def test_threads_are_the_profiles_or_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []
    monkeypatch.setattr(client_level, "use_threads", used.append)
    monkeypatch.setattr(client_level, "available_cores", lambda: 5)
    for threads in (1, 3, 0):
        ClientLevelTrainer(*site_and_instructions(tmp_path / str(threads), threads))
    assert used == [1, 3, 5]


# --- personal parts where the unit is the client: what trains, what stays, what is clipped


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
    reply = ask(profile, terms_of(**terms, work={"kind": "offset"}))
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
    config = config_of(tmp_path, work={"kind": "alternate"})
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
    config = config_of(tmp_path, noise=noise, after={"tuning": {"steps": 5}})
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
    "more", [{"work": {"kind": "joint", "mask": "noisy-updates"}},
             {"work": {"kind": "joint", "mask": "charged-top-k"}},
             {"after": {"shrink": {"scale": 0.05}}, "work": {"kind": "joint"}}]
)  # fmt: skip
def test_what_follows_the_noise_of_steps_needs_steps_with_noise(more: dict[str, object]) -> None:
    check_up_front(RunConfig.parse(more).terms)
    with pytest.raises(TermsError, match=next(iter(more))):
        check_up_front(RunConfig.parse({**more, "noise": "server"}).terms)

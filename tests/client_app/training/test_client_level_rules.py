"""A client's own round, step by step: what is trained, clipped and noised, and on whose word."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from client_app.site.site import Site
from client_app.training import client_level
from client_app.training.client_level import UPDATE, ClientLevelTrainer
from client_app.training.plain_sgd import LocalJob
from hdpfl_flower import wire
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.data.datasets import task_for
from hdpfl_flower.errors import Declined
from hdpfl_flower.models.networks import arrays_of, build_model, flatten
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.privacy.plan import make_plan
from hdpfl_flower.wire import Instructions
from tests.client_app.messages import CLIENT_NOISE, make_site, model_in, terms_of

LONG = np.array([3.0, 0.0, -4.0])


def site_and_instructions(folder: Path, threads: int = 1, **more: Any) -> tuple[Site, Instructions]:
    """Return a site of 61 records, and what round 2 of fedhdp asks of it."""
    path = make_site(folder, more=CLIENT_NOISE)
    path.write_text(path.read_text().replace("torch-threads = 1", f"torch-threads = {threads}"))
    terms = terms_of(**{"strategy": "fedhdp", "learning-rate": 0.25, **more})
    content = wire.write_instructions(terms, 2, model_in(terms, 2))
    return Site(Profile.load(path), terms, None), wire.read_instructions(content)


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
    key = asked.digest, UPDATE
    site.trained[key] = (start + LONG).astype(np.float32)
    np.testing.assert_allclose(payload_of(trainer.run(None)), factor * LONG, rtol=1e-6, atol=1e-6)
    assert key not in site.trained
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
        with pytest.raises(Declined, match="noise = 'server' alone"):
            ClientLevelTrainer(site, asked).run(None)


def test_a_plan_noises_clipped_updates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site, asked = site_and_instructions(tmp_path, noise="client", **{"clip-norm": 2.0})
    plan, seen = make_plan(site.profile, site.terms), []

    def note(total: torch.Tensor, std: float, stream: RandomStream) -> torch.Tensor:
        seen.append((total.numpy().copy(), std, stream.position))
        return total + 10

    monkeypatch.setattr(client_level, "add_noise", note)
    trainer = ClientLevelTrainer(site, asked)
    site.trained[asked.digest, UPDATE] = (start_of(asked) + LONG).astype(np.float32)
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

"""The canaries: each is C in a coordinate of its own, and they go through the right engine."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from client_app.training.trainer import Trainer
from hdpfl_flower.config.profile import Profile, Training
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.engines import dpsgd
from hdpfl_flower.engines.engine_choice import _ENGINES
from hdpfl_flower.engines.engines import Engine, LinearEngine, VmapEngine
from hdpfl_flower.engines.ghost_clipping import BookkeepingEngine
from hdpfl_flower.engines.opacus_engine import OpacusEngine
from hdpfl_flower.errors import AccountingError, ModelError
from hdpfl_flower.privacy.noise import ReleaseStreams
from hdpfl_flower.privacy.plan import make_plan
from hdpfl_tools.site import audit as audit_module
from hdpfl_tools.site.audit import (
    CLIP_NORM,
    ENGINES,
    WIDTH,
    attack,
    canary_engine,
    canary_records,
    claimed,
    default_training,
    engine_of,
    releases_of,
)


@pytest.mark.parametrize("engine", ENGINES)
def test_each_canary_is_c_in_a_coordinate_of_its_own(engine: str) -> None:
    """Features of length 2¹³ leave 2⁻¹³·C to the bias; float32 rounds to 6e-8 a few times."""
    members = np.arange(20) % 3 == 0
    trained = canary_engine(engine, 20, "cpu")
    trained.theta.zero_()
    records = canary_records(members)
    x, y = torch.from_numpy(records.features), torch.from_numpy(records.targets)
    total = torch.zeros_like(trained.theta)
    trained.add_clipped_sum(total, x, y, len(records), CLIP_NORM)
    np.testing.assert_allclose(-total[:20], CLIP_NORM * members, rtol=1e-6)
    share = CLIP_NORM * members.sum() / 2**13
    np.testing.assert_allclose(-total[20], share, rtol=1e-6)


def test_every_release_has_coins_and_streams_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, planted = [], []
    fresh = ReleaseStreams.fresh
    monkeypatch.setattr(ReleaseStreams, "fresh", lambda: drawn.append(fresh()) or drawn[-1])
    monkeypatch.setattr(
        audit_module,
        "canary_records",
        lambda members, most: planted.append(members) or canary_records(members, most),
    )
    for _ in range(2):
        attack(claimed(1.0), "linear", WIDTH + 1, default_training())
    assert len({stream.noise.bytes(16) for stream in drawn}) == len(drawn) == 4
    assert len({members.tobytes() for members in planted}) == 4


def test_canaries_fill_every_release() -> None:
    advanced: list[None] = []
    budget, training = {"epsilon": 4.0, "delta": 1e-5}, {"batch-size": 9, "declared-records": 9}
    profile = Profile.parse({"budget": budget, "run": budget, "training": training})
    plan, canaries = make_plan(profile, RunTerms(rounds=2)), 2 * WIDTH + 1
    finding = attack(
        plan, "linear", canaries, default_training(), advance=lambda: advanced.append(None)
    )
    assert finding.canaries == 3 * finding.width >= canaries > finding.canaries - 3
    assert len(advanced) == releases_of(plan, canaries) == 3 * 2


# Which engine.


def test_every_engine_of_the_build_is_audited() -> None:
    assert tuple(_ENGINES) == ENGINES
    classes = (LinearEngine, BookkeepingEngine, VmapEngine, OpacusEngine)
    assert tuple(type(canary_engine(name, 10, "cpu")) for name in ENGINES) == classes


def training(**more: object) -> Training:
    return Training.model_validate({"batch-size": 8, "declared-records": 80, **more})


@pytest.mark.parametrize(
    ("model", "engine", "expected"),
    [
        ("logreg", "auto", "linear"),
        ("logreg", "opacus", "opacus"),
        ("mlp:8", "auto", "bookkeeping"),
        ("tests.client_app.test_canaries:gated", "auto", "vmap"),
    ],
)
def test_the_engine_in_use_is_audited(model: str, engine: str, expected: str) -> None:
    assert (
        engine_of(RunTerms().updated(model=model), training(engine=engine), code=True) == expected
    )


def gated(task: Any) -> torch.nn.Module:
    """A model with a parameter that belongs to no layer."""

    class Gated(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(math.prod(task.input_shape), task.outputs)
            self.gate = torch.nn.Parameter(torch.ones(task.outputs))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.gate * self.layer(x.flatten(1))

    return Gated()


def normed(task: Any) -> torch.nn.Module:
    size = math.prod(task.input_shape)
    return torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.BatchNorm1d(size), torch.nn.Linear(size, task.outputs)
    )


def test_a_model_that_cannot_be_trained_cannot_be_audited() -> None:
    for model, engine, words in (
        ("tests.client_app.test_canaries:normed", "auto", "mixes the records"),
        ("mlp:8", "linear", "cannot train model"),
        ("no-such-model", "auto", "is not known"),
    ):
        with pytest.raises(ModelError, match=words):
            engine_of(RunTerms().updated(model=model), training(engine=engine), code=True)


def test_code_is_not_built_without_a_policy_that_lists_it() -> None:
    with pytest.raises(ModelError, match=r"policy\.models"):
        engine_of(RunTerms().updated(model="tests.client_app.test_canaries:gated"), training())


def test_an_engine_without_canaries_cannot_be_audited(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(type(canary_engine("linear", 4, "cpu"))):  # type: ignore[misc]
        pass

    real: Callable[..., Engine] = audit_module.engine_for

    def engine_for(spec: str, *rest: Any) -> Engine:
        engine = real(spec, *rest)
        return object.__new__(Other) if spec == "mlp:8" else engine

    monkeypatch.setattr(audit_module, "engine_for", engine_for)
    with pytest.raises(ModelError, match="cannot be audited"):
        engine_of(RunTerms().updated(model="mlp:8"), training())


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(ModelError, match=r"'training\.device' is not on this machine"):
        canary_engine("linear", 10, "cuda:99")


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf, math.nan])
def test_an_epsilon_that_is_no_claim(epsilon: float) -> None:
    with pytest.raises(AccountingError, match="positive, finite"):
        claimed(epsilon)


def test_the_audit_trains_as_a_round_does() -> None:
    """It calls the very function that a round at a site calls."""
    assert audit_module.train is dpsgd.train
    assert Trainer.run.__globals__["train"] is dpsgd.train
    assert audit_module.engine_for is Trainer.__init__.__globals__["engine_for"]

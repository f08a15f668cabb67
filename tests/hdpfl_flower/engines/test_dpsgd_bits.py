"""What makes small models fast changes no bit: a slow loop, written out, gives the same update."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from hdpfl_flower.engines.dpsgd import filled_up, settle, train
from hdpfl_flower.engines.engines import Engine, may_draw
from hdpfl_flower.models.losses import output_gradient
from hdpfl_flower.models.networks import build_model
from hdpfl_flower.models.row_batches import exact_arithmetic
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.privacy.noise import ReleaseStreams, add_noise
from hdpfl_flower.privacy.plan import RoundPlan
from tests.hdpfl_flower.engines.oracle import EVERY_ENGINE, TASKS, make_engine, one_thread  # noqa: F401
from tests.hdpfl_flower.engines.updates import (
    RATE,
    TABLE,
    plan_of,
    records_of,
    start_of,
    streams,
    update_of,
)


def slow_update(
    engine: Engine, start: np.ndarray, records: Records, plan: RoundPlan, release: ReleaseStreams
) -> np.ndarray:
    """Return a round's update: torch's generator forked, noise drawn step by step."""
    granule = settle(engine, plan.divisor, 1000)
    x, y = torch.from_numpy(records.features), torch.from_numpy(records.targets)
    engine.theta.copy_(torch.from_numpy(start))
    with exact_arithmetic(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(int.from_bytes(release.sampling.bytes(7), "big"))
        for _ in range(plan.steps.count):
            rows = release.sampling.bernoulli(len(records), plan.steps.sampling_prob)
            total = torch.zeros_like(engine.theta)
            if len(rows):
                at = torch.from_numpy(filled_up(rows, granule))
                engine.add_clipped_sum(total, x[at], y[at], len(rows), plan.clip_norm)
            noisy = add_noise(total, plan.noise_std, release.noise)
            engine.theta.sub_(noisy, alpha=RATE / plan.divisor)
    return (engine.theta - torch.from_numpy(start)).numpy().copy()


@pytest.mark.parametrize(("spec", "name"), EVERY_ENGINE)
def test_an_update_has_the_bits_of_the_slow_loop(spec: str, name: str) -> None:
    task, plan = TASKS["classes"], plan_of(noise_std=0.8, steps=4)
    records, start = records_of(task, 45), start_of(spec, task)
    engine, slow, fast = make_engine(name, spec, task), streams(), streams()
    expected = slow_update(engine, start, records, plan, slow)
    found = update_of(records, plan, task, spec, engine=engine, release=fast)
    assert np.any(found)
    np.testing.assert_array_equal(found, expected)
    assert (fast.noise.position, fast.sampling.position) == (
        slow.noise.position,
        slow.sampling.position,
    )


def test_the_softmax_residual_has_the_bits_of_its_formula() -> None:
    """p − e_y, also where outputs are not finite."""
    task, generator = Task.classification((3,), 7), torch.Generator().manual_seed(2)
    outputs = torch.randn(200, 7, generator=generator) * 10 ** torch.randn(200, 1)
    outputs[3, 2], outputs[4, 1], outputs[5, 0] = torch.nan, torch.inf, -torch.inf
    targets = torch.randint(0, 7, (200,), generator=generator)
    expected = torch.softmax(outputs, dim=1)
    for row, target in enumerate(targets.tolist()):
        expected[row, target] -= 1
    found = output_gradient(task, outputs, targets)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    for wrong in (7, -1):
        with pytest.raises(RuntimeError):
            output_gradient(task, outputs, torch.full_like(targets, wrong))


# Who draws from torch's generator.


def hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(5, 4))
    model[0].register_forward_hook(lambda *_: None)
    return model


def own_forward() -> nn.Module:
    model = nn.Sequential(nn.Linear(5, 4))
    model[0].forward = lambda x: torch.rand(len(x), 4)
    return model


class OwnLinear(nn.Linear):
    """Of a class of its own: its forward is not known."""


@pytest.mark.parametrize(
    "build",
    [
        lambda: nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.5)),
        lambda: nn.Sequential(nn.Linear(5, 4), nn.RReLU()),
        lambda: nn.Sequential(OwnLinear(5, 4)),
        lambda: nn.Sequential(weight_norm(nn.Linear(5, 4))),
        hooked,
        own_forward,
    ],
)
def test_a_model_that_might_draw_counts_as_one_that_does(build: Callable[[], nn.Module]) -> None:
    assert may_draw(build())


@pytest.mark.parametrize("spec", ["logreg", "mlp:8", "cnn"])
def test_the_networks_of_this_package_draw_nothing(spec: str) -> None:
    assert not may_draw(build_model(spec, TASKS["classes"], seed=0))
    assert not make_engine("vmap", spec, TASKS["classes"]).draws


def test_torchs_generator_is_left_alone_without_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, start = make_engine("linear", "logreg", TABLE), start_of("logreg", TABLE)
    settle(engine, 10.0, 1000)  # the proof of rows forks it

    def one_round() -> np.ndarray:
        return train(engine, start, records_of(TABLE, 30), plan_of(), RATE, streams(), 1000)

    def forked(*_: object, **__: object) -> None:
        raise AssertionError("torch's generator was forked")

    monkeypatch.setattr(torch.random, "fork_rng", forked)
    assert np.any(one_round())
    engine.draws = True
    with pytest.raises(AssertionError, match="forked"):
        one_round()

"""The head's silent sums: no signal in them, all of the noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hdpfl_flower.engines.dpsgd import train
from hdpfl_flower.engines.engine_choice import engine_for
from hdpfl_flower.estimators.noise_level import measure_noise
from hdpfl_flower.estimators.softmax_head import (
    BELIEVED,
    FORGED,
    Head,
    head_of,
    quietest_part,
    silent_squares,
    silent_sums,
)
from hdpfl_flower.estimators.temporal import NoiseEstimate, NoiseMemory, track
from hdpfl_flower.models.networks import arrays_of, build_model, flatten
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.privacy.accounting import Steps
from hdpfl_flower.privacy.noise import ReleaseStreams
from hdpfl_flower.privacy.plan import RoundPlan
from tests.hdpfl_flower.estimators.signals import excess

IMAGES = Task((1, 8, 8), 10, "softmax")


def shapes_of(spec: str, task: Task) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in arrays_of(build_model(spec, task, 0)).items()}


@pytest.mark.parametrize("spec", ["logreg", "mlp:16", "cnn"])
def test_without_noise_the_classes_add_up_to_nothing(spec: str) -> None:
    head = head_of(spec, IMAGES, shapes_of(spec, IMAGES))
    assert head is not None
    update = updates(spec, noise=0.0)
    silent = silent_sums(update, head)
    assert silent.shape == (1, head.inputs + 1)
    assert np.abs(update[:, head.start :]).max() > 1e-3
    assert np.abs(silent).max() < 1e-6


def test_the_noise_is_all_there() -> None:
    """A χ² of 65 coordinates lies within 1 ± 6·√(2/65) but once in 10⁶; √10 times lies outside."""
    head = head_of("logreg", IMAGES, shapes_of("logreg", IMAGES))
    assert head is not None
    silent = silent_sums(updates("logreg", noise=2.0), head)
    expected = 3 * (0.1 * 2.0 / 8) ** 2  # 3 steps of η·σ/b
    ratio = float(np.square(silent).mean()) / expected
    assert abs(ratio - 1) < 6 * np.sqrt(2 / 65)
    assert abs(10 * ratio - 1) > 6 * np.sqrt(2 / 65)


def updates(spec: str, noise: float) -> np.ndarray:
    generator = torch.Generator().manual_seed(1)
    records = Records(
        torch.rand((40, 1, 8, 8), generator=generator).numpy(),
        torch.randint(3, (40,), generator=generator).numpy(),
    )
    start = flatten(arrays_of(build_model(spec, IMAGES, 0)))
    plan = RoundPlan(Steps(0.2, 3), 0.5, noise, 8.0)
    streams = ReleaseStreams.simulated(1, "0", 1, "update")
    engine = engine_for(spec, IMAGES, "auto", "cpu")
    return train(engine, start, records, plan, 0.1, streams, 64)[None]


# What the head's silence is worth beside the estimators.


def softmax_like(
    seed: int, n: int = 4, signal: float = 2.0, inputs: int = 300
) -> tuple[np.ndarray, np.ndarray, Head]:
    """Return updates of a softmax layer with private signals, which sum to 0 over the classes."""
    generator, head = np.random.default_rng(seed), Head(0, 10, inputs)
    variances = 10 ** generator.uniform(-1, 0, n)
    weights = generator.standard_normal((n, 10, inputs + 1))
    weights *= signal * generator.uniform(0, 1, (n, 1, 1)) * (generator.random(inputs + 1) < 0.7)
    weights -= weights.mean(axis=1, keepdims=True)
    rows = np.concatenate([weights[..., :-1].reshape(n, -1), weights[..., -1]], axis=1)
    noise = np.sqrt(variances)[:, None] * generator.standard_normal(rows.shape)
    return (rows + noise).astype(np.float32), variances, head


def first_round(rows: np.ndarray, head: Head) -> NoiseEstimate:
    sites = [f"site-{i}" for i in range(len(rows))]
    return track(NoiseMemory(), 1, sites, rows, head=head)[1]


@pytest.mark.parametrize("n", [2, 4, 12])
@pytest.mark.parametrize("signal", [0.3, 1.0])
def test_private_signals_are_told_from_noise_in_the_first_round(n: int, signal: float) -> None:
    """Silence alone gives 1 + 2/301 in the mean; 1.05 is the bar."""
    plain = []
    for seed in range(4):
        rows, true, head = softmax_like(seed, n, signal)
        found = first_round(rows, head)
        assert found.identified.all()
        assert excess(found.variances, true) <= 1.05
        plain.append(excess(measure_noise(rows).variances, true))
    assert signal < 1 or n == 2 or max(plain) > 1.05, "without the head the bar is missed"


def quiet(rows: np.ndarray, head: Head, share: float) -> np.ndarray:
    """Return ``rows`` after site 0 took all but ``share`` of its classes' sums away."""
    forged = rows.copy()
    weights = forged[0, : head.classes * head.inputs].reshape(head.classes, head.inputs)
    weights -= (1 - share) * weights.mean(axis=0)
    forged[0, -head.classes :] -= (1 - share) * forged[0, -head.classes :].mean()
    return forged


@pytest.mark.parametrize("n", [2, 4, 12])
@pytest.mark.parametrize("share", [0.0, 1e-3, 0.3])
def test_a_forged_quiet_head_gains_no_more_than_a_quarter(n: int, share: float) -> None:
    """Chance: the quietest of 6 stretches of 500 has a MAD² above .5 of its noise (8 σ)."""
    for seed in range(3):
        rows, true, head = softmax_like(seed, n, 0.0)
        forged = quiet(rows, head, share)
        assert silent_squares(forged, head)[0] < 0.2 * true[0]
        found = first_round(forged, head)
        assert found.variances[0] >= 0.5 * true[0] / BELIEVED
        assert FORGED in found.reasons[0]
        np.testing.assert_allclose(found.variances[1:], true[1:], rtol=0.5)


@pytest.mark.parametrize("d", [100, 700, 20_000])
def test_the_quietest_part_reads_reads_noise_where_there_is_a_quiet_part(d: int) -> None:
    """MAD² of 500 has a standard error of √(5.44/500) = .10: 6 of them, the least of 16."""
    generator = np.random.default_rng(d)
    rows = (3 * generator.standard_normal((5, d))).astype(np.float32)
    rows[:, d // 2 :] += 50
    part = quietest_part(rows) / 9
    error = np.sqrt(5.44 / min(d, 500))
    assert np.all(part > 1 - 6 * error)
    assert d < 1_000 or np.all(part < 1.1)
    np.testing.assert_allclose(quietest_part(2 * rows), 36 * part, rtol=1e-5)

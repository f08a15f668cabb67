"""Local DP-SGD: Poisson batches, flat clipping, a constant divisor, noise on every step.

Reference: Abadi et al., Deep Learning with Differential Privacy (CCS 2016), Algorithm 1, with
Poisson sampling as the accountant has it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch

from client_app.engines import Engine
from hdpfl_flower.mechanism import RoundPlan
from hdpfl_flower.noise import ReleaseStreams, add_noise
from hdpfl_flower.task import Records


def train(
    engine: Engine,
    start: npt.NDArray[np.float32],
    records: Records,
    plan: RoundPlan,
    learning_rate: float,
    streams: ReleaseStreams,
    physical_batch: int,
) -> npt.NDArray[np.float32]:
    """Return the noisy update of one round, local − global, shape ``(d,)``.

    Args:
        engine: the model.
        start: the global model as one vector, float32, shape ``(d,)``.
        records: the site's records.
        plan: gives the steps, q, C, the noise and the divisor b.
        learning_rate: η.
        streams: the release's randomness, used up.
        physical_batch: records in memory at once; a batch larger than that is summed in parts.

    Guarantees:
        Each step is θ ← θ − (η/b)·(Σ clipped gradients + N(0, noise_std²)), also where the Poisson
        batch is empty. Steps, divisor and shapes do not depend on the records. The result is the
        composition of ``plan.steps`` Gaussian mechanisms and post-processing.
    """
    device, probability = engine.theta.device, plan.steps.sampling_prob
    features = torch.from_numpy(records.features).to(device)
    targets = torch.from_numpy(records.targets).to(device)
    begin = torch.from_numpy(start.copy()).to(device)
    engine.theta.copy_(begin)
    total = torch.empty_like(engine.theta)
    granule = granule_of(min(plan.divisor, physical_batch)) if engine.likes_equal_batches else 1
    with _exact_arithmetic(int.from_bytes(streams.sampling.bytes(7), "big")):
        for _ in range(plan.steps.count):
            rows = streams.sampling.bernoulli(len(records), probability)
            total.zero_()
            for first in range(0, len(rows), physical_batch):
                part = rows[first : first + physical_batch]
                place = torch.from_numpy(filled_up(part, granule)).to(device)
                x, y = features[place], targets[place]
                engine.add_clipped_sum(total, x, y, len(part), plan.clip_norm)
            noisy = add_noise(total, plan.noise_std, streams.noise)
            engine.theta.sub_(noisy, alpha=learning_rate / plan.divisor)
    update: npt.NDArray[np.float32] = (engine.theta - begin).cpu().numpy()
    return update


def granule_of(divisor: float) -> int:
    """Return the power of two, about b/16, that batch sizes in memory are multiples of.

    Convolution kernels are prepared anew for every batch size, and a Poisson batch has another
    size at every step.

    >>> granule_of(64), granule_of(5)
    (4, 1)
    """
    return int(2 ** max(0, math.floor(math.log2(divisor)) - 4))


def filled_up(rows: npt.NDArray[np.int64], granule: int) -> npt.NDArray[np.int64]:
    """Return ``rows`` with its first entry repeated, up to a multiple of ``granule``.

    >>> filled_up(np.array([7, 9, 11]), 2)
    array([ 7,  9, 11,  7])
    """
    missing = -len(rows) % granule
    return np.concatenate([rows, np.full(missing, rows[0])]) if missing else rows


def rehearsal_size(divisor: float, physical_batch: int) -> int:
    """Return a batch size that no Poisson batch in memory exceeds, but with probability 1e-14.

    Bernstein's inequality with variance ≤ b: t = L/3 + √(L²/9 + 2Lb), L = ln 1e14.
    """
    largest = min(physical_batch, math.ceil(divisor + 11 + math.sqrt(116 + 65 * divisor)))
    return largest + -largest % granule_of(min(divisor, physical_batch))


@contextlib.contextmanager
def _exact_arithmetic(seed: int) -> Iterator[None]:
    """Switch off TF32, bfloat16 and autocast, and seed torch's own generator, for dropout alone."""
    cudnn, mkldnn = torch.backends.cudnn, cast("Any", torch.backends.mkldnn)
    before = torch.get_float32_matmul_precision(), cudnn.allow_tf32, mkldnn.conv.fp32_precision
    torch.set_float32_matmul_precision("highest")  # on the CPU too, where it may mean bfloat16
    cudnn.allow_tf32, mkldnn.conv.fp32_precision = False, "ieee"
    try:
        with (
            torch.random.fork_rng(),
            torch.autocast("cuda", enabled=False),
            torch.autocast("cpu", enabled=False),
        ):
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        cudnn.allow_tf32, mkldnn.conv.fp32_precision = before[1:]

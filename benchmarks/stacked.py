"""Local SGD of many clients at once: ours (batched products) over ``torch.func`` (vmap of grad).

``torch.func.stack_module_state`` stacks the parameters of one model a client, and ``vmap`` of
``grad`` of ``functional_call`` takes a step of all of them; it stacks any model. Ours writes out
the forward and backward pass of linear layers and ReLUs. Both take the same batches of digits from
one function, and end at the same parameters. One thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch.func import functional_call, grad, stack_module_state, vmap

from benchmarks.timing import interleaved, show
from client_app.training.plain_sgd import LocalJob, network_for, shuffled_batches
from client_app.training.stacked_sgd import batch_of, stack_for
from hdpfl_flower.data.datasets import load_dataset
from hdpfl_flower.models.losses import total_loss
from hdpfl_flower.models.networks import build_model
from hdpfl_flower.models.task import Task
from hdpfl_flower.privacy.noise import RandomStream

RECORDS, BATCH, RATE, REPEATS, EPOCHS = 30, 10, 0.1, 3, 3
TOLERANCE = 1e-5


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    digits = load_dataset("digits", "")
    rows = []
    for model in ("logreg", "mlp:64"):
        for clients in (20, 100):
            jobs = _jobs(model, digits.task, clients)
            ours, theirs = _ours(model, digits.task, jobs), _vmapped(model, digits.task, jobs)
            apart = np.abs(np.stack(ours()) - np.stack(theirs())).max()
            if not apart < TOLERANCE:
                raise RuntimeError(f"{model}: the two end {apart} apart")
            alone = _alone(model, digits.task, jobs)
            variants = {"ours": ours, "torch.func": theirs, "alone": alone}
            times = interleaved(variants, REPEATS)
            seconds = times["ours"]
            ratios = [f"{times[name] / seconds:.2f}" for name in ("torch.func", "alone")]
            rows.append([model, str(clients), f"{1000 * seconds:.1f}", *ratios])
    columns = ["model", "clients", "ours, ms", "torch.func / ours", "one after another / ours"]
    show(f"Stacked SGD on digits: {RECORDS} records a client, batches of {BATCH}", columns, rows)


def _jobs(model: str, task: Task, clients: int) -> list[LocalJob]:
    """Return the clients' local SGD, each from the same start on records of its own."""
    data = load_dataset("digits", "").train
    start = network_for(model, task, "cpu").theta.numpy().copy()
    draws, jobs = np.random.default_rng(0), []
    for number in range(clients):
        records = data.take(draws.choice(len(data), RECORDS, replace=False))
        stream = RandomStream(bytes(30) + number.to_bytes(2, "big"))
        batches = tuple(shuffled_batches(RECORDS, BATCH, EPOCHS, 0, stream))
        jobs.append(LocalJob(start, records, batches))
    return jobs


def _ours(model: str, task: Task, jobs: Sequence[LocalJob]) -> Callable[[], list[np.ndarray]]:
    stack = stack_for(model, task, "cpu")
    if stack is None:
        raise RuntimeError(f"{model} is not stacked")
    return lambda: stack.train(jobs, RATE)


def _alone(model: str, task: Task, jobs: Sequence[LocalJob]) -> Callable[[], list[np.ndarray]]:
    network = network_for(model, task, "cpu")
    return lambda: [network.train(job, RATE) for job in jobs]


def _vmapped(model: str, task: Task, jobs: Sequence[LocalJob]) -> Callable[[], list[np.ndarray]]:
    """Return the same SGD by ``torch.func``; what can be prepared once is prepared here."""
    models = [build_model(model, task, seed=0).train() for _ in jobs]
    state, buffers = stack_module_state(models)
    base = build_model(model, task, seed=0).to("meta")
    shapes = {name: stacked.shape for name, stacked in state.items()}

    def loss(
        parameters: dict[str, torch.Tensor],
        buffers: dict[str, torch.Tensor],
        x: torch.Tensor,
        y: torch.Tensor,
        share: torch.Tensor,
    ) -> torch.Tensor:
        outputs = functional_call(base, (parameters, buffers), (x,))
        return total_loss(task, outputs, y) * share[0, 0]  # every batch has as many records

    step = vmap(grad(loss))

    def train() -> list[np.ndarray]:
        theta, own, begin = torch.from_numpy(np.stack([job.start for job in jobs])), {}, 0
        for name, shape in shapes.items():
            size = math.prod(shape[1:])
            own[name] = theta[:, begin : begin + size].view(shape)
            begin += size
        for number in range(len(jobs[0].batches)):
            x, y, shares = (torch.from_numpy(part) for part in batch_of(jobs, number))
            x = x.view(*x.shape[:2], *task.input_shape)
            for name, gradient in step(own, buffers, x, y, shares).items():
                own[name].sub_(gradient, alpha=RATE)
        return list(theta.numpy())

    return train

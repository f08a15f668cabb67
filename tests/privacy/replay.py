"""Record a site's work, and play it again on a neighbouring data set.

The proof that a mechanism is private compares two worlds, D and D ± one record, with the same
randomness and the same outputs so far. Here both worlds run the real ClientApp. The first is
recorded; in the second the batches are those of the first (but for the one record) and every
noisy sum is replaced by the recorded one. Then everything that the server can see must be the same,
bit by bit, and the sums before the noise must differ by at most C.

Any local protocol whose steps go through ``dpsgd.add_noise`` can be replayed.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import torch
from flwr.app import Array, Message

from hdpfl_flower import wire
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.engines import dpsgd
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.privacy.plan import Plan
from tests.client_app.messages import ask

SLACK = 1e-5
"""A sum of float32 gradients may pass C by this share of it."""
Rows = npt.NDArray[np.int64]


@dataclass
class Step:
    """One step of DP-SGD: what goes in, and what comes out of the noise."""

    count: int
    probability: float
    rows: Rows
    total: npt.NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    std: float = -1.0
    noisy: npt.NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))


@dataclass
class Observed:
    """What a site did in all rounds of a run.

    Attributes:
        steps: every step of every round, in order.
        replies: everything the server got, with every byte.
        ledger: the entries' kinds, in order, and the charged ε and δ.
        plan: the plan that was charged.
    """

    steps: list[Step]
    replies: list[dict[str, Any]]
    ledger: list[Any]
    plan: Plan


def same(rows: Rows) -> Rows:
    """Return the rows of a batch in data that hold the same records."""
    return rows


def observe(
    profile: Path,
    terms: RunTerms,
    like: Observed | None = None,
    rows_of: Callable[[Rows], Rows] = same,
    ask: Callable[..., Message] = ask,
) -> Observed:
    """Let the site answer every round of ``terms``, and watch.

    Args:
        profile: the site's.
        terms: the run's.
        like: an earlier observation whose outputs are to be frozen.
        rows_of: makes the rows of a batch from those that were drawn, or from the earlier ones.
        ask: sends the site its instructions.
    """
    steps: list[Step] = []
    with _watched(steps, like, rows_of):
        replies = [ask(profile, terms, number) for number in range(1, terms.rounds + 1)]
        replies += [ask(profile, terms, 1, kind) for kind in (wire.JOIN, wire.EVALUATE)]
        replies += [ask(profile, terms, terms.rounds, wire.FINISH)]
    kinds, plan = _ledger_of(profile.with_name("ledger.sqlite"))
    return Observed(steps, [_bytes_of(reply) for reply in replies], kinds, plan)


@contextlib.contextmanager
def _watched(
    steps: list[Step], like: Observed | None, rows_of: Callable[[Rows], Rows]
) -> Iterator[None]:
    draw, add = RandomStream.bernoulli, dpsgd.add_noise

    def bernoulli(stream: RandomStream, count: int, probability: float) -> Rows:
        rows = draw(stream, count, probability)
        if like is not None:
            assert len(steps) < len(like.steps), "a neighbour takes more steps"
            rows = like.steps[len(steps)].rows
        steps.append(Step(count, probability, rows_of(rows)))
        return steps[-1].rows

    def add_noise(total: torch.Tensor, std: float, stream: RandomStream) -> torch.Tensor:
        step = steps[-1]
        assert step.std == -1.0, "noise is added twice in a step, or a step draws no batch"
        step.total, step.std = total.cpu().numpy().copy(), std
        noisy = add(total, std, stream)
        if like is not None:
            noisy = torch.from_numpy(like.steps[len(steps) - 1].noisy.copy())
        step.noisy = noisy.cpu().numpy().copy()
        return noisy

    with (
        mock.patch.object(RandomStream, "bernoulli", bernoulli),
        mock.patch.object(dpsgd, "add_noise", add_noise),
    ):
        yield


def _ledger_of(path: Path) -> tuple[list[Any], Plan]:
    """Read the entries without our own code in between."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        rows = db.execute("SELECT kind, body FROM entries ORDER BY seq").fetchall()
    bodies = [(kind, json.loads(body)) for kind, body in rows]
    charged = [body for kind, body in bodies if kind == "plan"]
    assert len(charged) == 1, "one run, one plan"
    cost = charged[0]["epsilon"], charged[0]["delta"]
    return [*(kind for kind, _ in bodies), cost], Plan.from_json(charged[0]["plan"])


def _bytes_of(reply: Message) -> dict[str, Any]:
    """Return every byte of a reply that its sender chose."""
    if reply.has_error():
        return {"code": reply.error.code, "reason": reply.error.reason}
    found: dict[str, Any] = {}
    for key, record in reply.content.items():
        for name, value in record.items():
            is_array = isinstance(value, Array)
            content = (value.dtype, value.shape, value.stype, value.data) if is_array else value
            found[f"{type(record).__name__} {key}.{name}"] = content
        found.setdefault(f"{type(record).__name__} {key}", len(record))
    return found


def check_neighbours(first: Observed, second: Observed) -> None:
    """Fail where the server could tell the two worlds apart, or a sum moved by more than C."""
    assert len(first.steps) == sum(steps.count for steps in first.plan.steps)
    assert [(s.probability, s.std, s.total.shape) for s in first.steps] == [
        (s.probability, s.std, s.total.shape) for s in second.steps
    ]
    assert first.plan == second.plan
    assert first.ledger == second.ledger
    assert first.replies == second.replies
    clip_norm = first.steps[0].std / first.plan.noise_multiplier
    for number, (one, other) in enumerate(zip(first.steps, second.steps, strict=True)):
        moved = float(np.linalg.norm(one.total.astype(float) - other.total.astype(float)))
        bound = clip_norm * (1 + SLACK) if len(one.rows) != len(other.rows) else clip_norm * SLACK
        assert moved <= bound, f"step {number}: a record moves the sum by {moved / clip_norm:.6g} C"


def check_noise(observed: Observed, clip_norm: float, tail: float = 1e-9) -> None:
    """Fail where the noise is not that of the charged plan; false alarms below 10 × ``tail``.

    Looked at: its size against z·C of the ledger's plan, every step, its relation to the noise of
    the other steps and of other coordinates of its own step.
    """
    from scipy import stats

    assert all(step.std >= 0 for step in observed.steps), "a step was not noised"
    std = observed.plan.noise_multiplier * clip_norm
    noise = np.stack([step.noisy.astype(float) - step.total for step in observed.steps]) / std
    count, size = noise.shape
    low, high = (float(stats.chi2.ppf(p, noise.size)) for p in (tail, 1 - tail))
    squares = float((noise**2).sum())
    assert low < squares < high, f"the noise has {np.sqrt(squares / noise.size):.4f} of its std"
    of_each = (noise**2).sum(1)
    low, high = (float(stats.chi2.ppf(p, size)) for p in (tail / count, 1 - tail / count))
    assert np.all((low < of_each) & (of_each < high)), "a step has other noise than the plan's"
    # |Σ xy| of independent standard normals: Bernstein, as sub-exponential variables
    level = np.log(2 * (count**2 + count * size) / tail)
    limit = np.sqrt(2 * size * level) + 2 * level
    between = np.abs(np.triu(noise @ noise.T, 1))
    assert between.max() < limit, "two steps share noise"
    spectrum = np.fft.rfft(noise, 2 * size)
    within = np.abs(np.fft.irfft(np.abs(spectrum) ** 2)[:, 1:size])
    assert within.max() < limit, "parts of one step share noise"

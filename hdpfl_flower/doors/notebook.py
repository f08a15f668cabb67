"""Functions for a notebook: weights of one round's updates, and the audit of a private training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import AccountingError, EstimationError
from hdpfl_flower.privacy.audit import guesses_of
from hdpfl_flower.updates import RoundUpdates
from hdpfl_flower.weighting.inverse_variance import RobustHDPSettings
from hdpfl_flower.weighting.least_error import LeastError

DataT = TypeVar("DataT")
Floats = npt.NDArray[np.float64]
Trained = npt.NDArray[np.floating] | torch.Tensor | nn.Module | Sequence[npt.NDArray[np.floating]]
"""Result of a training: a vector, a list of arrays, or a model."""

FEWEST_RUNS = 40


def mmse_weights(
    updates: Mapping[str, npt.NDArray[np.floating]],
    *,
    records: Mapping[str, float] | None = None,
    rounds: int = 1,
) -> dict[str, float]:
    """Return the weights of the least mean squared error for one round's noisy updates.

    This is the rule of the strategy ``mmse``. It needs only the updates: it estimates each client's
    noise and the differences between clients, so that you give no variance.

    Args:
        updates: client → local model − global model, shape ``(d,)``, with the same d for all.
        records: client → its number of records, by which a mean without noise would weigh. None
            means that all clients count the same.
        rounds: rounds of the run. The bias of a weight stays in all of them, and its noise averages
            out.

    Returns:
        client → weight; they are not negative and sum to 1.

    Raises:
        EstimationError: there is no update, the shapes differ, a number is not finite, or the
            records of a client are not at least 1.

    >>> draw = np.random.default_rng(0)
    >>> signal = draw.normal(size=10_000)
    >>> noisy = {f"{s}": signal + s * draw.normal(size=10_000) for s in (1, 2, 4)}
    >>> {client: round(weight, 2) for client, weight in mmse_weights(noisy).items()}
    {'1': 0.75, '2': 0.18, '4': 0.07}
    """
    names = sorted(updates)
    shapes = {np.shape(updates[name]) for name in names}
    if len(shapes) != 1 or len(next(iter(shapes))) != 1 or rounds < 1:
        raise EstimationError(
            "updates must be vectors of one length, one per client, and rounds at least 1"
        )
    rows = np.stack([np.asarray(updates[name], np.float32) for name in names])
    if not np.isfinite(rows).all():
        raise EstimationError("an update has a number that is not finite; leave it out")
    disclosed = {}
    if records is not None:
        counts = np.array([float(records.get(name, np.nan)) for name in names])
        if not (np.isfinite(counts) & (counts >= 1)).all():
            raise EstimationError("records must be at least 1 for each client of updates")
        disclosed["declared-records"] = counts
    terms = RunTerms().updated(rounds=rounds, local_steps=1)
    rule = LeastError(terms, RobustHDPSettings(), is_final=True)
    round_updates = RoundUpdates(1, tuple(names), rows, disclosed)
    _, outcome = rule.combine(rule.initial_state(), round_updates)
    return dict(zip(names, outcome.weights.tolist(), strict=True))


@dataclass(frozen=True)
class AuditedEpsilon:
    """Lower bound on the ε of a training.

    Attributes:
        bound: the true ε at δ is below it with a probability of at most 1 − ``confidence``.
        estimate: without a margin of error.
        confidence: of the bound.
        delta: δ.
        runs: trainings on each of the two data sets.
    """

    bound: float
    estimate: float
    confidence: float
    delta: float
    runs: int


def audit(
    train: Callable[[DataT], Trained],
    data: DataT,
    neighbour: DataT,
    *,
    delta: float,
    runs: int = 400,
    confidence: float = 0.95,
) -> AuditedEpsilon:
    """Return a lower bound on the ε of ``train`` from an attack that tells two data sets apart.

    The audit trains ``runs`` times on each data set. The first half of the trainings chooses the
    direction in which their results differ most, and the threshold between them. With these the
    attack guesses the data set of each training in the second half. The rates of both kinds of
    error, with exact bounds (Clopper and Pearson), give the bound on ε (Kairouz, Oh and Viswanath,
    ICML 2015, Theorem 2.1). A bound above the claimed ε refutes the claim. A bound below it proves
    nothing, because another pair of data sets or another attack may show more. With n guessed
    trainings on each data set the bound cannot exceed about log(n/4): 3.9 for 400 runs.

    Args:
        train: the training, with fresh noise in each call.
        data: an argument of ``train``.
        neighbour: another argument of ``train``, with one record (or client) more or less; choose
            an extreme one.
        delta: δ of the claim.
        runs: number of trainings on each data set, at least 40.
        confidence: confidence of the bound.

    Raises:
        AccountingError: there are too few runs, a number is out of its range, the results have
            different sizes, or a result is not finite.
    """
    if runs < FEWEST_RUNS or not 0 < confidence < 1 or not 0 <= delta < 1:
        raise AccountingError(
            f"audit: take at least {FEWEST_RUNS} runs, a confidence in (0, 1) and a delta in [0, 1)"
        )
    without, within = ([_vector(train(given)) for _ in range(runs)] for given in (data, neighbour))
    if len({len(result) for result in (*without, *within)}) != 1:
        raise AccountingError("audit: the results of two trainings have different sizes")
    results = np.array([without, within])
    if not np.isfinite(results).all():
        raise AccountingError("audit: a result has a number that is not finite")
    half = runs // 2
    first, second = results[:, :half], results[:, half:]
    spread = first.std(axis=1).mean(axis=0)
    difference = first[1].mean(axis=0) - first[0].mean(axis=0)
    # Fisher's direction with a diagonal covariance; a coordinate without noise decides alone.
    direction = np.divide(difference, spread**2, out=np.sign(difference) * 1e30, where=spread > 0)
    scores = second @ (direction / max(float(np.linalg.norm(direction)), 1e-300))
    trial = first @ (direction / max(float(np.linalg.norm(direction)), 1e-300))
    members = np.broadcast_to(np.array([[False], [True]]), scores.shape)
    of_trial = np.broadcast_to(np.array([[False], [True]]), trial.shape)
    error_rate = 1 - confidence
    cuts = np.quantile(trial, np.linspace(0.02, 0.98, 49))
    bounds = [
        guesses_of(trial, of_trial, float(cut), gaussian=False).epsilon_bound(delta, error_rate)
        for cut in cuts
    ]
    guesses = guesses_of(scores, members, float(cuts[int(np.argmax(bounds))]), gaussian=False)
    return AuditedEpsilon(
        guesses.epsilon_bound(delta, error_rate), guesses.epsilon(delta), confidence, delta, runs
    )


def _vector(result: Any) -> Floats:
    """Return a training's result as one vector, float64."""
    if isinstance(result, nn.Module):
        result = [value.detach().cpu().numpy() for value in result.state_dict().values()]
    if isinstance(result, torch.Tensor):
        result = result.detach().cpu().numpy()
    if isinstance(result, list | tuple):
        return np.concatenate([np.asarray(array, np.float64).ravel() for array in result])
    return np.asarray(result, np.float64).ravel()

"""Home model: the best that a site reaches on its own records without noise, never sent.

It is the control of every promise of a federation, so it must be a fair opponent: a penalised
linear model (``linear_model.py``), or the run's network by plain SGD where that is surely better.
Rate, epochs and penalty are chosen by cross-validation inside its training records alone: what it
is tested on takes no part in that choice, so that its figures are not too good.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from client_app.training.plain_sgd import LocalJob, Network, Vector, network_for, shuffled_batches
from client_app.worth.linear_model import (
    STRENGTHS,
    Predict,
    better_than_first,
    fit_linear,
    has_linear,
    linear_losses,
)
from hdpfl_flower.errors import DataError
from hdpfl_flower.models.evaluation import measures, predict
from hdpfl_flower.models.networks import Arrays, arrays_of, build_model, flatten, unflatten
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.privacy.noise import ReleaseStreams

RATES = (0.01, 0.03, 0.1, 0.3, 1.0)
"""Learning rates that are tried beside the run's own."""
INNER_FOLDS = 5
ENOUGH = 1000
"""Records on which a choice is tested; further inner folds would make it no better."""
MOST_EPOCHS = 64
_PATIENCE = 2
"""Tests without a better loss, each after twice the epochs of the one before, that end a rate."""

Tick = Callable[[], None]
"""Called after each piece of work of :func:`pieces`."""


@dataclass(frozen=True)
class HomeTraining:
    """How a site trains at home.

    Attributes:
        spec: the run's model.
        task: of the run.
        device: a torch device.
        batch_size: rows of a step.
        rates: learning rates to choose from, at least one.
        most_epochs: of a training.
        seed: of the first parameters, the order of the records and the folds.
    """

    spec: str
    task: Task
    device: str
    batch_size: int
    rates: tuple[float, ...]
    most_epochs: int
    seed: int

    @property
    def is_linear(self) -> bool:
        """Whether the run's own model is the linear one."""
        return self.spec == "logreg" and not self.task.intervals

    @property
    def layout(self) -> Arrays:
        """The parameters that every training starts from."""
        return arrays_of(build_model(self.spec, self.task, self.seed))


def rates_beside(rate: float) -> tuple[float, ...]:
    """Return the candidate rates, the run's own among them.

    >>> rates_beside(0.05)
    (0.01, 0.03, 0.05, 0.1, 0.3, 1.0)
    """
    return tuple(sorted({*RATES, rate}))


def folds_of(groups: npt.NDArray[np.int64], folds: int, seed: int) -> npt.NDArray[np.int64]:
    """Return the fold of each record, 0 to ``folds`` - 1, shape ``(n,)``; no group is split.

    Args:
        groups: shape ``(n,)``.
        folds: at most as many are used as there are groups; the groups are spread evenly.
        seed: of the order of the groups.
    """
    members, number = np.unique(groups, return_inverse=True)
    place = np.random.default_rng(seed).permutation(len(members))
    fold: npt.NDArray[np.int64] = (place % max(1, min(folds, len(members))))[number]
    return fold


def pieces(home: HomeTraining) -> int:
    """Return the number of ticks of one :func:`train_at_home`, at most."""
    return INNER_FOLDS * len(home.rates) + 1


def home_pieces(home: HomeTraining) -> int:
    """Return the number of ticks of one :func:`home_predictor`, at most."""
    linear = 0 if home.task.intervals else INNER_FOLDS * len(STRENGTHS)
    return linear + (0 if home.is_linear else pieces(home))


def home_predictor(
    home: HomeTraining, records: Records, groups: npt.NDArray[np.int64], tick: Tick
) -> Predict:
    """Return the predictor of the home model; arguments and errors as :func:`train_at_home`.

    Linear, unless the run's model is another one whose loss in the same inner folds is surely
    lower (``better_than_first``).
    """

    def network(arrays: Arrays) -> Predict:
        return lambda features: predict(home.spec, home.task, arrays, features)

    if not len(records) or not has_linear(home.task, records):
        return network(train_at_home(home, records, groups, tick))
    folds = _inner_folds(home, groups)
    strength, losses = linear_losses(home.task, records, folds, tick) if folds else (
        STRENGTHS[0], np.zeros(0)
    )  # fmt: skip
    if not np.isfinite(losses).all():
        return network(train_at_home(home, records, groups, tick))
    linear = fit_linear(home.task, records, strength)
    if home.is_linear or not folds:
        return linear
    choice = _choice(home, records, groups, tick)
    sizes = np.array([len(test) for _, test in folds], np.float64)
    if not better_than_first(np.stack([losses, choice.losses]), sizes):
        return linear
    return network(_trained(home, records, choice, tick))


def train_at_home(
    home: HomeTraining, records: Records, groups: npt.NDArray[np.int64], tick: Tick
) -> Arrays:
    """Return the home model: rate and epochs chosen, trained on ``records``.

    Args:
        home: how.
        records: to train on.
        groups: of each record, shape ``(n,)``; a choice is never tested on a group it trained on.
        tick: called :func:`pieces` times at most.

    Raises:
        DataError: there is no record, or no rate ends in finite numbers.
    """
    if not len(records):
        raise DataError("no record is left to train the site's own model on; see 'profile check'")
    return _trained(home, records, _choice(home, records, groups, tick), tick)


@dataclass(frozen=True)
class _Choice:
    """Rate and epochs, and their loss in each inner fold."""

    rate: float
    epochs: int
    losses: npt.NDArray[np.float64]


def _trained(home: HomeTraining, records: Records, choice: _Choice, tick: Tick) -> Arrays:
    run = _Training(home, records, choice.rate)
    run.up_to(choice.epochs)
    tick()
    return run.arrays


def _inner_folds(
    home: HomeTraining, groups: npt.NDArray[np.int64]
) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Return the rows to train and to test on of each inner fold; none for one group."""
    fold, found, tested = folds_of(groups, INNER_FOLDS, home.seed), [], 0
    for number in range(int(fold.max()) + 1 if len(fold) and fold.max() else 0):
        if tested >= ENOUGH:
            break
        test = np.flatnonzero(fold == number)
        found.append((np.flatnonzero(fold != number), test))
        tested += len(test)
    return found


def _choice(
    home: HomeTraining, records: Records, groups: npt.NDArray[np.int64], tick: Tick
) -> _Choice:
    """Return the rate and epochs of the least out-of-sample loss."""
    folds, stops = _inner_folds(home, groups), _stops(home.most_epochs)
    if not folds:  # one group: nothing to test a choice on
        return _Choice(home.rates[len(home.rates) // 2], stops[len(stops) // 2], np.zeros(0))
    losses = np.empty((len(folds), len(home.rates), len(stops)))
    for place, (rows, held) in enumerate(folds):
        inner, test = records.take(rows), records.take(held)
        for row, rate in enumerate(home.rates):
            losses[place, row] = _losses(home, inner, test, rate, stops)
            tick()
    total = np.tensordot(np.array([float(len(held)) for _, held in folds]), losses, 1)
    best = int(np.argmin(total))
    if not math.isfinite(total.flat[best]):
        raise DataError(
            "the site's own model diverges at every learning rate; lower the run's 'learning-rate'"
        )
    row, stop = divmod(best, len(stops))
    return _Choice(home.rates[row], stops[stop], losses[:, row, stop])


def _losses(
    home: HomeTraining, records: Records, test: Records, rate: float, stops: Sequence[int]
) -> list[float]:
    """Return the mean loss on ``test`` after each number of epochs; infinite once given up."""
    run, found = _Training(home, records, rate), [math.inf] * len(stops)
    for place, epochs in enumerate(stops):
        run.up_to(epochs)
        outputs = predict(home.spec, home.task, run.arrays, test.features)
        loss = measures(home.task, outputs, test.targets)["loss"]
        if not math.isfinite(loss):
            break
        found[place] = loss
        if place - int(np.argmin(found)) >= _PATIENCE:
            break
    return found


def _stops(most: int) -> list[int]:
    """Return the numbers of epochs that are tested.

    >>> _stops(10)
    [1, 2, 4, 8, 10]
    """
    return [*(2**power for power in range(most.bit_length()) if 2**power < most), most]


class _Training:
    """Plain SGD with tests on its way, seeded."""

    def __init__(self, home: HomeTraining, records: Records, rate: float) -> None:
        self._home, self._records, self._rate = home, records, rate
        self._like, self._done = home.layout, 0
        self._theta: Vector = flatten(self._like)
        self._order = ReleaseStreams.simulated(home.seed, "home", 0, "worth").sampling

    def up_to(self, epochs: int) -> None:
        """Train until ``epochs`` are done."""
        home = self._home
        batches = shuffled_batches(
            len(self._records), home.batch_size, epochs - self._done, 0, self._order
        )
        network: Network = network_for(home.spec, home.task, home.device)
        # Torch's own generator is for dropout alone.
        with torch.random.fork_rng():
            torch.manual_seed(home.seed + self._done)
            job = LocalJob(self._theta, self._records, tuple(batches))
            self._theta = network.train(job, self._rate)
        self._done = epochs

    @property
    def arrays(self) -> Arrays:
        """The parameters so far."""
        return unflatten(self._theta, self._like)

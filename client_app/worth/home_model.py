"""Home model: plain SGD on the site's records, never sent.

It is the control of every promise of a federation, so it must not lose by a bad rate: the learning
rate and the number of epochs are chosen for it, by cross-validation inside its training records
alone. What it is tested on takes no part in that choice, so that its figures are not too good.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from client_app.training.plain_sgd import LocalJob, Network, Vector, network_for, shuffled_batches
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
    rate, epochs = _choice(home, records, groups, tick)
    run = _Training(home, records, rate)
    run.up_to(epochs)
    tick()
    return run.arrays


def _choice(
    home: HomeTraining, records: Records, groups: npt.NDArray[np.int64], tick: Tick
) -> tuple[float, int]:
    """Return the rate and epochs of the least out-of-sample loss."""
    fold = folds_of(groups, INNER_FOLDS, home.seed)
    stops = _stops(home.most_epochs)
    if fold.max() == 0:  # one group: nothing to test a choice on
        return home.rates[len(home.rates) // 2], stops[len(stops) // 2]
    losses, tested = np.zeros((len(home.rates), len(stops))), 0
    for number in range(int(fold.max()) + 1):
        if tested >= ENOUGH:
            break
        inner = records.take(np.flatnonzero(fold != number))
        test = records.take(np.flatnonzero(fold == number))
        tested += len(test)
        for row, rate in enumerate(home.rates):
            losses[row] += len(test) * np.array(_losses(home, inner, test, rate, stops))
            tick()
    best = int(np.argmin(losses))
    if not math.isfinite(losses.flat[best]):
        raise DataError(
            "the site's own model diverges at every learning rate; lower the run's 'learning-rate'"
        )
    return home.rates[best // len(stops)], stops[best % len(stops)]


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

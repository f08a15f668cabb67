"""Home model: the best that a site reaches on its own records without noise, never sent.

It is the control of every promise of a federation, so it must be a fair opponent. scikit-learn
fits penalised logistic regression, ridge regression for numbers, and for survival the logistic
regression of the event on features and interval, a row for each interval at risk (Singer and
Willett, J. Educ. Stat. 1993). If the run's model is not linear, a network with hidden layers is
tried beside it.

The usual penalty is kept unless cross-validation finds another model better by more than two
standard errors of the difference: a choice on few records then jumps from fold to fold no more
than its gain is certain. The choice is made inside the training records alone, so that test
records take no part in it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hdpfl_flower.errors import DataError
from hdpfl_flower.models.evaluation import measures
from hdpfl_flower.models.task import Records, Task
from hdpfl_tools.measures.clinical import Statistic
from hdpfl_tools.site.worth.candidates import CONSTANT, HOME, Kind, Outputs, Predict, constant
from hdpfl_tools.site.worth.comparison import statistic_of
from hdpfl_tools.site.worth.constant import constant_outputs
from hdpfl_tools.tables.site_data import UnitRecords

STRENGTHS = (1.0, 0.01, 0.1, 10.0, 100.0)
"""Candidate C of a linear model, the usual one first."""
NETWORK_STRENGTHS = (1.0, 0.1, 10.0)
"""Candidate 1/α of a network."""
WIDTH = 64
"""Hidden units where the run's model names none."""
SURE = 2.0
INNER_FOLDS = 5
ENOUGH = 1000
"""Records on which a choice is tested; further inner folds would make it no better."""
_MOST_STEPS = 2000
_SMALL = 1_000_000
"""Numbers of all records below which one thread fits faster than several."""
_TINY = 1e-12
"""Least predicted probability of a class."""

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]
Tick = Callable[[], None]
"""Called after each fit, to show progress."""
Train = Callable[[Records, Rows, int], Predict]
"""Records, the group of each and the number of the fold → the model's outputs."""


@dataclass(frozen=True)
class HomeTraining:
    """How a site trains at home.

    Attributes:
        spec: the run's model.
        task: of the run.
        seed: of the folds, and of a network's first weights.
    """

    spec: str
    task: Task
    seed: int

    @property
    def estimators(self) -> list[Any]:
        """scikit-learn estimators to choose from, the usual one first."""
        from sklearn.linear_model import LogisticRegression, Ridge
        from sklearn.neural_network import MLPClassifier, MLPRegressor

        numbers = self.task.loss == "squared"
        linear: list[Any] = [
            Ridge(alpha=1 / c) if numbers else LogisticRegression(C=c, max_iter=_MOST_STEPS)
            for c in STRENGTHS
        ]
        if self.spec == "logreg":
            return linear
        network, (kind, *widths) = MLPRegressor if numbers else MLPClassifier, self.spec.split(":")
        layers = tuple(map(int, widths)) if kind == "mlp" and widths else (WIDTH,)
        return linear + [
            network(
                hidden_layer_sizes=layers,
                solver="lbfgs",
                alpha=1 / c,
                max_iter=200,
                random_state=self.seed,
            )
            for c in NETWORK_STRENGTHS
        ]

    @property
    def fits(self) -> int:
        """Ticks of one :func:`home_predictor`, at most."""
        return INNER_FOLDS * len(self.estimators) + 1


def folds_of(groups: Rows, folds: int, seed: int) -> Rows:
    """Return the fold of each record, 0 to ``folds`` - 1, shape ``(n,)``; no group is split.

    Args:
        groups: shape ``(n,)``.
        folds: at most as many are used as there are groups; the groups are spread evenly.
        seed: of the order of the groups.
    """
    members, number = np.unique(groups, return_inverse=True)
    place = np.random.default_rng(seed).permutation(len(members))
    fold: Rows = (place % max(1, min(folds, len(members))))[number]
    return fold


def out_of_fold(every: UnitRecords, folds: int, seed: int, outputs: int, train: Train) -> Outputs:
    """Return out-of-fold predictions of all records, shape ``(n, outputs)``.

    Args:
        every: the records; one of each unit is trained on, and all are predicted.
        folds: 2 or more; a unit, and records of the same content, lie in one fold.
        seed: of the folds.
        outputs: of a model for a record.
        train: called once a fold.

    Raises:
        DataError: there are fewer units than two.
    """
    records, fold = every.records, folds_of(every.copies, folds, seed)
    if not len(fold) or fold.max() == 0:
        raise DataError("cross-validation needs records of at least two units")
    predicted = np.empty((len(records), outputs), np.float32)
    for number in range(int(fold.max()) + 1):
        rows, test = np.flatnonzero((fold != number) & every.first), np.flatnonzero(fold == number)
        predict = train(records.take(rows), every.copies[rows], number)
        predicted[test] = predict(records.features[test])
    return predicted


def references(
    home: HomeTraining, every: UnitRecords, folds: int, tick: Tick
) -> dict[str, tuple[Kind, Statistic]]:
    """Return constant and home model for a comparison, predicted by :func:`out_of_fold`.

    Its arguments and errors; ``tick`` is called ``folds · home.fits`` times at most.
    """
    trained: dict[str, Train] = {
        CONSTANT: lambda records, *_: constant(home.task, records.targets).predict,
        HOME: lambda records, groups, _: home_predictor(home, records, groups, tick),
    }
    return {
        name: ("none", statistic_of(home.task, outputs, every.records, name))
        for name, train in trained.items()
        for outputs in [out_of_fold(every, folds, home.seed, home.task.outputs, train)]
    }


def home_predictor(home: HomeTraining, records: Records, groups: Rows, tick: Tick) -> Predict:
    """Return the predictor of the home model: chosen, then fitted to all ``records``.

    Args:
        home: how.
        records: to train on.
        groups: of each record, shape ``(n,)``; a choice is never tested on a group it trained on.
        tick: called ``home.fits`` times at most.

    Raises:
        DataError: there is no record.
    """
    if not len(records):
        raise DataError(
            "no record is left on which to train the site's own model; see: hdpfl-site "
            "profile check"
        )
    estimators, folds = home.estimators, _inner_folds(groups, home.seed)
    losses = np.zeros((len(estimators), len(folds)))
    for column, (inner, test) in enumerate(folds):
        tested = records.take(test)
        for row, estimator in enumerate(estimators):
            outputs = fit(home.task, estimator, records.take(inner))(tested.features)
            losses[row, column] = measures(home.task, outputs, tested.targets)["loss"]
            tick()
    best = better_than_first(losses, np.array([len(test) for _, test in folds], np.float64))
    tick()
    return fit(home.task, estimators[best], records)


def _inner_folds(groups: Rows, seed: int) -> list[tuple[Rows, Rows]]:
    """Return the rows to train and to test on of each inner fold; none for one group."""
    fold, folds, tested = folds_of(groups, INNER_FOLDS, seed), [], 0
    for number in range(int(fold.max()) + 1 if fold.max() else 0):
        if tested >= ENOUGH:
            break
        test = np.flatnonzero(fold == number)
        folds.append((np.flatnonzero(fold != number), test))
        tested += len(test)
    return folds


def better_than_first(losses: Floats, sizes: Floats) -> int:
    """Return the candidate that surely beats the first one; else 0.

    Args:
        losses: of each candidate in each fold, shape ``(k, folds)``.
        sizes: records of each fold.

    Returns:
        That of the least mean loss, if the first one's is ``SURE`` standard errors above it.

    >>> better_than_first(np.array([[1.0, 1.1, 1.2], [0.9, 1.2, 1.0]]), np.ones(3))
    0
    >>> better_than_first(np.array([[1.0, 1.1, 1.2], [0.8, 0.9, 1.05]]), np.ones(3))
    1
    """
    if not len(sizes):
        return 0
    shares = sizes / sizes.sum()
    means = np.where(np.isfinite(losses), losses, np.inf) @ shares
    best = int(np.argmin(means))
    if best == 0 or not np.isfinite(means[0]):
        return best
    if len(sizes) < 2:
        return 0
    gains = losses[0] - losses[best]
    error = np.sqrt(shares @ (gains - shares @ gains) ** 2 / (len(sizes) - 1))
    return best if shares @ gains > SURE * error else 0


def fit(task: Task, estimator: Any, records: Records) -> Predict:
    """Return the predictor of ``estimator``, fitted to ``records``.

    Args:
        task: of the records.
        estimator: of scikit-learn; left as it is.
        records: at least one.
    """
    x, targets, number = _flat(records.features), records.targets, task.intervals
    if task.classes:
        classify = _classifier(task, estimator, x, targets.astype(np.int64))
        return lambda features: classify(_flat(features))
    if not number:
        model = _fitted(estimator, x, targets.astype(np.float64))
        return lambda features: model.predict(_flat(features))[:, None].astype(np.float32)
    last, event = targets.astype(np.int64) // 2, targets % 2 == 1
    rows, intervals = np.nonzero(np.arange(number) <= last[:, None])
    happens = (event[rows] & (intervals == last[rows])).astype(np.int64)
    at_risk = _at_risk(x[rows], intervals, number)
    hazard = _classifier(Task.classification((at_risk.shape[1],), 2), estimator, at_risk, happens)

    def predict(features: npt.NDArray[np.float32]) -> Outputs:
        flat, ones = _flat(features), np.ones(len(features), np.int64)
        return np.hstack([hazard(_at_risk(flat, k * ones, number)) for k in range(number)])

    return predict


def _at_risk(x: Floats, intervals: npt.NDArray[np.int64], number: int) -> Any:
    """Return sparse features, for all intervals and for each of them, with its baseline."""
    from scipy.sparse import csr_matrix, hstack

    width = x.shape[1] + 1
    values, starts = np.hstack([x, np.ones((len(x), 1))]), width * np.arange(len(x) + 1)
    columns = (width * intervals[:, None] + np.arange(width)).ravel()
    of_interval = csr_matrix((values.ravel(), columns, starts), (len(x), width * number))
    return hstack([csr_matrix(x), of_interval], format="csr")


def _classifier(
    task: Task, estimator: Any, x: Any, targets: npt.NDArray[np.int64]
) -> Callable[[Any], Outputs]:
    """Return the fitted logits of the classes; an absent class keeps the constant's share."""
    present, rest = np.unique(targets), constant_outputs(task, targets)
    if len(present) < 2:
        return lambda x: np.tile(rest, (x.shape[0], 1))
    weights = np.array(task.class_weights)[targets] if task.class_weights else None
    model = _fitted(estimator, x, targets, weights)

    def classify(x: Any) -> Outputs:
        logits = np.log(np.clip(model.predict_proba(x), _TINY, 1))
        if task.outputs == 1:
            logits = logits[:, 1:] - logits[:, :1]
            return np.asarray(logits, np.float32)
        outputs = np.tile(rest, (len(logits), 1))
        outputs[:, present] = logits + np.logaddexp.reduce(rest[present])
        return outputs

    return classify


def _fitted(estimator: Any, x: Any, targets: npt.NDArray[Any], weights: Any = None) -> Any:
    from sklearn import clone
    from threadpoolctl import threadpool_limits

    more = {} if weights is None else {"sample_weight": weights}
    # Small products are shared out at a loss: threads then wait for one another.
    threads = threadpool_limits(1 if x.size < _SMALL else None)
    with threads, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a solver that stops near the optimum
        return clone(estimator).fit(x, targets, **more)


def _flat(features: npt.NDArray[np.floating]) -> Floats:
    flat: Floats = features.reshape(len(features), -1).astype(np.float64)
    return flat

"""Noise-aware weights around a strategy of Flower's.

Flower's FedAvg, FedAvgM, FedProx, FedAdagrad, FedAdam and FedYogi take a mean of the replies,
weighted by a number that each reply states. :class:`NoiseAware` replaces that number by a weight
that it computes from the noise of the replies themselves; all else is the wrapped strategy's.

Threat model: that of ``mmse``: the server learns the replies alone. A client may overstate its
number of examples, which counts for at most 10 times the median. A client may also send less noise
than it should and gain weight by it: the strategies of this package have guards against that, this
wrapper has none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    Bulyan,
    FedAvg,
    FedMedian,
    FedTrimmedAvg,
    Krum,
    MultiKrum,
    QFedAvg,
    Result,
    Strategy,
)

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import HDPFLError, StrategyError
from hdpfl_flower.updates import RoundUpdates
from hdpfl_flower.weighting.inverse_variance import (
    InverseVariance,
    RobustHDPSettings,
)
from hdpfl_flower.weighting.least_error import LeastError

log = logging.getLogger("hdpfl.server")

WEIGHTS: Mapping[str, Callable[[RunTerms], LeastError | InverseVariance]] = {
    "mmse": lambda terms: LeastError(terms, RobustHDPSettings(), by_row=False, is_final=True),
    "robust-hdp": lambda terms: InverseVariance(terms, RobustHDPSettings()),
}
"""Rules of this package by whose weights :class:`NoiseAware` averages."""
_NO_MEANS = (Bulyan, FedMedian, FedTrimmedAvg, Krum, MultiKrum, QFedAvg)
"""Flower's strategies that do not aggregate by the weights of the replies."""


class NoiseAware(Strategy):
    """A strategy of Flower whose weights come from estimated noise.

    The weights are computed from the arrays of floats. An array of whole numbers or truth values,
    such as ``num_batches_tracked`` of BatchNorm, becomes the largest one of the used replies. Every
    array of the next model keeps the type and shape of the last model, whatever the wrapped
    strategy returns.

    >>> from flwr.serverapp.strategy import FedAdam
    >>> strategy = NoiseAware(FedAdam())

    Attributes:
        strategy: the wrapped strategy.
        weights: node id → its weight in the last round; the weights sum to 1.
        noise: node id → σ̂, the standard deviation of the noise in each coordinate of its update.
    """

    def __init__(self, strategy: FedAvg, weights: str = "mmse") -> None:
        """Wrap ``strategy``.

        Args:
            strategy: FedAvg, or a subclass that aggregates by ``weighted_by_key``.
            weights: ``mmse`` (the least mean squared error of the mean by examples), or
                ``robust-hdp`` (inverse variances).

        Raises:
            StrategyError: the strategy takes no weighted mean, or the weights are not known.
        """
        if not isinstance(strategy, FedAvg) or isinstance(strategy, _NO_MEANS):
            raise StrategyError(
                f"NoiseAware: {type(strategy).__name__} does not take a weighted mean of the "
                "replies; wrap FedAvg, FedAvgM, FedProx, FedAdagrad, FedAdam or FedYogi"
            )
        if weights not in WEIGHTS:
            raise StrategyError(
                f"NoiseAware: weights '{weights}' are not known; choose {' or '.join(WEIGHTS)}"
            )
        self.strategy = strategy
        self.weights: dict[int, float] = {}
        self.noise: dict[int, float] = {}
        self._name, self._start = weights, ArrayRecord()
        self._begin(num_rounds=3)

    def _begin(self, num_rounds: int) -> None:
        self._weighting = WEIGHTS[self._name](RunTerms(rounds=num_rounds))
        self._state: Any = self._weighting.initial_state()

    def start(self, grid: Grid, initial_arrays: ArrayRecord, *args: Any, **kwargs: Any) -> Result:
        """Run the rounds with the arguments of Flower's ``Strategy.start``."""
        num_rounds = kwargs.get("num_rounds", args[0] if args else 3)
        self._begin(num_rounds)
        return super().start(grid, initial_arrays, *args, **kwargs)

    def summary(self) -> None:
        """Log the wrapped strategy's summary."""
        log.info("weights by estimated noise: %s", self._name)
        self.strategy.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the wrapped strategy's messages and keep their model."""
        self._start = arrays
        return self.strategy.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the wrapped strategy's aggregate, weighted by noise.

        A reply whose arrays differ from the model's, or are not finite, is left out and logged.
        If the noise cannot be estimated, the replies keep their own weights.

        Raises:
            StrategyError: every reply with content is left out.
        """
        replies = sorted(replies, key=lambda reply: reply.metadata.src_node_id)
        read = [(reply, self._update_of(reply)) for reply in replies if reply.has_content()]
        usable = [(reply, update) for reply, update in read if update is not None]
        for reply, update in read:
            if update is None:
                log.warning(
                    "round %d: the reply of node %d is left out, because its arrays differ "
                    "from the model's or are not finite",
                    server_round,
                    reply.metadata.src_node_id,
                )
        if read and not usable:
            raise StrategyError(
                f"NoiseAware: round {server_round}: every reply is left out, because its arrays "
                "differ from the model's or are not finite; return the model's state dict, "
                "with its types and shapes"
            )
        if usable:
            self._weigh(server_round, usable)
        counters = self._whole_numbers([reply for reply, _ in usable])
        for reply, _ in usable:
            for record in reply.content.array_records.values():
                record.update({name: Array(array) for name, array in counters.items()})
        errors = [reply for reply in replies if not reply.has_content()]
        aggregate, metrics = self.strategy.aggregate_train(
            server_round, [*(reply for reply, _ in usable), *errors]
        )
        return self._in_form(aggregate, counters), metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the wrapped strategy's messages."""
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the wrapped strategy's metrics."""
        return self.strategy.aggregate_evaluate(server_round, replies)

    def _whole_numbers(self, replies: list[Message]) -> dict[str, npt.NDArray[Any]]:
        """Return the largest of the replies, for each array that holds no floats."""
        if not replies:
            return {}
        records = [next(iter(reply.content.array_records.values())) for reply in replies]
        return {
            name: np.asarray(np.max([record[name].numpy() for record in records], axis=0))
            for name, before in self._start.items()
            if not _is_floating(before)
        }

    def _in_form(
        self, aggregate: ArrayRecord | None, counters: Mapping[str, npt.NDArray[Any]]
    ) -> ArrayRecord | None:
        """Return the aggregate in the model's types and shapes."""
        if aggregate is None:
            return None
        return ArrayRecord(
            {
                name: Array(
                    np.asarray(counters.get(name, aggregate[name].numpy()))
                    .astype(before.dtype)
                    .reshape(tuple(before.shape))
                )
                for name, before in self._start.items()
            }
        )

    def _update_of(self, reply: Message) -> npt.NDArray[np.float32] | None:
        """Return local − global, shape ``(d,)``; None if not usable."""
        records = list(reply.content.array_records.values())
        if len(records) != 1 or list(records[0]) != list(self._start):
            return None
        parts = []
        for name, before in self._start.items():
            after = records[0][name]
            if after.dtype != before.dtype or tuple(after.shape) != tuple(before.shape):
                return None
            if _is_floating(before):
                # In float64: a difference of float16 would overflow or lose its digits.
                moved = after.numpy().astype(np.float64) - before.numpy()
                parts.append(np.asarray(moved).ravel())
        update = np.concatenate(parts).astype(np.float32) if parts else np.zeros(0, np.float32)
        return update if len(update) and np.isfinite(update).all() else None

    def _weigh(
        self, server_round: int, usable: list[tuple[Message, npt.NDArray[np.float32]]]
    ) -> None:
        """Write each reply's weight in place of its examples."""
        nodes = [reply.metadata.src_node_id for reply, _ in usable]
        examples = np.array([_number(reply, self.strategy.weighted_by_key) for reply, _ in usable])
        updates = RoundUpdates(
            server_round,
            tuple(map(str, nodes)),
            np.stack([update for _, update in usable]),
            {"declared-records": examples},
        )
        try:
            self._state, outcome = self._weighting.combine(self._state, updates)
        except HDPFLError as reason:
            log.warning("round %d: weights by examples: %s", server_round, reason)
            return
        self.weights = dict(zip(nodes, outcome.weights.tolist(), strict=True))
        measured = np.asarray(outcome.gauges["noise_std"], dtype=np.float64)
        self.noise = dict(zip(nodes, measured.tolist(), strict=True))
        for reply, _ in usable:
            for record in reply.content.metric_records.values():
                record[self.strategy.weighted_by_key] = self.weights[reply.metadata.src_node_id]


def _is_floating(array: Array) -> bool:
    """Return whether an array holds floats, which a mean is taken of."""
    return bool(np.issubdtype(np.dtype(array.dtype), np.floating))


def _number(reply: Message, key: str) -> float:
    """Return a reply's number of examples, or NaN."""
    for record in reply.content.metric_records.values():
        value = record.get(key)
        if isinstance(value, int | float) and value >= 1:
            return float(value)
    return float("nan")

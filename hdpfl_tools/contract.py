"""Contract suite: checks of any strategy, for tests and a command.

``hdpfl check my_strategies:TrimmedMean`` runs every check of :data:`CHECKS` and prints a line a
check. A strategy declares two properties (``declare``), which the checks require:

* *linear* (``is_weighted_sum``): every update is ``Outcome.scale``·Σᵢ wᵢuᵢ of the outcome's own
  weights. Guards bound and take back shares of linear strategies alone.
* *convex* (``is_convex``): every coordinate of the update lies between the least and the greatest
  of the clients', so that unanimous clients get their update.

Both are defaults. A strategy that trims or takes a median declares ``is_weighted_sum=False``; one
that projects, rescales or adds noise declares both False.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import HDPFLError
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import Outcome, RoundUpdates
from strategies import make_strategy
from strategies.core.base import HDPStrategy
from strategies.core.checks import check_outcome, is_declared_sum
from strategies.core.strategy_state import load_state, save_state

Rows = npt.NDArray[np.float32]

FACTS = {
    "batch-size": (4, 40),
    "declared-records": (50, 500),
    "epsilon": (0.3, 8.0),
    "noise-std": (0.01, 3.0),
}
"""Ranges of the simulated clients' disclosed facts."""


class ContractError(HDPFLError):
    """Violation of the contract by a strategy."""


@dataclass(frozen=True)
class Subject:
    """A strategy under test.

    Attributes:
        config: of the run, which names it.
    """

    config: RunConfig

    def new(self) -> HDPStrategy:
        """Return the strategy, made anew."""
        return make_strategy(self.config)

    def updates(self, rows: Rows) -> RoundUpdates:
        """Return a round of clients with ``rows`` and their facts."""
        generator, strategy = np.random.default_rng(3), self.new()
        offers = strategy.declare()
        facts = sorted(offers.required_facts | offers.optional_facts)
        disclosed = {fact: generator.uniform(*FACTS[fact], len(rows)) for fact in facts}
        return RoundUpdates(1, tuple(str(i) for i in range(len(rows))), rows, disclosed)

    def combine(self, updates: RoundUpdates) -> Outcome:
        """Return the outcome of a first round that passes every check."""
        strategy = self.new()
        outcome = strategy.combine(strategy.initial_state(), updates, RandomStream(bytes(32)))[1]
        check_outcome(outcome, updates)
        return outcome


def rows_of(n: int, d: int = 400) -> Rows:
    """Return updates of ``n`` clients: common signal, noise of different levels."""
    generator = np.random.default_rng(n)
    scale = generator.uniform(0.1, 3, (n, 1))
    signal = generator.standard_normal(d)
    return (signal + scale * generator.standard_normal((n, d))).astype(np.float32)


def check_weights(subject: Subject) -> None:
    """Weights are convex, and a linear update is their sum."""
    linear = subject.new().declare().is_weighted_sum
    for n in (1, 2, 3, 4, 13):
        updates = subject.updates(rows_of(n))
        outcome = subject.combine(updates)
        _require(outcome.update.dtype == np.float32, "the update is not float32")
        _require(
            is_declared_sum(outcome, updates) or not linear,
            f"with {n} clients the update is not scale·Σ wᵢuᵢ: declare is_weighted_sum=False",
        )


def check_convex(subject: Subject) -> None:
    """A convex update lies between the clients', coordinate by coordinate."""
    if not subject.new().declare().is_convex:
        return
    for rows in (rows_of(13), np.repeat(rows_of(1), 7, axis=0)):
        update = subject.combine(subject.updates(rows)).update
        room = 1e-5 * (1 + np.abs(rows).max(axis=0))
        inside = (update >= rows.min(axis=0) - room) & (update <= rows.max(axis=0) + room)
        empty = ~update.any(axis=-1, keepdims=True)  # a model that no client trained
        _require(
            bool(np.all(inside | empty)),
            "a coordinate lies outside the clients': declare is_convex=False",
        )


def check_order(subject: Subject) -> None:
    """The order of the clients does not matter."""
    updates, order = subject.updates(rows_of(9)), np.random.default_rng(0).permutation(9)
    shuffled = replace(
        updates,
        sites=tuple(updates.sites[i] for i in order),
        updates=updates.updates[order],
        disclosed={fact: column[order] for fact, column in updates.disclosed.items()},
    )
    in_order, other = subject.combine(updates), subject.combine(shuffled)
    same = np.allclose(other.weights, in_order.weights[order], rtol=1e-3) and np.allclose(
        other.update, in_order.update, rtol=1e-3, atol=1e-4
    )
    _require(same, "another order of the same clients has another result")


def check_zeros(subject: Subject) -> None:
    """Zero updates do not move the model and never take all the weight."""
    nothing = subject.combine(subject.updates(np.zeros((5, 30), np.float32)))
    _require(not nothing.update.any(), "updates of zeros move the model")
    rows = rows_of(6)
    rows[2] = 0
    moved = subject.combine(subject.updates(rows)).update.any()
    _require(bool(moved), "one update of zeros has all the weight")


def check_inputs(subject: Subject) -> None:
    """The inputs are not written to."""
    updates = subject.updates(rows_of(5))
    before = {fact: column.copy() for fact, column in updates.disclosed.items()}
    rows = updates.updates.copy()
    subject.combine(updates)
    _require(np.array_equal(updates.updates, rows), "the updates are written to")
    for fact, column in before.items():
        _require(np.array_equal(updates.disclosed[fact], column), f"'{fact}' is written to")


def check_bits(subject: Subject) -> None:
    """The same updates have the same result, bit by bit."""
    updates = subject.updates(rows_of(11))
    first, other = (subject.combine(updates).update.tobytes() for _ in range(2))
    _require(first == other, "two strategies made anew differ on the same updates")


def check_state(subject: Subject) -> None:
    """The state can be checkpointed; a new process continues to the bit, and revises likewise."""
    first, second = subject.updates(rows_of(7)), subject.updates(rows_of(7)[::-1].copy())
    group = np.zeros(7, np.int64) if not subject.new().declare().one_model else None
    second = replace(second, server_round=2, group=group)
    strategy, resumed = subject.new(), subject.new()
    state, outcome = strategy.combine(strategy.initial_state(), first, RandomStream(bytes(32)))
    state = strategy.after_step(state, outcome)
    arrays: dict[str, npt.NDArray[np.float64]] = {}
    try:
        facts = save_state(state, arrays)
        loaded = load_state(type(resumed.initial_state()), facts, arrays, resumed.initial_state())
    except (TypeError, LookupError) as error:
        raise ContractError(f"its state cannot be saved: {error}") from None
    uninterrupted = strategy.combine(state, second, RandomStream(bytes(32)))[1]
    _require(
        is_declared_sum(uninterrupted, second) or not strategy.declare().is_weighted_sum,
        "the update of the second round is not scale·Σ wᵢuᵢ: declare is_weighted_sum=False",
    )
    other = resumed.combine(loaded, second, RandomStream(bytes(32)))[1]
    same = uninterrupted.update.tobytes() == other.update.tobytes()
    if uninterrupted.revision is not None:
        _require(
            not strategy.declare().is_final, "a round revises earlier ones: declare is_final=False"
        )
        again = other.revision
        same &= again is not None and uninterrupted.revision.move.tobytes() == again.move.tobytes()
    _require(same, "after a checkpoint the second round differs: what it needs is not in its state")


CHECKS: Mapping[str, Callable[[Subject], None]] = {
    "weights are convex, and a linear update is their sum": check_weights,
    "a convex update lies between the clients'": check_convex,
    "the order of the clients does not matter": check_order,
    "updates of zeros change nothing and take no weight": check_zeros,
    "the inputs are not written to": check_inputs,
    "the same updates have the same result, bit by bit": check_bits,
    "the state survives a checkpoint": check_state,
}
"""All checks, by the property they hold."""


def run_contract(
    name: str,
    on_error: Callable[[Exception], None] = lambda _: None,
    keys: Mapping[str, object] | None = None,
) -> Iterator[tuple[str, str]]:
    """Yield each check's text and its error; an empty error means passed.

    Args:
        name: of the table, or ``module:Class``.
        keys: of the run config that the strategy is checked under, beside its name.
        on_error: called with an exception of the strategy's own code, which is no finding.

    Raises:
        StrategyError: the strategy is not known.
        TermsError: it cannot run under these keys.
    """
    subject = Subject(RunConfig.parse({**(keys or {}), "strategy": name}))
    subject.new()
    for text, check in CHECKS.items():
        try:
            check(subject)
        except HDPFLError as error:
            yield text, str(error) or type(error).__name__
        except Exception as error:
            on_error(error)
            yield text, str(error) or type(error).__name__
        else:
            yield text, ""


def _require(holds: bool, wrong: str) -> None:
    if not holds:
        raise ContractError(wrong)

"""What of a strategy a checkpoint keeps between rounds, and how another process takes it up.

Nothing here holds for one algorithm: a rule that keeps more than its ``state`` adds it in
:meth:`Keeps.keep` and :meth:`Keeps.restore`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hdpfl_flower.config.terms import RunTerms

if TYPE_CHECKING:
    from strategies.core.base import HDPStrategy

_STATE, _GUARD, _GIVEN, _RULE = "state/", "guard/", "given/", "rule/"


@dataclass(frozen=True)
class Kept:
    """What is kept of a strategy.

    Attributes:
        facts: what JSON can hold, its dictionaries in their order.
        arrays: by name, in their order, each of its own type and shape.
    """

    facts: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, npt.NDArray[Any]] = field(default_factory=dict)

    def below(self, prefix: str) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays whose names begin with ``prefix``, without it, in their order."""
        return {
            name.removeprefix(prefix): array
            for name, array in self.arrays.items()
            if name.startswith(prefix)
        }


class Keeps:
    """What a rule may add to a checkpoint.

    Attributes:
        prepared: whether this process has waited for the sites.
        settled: whether the terms are those of the whole run, in which process ever.
    """

    prepared = settled = False

    def keep(self) -> Kept:
        """Return what the next round needs and ``state`` does not hold."""
        return Kept()

    def restore(self, kept: Kept) -> None:
        """Take up what :meth:`keep` returned, in another process."""


def named(prefix: str, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays with ``prefix`` before their names."""
    return {f"{prefix}{name}": np.asarray(array) for name, array in arrays.items()}


def keep_strategy(strategy: HDPStrategy) -> Kept:
    """Return all that the next round of ``strategy`` depends on, but the model and the streams."""
    rule = strategy.keep()
    facts = {
        "settled": strategy.settled,
        "terms": strategy.terms.to_json(),
        "disclosed": strategy.roster.disclosed,
        "declined": strategy.report.declined,
        "sampler": strategy.sampler.keep(),
        "rule": rule.facts,
    }
    arrays = {
        **named(_STATE, strategy.state),
        **named(_GUARD, strategy.guard.state),
        **named(_GIVEN, strategy.guard.given),
        **named(_RULE, rule.arrays),
    }
    return Kept(facts, arrays)


def restore_strategy(strategy: HDPStrategy, kept: Kept) -> None:
    """Bring a new ``strategy`` of the same terms to where :func:`keep_strategy` found another.

    Who declined the last round is told to the sampler at once, not before the next round.

    Raises:
        LookupError, TypeError, ValueError, HDPFLError: ``kept`` is not what was kept.
    """
    facts = kept.facts
    strategy.settled = bool(facts["settled"])
    strategy.terms = RunTerms.from_json(facts["terms"])
    strategy.roster.disclosed.update(facts["disclosed"])
    strategy.sampler.restore(facts["sampler"])
    strategy.sampler.heard(facts["declined"])
    strategy.state = kept.below(_STATE)
    strategy.guard.state = kept.below(_GUARD)
    strategy.guard.given = kept.below(_GIVEN)
    strategy.restore(Kept(facts["rule"], kept.below(_RULE)))

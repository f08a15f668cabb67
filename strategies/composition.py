"""Names of strategies with parts, ``robust-hdp+pfa+momentum``, taken apart and built.

The first name weighs the updates. A part after a ``+`` acts around it, and a server step
(``server_step/``) acts on their outcome. Parts and steps declare their needs
(``core/declaration.py``), so that a combination that lacks one is refused before a run.
"""

from __future__ import annotations

from dataclasses import dataclass

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.server_terms import FOUND
from hdpfl_flower.config.terms import AUTO
from hdpfl_flower.errors import StrategyError, TermsError
from hdpfl_flower.releases.feasibility import check_up_front
from hdpfl_flower.releases.of_run import has_personal_state
from strategies.core.base import HDPStrategy
from strategies.core.kernel import Kernel
from strategies.server_step.step import ServerStep

Owner = type[HDPStrategy] | type[ServerStep]
"""Owner of settings in a run config: a strategy or server step."""


@dataclass(frozen=True)
class Combination:
    """A strategy's name, taken apart.

    Attributes:
        name: the whole of it.
        weights: the strategy that weighs, or one that does all.
        parts: those that act around it, the inner first.
        step: the server step.
    """

    name: str
    weights: type[HDPStrategy]
    parts: tuple[type[HDPStrategy], ...] = ()
    step: type[ServerStep] = ServerStep

    @property
    def owners(self) -> tuple[Owner, ...]:
        """Classes with settings: the strategy, its parts, its weights, its server step."""
        inner = None if self.parts else self.weights.default_weights
        step = self.step if self.step.name else None
        return (
            *reversed(self.parts),
            *(owner for owner in (self.weights, inner, step) if owner is not None),
        )

    def build(self, config: RunConfig) -> HDPStrategy:
        """Return the strategy, with each part around the one before it.

        Raises:
            TermsError: a setting is wrong, or a part needs another strategy before it.
        """
        strategy = self.weights(config)
        for part in self.parts:
            strategy = part(config, strategy)
        return strategy

    def with_rate(self, config: RunConfig) -> RunConfig:
        """Return the configuration with a number for ``learning-rate`` = ``auto``.

        The server finds its rate where it can, or where ``server-learning-rate`` = ``found``
        demands it; else the sites' is 0.1/C, and the server's is 1, or the key's.
        """
        if not config.rate_is_open:
            return config
        asked = config.server.server_learning_rate
        is_found = asked == FOUND or (asked == AUTO and self._can_find_rate(config))
        return config.with_rate(is_found=is_found, is_plain=self.step.default_rate == 1)

    def _can_find_rate(self, config: RunConfig) -> bool:
        """Return whether the server may find its rate in this run.

        A part or a second model at a site moves at the site's rate alone, and a guard takes out of
        the model only moves at a known rate.
        """
        if config.server.guard == "content":
            return False
        try:
            terms = Kernel(self.build(config.with_rate(is_found=True)), self.step).terms
            check_up_front(terms)
        except (TermsError, StrategyError):
            return False  # other faults are refused with the other rate, too
        return not (has_personal_state(terms) or terms.second is not None)

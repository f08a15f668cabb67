"""Names of strategies with parts, ``robust-hdp+pfa+momentum``: which parts go together.

The first name weighs the updates. A part after a ``+`` acts around it, and a server step
(``server_step/``) acts on their outcome. :data:`REFUSED` is the table of combinations that are
refused, which the documentation prints.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from hdpfl_flower.config.feasibility import check_up_front
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.server_terms import FOUND
from hdpfl_flower.config.terms import AUTO
from hdpfl_flower.errors import StrategyError, TermsError
from strategies.core.base import HDPStrategy, table_of
from strategies.fedhdp.level_averaging import LevelAveraging
from strategies.multi_model.base import MultiModel
from strategies.noise_aware.mmse import MMSE, OneWeightMMSE
from strategies.projection.base import Projected
from strategies.server_step.anderson import Anderson
from strategies.server_step.step import ServerStep
from strategies.splitting.base import Splitting
from strategies.splitting.own_starts import OwnStarts
from strategies.splitting.scaffold import Scaffold


@dataclass(frozen=True)
class Combination:
    """A strategy's name, taken apart.

    Attributes:
        name: the whole of it.
        weights: the strategy that weighs.
        around: parts that act around it.
        steps: the server steps.
    """

    name: str
    weights: type[HDPStrategy]
    around: tuple[type[HDPStrategy], ...] = ()
    steps: tuple[type[ServerStep], ...] = ()

    def has_around(self, kind: type[HDPStrategy]) -> bool:
        """Return whether a part of that kind acts around the weights."""
        return any(issubclass(part, kind) for part in self.around)

    @property
    def has_several_models(self) -> bool:
        """Whether there is a model a group of sites."""
        return any(strategy.several_models for strategy in (self.weights, *self.around))

    @property
    def has_own_starts(self) -> bool:
        """Whether each site trains from a model of its own that the server keeps."""
        return any(issubclass(strategy, OwnStarts) for strategy in (self.weights, *self.around))


@dataclass(frozen=True)
class Refusal:
    """Refused combination of parts, or of a strategy and keys.

    Attributes:
        label: the combination, for the documentation.
        why: the reason, which the error states.
        holds: whether it applies to a :class:`Combination`, or to a strategy and its run config.
    """

    label: str
    why: str
    holds: Callable[..., bool]


REFUSED = (
    Refusal(
        "two parts around the weights, such as `+pfa+r-dpcfl`",
        "takes one projection, clustering or splitting after its weights",
        lambda c: len(c.around) > 1,
    ),
    Refusal(
        "two server steps, such as `+momentum+adam`",
        "takes one server step, at its end",
        lambda c: len(c.steps) > 1,
    ),
    Refusal(
        "a part after a strategy that projects, such as `pfa+r-dpcfl`",
        "'{weights}' projects by itself",
        lambda c: bool(c.around) and issubclass(c.weights, Projected),
    ),
    Refusal(
        "a projection after `mmse`, such as `mmse+pfa`",
        "'{weights}' weighs noise against what the aggregate loses, and a projection loses more: "
        "what noisy sites alone hold; take 'mmse' alone, or '+pfa' after 'robust-hdp' or 'fedavg'",
        lambda c: issubclass(c.weights, MMSE) and c.has_around(Projected),
    ),
    Refusal(
        "a part after a strategy with several models, such as `ifca+pfa`",
        "'{weights}' has several models by itself",
        lambda c: bool(c.around) and issubclass(c.weights, MultiModel),
    ),
    Refusal(
        "clusters after a strategy of levels, such as `fedhdp+ifca`",
        "'{weights}' is more than weights of updates",
        lambda c: c.has_around(MultiModel) and issubclass(c.weights, LevelAveraging),
    ),
    Refusal(
        "a part after a splitting, such as `fedpi+pfa`",
        "'{weights}' splits by itself: write the weights, and '+{weights}' after them",
        lambda c: bool(c.around) and issubclass(c.weights, (Splitting, OwnStarts, Scaffold)),
    ),
    Refusal(
        "weights from the updates with a start a site, such as `robust-hdp+fedpi`",
        "'{weights}' weighs by the updates, anew in every round, and the mean of a splitting with "
        "a start a site must be the same one in all: take '+fedprox', or constant weights, such as "
        "'fedavg' or 'weiavg', before it",
        lambda c: c.has_around(OwnStarts) and not c.weights.constant_weights,
    ),
    Refusal(
        "a server step with a start a site, such as `fedsplit+momentum`",
        "keeps a start for each site: a server step would move their mean and leave them behind; "
        "leave it out: 'server-learning-rate' moves both",
        lambda c: bool(c.steps) and c.has_own_starts,
    ),
    Refusal(
        "control variates after a strategy of levels, such as `fedhdp+scaffold`",
        "'{weights}' clips, mixes and noises levels: control variates go with weights alone",
        lambda c: c.has_around(Scaffold) and issubclass(c.weights, LevelAveraging),
    ),
    Refusal(
        "`+anderson` after control variates, such as `scaffold+anderson`",
        "'anderson' needs noise that is fresh in every round, and control variates carry noise "
        "from round to round; take momentum in its place",
        lambda c: (
            any(issubclass(around, Scaffold) for around in (c.weights, *c.around))
            and any(issubclass(step, Anderson) for step in c.steps)
        ),
    ),
    Refusal(
        "a server step with several models, such as `r-dpcfl+adam`",
        "has several models, some of which begin in the middle of a run: a server step has no past "
        "of theirs; leave it out, and set 'server-learning-rate'",
        lambda c: bool(c.steps) and c.has_several_models,
    ),
)
"""Combinations that are refused by name, before a run."""

KEYS_REFUSED = (
    Refusal(
        "`server-learning-rate = found` with a start a site (`fedsplit`, `fedpi`, `splitting`)",
        "'server-learning-rate' = 'found' steps one model, and with '{strategy}' each site's start "
        "moves at the server's rate, too; leave it out, or take 'fedprox'",
        lambda strategy, config: _finds(config) and issubclass(strategy, OwnStarts),
    ),
    Refusal(
        "`server-learning-rate = found` with control variates",
        "'server-learning-rate' = 'found' takes the noises of two rounds for independent, and with "
        "'{strategy}' an upload counts in two; leave it out",
        lambda strategy, config: _finds(config) and issubclass(strategy, Scaffold),
    ),
    Refusal(
        "`server-learning-rate = found` with several models",
        "'server-learning-rate' = 'found' is the rate of one model, and '{strategy}' has several, "
        "some of which begin in the middle of a run; leave it out",
        lambda strategy, config: _finds(config) and strategy.several_models,
    ),
    Refusal(
        "`average` with several models",
        "'average' is of one model, and '{strategy}' has several, some of which begin in the "
        "middle of a run; leave it out",
        lambda strategy, config: config.server.average != "none" and strategy.several_models,
    ),
    Refusal(
        "`noise = server` with `+anderson`",
        "'anderson' reads the noise from the updates: with 'noise' = 'server' there is none; take "
        "'+momentum' in '{strategy}', or leave 'noise' out",
        lambda strategy, config: (
            issubclass(strategy.server_step, Anderson) and config.terms.noise == "server"
        ),
    ),
    Refusal(
        "`guard` with a start a site (`fedsplit`, `fedpi`, `splitting`)",
        "'guard' compares or bounds steps from one model, and with '{strategy}' each site starts "
        "from its own: honest steps differ, and add up to nothing in the end; leave it out, or "
        "take 'fedprox'",
        lambda strategy, config: config.server.guard != "none" and issubclass(strategy, OwnStarts),
    ),
    Refusal(
        "personal parts and models, and `shrink` after the run, with a start a site",
        "personal parts, 'second' and 'after' with 'shrink' are beside one global "
        "model, and with '{strategy}' each site starts from its own; leave them out, or "
        "take 'fedprox'",
        lambda strategy, config: (
            issubclass(strategy, OwnStarts)
            and (_has_parts(strategy, config) or config.terms.second is not None)
        ),
    ),
    Refusal(
        "`shrink` after the run with several models",
        "'after' with 'shrink' does not go with '{strategy}', whose sites train models of their "
        "own: a site's updates have no one global path to differ from; leave it out",
        lambda strategy, config: strategy.several_models and config.terms.shrinks,
    ),
    Refusal(
        "`noise` other than `records` with `+scaffold`",
        "'noise' must be 'records' with '{strategy}': where the whole update is clipped, what a "
        "site adds to its model over the round is clipped too",
        lambda strategy, config: issubclass(strategy, Scaffold) and config.terms.noise != "records",
    ),
    Refusal(
        "`guard` with `+scaffold`",
        "'guard' must be 'none' with '{strategy}': a site's earlier upload moves every site's "
        "model, which no guard bounds or takes out",
        lambda strategy, config: issubclass(strategy, Scaffold) and config.server.guard != "none",
    ),
    Refusal(
        "personal parts and masks with `+scaffold`",
        "'after' with 'shrink' and 'work' other than 'plain' do not go with "
        "'{strategy}', which moves the whole model; leave them out",
        lambda strategy, config: issubclass(strategy, Scaffold) and _has_parts(strategy, config),
    ),
    Refusal(
        "`first-batch` with `+scaffold`",
        "'first-batch' of 'work' does not go with '{strategy}': control variates are of equal "
        "steps in every round; leave it out",
        lambda strategy, config: (
            issubclass(strategy, Scaffold) and strategy.complete_terms(config.terms).work.full_first
        ),
    ),
    Refusal(
        "weights that make no sum with `+scaffold`, such as `trimmed-mean+scaffold`",
        "'strategy': '{strategy}': control variates go with weights of updates alone, and what "
        "stands before the '+' makes no weighted sum",
        lambda strategy, config: (
            issubclass(strategy, Scaffold)
            and not strategy.weighting(config).declare().is_weighted_sum
        ),
    ),
)
"""Keys that are refused with some strategies, before a run."""


def compose(combination: Combination) -> type[HDPStrategy]:
    """Return the class of a combination.

    Raises:
        StrategyError: its parts do not go together.
    """
    for refusal in REFUSED:
        if refusal.holds(combination):
            why = refusal.why.format(weights=combination.weights.name)
            raise StrategyError(f"'strategy': '{combination.name}': {why}")
    return _composed(combination)


def check_keys(strategy: type[HDPStrategy], config: RunConfig) -> None:
    """Refuse keys that do not go with the strategy.

    Raises:
        TermsError: names the key and the remedy.
    """
    for refusal in KEYS_REFUSED:
        if refusal.holds(strategy, config):
            raise TermsError(f"run config: {refusal.why.format(strategy=config.terms.strategy)}")


def with_rate(strategy: type[HDPStrategy], config: RunConfig) -> RunConfig:
    """Return the configuration with a number for ``learning-rate`` = ``auto``.

    The server finds its rate where it can, or where ``server-learning-rate`` = ``found`` demands
    it; else the sites' is 0.1/C, and the server's is 1, or the key's.
    """
    if not config.rate_is_open:
        return config
    asked = config.server.server_learning_rate
    is_found = asked == FOUND or (asked == AUTO and _can_find_rate(strategy, config))
    return config.with_rate(is_found=is_found)


def _can_find_rate(strategy: type[HDPStrategy], config: RunConfig) -> bool:
    """Return whether a found rate suits the run: nothing refuses it, and it is all that moves.

    A part or a second model at a site moves at the site's rate alone, and a guard takes out of the
    model only moves at a known rate.
    """
    if config.server.guard == "content":
        return False
    with_found_rate = config.with_rate(is_found=True)
    try:
        check_keys(strategy, with_found_rate)
        terms = strategy(with_found_rate).terms
        check_up_front(terms)
    except (TermsError, StrategyError):
        return False  # other faults are refused with the other rate, too
    return not (terms.has_personal_state or terms.second is not None)


def _finds(config: RunConfig) -> bool:
    return config.server.server_learning_rate == FOUND


def _has_parts(strategy: type[HDPStrategy], config: RunConfig) -> bool:
    return strategy.complete_terms(config.terms).has_personal_state


@cache
def _composed(combination: Combination) -> type[HDPStrategy]:
    weighting, (step,) = combination.weights, combination.steps or (ServerStep,)
    parts: dict[str, object] = {"name": combination.name}
    base = weighting
    if combination.around:
        (base,) = combination.around
        # Inside a part a client has one weight.
        parts["weighting"] = OneWeightMMSE if weighting is MMSE else weighting
    parts["_table"] = table_of(base)  # its settings are those of the part, not of the sum
    if combination.steps:
        parts["server_step"] = step
    return type(f"{base.__name__}Of{weighting.__name__}", (base,), parts)

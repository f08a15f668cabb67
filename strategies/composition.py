"""Names of strategies with parts, ``robust-hdp+pfa+momentum``: which parts go together.

The first name weighs the updates. What follows a ``+`` acts around it, and a server step
(``server_step/``) acts on what they return. :data:`REFUSED` is the table of what does not go
together, which the documentation prints.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.server_terms import FOUND
from hdpfl_flower.errors import StrategyError, TermsError
from strategies.core.base import HDPStrategy
from strategies.fedhdp.level_averaging import LevelAveraging
from strategies.multi_model.base import MultiModel
from strategies.projection.base import Projected
from strategies.server_step.anderson import Anderson
from strategies.server_step.step import ServerStep
from strategies.splitting.base import Splitting
from strategies.splitting.scaffold import Scaffold


@dataclass(frozen=True)
class Combination:
    """A strategy's name, taken apart.

    Attributes:
        name: the whole of it.
        weights: the strategy that weighs.
        around: what acts around it.
        steps: the server steps.
    """

    name: str
    weights: type[HDPStrategy]
    around: tuple[type[HDPStrategy], ...] = ()
    steps: tuple[type[ServerStep], ...] = ()

    @property
    def has_several_models(self) -> bool:
        """Whether there is a model a group of sites."""
        return any(part.several_models for part in (self.weights, *self.around))

    @property
    def has_own_starts(self) -> bool:
        """Whether each site trains from a model of its own that the server keeps."""
        return any(has_own_starts(part) for part in (self.weights, *self.around))


def has_own_starts(strategy: type[HDPStrategy]) -> bool:
    """Return whether it is a splitting with a start for each site, see ``own_starts.py``."""
    return issubclass(strategy, Splitting) and strategy.own_starts


@dataclass(frozen=True)
class Refusal:
    """A combination that is refused.

    Attributes:
        what: the combination, for the documentation.
        why: the reason, which the error states.
        holds: whether a combination is one.
    """

    what: str
    why: str
    holds: Callable[[Combination], bool]


@dataclass(frozen=True)
class KeyRefusal:
    """A key that does not go with some strategies.

    Attributes:
        what: the key and the strategies, for the documentation.
        why: the reason, which the error states.
        holds: whether a strategy and a run's configuration are such.
    """

    what: str
    why: str
    holds: Callable[[type[HDPStrategy], RunConfig], bool]


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
        "a part after a strategy with several models, such as `ifca+pfa`",
        "'{weights}' has several models by itself",
        lambda c: bool(c.around) and issubclass(c.weights, MultiModel),
    ),
    Refusal(
        "clusters after a strategy of levels, such as `fedhdp+ifca`",
        "'{weights}' is more than weights of updates",
        lambda c: (
            any(issubclass(part, MultiModel) for part in c.around)
            and issubclass(c.weights, LevelAveraging)
        ),
    ),
    Refusal(
        "a part after a splitting, such as `fedpi+pfa`",
        "'{weights}' splits by itself: write the weights, and '+{weights}' after them",
        lambda c: bool(c.around) and issubclass(c.weights, (Splitting, Scaffold)),
    ),
    Refusal(
        "weights from the updates with a start a site, such as `robust-hdp+fedpi`",
        "'{weights}' weighs by the updates, anew in every round, and the mean of a splitting with "
        "a start a site must be the same one in all: take '+fedprox', or constant weights, such as "
        "'fedavg' or 'weiavg', before it",
        lambda c: any(has_own_starts(part) for part in c.around) and not c.weights.constant_weights,
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
        lambda c: (
            any(issubclass(part, Scaffold) for part in c.around)
            and issubclass(c.weights, LevelAveraging)
        ),
    ),
    Refusal(
        "`+anderson` after control variates, such as `scaffold+anderson`",
        "'anderson' needs noise that is fresh in every round, and control variates carry noise "
        "from round to round; take momentum in its place",
        lambda c: (
            any(issubclass(part, Scaffold) for part in (c.weights, *c.around))
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
    KeyRefusal(
        "`learning-rate = auto` with a start a site (`fedsplit`, `fedpi`, `splitting`)",
        "'learning-rate' = 'auto' steps one model, and with '{strategy}' each site's start moves "
        "at the server's rate, too; write a number, or take 'fedprox'",
        lambda strategy, config: (
            config.server.server_learning_rate == FOUND and has_own_starts(strategy)
        ),
    ),
    KeyRefusal(
        "`learning-rate = auto` with control variates",
        "'learning-rate' = 'auto' takes the noises of two rounds for independent, and with "
        "'{strategy}' an upload counts in two; write a number",
        lambda strategy, config: (
            config.server.server_learning_rate == FOUND and issubclass(strategy, Scaffold)
        ),
    ),
    KeyRefusal(
        "`learning-rate = auto` with several models",
        "'learning-rate' = 'auto' finds the rate of one model, and '{strategy}' has several, some "
        "of which begin in the middle of a run; write a number",
        lambda strategy, config: (
            config.server.server_learning_rate == FOUND and strategy.several_models
        ),
    ),
    KeyRefusal(
        "`average` with several models",
        "'average' is of one model, and '{strategy}' has several, some of which begin in the "
        "middle of a run; leave it out",
        lambda strategy, config: config.server.average != "none" and strategy.several_models,
    ),
    KeyRefusal(
        "`noise = server` with `+anderson`",
        "'noise' = 'server': 'anderson' reads the noise from the updates, which have none then; "
        "take '+momentum' in '{strategy}', or leave the noise to the sites",
        lambda strategy, config: (
            config.terms.noise == "server" and issubclass(strategy.server_step, Anderson)
        ),
    ),
    KeyRefusal(
        "`guard` with a start a site (`fedsplit`, `fedpi`, `splitting`)",
        "'guard' compares or bounds steps from one model, and with '{strategy}' each site starts "
        "from its own: honest steps differ, and add up to nothing in the end; leave it out, or "
        "take 'fedprox'",
        lambda strategy, config: config.server.guard != "none" and has_own_starts(strategy),
    ),
    KeyRefusal(
        "personal parts and models, `shared-mask` and `personal-shrink` with a start a site",
        "personal parts, 'personal-lambda', 'personal-shrink' and 'shared-mask' are beside one "
        "global model, and with '{strategy}' each site starts from its own; leave them out, or "
        "take 'fedprox'",
        lambda strategy, config: (
            has_own_starts(strategy)
            and (_has_parts(strategy, config) or bool(config.terms.personal_lambda))
        ),
    ),
    KeyRefusal(
        "`noise` other than `records` with `+scaffold`",
        "'noise' must be 'records' with '{strategy}': where the whole update is clipped, what a "
        "site adds to its model over the round is clipped too",
        lambda strategy, config: issubclass(strategy, Scaffold) and config.terms.noise != "records",
    ),
    KeyRefusal(
        "`guard` with `+scaffold`",
        "'guard' must be 'none' with '{strategy}': a site's earlier upload moves every site's "
        "model, which no guard bounds or takes out",
        lambda strategy, config: issubclass(strategy, Scaffold) and config.server.guard != "none",
    ),
    KeyRefusal(
        "personal parts and masks with `+scaffold`",
        "'personal-part', 'personal-training', 'personal-shrink' and 'shared-mask' do not go with "
        "'{strategy}', which moves the whole model; leave them out",
        lambda strategy, config: issubclass(strategy, Scaffold) and _has_parts(strategy, config),
    ),
    KeyRefusal(
        "`first-batch` with `+scaffold`",
        "'first-batch' does not go with '{strategy}': control variates are of equal steps in every "
        "round; leave it out",
        lambda strategy, config: (
            issubclass(strategy, Scaffold)
            and strategy.complete_terms(config.terms).first_batch == "full"
        ),
    ),
    KeyRefusal(
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


def _has_parts(strategy: type[HDPStrategy], config: RunConfig) -> bool:
    terms = strategy.complete_terms(config.terms)
    return terms.has_personal_state or terms.has_phases


@cache
def _composed(combination: Combination) -> type[HDPStrategy]:
    weighting, (step,) = combination.weights, combination.steps or (ServerStep,)
    parts: dict[str, object] = {"name": combination.name}
    base = weighting
    if combination.around:
        (base,) = combination.around
        parts["weighting"] = weighting.as_weighting()
    parts["table"] = base.settings_table()  # its settings are those of the part, not of the sum
    if combination.steps:
        parts["server_step"] = step
    return type(f"{base.__name__}Of{weighting.__name__}", (base,), parts)

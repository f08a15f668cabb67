"""Needs and offers: the properties of a strategy, and the rule that compares.

A strategy offers properties (:class:`Declaration`). Parts after a ``+``, server steps, guards and
keys of the run config need some of them, each with the remedy where one is missing.
:func:`check_needs` compares both and writes the refusal; no strategy refuses by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import TermsError
from hdpfl_flower.noise_sources import SOURCES, NoiseSource
from hdpfl_flower.releases import asked_kind
from hdpfl_flower.releases.of_run import choices_of, has_personal_state
from hdpfl_flower.releases.shrink import Shrink

Needs = Mapping[str, str]
"""Property of :class:`Declaration` that must hold → remedy where it does not."""


@dataclass(frozen=True)
class Declaration:
    """Facts and properties of a strategy under some terms, before any request.

    The contract suite (``contract.py``) tests the first three properties. Each property is a
    sentence of :data:`PROPERTIES`.

    Attributes:
        required_facts: facts that a site must disclose to take part, see ``wire.SITE_KEYS``.
        optional_facts: facts that the strategy uses where a site discloses them.
        is_weighted_sum: linear: every update is ``Outcome.scale``·Σᵢ wᵢuᵢ of its own outcome's
            weights, or of its ``row_weights``. Guards act on a linear update by its weights: they
            bound a client's share, and take a refused client's part out of the model. A strategy
            that projects, clips, trims or adds noise declares False.
        round_alone: the update depends on the round's updates alone, but for its weights: true of
            every weighted sum, and to be declared by another strategy without memory.
        is_convex: every coordinate of the update lies between the least and the greatest of the
            clients'. A strategy that projects, rescales or adds noise declares False.
        is_final: no later round changes the moves of a round, see ``Outcome.revision``. Where one
            does, guards take no refused client's earlier part out.
        constant_weights: it weighs by disclosed facts alone, the same in every round.
        weights_alone: it weighs the updates and does nothing else.
        is_bare: no part acts around its weights.
        survives_projection: its weights are as good for a projected sum.
        one_model: all sites train one model; else a model a group: the state has ``models``, their
            number, 0 before the end of round 1.
        common_start: all sites train from the model that is sent.
        fresh_noise: an upload counts in its own round alone.
        free_steps: sites take their own steps, without a displacement by the server.
        whole_updates: every site sends all coordinates.
        adds_noise: it adds the noise of ``noise = server``.
        noisy_updates: the updates have their noise when they arrive.
        uneven_noise: the noise may change over the rounds.
        any_asking: the sites that are asked or heard may depend on more than secret tosses.
        sum_alone: it makes the same step of the sum of all updates as of the updates.
        single_updates: it sees each update by itself.
        asks_choices: it asks sites for private choices.
        real_sites: it keeps what real sites were promised.
    """

    required_facts: frozenset[str] = frozenset()
    optional_facts: frozenset[str] = frozenset()
    is_weighted_sum: bool = True
    round_alone: bool = False
    is_convex: bool = True
    is_final: bool = True
    constant_weights: bool = False
    weights_alone: bool = True
    is_bare: bool = True
    survives_projection: bool = True
    one_model: bool = True
    common_start: bool = True
    fresh_noise: bool = True
    free_steps: bool = True
    whole_updates: bool = True
    adds_noise: bool = False
    noisy_updates: bool = True
    uneven_noise: bool = True
    any_asking: bool = True
    sum_alone: bool = False
    single_updates: bool = True
    asks_choices: bool = False
    real_sites: bool = True

    @property
    def memoryless(self) -> bool:
        """Whether no earlier round's update is in the update of a round."""
        return self.is_weighted_sum or self.round_alone


@dataclass(frozen=True)
class Property:
    """Words of a property.

    Attributes:
        needed: after "needs".
        missing: after the name of a strategy without it.
    """

    needed: str
    missing: str


PROPERTIES: Mapping[str, Property] = {
    "is_weighted_sum": Property("a weighted sum of the updates", "does not make a weighted sum"),
    "memoryless": Property("updates only of the same round", "may keep updates of earlier rounds"),
    "constant_weights": Property(
        "the same weights in every round", "finds new weights from the updates in every round"
    ),
    "weights_alone": Property("only weights", "does more than weigh updates"),
    "is_bare": Property("weights around which no other part acts", "is already a part"),
    "survives_projection": Property(
        "weights that are as good for a projected sum",
        "balances noise against what the aggregate loses; a projection loses more, and only from "
        "the share of the noisy sites",
    ),
    "one_model": Property(
        "one model", "has several models, and some of them begin in the middle of a run"
    ),
    "common_start": Property(
        "one common start for all sites",
        "keeps a separate start for each site, so that honest steps differ",
    ),
    "fresh_noise": Property("fresh noise in every round", "lets an upload count in two rounds"),
    "free_steps": Property(
        "local steps without a shift by the server", "shifts the whole model at each step"
    ),
    "whole_updates": Property("whole updates", "gets only one number from a private site"),
    "adds_noise": Property("a strategy that adds the noise", "adds no noise"),
    "noisy_updates": Property("updates with their noise", "gets them without noise"),
    "uneven_noise": Property(
        "weights that allow the noise to change over the rounds",
        "averages the spread of the updates over the rounds",
    ),
    "any_asking": Property(
        "a free choice of sites",
        "asks, hears and refuses sites only by secret random draws, and 'noise' = 'server' "
        "relies on that",
    ),
    "sum_alone": Property(
        "a step that is a fixed function of the sum of all updates", "weighs each update separately"
    ),
    "single_updates": Property(
        "single updates", "sees only the sum of all sites, because of 'noise'"
    ),
    "asks_choices": Property("a strategy that asks for choices", "asks for no choices"),
    "real_sites": Property(
        "promises that are kept",
        "violates the promises of stricter sites, so it runs only on simulated sites",
    ),
}
"""Words of every property that something needs."""


def check_needs(by: str, needs: Needs, offers: Declaration, strategy: str) -> None:
    """Refuse an option that needs a property which the strategy does not offer.

    Args:
        by: the key, part, step or guard that needs.
        needs: its needs.
        offers: of the strategy.
        strategy: its name.

    Raises:
        TermsError: names the option, the property and the remedy.
    """
    for name, remedy in needs.items():
        if not getattr(offers, name):
            words = PROPERTIES[name]
            raise TermsError(
                f"run config: {by} needs {words.needed}, and '{strategy}' {words.missing}; {remedy}"
            )


@dataclass(frozen=True)
class KeyNeeds:
    """Needs of a key of the run config.

    Attributes:
        key: as messages name it.
        is_set: whether a run config asks for it.
        needs: of it.
    """

    key: str
    is_set: Callable[[RunConfig], bool]
    needs: Needs


def _has_source(source: NoiseSource, config: RunConfig) -> bool:
    return config.terms.source is source


BARE: Needs = {"is_bare": "write the weights, then one part"}
"""Need of every part."""
LEAVE_OUT = "leave it out"
_TOSSES: Needs = {"any_asking": LEAVE_OUT}

KEYS = (
    KeyNeeds("'average'", lambda c: c.server.average != "none", {"one_model": LEAVE_OUT}),
    KeyNeeds(
        "'second'",
        lambda c: c.terms.second is not None,
        {"one_model": "take 'ditto'", "common_start": "leave it out, or take 'fedprox'"},
    ),
    KeyNeeds(
        "'after.shrink'",
        lambda c: asked_kind(c.terms, Shrink) is not None,
        {"one_model": LEAVE_OUT},
    ),
    KeyNeeds(
        "a personal part",
        lambda c: has_personal_state(c.terms),
        {"common_start": "leave it out, or take 'fedprox'", "free_steps": LEAVE_OUT},
    ),
    KeyNeeds("'work.first-batch'", lambda c: c.terms.work.full_first, {"free_steps": LEAVE_OUT}),
    KeyNeeds(
        "'noise' of clients",
        lambda c: not c.terms.source.per_record,
        {"one_model": "leave out 'noise'", "free_steps": "leave out 'noise'"},
    ),
    *(
        KeyNeeds(f"'noise' = '{source.name}'", partial(_has_source, source), source.needs)
        for source in SOURCES.values()
        if source.needs
    ),
    KeyNeeds("'guard'", lambda c: c.server.guard != "none", {"single_updates": "leave it out"}),
    KeyNeeds(
        "'quorum'",
        lambda c: bool(c.server.quorum),
        {"single_updates": "set 'least-members', because a sum needs every site of its round"},
    ),
    KeyNeeds(
        "'choice.kind'",
        lambda c: bool(choices_of(c.terms)),
        {"asks_choices": "leave it out, or take r-dpcfl or ifca"},
    ),
    KeyNeeds(
        "'spend.kind' = 'late'",
        lambda c: c.terms.spend.kind != "even",
        {"uneven_noise": "give numbers as 'fedhdp.level-ratio', or leave out 'spend.kind'"},
    ),
    KeyNeeds(
        "'dataset' = 'site'",
        lambda c: c.terms.dataset == "site",
        {"real_sites": "take another strategy, or a named 'dataset'"},
    ),
    KeyNeeds("'quorum'", lambda c: bool(c.server.quorum), _TOSSES),
    KeyNeeds("'participations'", lambda c: bool(c.terms.participations), _TOSSES),
    KeyNeeds("'require-public'", lambda c: c.server.require_public, _TOSSES),
    KeyNeeds("'guard'", lambda c: c.server.guard != "none", _TOSSES),
)
"""Needs of the run config's keys."""


def check_keys(config: RunConfig, offers: Declaration) -> None:
    """Refuse keys that need a property which the strategy of ``config`` does not offer.

    Args:
        config: with the strategy's completed terms.
        offers: of the strategy.

    Raises:
        TermsError: names the key and the remedy.
    """
    for key in KEYS:
        if key.is_set(config):
            check_needs(key.key, key.needs, offers, config.terms.strategy)

"""Answers over a run's local work and its kinds of release together."""

from __future__ import annotations

from hdpfl_flower.config.kind import Kind
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.releases import asked, asked_kind, releases_asked
from hdpfl_flower.releases.base import AfterKind, ReleaseKind
from hdpfl_flower.releases.moments import Moments
from hdpfl_flower.releases.rounds import PrivateChoice
from hdpfl_flower.releases.shrink import Shrink
from hdpfl_flower.releases.tuning import Tuning


def local_kinds(terms: RunTerms) -> tuple[Kind, ...]:
    """Return the typed values of a site's local work."""
    local = (terms.work, terms.second, terms.choice, terms.spend, terms.backbone)
    return tuple(kind for kind in local if kind is not None)


def charged_words(terms: RunTerms) -> list[str]:
    """Return the names of the kinds that ask for more than noisy steps of rounds."""
    kinds: tuple[Kind | AfterKind, ...] = (*local_kinds(terms), *asked(terms))
    return [kind.words for kind in kinds if kind.is_charged]


def paid_kinds(terms: RunTerms) -> tuple[ReleaseKind, ...]:
    """Return the kinds that a site's plan pays for beside the rounds."""
    return (*releases_asked(terms), *((PrivateChoice(),) if choices_of(terms) else ()))


def sent_kinds(terms: RunTerms) -> tuple[ReleaseKind, ...]:
    """Return the kinds whose payload leaves the sites, each for a message of its own."""
    return tuple(kind for kind in releases_asked(terms) if kind.is_sent)


def final_kinds(terms: RunTerms) -> tuple[ReleaseKind, ...]:
    """Return the kinds that are sent after the last round, of the final model."""
    return tuple(kind for kind in sent_kinds(terms) if not kind.is_first)


def ends_first(terms: RunTerms) -> bool:
    """Return whether the run is of its first message alone."""
    moments = asked_kind(terms, Moments)
    return moments is not None and moments.alone


def has_personal_state(terms: RunTerms) -> bool:
    """Return whether a site keeps a vector from round to round."""
    return terms.work.keeps_state or asked_kind(terms, Shrink) is not None


def sums_updates(terms: RunTerms) -> bool:
    """Return whether a site keeps the sum of its noisy updates."""
    return terms.work.sums_updates or asked_kind(terms, Shrink) is not None


def needs_head(terms: RunTerms) -> bool:
    """Return whether the model needs a head that can be told from its body."""
    tuning = asked_kind(terms, Tuning)
    return terms.work.needs_head or (tuning is not None and not tuning.trains_all)


def makes_personal_model(terms: RunTerms) -> bool:
    """Return whether the run ends with a model of the site's own."""
    return terms.work.keeps_state or any(kind.makes_model for kind in asked(terms))


def personal_is_private(terms: RunTerms) -> bool:
    """Return whether all that a site's own models read was noised."""
    return terms.source.per_record and (terms.second is None or terms.second.models > 1)


def models_of(terms: RunTerms) -> int:
    """Return the models that a round trains under the plan: two with a private second model."""
    return terms.second.models if terms.second else 1


def choices_of(terms: RunTerms) -> int:
    """Return the private choices that a site plans for."""
    return terms.choice.count(terms.rounds) if terms.choice else 0

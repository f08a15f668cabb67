"""Impossible terms of a run, refused before any site is asked.

Sites check the same terms, for they trust no server; but a site's refusal stays in its own log,
and the coordinator would learn only that rounds have no quorum.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, cast

from hdpfl_flower.config.settings import PREFIX
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import TermsError
from hdpfl_flower.releases import asked, asked_kind
from hdpfl_flower.releases.base import reasons_for_equal_rounds
from hdpfl_flower.releases.of_run import has_personal_state, local_kinds
from hdpfl_flower.releases.tuning import Tuning


class NoiseRules(Protocol):
    """Rules of a source of noise with terms of its own, one of its modules."""

    def contradictions(self, terms: RunTerms) -> Iterator[str]:
        """Yield a sentence for each term that does not go with it: the key, and the remedy."""

    def fault_of_deployed(self, terms: RunTerms, least: int) -> str:
        """Return the fault of terms for deployed sites, at least so many, or empty."""

    def facts(self, terms: RunTerms) -> dict[str, Any]:
        """Return the facts of its promise, for the journal."""

    def settled(self, terms: RunTerms, sites: int) -> RunTerms:
        """Return the terms to send to so many sites of a simulation."""


def rules_of(terms: RunTerms) -> NoiseRules | None:
    """Return the rules of the run's source of noise, if it has some of its own."""
    return cast("NoiseRules | None", terms.source.half("hdpfl_flower.{}.rules"))


def check_up_front(terms: RunTerms) -> None:
    """Refuse terms that every site would fail or decline under.

    Args:
        terms: completed by the strategy, see ``HDPStrategy.complete_terms``.

    Raises:
        TermsError: names the keys, and the remedy.
    """
    for contradiction in contradictions(terms):
        raise TermsError(f"{PREFIX}{contradiction}")


def contradictions(terms: RunTerms) -> Iterator[str]:
    """Yield a sentence for each contradiction, the keys and the remedy in it.

    Raises:
        TermsError: a table of ``after`` is wrong.
    """
    if rules := rules_of(terms):
        yield from rules.contradictions(terms)
    local, beside = local_kinds(terms), asked(terms)
    for kind in local:
        yield from kind.contradictions(terms)
    for release in beside:
        yield from release.contradictions(terms)
    if terms.second and (has_personal_state(terms) or asked_kind(terms, Tuning)):
        yield (
            "'second' is a model beside the whole global model: leave it out, or leave out "
            "personal parts, 'after.shrink' and 'after.tuning'"
        )
    following = [terms.work.words] if terms.work.needs_step_noise else []
    following += [release.words for release in beside if release.needs_step_noise]
    if following and not terms.source.own_noise:
        yield (
            f"{' and '.join(following)} needs the noise of a site's steps, which have none "
            f"under 'noise' = '{terms.noise}'; leave it out"
        )
    extras = [kind.words for kind in local if kind.is_unlike_rounds]
    extras += [release.words for release in beside if release.is_unlike_rounds(terms)]
    reasons = reasons_for_equal_rounds(terms)
    if extras and reasons:
        yield (
            f"{' and '.join(extras)} cannot be combined with {' and '.join(reasons)}: a site "
            "can then plan only for equal rounds, and every site would decline; leave one of "
            "them out"
        )

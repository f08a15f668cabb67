"""Impossible terms of a run, refused before any site is asked.

Sites check the same terms, for they trust no server; but a site's refusal stays in its own log,
and the coordinator would learn only that rounds have no quorum.
"""

from __future__ import annotations

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import TermsError
from hdpfl_flower.releases import asked
from hdpfl_flower.releases.of_run import local_kinds


def check_up_front(terms: RunTerms) -> None:
    """Refuse terms that every site would fail or decline under.

    Args:
        terms: completed by the strategy, see ``HDPStrategy.complete_terms``.

    Raises:
        TermsError: names the keys, and the remedy.
    """
    local, beside = local_kinds(terms), asked(terms)
    for kind in local:
        kind.check(terms)
    for release in beside:
        release.check(terms)
    extras = [kind.words for kind in local if kind.is_unlike_rounds]
    extras += [release.words for release in beside if release.is_unlike_rounds(terms)]
    reasons = reasons_for_equal_rounds(terms)
    if extras and reasons:
        raise TermsError(
            f"run config: {' and '.join(extras)} does not go with {' and '.join(reasons)}: a site "
            "can plan for equal rounds alone then, and every one would decline; leave one of them "
            "out"
        )


def reasons_for_equal_rounds(terms: RunTerms) -> list[str]:
    """Return the keys under which a site's account covers equal rounds alone."""
    asked = {
        "'noise'": terms.noise != "records",
        "'calibration'": terms.calibration != "pld",
        "'noise-multiplier'": bool(terms.noise_multiplier),
        "'participations'": bool(terms.participations),
    }
    return [key for key, is_asked in asked.items() if is_asked]

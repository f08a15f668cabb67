"""What the strategies with personal parts set in a run's terms, and what contradicts them."""

from __future__ import annotations

from typing import Literal

from hdpfl_flower.config.terms import AUTO, RunTerms
from hdpfl_flower.errors import TermsError

STEPS_OF_AN_EPOCH = 10
"""Tuning steps an epoch where the terms set no ``local-steps``: a site's batches are often a tenth
of its records, and the terms are public and the same for all sites."""


def with_training(
    terms: RunTerms, strategy: str, training: Literal["joint", "alternate", "frozen", "offset"]
) -> RunTerms:
    """Return the terms with the strategy's ``personal-training``.

    Raises:
        TermsError: the terms name another one.
    """
    if terms.personal_training not in (AUTO, training):
        raise TermsError(
            f"run config: 'personal-training' is '{terms.personal_training}', and '{strategy}' "
            f"trains '{training}': leave it out, or take another strategy"
        )
    return terms.updated(personal_training=training)


def with_head_at_home(terms: RunTerms, strategy: str) -> RunTerms:
    """Return the terms with ``personal-part = "head"``.

    Raises:
        TermsError: the terms name the body.
    """
    if terms.personal_part == "body":
        raise TermsError(
            f"run config: 'personal-part' is 'body', and '{strategy}' shares the body: leave it "
            "out, or take 'fedper'"
        )
    return terms.updated(personal_part="head")


def with_tuning(terms: RunTerms, strategy: str, part: Literal["head", "all"]) -> RunTerms:
    """Return the terms with charged steps after the last round.

    Where the terms set none they are as many as those of a round: ``local-steps``, or
    :data:`STEPS_OF_AN_EPOCH` for each local epoch.

    Raises:
        TermsError: the terms tune another part.
    """
    if terms.tuning_part not in (AUTO, part):
        raise TermsError(
            f"run config: 'tuning-part' is '{terms.tuning_part}', and '{strategy}' tunes "
            f"'{part}': leave it out, or take another strategy"
        )
    steps = terms.tuning_steps or terms.local_steps or STEPS_OF_AN_EPOCH * terms.local_epochs
    return terms.updated(tuning_steps=steps, tuning_part=part)

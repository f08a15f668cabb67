"""The bugs that a private federation must not have, each with the test that finds it."""

from __future__ import annotations

from tests.mutants import (
    bounds,
    budgets,
    claims,
    clusters,
    crossing,
    estimators,
    fedhdp,
    guards,
    ledgers,
    measures,
    messages,
    numerics,
    one_number,
    operations,
    personal_prior,
    resuming,
    steps,
    studies,
    terms,
    together,
    units,
    worths,
)

MUTANTS = (
    *steps.MUTANTS,
    *bounds.MUTANTS,
    *budgets.MUTANTS,
    *claims.MUTANTS,
    *clusters.MUTANTS,
    *crossing.MUTANTS,
    *estimators.MUTANTS,
    *fedhdp.MUTANTS,
    *guards.MUTANTS,
    *ledgers.MUTANTS,
    *measures.MUTANTS,
    *messages.MUTANTS,
    *numerics.MUTANTS,
    *one_number.MUTANTS,
    *operations.MUTANTS,
    *personal_prior.MUTANTS,
    *resuming.MUTANTS,
    *studies.MUTANTS,
    *terms.MUTANTS,
    *together.MUTANTS,
    *units.MUTANTS,
    *worths.MUTANTS,
)
"""``file``, the text that is changed, what it becomes, and the test that says no."""

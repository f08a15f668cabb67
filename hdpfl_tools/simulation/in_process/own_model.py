"""Rehearsal of a user's model on zeros, with the engine of every round."""

from __future__ import annotations

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.models.networks import is_user_code


def rehearse_own_model(terms: RunTerms) -> None:
    """Train a model with own code or adapters on zeros; built-in models are skipped.

    Raises:
        ModelError: it cannot be built or trained; the user's exception is its cause.
    """
    task = task_for(terms)
    if not is_user_code(terms.model) and not task.body:
        return
    from hdpfl_flower.engines.engine_choice import engine_for

    engine_for(terms.model, task, "auto", "cpu")

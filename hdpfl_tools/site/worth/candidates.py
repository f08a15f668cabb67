"""Candidate models of a site: with the run, and without it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import numpy.typing as npt

from client_app.after_run.final_model import FinalModel
from client_app.after_run.personal_model import kind_of, personal_model_file, read_personal_model
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.models.evaluation import predict
from hdpfl_flower.models.networks import Arrays
from hdpfl_flower.models.task import Task
from hdpfl_tools.site.stored_models import own_arrays
from hdpfl_tools.site.worth.constant import constant_outputs

Kind = Literal["private", "kept", "none"]
"""``private``: made of noisy releases alone, and may be shown. ``kept``: trained without noise on
this site's records, read by no release, and for the site alone. ``none``: of no run, or of one
without noise; no ε covers what is shown of it."""
Outputs = npt.NDArray[np.float32]
Predict = Callable[[npt.NDArray[np.float32]], Outputs]
"""Features, shape ``(n, *input_shape)`` → outputs, shape ``(n, task.outputs)``."""

CONSTANT, HOME, JOINED = "constant", "home model", "joined model"
"""Names of the candidates that every comparison has."""


@dataclass(frozen=True, repr=False)
class Candidate:
    """A model to compare; ``predict`` reads no target."""

    name: str
    kind: Kind
    predict: Predict


def candidates(site: Profile, model: FinalModel, task: Task) -> list[Candidate]:
    """Return the run's models at the site, the joined one first.

    Args:
        site: the profile; its [state] folder keeps the models.
        model: as :func:`hdpfl_tools.site.stored_models.checked_final_model` returns it.
        task: of the run.

    Raises:
        DataError: a file is damaged.
    """
    noisy: Kind = "none" if math.isinf(site.run.epsilon) else "private"
    terms, models = model.terms, []
    if not terms.work.sent_part:  # else the final model is no whole one
        models.append(network_candidate(JOINED, noisy, model, task, model.arrays))
    if site.state is None:
        return models
    arrays = own_arrays(site.state.path, model) if not terms.work.sent_part else None
    if arrays is not None:
        kind = noisy if kind_of(terms) == "private" else "kept"
        models.append(network_candidate("personal model (Ditto)", kind, model, task, arrays))
    personal = read_personal_model(personal_model_file(site.state.path, terms.run_id))
    if personal is not None:
        kind = noisy if personal.kind == "private" else "kept"
        models.append(Candidate("personal model", kind, partial(personal.outputs, task)))
    return models


def network_candidate(
    name: str, kind: Kind, model: FinalModel, task: Task, arrays: Arrays
) -> Candidate:
    """Return the run's network with the parameters ``arrays`` as a candidate."""
    return Candidate(name, kind, partial(predict, model.terms.model, task, arrays))


def constant(task: Task, targets: npt.NDArray[np.int64] | npt.NDArray[np.float32]) -> Candidate:
    """Return the best constant for ``targets``, shape ``(n,)``; see :func:`constant_outputs`."""
    output = constant_outputs(task, targets)
    return Candidate(CONSTANT, "none", lambda x: np.tile(output, (len(x), 1)))

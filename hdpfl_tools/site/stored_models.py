"""A site's final model and its own, checked before use."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from client_app.after_run.final_model import FinalModel, load_final_model
from client_app.site.site import allowed_layout
from client_app.training.ditto import kept_personal_path, load_personal_model
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.errors import DataError, ProfileError
from hdpfl_flower.models.networks import Arrays, unflatten
from hdpfl_flower.models.parts import select
from hdpfl_flower.models.task import Task


def checked_final_model(site: Profile) -> tuple[FinalModel, Task]:
    """Return the site's final model, checked against the run's terms.

    Raises:
        ProfileError: the profile has no [state].
        DataError: there is no model yet, or it is damaged.
        ModelError: the model of the terms cannot be built here.
    """
    if site.state is None:
        raise ProfileError("profile: [state] is missing; its folder keeps the final model")
    model = load_final_model(site.state.path)
    task = task_for(model.terms)
    terms = model.terms
    # Where a part of the model stays at each site, the final model is the sent part.
    layout = select(
        allowed_layout(site, terms.model, task), terms.model, task, terms.work.sent_part
    )
    same = {n: a.shape for n, a in layout.items()} == {n: a.shape for n, a in model.arrays.items()}
    if not same or not all(np.isfinite(array).all() for array in model.arrays.values()):
        raise DataError(
            f"the model in {site.state.path} is not that of its terms; the next run replaces it"
        )
    return replace(model, arrays={name: model.arrays[name] for name in layout}), task


def own_arrays(folder: Path, model: FinalModel) -> Arrays | None:
    """Return the site's own model of the run of ``model``, or None.

    Args:
        folder: the site's state folder.
        model: as :func:`checked_final_model` returns it, its arrays in the order of the layout.

    Raises:
        DataError: the file is damaged, or of another model.
    """
    size = sum(array.size for array in model.arrays.values())
    personal = load_personal_model(kept_personal_path(folder, model.terms), size)
    return None if personal is None else unflatten(personal, model.arrays)

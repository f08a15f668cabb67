"""A site's final model and its own, checked before use."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from client_app.after_run.final_model import FinalModel, load_final_model
from client_app.after_run.personal_model import PersonalModel
from client_app.site.site import allowed_layout
from client_app.training.ditto import kept_personal_path, load_personal_model
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.errors import DataError, ProfileError
from hdpfl_flower.models.networks import Arrays, build_model, unflatten
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
        raise ProfileError(
            "profile: [state] is missing; add it, because its folder keeps the final model"
        )
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
            f"the model in {site.state.path} does not fit its terms; the next run replaces it"
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


def folded(model: PersonalModel, task: Task) -> PersonalModel:
    """Return the model with its offset in the bias.

    Whether it is the same is tried on a few inputs; a model of other form stays as it is.
    """
    if not model.added.any():
        return model
    probe = np.random.default_rng(0).uniform(-1, 1, (4, *task.input_shape)).astype(np.float32)
    wanted = model.outputs(task, probe)
    for name, array in model.arrays.items():
        if array.shape == model.added.shape:
            moved = {**model.arrays, name: np.asarray(array + model.added, np.float32)}
            candidate = replace(model, arrays=moved, added=np.zeros_like(model.added))
            scale = 1 + np.abs(wanted).max()
            if np.allclose(candidate.outputs(task, probe), wanted, atol=1e-5 * scale):
                return candidate
    return model


def with_backbone(spec: str, task: Task, arrays: Arrays) -> Arrays:
    """Return all numbers of a model with adapters, each adapter added to its weight.

    Args:
        spec: the upper network.
        task: with the ``body``.
        arrays: trained parameters; others are returned as they are.

    Returns:
        The arrays under the names of the layers without adapters, after ``backbone.`` and
        ``head.``.

    Raises:
        DataError, ModelError: the backbone cannot be built.
    """
    import torch
    from torch.nn.utils import parametrize

    from hdpfl_flower.models.adapters import weight_of

    network = build_model(spec, task, seed=0)
    names = {name for name, value in network.named_parameters() if value.requires_grad}
    trained = {name: torch.from_numpy(arrays[name]) for name in arrays if name in names}
    network.load_state_dict(trained, strict=False)
    for module in list(network.modules()):
        if parametrize.is_parametrized(module):
            name = weight_of(module)
            parametrize.remove_parametrizations(module, name, leave_parametrized=True)
    rest = {name: array for name, array in arrays.items() if name not in names}
    return rest | {name: value.numpy().copy() for name, value in network.state_dict().items()}

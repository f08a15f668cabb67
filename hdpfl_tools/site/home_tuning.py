"""Home tuning: a run's model trained on without noise afterwards.

The ledger closes the run first, so that no release can follow which the tuned model could touch.
The model lies in a file of its own, which no training reads; it may show as much of the records as
any model trained without privacy.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from client_app.after_run.personal_model import PersonalModel, save_personal_model
from client_app.training.plain_sgd import LocalJob, network_for, shuffled_batches
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.engines.dpsgd import Phase
from hdpfl_flower.errors import ModelError, ProfileError
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.models.networks import flatten, unflatten
from hdpfl_flower.models.parts import parts_of
from hdpfl_flower.models.task import Records
from hdpfl_flower.privacy.noise import ReleaseStreams
from hdpfl_flower.system.devices import pick_device
from hdpfl_tools.site.stored_models import folded


@dataclass(frozen=True)
class HomeTuning:
    """How a model is tuned at home.

    Attributes:
        layers: ``head`` or ``all``.
        epochs: passes over the site's training records.
        learning_rate: η of SGD without noise.
    """

    layers: str
    epochs: int
    learning_rate: float


def home_tuned_path(folder: Path, run_id: str) -> Path:
    """Return the path of a run's kept model in a folder."""
    return folder / f"kept-model-{hashlib.sha256(run_id.encode()).hexdigest()[:32]}.safetensors"


def tune_without_noise(
    site: Profile, ledger: Ledger, model: PersonalModel, records: Records, how: HomeTuning
) -> PersonalModel:
    """Close the run, tune its model without noise, store and return it.

    Args:
        site: the profile.
        ledger: of the site, open.
        model: to start from.
        records: the site's training records.
        how: part, epochs and rate.

    Raises:
        LedgerError: a release of the run is being worked on, or the ledger does not know the run.
        ProfileError: there is no state folder.
        ModelError: the model has no head apart from a body, or the steps lead beyond all numbers.
    """
    if site.state is None:
        raise ProfileError(
            "profile: [state] is missing; add it, because its folder keeps the model"
        )
    folder, task = site.state.path, task_for(model.terms)
    # The prior is in the bias, or left out: tuning learns the site's labels by itself.
    model = folded(model, task)
    start = flatten(model.arrays)
    place = slice(0, len(start))
    if how.layers == "head":
        place = parts_of(model.terms.model, task).head
    # Before the first step: from here on no release of the run can see the training.
    ledger.close_run(model.terms.run_id, tuned=True)
    batches = tuple(
        shuffled_batches(
            len(records), site.training.batch_size, how.epochs, 0, ReleaseStreams.fresh().sampling
        )
    )
    network = network_for(model.terms.model, task, pick_device(site.training.device))
    job = LocalJob(start, records, batches, phases=(Phase(len(batches), place),))
    end = network.train(job, how.learning_rate)
    if not np.isfinite(end).all():
        raise ModelError("the tuned model has numbers that are not finite; lower '--learning-rate'")
    arrays, none = unflatten(end, model.arrays), np.zeros_like(model.added)
    tuned = replace(model, arrays=arrays, added=none, kind="kept")
    save_personal_model(home_tuned_path(folder, model.terms.run_id), tuned)
    return tuned

"""End of a run at a site: tuning, prior, stored model.

DP-FedAvg-fb, FedBABU (Oh, Kim and Yun, ICLR 2022) and PMTL-FT (Hu et al. 2023) tune the final model
on the site's own records. The steps are DP-SGD's, composed into the run's plan before its first
round; the result is sealed in the ledger, so that a message that is sent again tunes nothing anew.
"""

from __future__ import annotations

import numpy as np

from client_app.after_run.personal_model import (
    PersonalModel,
    kind_of,
    personal_model_path,
    save_personal_model,
)
from client_app.after_run.prior import count_labels, log_prior, mean_offset, sum_residuals
from client_app.site.site import Site
from client_app.training.ditto import load_personal_model, personal_path
from client_app.training.plain_sgd import (
    LocalJob,
    network_for,
    shuffled_batches,
    train_or_stay,
)
from hdpfl_flower import wire
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.engines.dpsgd import Phase, train
from hdpfl_flower.engines.engine_choice import engine_for
from hdpfl_flower.models.networks import Arrays, flatten, unflatten
from hdpfl_flower.models.parts import parts_of
from hdpfl_flower.models.task import Task
from hdpfl_flower.privacy.accounting import Gaussians
from hdpfl_flower.privacy.plan import Plan
from hdpfl_flower.privacy.policy import COUNTS, TUNING
from hdpfl_flower.system.devices import pick_device


def tune(site: Site, plan: Plan, whole: Arrays) -> bytes:
    """Return the run's noisy tuning update from ``whole``, encoded.

    Guarantees:
        The composition of ``plan.tuning`` Gaussian mechanisms, each on the clipped gradients of the
        tuned coordinates and noised in all of them.
    """
    terms, training = site.terms, site.profile.training
    start = flatten(whole)
    round_plan = plan.tuning_round(terms.clip_norm)
    place = tuned_place(terms, site.task, len(start))
    engine = engine_for(terms.model, site.task, training.engine, pick_device(training.device))
    update = train(
        engine,
        start,
        site.training_records(),
        round_plan,
        terms.learning_rate,
        site.streams(terms.rounds, TUNING),
        training.physical_batch,
        phases=(Phase(round_plan.steps.count, place),),
    )
    return wire.encode_update(update)


def tune_at_home(site: Site, whole: Arrays) -> bytes | None:
    """Return the run's tuning update without noise, encoded, or None.

    Where the unit is the client and its update was noised as a whole, the tuned model is for the
    site's own eyes: no later release reads it, so it costs nothing, and it must not be shown.
    """
    terms, training, records = site.terms, site.profile.training, site.training_records()
    stream = site.streams(terms.rounds, TUNING).sampling
    if not terms.tuning_steps:
        return None
    batches = tuple(
        shuffled_batches(len(records), training.batch_size, 0, terms.tuning_steps, stream)
    )
    start = flatten(whole)
    network = network_for(terms.model, site.task, pick_device(training.device))
    phases = (Phase(len(batches), tuned_place(terms, site.task, len(start))),)
    job = LocalJob(start, records, batches, phases=phases)
    end = train_or_stay(network, job, terms.learning_rate)
    return wire.encode_update(end - start)


def tuned_place(terms: RunTerms, task: Task, size: int) -> slice:
    """Return the coordinates that the tuning trains, of ``size``."""
    return slice(0, size) if terms.tunes_all else parts_of(terms.model, task).head


def personal_arrays(site: Site, whole: Arrays, tuned: bytes | None) -> Arrays:
    """Return the site's personal parameters, before a prior.

    Args:
        site: owner of the model.
        whole: the final model with the site's own part.
        tuned: the sealed update of its tuning; None: there was none.

    Raises:
        DataError: the site's model by Ditto is damaged.
    """
    if tuned is not None:
        return unflatten(flatten(whole) + wire.read_sealed(tuned), whole)
    # A second model of the same run takes the place of the shared one.
    path = personal_path(site) if site.terms.second is not None else None
    size = sum(array.size for array in whole.values())
    personal = load_personal_model(path, size) if path is not None else None
    return whole if personal is None else unflatten(personal, whole)


def measure(site: Site, noise: Gaussians, arrays: Arrays | None) -> bytes:
    """Return the personal prior's one noisy release, encoded.

    Args:
        site: owner of the counted records.
        noise: of the plan.
        arrays: of the final model, under which a regression's residuals are; None: labels are
            counted.
    """
    records, stream = site.training_records(), site.streams(1, COUNTS).noise
    if arrays is None:
        return count_labels(site.task, records, noise.noise_multiplier, stream)
    return sum_residuals(
        site.terms.model,
        site.task,
        arrays,
        records,
        noise.noise_multiplier,
        stream,
        site.profile.training.device,
    )


def keep_personal_model(
    site: Site, arrays: Arrays, noise: Gaussians | None, measured: bytes | None
) -> None:
    """Store the site's personal model of the run.

    Args:
        site: owner of the model.
        arrays: of :func:`personal_arrays`.
        noise: that the plan has for the prior's release; None: no prior is planned.
        measured: the sealed release of :func:`measure`; None: there is none.

    Raises:
        Declined: no folder for it.
    """
    task, added = site.task, np.zeros(site.task.outputs, np.float32)
    if noise is not None and measured is not None:
        release, z = wire.read_sealed(measured), noise.noise_multiplier
        declared = site.profile.training.declared_records
        added = log_prior(task, release, z) if task.classes else mean_offset(release, z, declared)
    model = PersonalModel(site.terms, arrays, added, kind_of(site.terms))
    save_personal_model(personal_model_path(site), model)

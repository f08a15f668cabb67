"""The end of a run at a site: its charged tuning steps, and the personal model that it keeps.

DP-FedAvg-fb, FedBABU (Oh, Kim and Yun, ICLR 2022) and PMTL-FT (Hu et al. 2023) tune the final model
on the site's own records. The steps are DP-SGD's, composed into the run's plan before its first
round; the result is sealed in the ledger, so that a message that is sent again tunes nothing anew.
"""

from __future__ import annotations

import numpy as np

from client_app.personal.personal_model import (
    Kind,
    PersonalModel,
    assemble,
    personal_model_path,
    save_personal_model,
)
from client_app.site.site import Site
from client_app.training.dpsgd import Phase, train
from client_app.training.engine_choice import engine_for
from client_app.training.plain_sgd import LocalJob, network_for, shuffled_batches
from client_app.training.trainer import pick_device
from hdpfl_flower import wire
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.models.networks import Arrays, flatten, unflatten
from hdpfl_flower.models.parts import parts_of
from hdpfl_flower.models.task import Task
from hdpfl_flower.privacy.plan import Plan
from hdpfl_flower.privacy.policy import TUNING


def tune(site: Site, plan: Plan, whole: Arrays) -> bytes:
    """Return the noisy update of the run's tuning steps from ``whole``, encoded to be sealed.

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
    """Return the update of the run's tuning steps without noise, encoded; None without any.

    Where the unit is the client and its update was noised as a whole, the tuned model is for the
    site's own eyes: no later release reads it, so it costs nothing, and it must not be shown.
    """
    terms, training, records = site.terms, site.profile.training, site.training_records()
    stream = site.streams(terms.rounds, TUNING).sampling
    batches = tuple(
        shuffled_batches(len(records), training.batch_size, 0, terms.tuning_steps, stream)
        if terms.tuning_steps
        else ()
    )
    if not batches:
        return None
    start = flatten(whole)
    network = network_for(terms.model, site.task, pick_device(training.device))
    phases = (Phase(len(batches), tuned_place(terms, site.task, len(start))),)
    end = network.train(LocalJob(start, records, batches, phases=phases), terms.learning_rate)
    return wire.encode_update(end - start)


def tuned_place(terms: RunTerms, task: Task, size: int) -> slice:
    """Return the coordinates that ``tuning-steps`` train, of a model of ``size`` numbers."""
    return slice(0, size) if terms.tuning_part == "all" else parts_of(terms.model, task).head


def keep_personal_model(site: Site, shared: Arrays, tuned: bytes | None) -> None:
    """Store the site's personal model of the run; ``tuned`` is the sealed update of its tuning.

    Raises:
        Declined: no folder for it.
        DataError: the site's own part is damaged.
    """
    whole = assemble(site, shared)
    if tuned is not None:
        whole = unflatten(flatten(whole) + wire.read_sealed(tuned), whole)
    added = np.zeros(site.task.outputs, np.float32)
    # At the level of a client what stays is trained without noise: the site's alone.
    kind: Kind = "private" if site.terms.noise == "records" else "kept"
    model = PersonalModel(site.terms, whole, added, kind)
    save_personal_model(personal_model_path(site), model)

"""Tuning of the final model on a site's own records.

DP-FedAvg-fb, FedBABU (Oh, Kim and Yun, ICLR 2022) and PMTL-FT (Hu et al. 2023) tune the final model
on the site's own records. The steps are DP-SGD's, composed into the run's plan before its first
round; the result is sealed in the ledger, so that a message that is sent again tunes nothing anew.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from client_app.after_run.personal_model import PersonalModel
from client_app.releases.base import SiteHalf, Work
from client_app.site.site import Site
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
from hdpfl_flower.errors import DataError
from hdpfl_flower.models.networks import Arrays, flatten, unflatten
from hdpfl_flower.models.parts import parts_of
from hdpfl_flower.models.task import Task
from hdpfl_flower.privacy.plan import Plan
from hdpfl_flower.releases import asked_kind
from hdpfl_flower.releases.tuning import Tuning
from hdpfl_flower.system.devices import pick_device


def tune(site: Site, plan: Plan, whole: Arrays) -> bytes:
    """Return the run's noisy tuning update from ``whole``, encoded.

    Guarantees:
        The composition of the plan's tuning steps, Gaussian mechanisms, each on the clipped
        gradients of the tuned coordinates and noised in all of them.
    """
    terms, training = site.terms, site.profile.training
    start = flatten(whole)
    round_plan = plan.steps_beside(Tuning.release, terms.clip_norm)
    coordinates = tuned_place(terms, site.task, len(start))
    engine = engine_for(terms.model, site.task, training.engine, pick_device(training.device))
    update = train(
        engine,
        start,
        site.training_records(),
        round_plan,
        terms.learning_rate,
        site.streams(terms.rounds, Tuning.release),
        training.physical_batch,
        phases=(Phase(round_plan.steps.count, coordinates),),
    )
    return wire.encode_update(update)


def tune_at_home(site: Site, whole: Arrays) -> bytes | None:
    """Return the run's tuning update without noise, encoded, or None.

    Where the unit is the client and its update was noised as a whole, the tuned model is for the
    site's own eyes: no later release reads it, so it costs nothing, and it must not be shown.
    """
    terms, training, records = site.terms, site.profile.training, site.training_records()
    stream = site.streams(terms.rounds, Tuning.release).sampling
    tuning = asked_kind(terms, Tuning)
    if tuning is None:
        return None
    count = tuning.noisy_steps(terms)
    batches = tuple(shuffled_batches(len(records), training.batch_size, 0, count, stream))
    start = flatten(whole)
    network = network_for(terms.model, site.task, pick_device(training.device))
    phases = (Phase(len(batches), tuned_place(terms, site.task, len(start))),)
    job = LocalJob(start, records, batches, phases=phases)
    end = train_or_stay(network, job, terms.learning_rate)
    return wire.encode_update(end - start)


def tuned_place(terms: RunTerms, task: Task, size: int) -> slice:
    """Return the coordinates that the tuning trains, of ``size``."""
    tuning = asked_kind(terms, Tuning)
    trains_all = tuning is not None and tuning.trains_all
    return slice(0, size) if trains_all else parts_of(terms.model, task).head


class TuningHalf(SiteHalf):
    """Steps from the final model with the site's own part."""

    def prepare(self, site: Site, plan: Plan, arrays: Arrays | None) -> Work:
        """Return the training."""
        if arrays is None:
            raise DataError("tuning needs a model")
        return partial(tune, site, plan, arrays)

    def applied(
        self, site: Site, plan: Plan, model: PersonalModel, payload: bytes
    ) -> PersonalModel:
        """Return the model moved by the sealed update."""
        del site, plan
        return moved(model, payload)

    def at_home(self, site: Site, model: PersonalModel) -> PersonalModel:
        """Return the model tuned without noise, for the site's own eyes."""
        update = tune_at_home(site, model.arrays)
        return model if update is None else moved(model, update)


def moved(model: PersonalModel, update: bytes) -> PersonalModel:
    """Return the model after an encoded update of all its numbers."""
    end = flatten(model.arrays) + wire.read_sealed(update)
    return replace(model, arrays=unflatten(end, model.arrays))


HALF = TuningHalf()

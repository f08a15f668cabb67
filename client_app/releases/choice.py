"""A site's private choice among the models of a message."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from client_app.site.site import Site
from hdpfl_flower import wire
from hdpfl_flower.errors import Declined, Reason
from hdpfl_flower.models.evaluation import count_correct
from hdpfl_flower.models.networks import Arrays
from hdpfl_flower.privacy.accounting import ExtraRelease, PureSelections, Steps
from hdpfl_flower.privacy.exponential_mechanism import choose_model_by_gumbel
from hdpfl_flower.privacy.noisy_max import choose_model, selection_noise_std
from hdpfl_flower.privacy.plan import Plan
from hdpfl_flower.releases.rounds import PrivateChoice
from hdpfl_flower.wire import Instructions


def choose(
    site: Site, instructions: Instructions, models: Sequence[Arrays], plan: Plan | None
) -> bytes:
    """Return the sealed choice among the models of the message.

    Raises:
        Declined: no plan pays for one, or the ledger refuses.
        DataError: the records have no classes to count, or cannot be read as a whole.
    """
    choices = plan.cost_of(PrivateChoice.release) if plan else None
    if choices is None or isinstance(choices, Steps) or not choices.count:
        raise Declined(Reason.TERMS, "the server asks for a 'choice.kind', but none is planned")

    def work() -> bytes:
        return choose_privately(site, instructions.server_round, models, choices)

    return site.release(instructions, PrivateChoice(), work).payload


def choose_privately(
    site: Site, server_round: int, models: Sequence[Arrays], choices: ExtraRelease
) -> bytes:
    """Return the payload of one choice by noisy counts.

    Guarantees:
        Costs one of the plan's ``choices``, however many models there are and whatever they hold.
    """
    spec, task, records = site.terms.model, site.task, site.training_records()
    # Exact counts, shape (M,): they never leave; only the index of the noisy largest does.
    device = site.profile.training.device
    correct = np.array([count_correct(spec, task, model, records, device) for model in models])
    stream = site.streams(server_round, PrivateChoice.release).noise
    if isinstance(choices, PureSelections):
        return wire.encode_choice(choose_model_by_gumbel(correct, choices.epsilon, stream))
    # s on each of the M counts: a common part of all counts cancels, and costs nothing.
    noise_std = selection_noise_std(choices.noise_multiplier, len(models))
    return wire.encode_choice(choose_model(correct, noise_std, stream))

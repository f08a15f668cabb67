"""A site's private choice among the models of a message."""

from __future__ import annotations

import numpy as np

from client_app.site.site import Site
from client_app.training.trainer import read_models
from hdpfl_flower import wire
from hdpfl_flower.privacy.accounting import Beside, PureSelections
from hdpfl_flower.data.datasets import task_for
from hdpfl_flower.models.evaluation import count_correct
from hdpfl_flower.privacy.noisy_max import choose_model, selection_noise_std
from hdpfl_flower.privacy.exponential_mechanism import choose_model_by_gumbel
from hdpfl_flower.wire import Instructions


def choose_privately(site: Site, instructions: Instructions, choices: Beside) -> bytes:
    """Return the payload of one choice: the model with the largest noisy count of correct records.

    Guarantees:
        Costs one of the plan's ``choices``, however many models there are and whatever they hold.

    Raises:
        Declined, WireError: a model is none that the terms name.
        DataError: the records have no classes to count, or cannot be read as a whole.
    """
    terms, models = instructions.terms, read_models(site, instructions)
    task, records = task_for(terms), site.training_records()
    correct = np.array([count_correct(terms.model, task, one, records) for one in models])
    stream = site.streams(instructions.server_round, "choice").noise
    if isinstance(choices, PureSelections):
        return wire.encode_choice(choose_model_by_gumbel(correct, choices.epsilon, stream))
    noise_std = selection_noise_std(choices.noise_multiplier, len(models))
    return wire.encode_choice(choose_model(correct, noise_std, stream))

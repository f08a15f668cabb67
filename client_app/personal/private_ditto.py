"""A site's personal model under record-level DP: DP-SGD steps, pulled towards the global model.

Ditto (Li, Hu, Beirami and Smith, ICML 2021) with each step clipped and noised, so that the model
itself, and whatever is shown of it, is differentially private; ``ditto.py`` trains without noise a
model that must stay at the site. The steps are as many more accesses to the records: a plan that
pays for both models has twice the steps in its schedule.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from client_app.training.dpsgd import Pull, train
from client_app.training.engines import Engine
from hdpfl_flower.privacy.plan import RoundPlan
from hdpfl_flower.privacy.noise import ReleaseStreams
from hdpfl_flower.models.task import Records


def train_personal_privately(  # noqa: PLR0913 - the last by name
    engine: Engine,
    own: npt.NDArray[np.float32],
    records: Records,
    plan: RoundPlan,
    learning_rate: float,
    streams: ReleaseStreams,
    physical_batch: int,
    *,
    pull: Pull,
) -> npt.NDArray[np.float32]:
    """Return a site's personal model after one more round, float32, shape ``(d,)``.

    Args:
        engine: the model; its parameters are overwritten.
        own: the personal model so far, shape ``(d,)``; in the first round the global one.
        records: the site's records.
        plan: q, C, the noise and the divisor of the round, and the steps of *this* model alone.
        learning_rate: η.
        streams: of the personal model alone, used up. With the update's streams, whoever sees the
            update and the model would see the difference of two sums under the same noise.
        physical_batch: records in memory at once.
        pull: (λ, the round's global model).

    Guarantees:
        The composition of ``plan.steps`` Gaussian mechanisms and post-processing, if ``own`` comes
        from this function or from the server. It is not covered by what was charged for the
        update: a round of both is ``2 · plan.steps.count`` steps with the same q and z.

    Raises:
        TermsError: λ or the global model is wrong, as for :func:`client_app.training.dpsgd.train`.
    """
    return own + train(
        engine, own, records, plan, learning_rate, streams, physical_batch, pull=pull
    )

"""One round with shared noise: a site's masked part of a sum.

Boenisch et al., Have It Your Way: Individualized Privacy Assignment for DP-SGD (NeurIPS 2023),
scale gradients by the privacy of their records, centrally; here each site scales its sum, so that
its z stays with it. The proofs are in ``hdpfl_flower/shared_noise/ring.py``.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
import numpy.typing as npt
import torch
from flwr.app import RecordDict

from client_app.site.personal_state import PersonalState, Vector
from client_app.site.shared_noise import SumSet, secrets_of
from client_app.site.site import Site
from client_app.training.trainer import Trainer
from hdpfl_flower import wire
from hdpfl_flower.engines.dpsgd import Phase, clipped_sum
from hdpfl_flower.errors import Declined, Reason
from hdpfl_flower.privacy.noise import RandomStream, add_noise
from hdpfl_flower.privacy.plan import Plan, RoundPlan
from hdpfl_flower.releases.rounds import Update
from hdpfl_flower.shared_noise.masks import add_masks
from hdpfl_flower.shared_noise.members import PART
from hdpfl_flower.shared_noise.ring import (
    LEAST_NOISE,
    check_rounding,
    encode,
    scale_of,
    share_of_noise,
)
from hdpfl_flower.wire import Instructions

Vector64 = npt.NDArray[np.float64]


class SumPart(Trainer):
    """A round whose update is one masked part of a sum."""

    def __init__(self, site: Site, instructions: Instructions) -> None:
        """Check the set and the model, without records.

        Raises:
            Declined: the set lacks this site or is too small, or has a member without a key here,
                or so large a model or a batch cannot be rounded.
            HDPFLError: as ``Trainer``.
        """
        terms = site.terms
        if instructions.use or instructions.project is not None:
            raise Declined(Reason.TERMS, "a shared sum needs one model, and the whole of it")
        self._peers, self._members = secrets_of(site), SumSet.of(site, instructions.of_noise)
        super().__init__(site, instructions)
        plan = site.paid_plan.plan
        noise = plan.round(instructions.server_round, terms.clip_norm).noise_std / terms.clip_norm
        try:
            scale_of(max(noise, LEAST_NOISE), terms.clip_norm, self.size)
        except ValueError:
            reason = (
                "'model' is too large for this site's noise: rounding would remove all of the noise"
            )
            raise Declined(Reason.TERMS, reason) from None
        try:
            check_rounding(plan.divisor, self._physical)
        except ValueError:
            reason = "'training.physical-batch' is too small for such a large batch: set it to 256"
            raise Declined(Reason.PROFILE, reason) from None

    def run(self, plan: Plan | None) -> bytes:
        """Return the masked part of the sum, d + 1 integers.

        The last is the site's weight: its expected batch over its noise multiplier, times a secret
        constant between ½ and 2. Sums over two sets differ by the weights of their sites; the
        constant keeps a single one from showing z.

        Guarantees:
            Of the sum over the round's sites, a record moves the first d numbers by at most 1/z of
            the noise that n − t of them add; the last depends on no record. Each request has masks
            of its own. Coordinates that stay at the site are clipped with the others and get the
            whole noise here: both together are one Gaussian mechanism of the multiplier z.

        Raises:
            Declined: without a plan.
        """
        if plan is None:
            raise Declined(Reason.TERMS, "no plan pays for an update")
        terms, site, size = self._instructions.terms, self._site, len(self.start)
        trained = sent = slice(0, size)
        if self.personal is not None:
            (phase,) = self.personal.course(1, self.start, _no_training).phases
            trained, sent = phase.place, self.personal.work.sent
        this = plan.round(self._instructions.server_round, terms.clip_norm)
        streams = site.streams(self._instructions.server_round, Update.release)
        total = clipped_sum(
            self.engine,
            self._whole(self.start),
            site.training_units(),
            this,
            streams.sampling,
            self._physical,
            trained,
        )
        # Without privacy (ε = ∞) a site takes the least noise that the ring can scale by.
        noise = max(this.noise_std / terms.clip_norm, LEAST_NOISE)
        weight = this.divisor / noise * _blur(self._peers.blur())
        values = np.append(total[sent] * scale_of(noise, terms.clip_norm, size), weight)
        part = encode(values)
        part[:size] += share_of_noise(size, self._members.honest, streams.noise)
        if self.personal is not None:
            self._after = self._kept(total, this, streams.noise, trained)
        add_masks(part, self._members.secrets, self._members.own, self._instructions.digest)
        return wire.encode(part, "uint64")

    def _kept(
        self, total: Vector64, plan: RoundPlan, noise: RandomStream, trained: slice
    ) -> PersonalState:
        """Return the site's own part after its noisy step; a frozen part stays."""
        noisy = np.zeros_like(total)
        noisy[trained] = add_noise(torch.from_numpy(total), plan.noise_std, noise).numpy()[trained]
        step = (-self._instructions.terms.learning_rate / plan.divisor * noisy).astype(np.float32)
        if self.personal is None:
            raise Declined(Reason.TERMS, "no part stays at this site")
        return self.personal.after(step, self.start, 0.0, 1)

    def reply(self, payload: bytes, choice: bytes | None) -> RecordDict:
        """Return the reply with the sealed part."""
        del choice
        return wire.write_payload(PART, payload, "uint64")


def _no_training(phase: Phase) -> Vector:
    """Refuse a charged step for a mask: a sum has none."""
    raise Declined(Reason.TERMS, f"a shared sum has no mask, and {phase.steps} steps are for one")


def _blur(secret: bytes) -> float:
    """Return a constant in [½, 2] by a secret, whose mean over secrets is 1 within 9 %."""
    digest = hashlib.sha256(b"hdpfl weight" + secret).digest()
    return math.exp((int.from_bytes(digest[:7], "big") / 2**56 * 2 - 1) * math.log(2))

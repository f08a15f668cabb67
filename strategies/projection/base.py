"""Any rule's weights with the private sites' updates projected: what ``pfa`` and ``…+pfa`` share.

The projection of PFA (Liu et al., VLDB 2021) does not depend on how updates are weighted, so it is
a part of its own: ``robust-hdp+pfa`` is Robust-HDP's weights with PFA's projection, and ``pfa`` is
``weiavg+pfa``. The rule that weighs runs as it is, on the same updates.

Threat model: that of the rule that weighs; and each site discloses its ε to the server, which calls
the loose ones public.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.privacy.noise import RandomStream
from strategies.core.public_split import parse_split
from hdpfl_flower.updates import Outcome, RoundUpdates
from strategies.core.base import Disclosed, HDPStrategy, State
from strategies.core.strategy_state import Kept
from strategies.core.sampler import Sampler

log = logging.getLogger("hdpfl.server")

Part = tuple[npt.NDArray[np.float32], int]
"""A stretch of the aggregate, and how many directions its private part was projected on."""


def check_split(terms: RunTerms) -> None:
    """Raise ``TermsError`` where ``public-split`` is not one."""
    parse_split(terms.public_split)


def public_sites(updates: RoundUpdates, sampler: Sampler) -> npt.NDArray[np.bool_]:
    """Return whose updates are public, shape ``(n,)``; an update of zeros shows no direction.

    The split is that of all sites that joined, so that a site is public or not whoever else is
    asked, or answers.
    """
    disclosed = dict(zip(updates.sites, updates.disclosed["epsilon"].tolist(), strict=True))
    named = sampler.public_sites(disclosed)
    public: npt.NDArray[np.bool_] = np.array(
        [site in named and bool(row.any())
         for site, row in zip(updates.sites, updates.updates, strict=True)], dtype=np.bool_,
    )  # fmt: skip
    return public


class Projected(HDPStrategy):
    """The weights of ``weighting``, the private part of the aggregate projected.

    So unanimous sites need not get their way.

    Attributes:
        weighting: the rule that weighs.
    """

    weighting: ClassVar[type[HDPStrategy]]

    def __init__(self, terms: RunTerms) -> None:
        """Prepare for the run of ``terms``; raises ``TermsError`` for an unknown split."""
        check_split(terms)
        self._rule = self.weighting(terms)
        super().__init__(terms)
        self._rule.sampler = self.sampler  # who is public is one matter

    @classmethod
    def discloses(cls, terms: RunTerms) -> frozenset[str]:
        """See :meth:`HDPStrategy.discloses`."""
        return cls.weighting.discloses(terms) | {"epsilon"}

    @classmethod
    def uses(cls, terms: RunTerms) -> frozenset[str]:
        """See :meth:`HDPStrategy.uses`."""
        return cls.weighting.uses(terms)

    @classmethod
    def completed(cls, terms: RunTerms) -> RunTerms:
        """See :meth:`HDPStrategy.completed`."""
        return cls.weighting.completed(terms)

    @classmethod
    def is_weighted_sum(cls, terms: RunTerms) -> bool:
        """See :meth:`HDPStrategy.is_weighted_sum`: the projection is in between."""
        del terms
        return False

    def initial_state(self) -> State:
        """See :meth:`HDPStrategy.initial_state`."""
        return self._rule.initial_state()

    def propose(self, terms: RunTerms, disclosed: Disclosed) -> RunTerms:
        """See :meth:`HDPStrategy.propose`."""
        return self._rule.propose(terms, disclosed)

    def combine(
        self, state: State, updates: RoundUpdates, noise: RandomStream
    ) -> tuple[State, Outcome]:
        """See :meth:`HDPStrategy.combine`.

        The journal's ``public`` marks the public sites of the round and ``subspace_rank`` the
        directions kept; 0 means that nothing was projected, for want of public or private sites.
        """
        state, outcome = self._rule.combine(state, updates, noise)
        public, rank, update = public_sites(updates, self.sampler), 0, outcome.update
        if public.any() and outcome.weights[~public].any():
            update = np.empty_like(update)
            for part in self._parts(len(update)):
                update[part], kept = self.project(updates, part, outcome.weights, public)
                rank = max(rank, kept)
        else:
            who = "private" if public.any() else "public"
            log.warning(
                "round %d: no %s site; nothing is projected ('public-split' = '%s')",
                updates.server_round, who, self.terms.public_split,
            )  # fmt: skip
        gauges = {
            **outcome.gauges,
            "public": public.astype(np.float64),
            "subspace_rank": float(rank),
        }
        return state, Outcome(update, outcome.weights, gauges)

    def keep(self) -> Kept:
        """See :meth:`Keeps.keep`: what the rule that weighs keeps."""
        return self._rule.keep()

    def restore(self, kept: Kept) -> None:
        """See :meth:`Keeps.restore`."""
        self._rule.restore(kept)

    @abstractmethod
    def project(
        self,
        updates: RoundUpdates,
        part: slice,
        weights: npt.NDArray[np.float64],
        public: npt.NDArray[np.bool_],
    ) -> Part:
        """Return the aggregate's coordinates ``part``, the private sites' share projected."""

    def _parts(self, size: int) -> Iterator[slice]:
        """Yield the whole update, or each of its tensors where the terms ask for that."""
        if self.terms.subspace_scope == "vector" or not self._like:
            yield slice(0, size)
            return
        start = 0
        for array in self._like.values():
            yield slice(start, start + array.size)
            start += array.size

"""Inputs and outputs of a strategy: updates, and the model's step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hdpfl_flower.estimators.softmax_head import Head
from hdpfl_flower.estimators.temporal import NoiseEstimate


@dataclass(frozen=True)
class RoundUpdates:
    """Checked updates of one round, a site per row.

    Attributes:
        server_round: from 1.
        sites: names, in the order of all rows.
        updates: float32, shape ``(n, d)``; local model − global model. Not to be written to.
        disclosed: facts that the sites disclosed, each shape ``(n,)``; NaN if a site does not
            disclose an optional fact.
        head: position of the model's softmax layer, if any.
        group: with several models, the model that each site trained, shape ``(n,)``.
        chose: with several models, whether the site chose it, privately, shape ``(n,)``.
        squares: ‖u‖² of each row, shape ``(n,)``, see :func:`square_sum`; measured when the row
            was received, so that clipping does not read it again. None if not precomputed.
        projected: whether the site sent one number, its update's coordinate along a direction,
            and the row was made from it, shape ``(n,)``; None where no site was asked for one.
        noise: noise of the rows if the guard has estimated it, no row more precise than the
            guard believes; None: not estimated.
    """

    server_round: int
    sites: tuple[str, ...]
    updates: npt.NDArray[np.float32]
    disclosed: Mapping[str, npt.NDArray[np.float64]] = field(default_factory=dict)
    head: Head | None = None
    group: npt.NDArray[np.int64] | None = None
    chose: npt.NDArray[np.bool_] | None = None
    squares: npt.NDArray[np.float64] | None = None
    projected: npt.NDArray[np.bool_] | None = None
    noise: NoiseEstimate | None = None


@dataclass(frozen=True)
class RowWeights:
    """Round weights that differ by class row of the softmax head.

    A block of the model is a class row (the weights into a class and its bias), or, the last one,
    all other coordinates. The update of block r is ``scales[r]``·Σᵢ ``shares[r, i]``·uᵢ.

    Attributes:
        head: position of the rows.
        shares: float64, shape ``(classes + 1, n)``, convex in every block.
        scales: float64, shape ``(classes + 1,)``, positive.
    """

    head: Head
    shares: npt.NDArray[np.float64]
    scales: npt.NDArray[np.float64]


@dataclass(frozen=True)
class Revision:
    """Change of the model by other weights of earlier rounds.

    Attributes:
        move: float32, shape ``(d,)``: added to the model beside the round's step, at the server's
            rates of those rounds.
        noise_before: expected squared lengths of the noise of those rounds' moves, summed.
        noise_after: likewise by the new weights.
        taken_back: site → decrease of its updates' factor in the model, the mean over the
            coordinates; below 0: increase.
    """

    move: npt.NDArray[np.float32]
    noise_before: float
    noise_after: float
    taken_back: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """Result of a strategy's round.

    Attributes:
        update: float32, shape ``(d,)``; added to the global model. With several models shape
            ``(M, d)``, a row per model.
        weights: float64, shape ``(n,)``; each site's share of its model; with ``row_weights`` the
            mean over the coordinates.
        gauges: measurements for the journal: a float, or an array of shape ``(n,)``.
        scale: ``update`` is ``scale``·Σᵢ wᵢuᵢ, if the strategy declares a weighted sum; with
            ``row_weights`` the mean over the coordinates.
        row_weights: the weights of each class row, if they differ, and then ``update`` is their
            sum; None: ``weights`` are those of every coordinate.
        group: the model that each site's update went into, shape ``(n,)``; None: there is one.
        from_first: a new model starts from the first one; else from the run's initial model.
        reported: float32, shape ``(d,)``; added to the global model for the one that is
            tested, stored and sent at the end, if that is not the model that sites train from;
            None: they are the same.
        revision: further move of the model, by earlier updates; None: none.
    """

    update: npt.NDArray[np.float32]
    weights: npt.NDArray[np.float64]
    gauges: Mapping[str, float | npt.NDArray[np.float64]] = field(default_factory=dict)
    scale: float = 1.0
    row_weights: RowWeights | None = None
    group: npt.NDArray[np.int64] | None = None
    from_first: bool = False
    reported: npt.NDArray[np.float32] | None = None
    revision: Revision | None = None

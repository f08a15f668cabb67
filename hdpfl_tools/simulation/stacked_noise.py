"""Noise of many releases at once, each with the bits that it has alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hdpfl_flower.system.devices import moved

if TYPE_CHECKING:  # imported where normals are drawn: a second that many commands need not wait
    import torch

from hdpfl_flower.privacy.noise import RandomStream, blocks_of, grid_of, normals_of


def add_noises(
    totals: torch.Tensor, stds: Sequence[float], streams: Sequence[RandomStream]
) -> None:
    """Replace each row by its :func:`add_noise`, own scale and stream.

    Args:
        totals: clipped sums of as many releases, float32, shape ``(n, d)``, any device.
        stds: standard deviation of each row's noise; 0 leaves the row as it is.
        streams: the noise stream of each row's release.

    Guarantees:
        Row i has the bits of ``add_noise(totals[i], stds[i], streams[i])``.
    """
    import torch

    # Not "above 0": a scale that is no number must raise, not leave the noise out.
    noised = [row for row, std in enumerate(stds) if std != 0]
    if len(noised) < len(totals):  # a release without noise draws none
        if noised:
            places = moved(torch.tensor(noised), totals.device)
            some = totals.index_select(0, places)
            add_noises(some, [stds[row] for row in noised], [streams[row] for row in noised])
            totals.index_copy_(0, places, some)
        return
    grids = [grid_of(std) for std in stds]
    ratios = [std / grid for std, grid in zip(stds, grids, strict=True)]
    scale, grid = (
        moved(torch.tensor(numbers, dtype=torch.float64), totals.device).unsqueeze(1)
        for numbers in (ratios, grids)
    )
    if totals.device.type != "cpu":
        noise = normals_of(streams, totals.shape[1], totals.device)
        totals.copy_(_on_grid(noise, totals, scale, grid))
        return
    # Block by block: sums and noise meet in the cache of a core, and memory is written once.
    for rows, columns, noise in blocks_of(streams, totals.shape[1]):
        some = totals[rows, columns]
        some.copy_(_on_grid(noise, some, scale[rows], grid[rows]))
        del noise  # before the next block, which is made in its memory


def _on_grid(
    noise: torch.Tensor, totals: torch.Tensor, scale: torch.Tensor, grid: torch.Tensor
) -> torch.Tensor:
    """Return ``totals`` + noise, float64, multiples of each row's grid; ``noise`` is used up."""
    # In units of the grid, so that rounding to whole numbers rounds to the grid.
    noise.mul_(scale).addcmul_(totals.to(noise.dtype), 1 / grid)
    return noise.round_().mul_(grid)

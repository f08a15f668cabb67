"""What the guard ``evidence`` keeps between rounds, and how a checkpoint holds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from strategies.guards.bounds import Vector

Matrix = npt.NDArray[np.float64]


@dataclass
class Books:
    """The state, unpacked: sites by the order in which they came.

    Attributes:
        order: site → its place.
        votes: of the column's site on the row's, since the row's CUSUM was last 0, shape (m, m).
        length: rounds since then, shape ``(m,)``.
        gains: sums of the steps along the pilot, of their variances, and rounds, shape (m, 3).
        refused: 0, or 1 + the place of the reason, shape ``(m,)``.
    """

    order: dict[str, int]
    votes: Matrix
    length: Vector
    gains: Matrix
    refused: Vector


_BOOKS = ("votes", "length", "gains", "refused")


def unpack(state: Mapping[str, Vector], sites: Sequence[str]) -> Books:
    """Return copies of the state's books, with room for the sites that are new."""
    order = {k.removeprefix("place/"): int(v[0]) for k, v in state.items() if k[:6] == "place/"}
    for site in sites:
        order.setdefault(site, len(order))
    m, old = len(order), len(state.get("refused", ()))
    shapes = {"votes": (m, m), "length": (m,), "gains": (m, 3), "refused": (m,)}
    books = {name: np.zeros(shapes[name]) for name in _BOOKS}
    if old:
        books["votes"][:old, :old] = state["votes"]
        for name in _BOOKS[1:]:
            books[name][:old] = state[name]
    return Books(order, **books)


def pack(books: Books) -> dict[str, Vector]:
    """Return the books as arrays by name; :func:`unpack` reads them."""
    packed = {f"place/{site}": np.array([float(i)]) for site, i in books.order.items()}
    return packed | {name: getattr(books, name) for name in _BOOKS}

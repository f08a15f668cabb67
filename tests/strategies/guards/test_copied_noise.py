"""Copied noise: it is proven however many share it, and of honest sites it is not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import binom

from hdpfl_flower.estimators.softmax_head import silent_sums
from strategies.guards import copied_noise as collusion
from strategies.guards.copied_noise import copied_noise, too_near
from strategies.guards.proof import SHARED, Floor, refuse_proven
from tests.strategies.guards.test_proof import (
    EMPTY,
    HEAD,
    NAMES,
    ROUNDS,
    TERMS,
    D,
    Federation,
    Rows,
    jittered,
    proven,
)

FLOOR = Floor(ROUNDS, 10**-2.6)
"""The quietest site of ``Federation`` has no less noise."""


def norms(rows: Rows) -> npt.NDArray[np.float64]:
    return np.linalg.norm(rows.astype(np.float64), axis=1)


def cosines(rows: Rows) -> npt.NDArray[np.float64]:
    unit = rows.astype(np.float64) / norms(rows)[:, None]
    found: npt.NDArray[np.float64] = unit @ unit.T
    np.fill_diagonal(found, 0)
    return found


# --- proof ----------------------------------------------------------------------------------


def colluding(honest: Rows, count: int, generator: np.random.Generator) -> list[str]:
    """Give the first ``count`` sites the first one's update, jittered; return their names."""
    first = honest[0].copy()
    for i in range(count):
        honest[i] = jittered(first, generator)
    return NAMES[:count]


@pytest.mark.parametrize("count", [2, 3, 8, 12, 19, 20])
def test_all_that_share_their_noise_are_refused_however_many(count: int) -> None:
    federation = Federation(20)
    _, honest = next(federation.rounds())
    liars = colluding(honest, count, federation.generator)
    assert proven(honest) == dict.fromkeys(liars, SHARED)


@pytest.mark.parametrize("count", [3, 12])
def test_without_a_head_the_floor_proves_it(count: int) -> None:
    """Differences far below the noise of one honest site; without a floor they prove nothing."""
    federation = Federation(21)
    _, honest = next(federation.rounds())
    liars = colluding(honest, count, federation.generator)
    assert proven(honest, FLOOR, None) == dict.fromkeys(liars, SHARED)
    assert proven(honest, TERMS, None) == {}


def test_the_noise_of_a_refused_site_proves_a_new_ones() -> None:
    federation, state = Federation(23), EMPTY
    for turn, (_, honest) in enumerate(federation.rounds(3)):
        honest[1] = jittered(honest[0], federation.generator)
        if turn == 2:
            honest[9] = jittered(honest[0], federation.generator)
        state, refused = refuse_proven(state, NAMES, honest, TERMS, HEAD)
    assert refused == dict.fromkeys(("0", "1", "9"), SHARED)
    _, honest = next(federation.rounds())
    assert set(refuse_proven(state, NAMES, honest, TERMS, HEAD)[1]) == {"0", "1", "9"}


@pytest.mark.parametrize("head", [HEAD, None], ids=["head", "no head"])
def test_a_quiet_site_proves_nothing_against_the_others(head: object) -> None:
    """Below the floor it differs from nobody by the floor's noise: that is its own doing."""
    _, honest = next(Federation(25).rounds())
    honest[4] *= np.float32(1e-3)
    found = proven(honest, FLOOR, head)  # type: ignore[arg-type]
    assert list(found) == ["4"]


# --- no proof against the honest --------------------------------------------------------------


@pytest.mark.parametrize("precise", [2, 5, 20])
def test_precise_sites_that_share_what_the_rest_do_not_learn_share_no_noise(precise: int) -> None:
    """Half of the sites hold other labels: nothing explains their cosines, and nothing is proven.

    Signals a hundred times the noise, and cosines above .999.
    """
    federation = Federation(26)
    clean, honest = next(federation.rounds())
    other = next(Federation(28).rounds())[0][0]
    unit = other / np.linalg.norm(other)
    rows = range(precise)
    for i in rows:
        noise = honest[i] - clean[i]
        honest[i] = 100 * np.linalg.norm(noise) * unit + noise
    if precise > 1:
        assert cosines(honest)[0, 1] > 0.999
    silent = silent_sums(honest, HEAD)
    assert copied_noise(silent, norms(honest), ROUNDS) == []
    gram = honest.astype(np.float64) @ honest.T.astype(np.float64)
    assert too_near(gram, D, FLOOR.noise, ROUNDS) == []


def test_a_copied_noise_is_found_by_the_silent_sums_alone() -> None:
    """The signal of two sites without noise fills their updates, and silent sums hold none."""
    clean, honest = next(Federation(13).rounds())
    honest[[3, 7]] = clean[[3, 7]]
    assert copied_noise(silent_sums(honest, HEAD), norms(honest), ROUNDS) == []
    honest[12] = honest[11] * np.float32(0.3) + clean[12]
    assert copied_noise(silent_sums(honest, HEAD), norms(honest), ROUNDS) == [(11, 12)]
    honest[12] = honest[11] * np.float32(-0.3) + clean[12]
    assert copied_noise(silent_sums(honest, HEAD), norms(honest), ROUNDS) == [(11, 12)]


# --- the stated rate of false alarms ------------------------------------------------------------

RATE, DRAWS = 0.2, 400


def alarms(draw: Callable[[np.random.Generator], bool]) -> int:
    generator = np.random.default_rng(6)
    return sum(draw(generator) for _ in range(DRAWS))


def test_false_alarms_of_collusion_are_as_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of independent silent sums, at a rate that can be counted: 1e-6 to be above it by chance.

    Exact but for the union over the pairs: at least half of it is used. Of sums that are half as
    many as they seem, a wrong scale, there are more.
    """
    monkeypatch.setattr(collusion, "FALSE_ALARMS", RATE)

    def draw(copies: int) -> Callable[[np.random.Generator], bool]:
        def found(generator: np.random.Generator) -> bool:
            rows = generator.standard_normal((8, 60 // copies)).astype(np.float32)
            return bool(copied_noise(np.repeat(rows, copies, axis=1), np.ones(8), 1))

        return found

    most = float(binom.isf(1e-6, DRAWS, RATE))
    least = float(binom.ppf(1e-6, DRAWS, RATE / 2))
    assert least <= alarms(draw(1)) <= most
    assert alarms(draw(2)) > most

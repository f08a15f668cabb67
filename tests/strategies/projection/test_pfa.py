"""PFA: the printed algorithm and the published variants, step by step on d × d matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import Outcome, RoundUpdates
from strategies import make_strategy
from strategies.core.base import HDPStrategy

EPSILONS = np.array([0.1, 10.0, 0.3, 9.0, 0.2, 0.1, 11.0])
PUBLIC = EPSILONS > 5
SHARES = EPSILONS / EPSILONS.sum()
D = 23


def rows_of(seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    rows = generator.standard_normal(D) + generator.standard_normal((len(EPSILONS), D))
    return rows.astype(np.float32)


def combine(rows: np.ndarray, epsilons: np.ndarray = EPSILONS, **terms: Any) -> Outcome:
    name = terms.pop("strategy", "pfa")
    config = {
        f"{name}.{key.replace('_', '-')}"
        if key.startswith("subspace")
        else key.replace("_", "-"): v
        for key, v in terms.items()
    }
    rule: HDPStrategy = make_strategy(RunConfig.parse({"strategy": name, **config}))
    names = tuple(map(str, range(len(rows))))
    updates = RoundUpdates(1, names, rows, {"epsilon": epsilons})
    return rule.combine(rule.initial_state(), updates, RandomStream(bytes(32)))[1]


def top(matrix: np.ndarray, k: int) -> np.ndarray:
    """The projection on the k leading eigenvectors."""
    vectors = np.linalg.eigh(matrix)[1][:, -k:]
    result: np.ndarray = vectors @ vectors.T
    return result


def algorithm_3(rows: np.ndarray) -> np.ndarray:
    """As printed: Σ = mean·meanᵀ of the ε-weighted public mean; shares of Σ ε on both parts."""
    e_public, e_private = EPSILONS[PUBLIC].sum(), EPSILONS[~PUBLIC].sum()
    public = EPSILONS[PUBLIC] @ rows[PUBLIC] / e_public
    private = EPSILONS[~PUBLIC] @ rows[~PUBLIC] / e_private
    projected = top(np.outer(public, public), 1) @ private
    return (e_public * public + e_private * projected) / (e_public + e_private)


def appendix_d2(rows: np.ndarray, k: int) -> np.ndarray:
    """A holds the public updates as columns; V its k leading left singular vectors."""
    projection = top(rows[PUBLIC].T @ rows[PUBLIC], k)
    return SHARES[PUBLIC] @ rows[PUBLIC] + projection @ (SHARES[~PUBLIC] @ rows[~PUBLIC])


def authors_code(rows: np.ndarray, k: int) -> np.ndarray:
    """Public updates less their plain mean; VVᵀ(x − mean) + mean for the private mean x."""
    mean = rows[PUBLIC].mean(axis=0)
    centred = rows[PUBLIC] - mean
    share = SHARES[~PUBLIC].sum()
    private = SHARES[~PUBLIC] @ rows[~PUBLIC] / share
    projected = top(centred.T @ centred, k) @ (private - mean) + mean
    return SHARES[PUBLIC] @ rows[PUBLIC] + share * projected


def check_same(update: np.ndarray, expected: np.ndarray) -> None:
    """The update is stored in float32: half a unit in the last place of the largest number."""
    assert np.abs(update - expected).max() < 2**-24 * max(1, np.abs(expected).max()) + 1e-9


@pytest.mark.parametrize("seed", range(3))
def test_algorithm_3_as_printed(seed: int) -> None:
    rows = rows_of(seed)
    expected = algorithm_3(rows.astype(np.float64))
    for k in (1, 2, 7):  # rank 1, whatever k
        outcome = combine(rows, subspace="mean", subspace_rank=k)
        check_same(outcome.update, expected)
        assert outcome.gauges["subspace_rank"] == 1


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_appendix_and_the_authors_code(k: int) -> None:
    rows = rows_of()
    exact = rows.astype(np.float64)
    check_same(combine(rows, subspace_rank=k).update, appendix_d2(exact, k))
    centred = combine(rows, subspace="centred", subspace_rank=k)
    check_same(centred.update, authors_code(exact, min(k, 2)))  # three sites, centred: rank 2
    assert centred.gauges["subspace_rank"] == min(k, 2)


def test_an_update_of_zeros_is_not_public() -> None:
    """Alone among the public ones, it would project everybody else's update to nothing."""
    rows = rows_of()
    rows[PUBLIC] = 0
    outcome = combine(rows)
    check_same(outcome.update, SHARES @ rows.astype(np.float64))
    assert not np.any(outcome.gauges["public"])


def test_random_projection_leaves_the_public_part_as_it_is() -> None:
    rows = rows_of()
    outcome = combine(rows, strategy="random-projection", subspace_rank=2)
    private = SHARES[~PUBLIC] @ rows[~PUBLIC].astype(np.float64)
    moved = outcome.update - SHARES[PUBLIC] @ rows[PUBLIC].astype(np.float64)
    # An orthogonal projection: what is left is perpendicular to what is lost
    assert 0 < np.linalg.norm(moved) < np.linalg.norm(private)
    assert abs(moved @ (private - moved)) < 1e-6 * float(private @ private)
    everything = combine(rows, strategy="random-projection", subspace_rank=D)
    assert np.abs(everything.update - SHARES @ rows.astype(np.float64)).max() < 1e-6

"""The span of earlier updates: a projection, of bounded memory, and of the newest."""

from __future__ import annotations

import numpy as np
import pytest

from strategies.fedhdp import span as level_span
from strategies.fedhdp.span import KEPT, Span, keep_span

D = 200


def drawn(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 3, (count, D)).astype(np.float32)


def test_what_is_kept_lies_inside_and_what_is_orthogonal_does_not() -> None:
    rows = drawn(1, 5)
    span = Span(keep_span(None, rows), D)
    assert span.rank == 5
    np.testing.assert_allclose(span.lift(span.inside(rows)), rows, atol=1e-4)
    other = drawn(2, 1)
    rest = other - span.lift(span.inside(other))
    np.testing.assert_allclose(rest @ rows.T, 0, atol=1e-3)
    inside, all_of_it = (float(np.square(x).sum()) for x in (span.inside(other), other))
    assert inside + float(np.square(rest).sum()) == pytest.approx(all_of_it, rel=1e-5)


def test_the_oldest_go_first_and_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = drawn(4, KEPT), drawn(5, KEPT - 1)
    span = Span(keep_span(keep_span(None, old), new), D)
    assert span.rank == KEPT
    lengths = np.linalg.norm(span.inside(old), axis=1) / np.linalg.norm(old, axis=1)
    assert lengths[-1] == pytest.approx(1, abs=1e-5)
    assert lengths[0] < 0.9
    monkeypatch.setattr(level_span, "MEMORY", 3 * 8 * D)
    assert len(keep_span(None, old)) == 3

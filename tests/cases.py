"""Cases of a test: some in ``make test``, the others in ``make test-all``."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def sampled(cases: Iterable[Any], quick: Collection[Any]) -> list[Any]:
    """Return parameters, or tuples of them: those in ``quick`` as they are, the others ``long``.

    For cases that go the same way through the code.

    Raises:
        ValueError: a case of ``quick`` is no case.
    """
    every = list(cases)
    if unknown := [case for case in quick if case not in every]:
        raise ValueError(f"no cases: {unknown}")
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=() if case in quick else pytest.mark.long,
        )
        for case in every
    ]

"""A process that is killed at a named place, without a kill: Ctrl-C passes every guard."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


def killed(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@contextmanager
def dying(monkeypatch: pytest.MonkeyPatch, *place: object) -> Iterator[None]:
    """Fail unless the work within dies at ``place``: a dotted name, or an owner and a name."""
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(*place, killed)  # type: ignore[call-overload]
        yield

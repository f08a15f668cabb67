"""Linear algebra on one thread.

More threads would change the last bits of the sums, and spin between small products.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from threadpoolctl import ThreadpoolController


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit NumPy's and SciPy's linear algebra to one thread."""
    with _libraries().limit(limits=1, user_api="blas"):
        yield


@cache
def _libraries() -> ThreadpoolController:
    import scipy.optimize  # noqa: F401 - its own BLAS must be loaded to be limited

    return ThreadpoolController()

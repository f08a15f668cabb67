"""Restricted unpickling of third-party tables, without running other code.

A pickle is a program: it may call any function that Python can import. The tables of some packages
come as pickles, and installing a package is not consent to run it. This reader knows the types that
a table of numbers and texts consists of, and refuses every other name before any import.
"""

from __future__ import annotations

import io
import lzma
import pickle
import warnings
from pathlib import Path
from typing import Any

from hdpfl_flower.errors import DataError
from hdpfl_flower.system.extras import extra

MOST_BYTES = 64 * 2**20
"""Maximum unpacked bytes of a table: ten times the largest known."""

_TYPES = frozenset(
    {
        ("builtins", "slice"),
        ("numpy", "dtype"),
        ("numpy", "ndarray"),
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy.core.numeric", "_frombuffer"),
        ("pandas", "Categorical"),
        ("pandas", "CategoricalDtype"),
        ("pandas", "DataFrame"),
        ("pandas", "Index"),
        ("pandas", "RangeIndex"),
        ("pandas._libs.arrays", "__pyx_unpickle_NDArrayBacked"),
        ("pandas._libs.internals", "_unpickle_block"),
        ("pandas.core.arrays.categorical", "Categorical"),
        ("pandas.core.arrays.integer", "IntegerArray"),
        ("pandas.core.arrays.integer", "Int32Dtype"),
        ("pandas.core.dtypes.dtypes", "CategoricalDtype"),
        ("pandas.core.frame", "DataFrame"),
        ("pandas.core.indexes.base", "Index"),
        ("pandas.core.indexes.base", "_new_Index"),
        ("pandas.core.indexes.range", "RangeIndex"),
        ("pandas.core.internals.managers", "BlockManager"),
    }
)
"""Names allowed in a table: passive containers of numbers and texts."""
_MOVED = {"numpy.core": "numpy._core"}
"""Old module names → current ones."""


class _Tables(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        plain = module.replace("numpy._core", "numpy.core")
        if (plain, name) not in _TYPES:
            raise pickle.UnpicklingError("a name that no table holds")
        for before, after in _MOVED.items():
            plain = plain.replace(before, after)
        return super().find_class(plain, name)


def read_table_pickle(path: Path) -> Any:
    """Return the pandas table in a pickle, optionally packed by xz.

    Guarantees:
        No import and no call except a table's constructors; at most
        ``MOST_BYTES`` are unpacked.

    Raises:
        InstallationError: pandas is not installed.
        DataError: the file is missing, damaged, too large, or names a type outside of tables.
    """
    with extra("bench", "a table of a package"):
        import pandas as pd  # type: ignore[import-untyped]

    try:
        with path.open("rb") as file, lzma.open(path) as packed:
            is_packed = file.read(len(_XZ)) == _XZ
            file.seek(0)
            content = (packed if is_packed else file).read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise DataError(
                f"{path} holds more than {MOST_BYTES >> 20} MB; install its package anew"
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of names that numpy and pandas have renamed since
            table = _Tables(io.BytesIO(content)).load()
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"{path} is missing; install its package anew") from None
    except Exception:  # a damaged pickle raises any exception of its types
        raise DataError(
            f"{path} is no table, or holds more than a table: it was not read; install its package "
            "anew"
        ) from None
    if type(table) is not pd.DataFrame:
        raise DataError(f"{path} holds no table; install its package anew")
    return table


_XZ = b"\xfd7zXZ\x00"

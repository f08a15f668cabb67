"""Pickles of other people: tables are read, and what is more than a table runs nothing."""

from __future__ import annotations

import lzma
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hdpfl_flower.errors import DataError
from studies.natural.federations import restricted_pickle
from studies.natural.federations.restricted_pickle import read_table_pickle

pd = pytest.importorskip("pandas")


class Calls:
    """Pickled as a call of ``function``."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


def a_table() -> Any:
    """With texts as objects, as in the packages; pandas has a type of its own for them since."""
    words = pd.Series(["b", None, "a"], dtype=object)
    table = pd.DataFrame({
        "n": [1, 2, 3], "x": [0.5, np.nan, 2.0], "t": words, "c": pd.Categorical([2, 1, 2]),
    })  # fmt: skip
    table.columns = table.columns.astype(object)
    return table


@pytest.mark.parametrize("packed", [False, True])
def test_a_table_is_read_packed_or_not(tmp_path: Path, packed: bool) -> None:
    path, content = tmp_path / "t.pickle", pickle.dumps(a_table(), protocol=5)
    path.write_bytes(lzma.compress(content) if packed else content)
    found = read_table_pickle(path)
    pd.testing.assert_frame_equal(found, a_table())


def the_mark(tmp_path: Path) -> Path:
    return tmp_path / "ran"


HOSTILE = {
    "a command": lambda mark: Calls(os.system, f"touch {mark}"),
    "a file": lambda mark: Calls(open, str(mark), "w"),
    "code": lambda mark: Calls(eval, f"open({str(mark)!r}, 'w')"),
    "an attribute": lambda mark: Calls(getattr, Path(mark), "touch"),
    "a method of pandas": lambda mark: Calls(pd.read_pickle, str(mark)),
    "a saved table": lambda mark: Calls(pd.DataFrame.to_csv, a_table(), str(mark)),
    "an array of objects": lambda mark: np.array([Calls(os.system, f"touch {mark}")], object),
    "a table of objects": lambda mark: pd.DataFrame(
        {"x": pd.Series([Calls(os.system, f"touch {mark}")], dtype=object)}
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_more_than_a_table_runs_nothing(name: str, tmp_path: Path) -> None:
    path, mark = tmp_path / "t.pickle", the_mark(tmp_path)
    path.write_bytes(pickle.dumps(HOSTILE[name](mark)))
    with pytest.raises(DataError, match=r"t\.pickle is no table, or holds more .*install") as said:
        read_table_pickle(path)
    assert not mark.exists()
    assert said.value.__cause__ is None  # nothing of its content is shown


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is no table"),
        (b"\x80\x05garbage", "is no table"),
        (pickle.dumps(a_table())[:-40], "is no table"),
        (lzma.compress(b"x" * 100)[:-20], "is no table"),
        (pickle.dumps({"a": [1, 2]}), "holds no table"),
        (pickle.dumps(np.zeros(3)), "holds no table"),
        # An array of 8 TB, which no byte of the file holds.
        (pickle.dumps(Calls(np.ndarray, (10**12,))), "is no table|holds no table"),
    ],
)
def test_a_file_that_is_no_table_is_named(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "t.pickle"
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"t\.pickle ({why})"):
        read_table_pickle(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no\.pickle is missing; install its package anew"):
        read_table_pickle(tmp_path / "no.pickle")


def test_no_more_is_unpacked_than_a_table_may_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restricted_pickle, "MOST_BYTES", 2**20)
    path = tmp_path / "t.pickle"
    path.write_bytes(lzma.compress(bytes(2**20 + 1)))
    with pytest.raises(DataError, match=r"t\.pickle holds more than 1 MB"):
        read_table_pickle(path)

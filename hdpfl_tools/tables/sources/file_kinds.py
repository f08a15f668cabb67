"""Kind of a file by its first bytes."""

from __future__ import annotations

import gzip
import io
import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import IO

from hdpfl_flower.errors import DataError

BEGINNINGS = (
    (b"PAR1", "parquet"),
    (b"\x1f\x8b", "gzip"),
    (b"SQLite format 3\0", "sqlite"),
    (b"$FL2", "spss"),
    (b"$FL3", "spss"),
    (b"<stata_dta>", "stata"),
    (b"HEADER RECORD*******LIB", "xport"),
    (b"\0" * 12 + bytes.fromhex("c2ea8160b31411cfbd92080009c7318c"), "sas"),
    (b"\0" * 12 + bytes.fromhex("c2ea8163b31411cfbd92080009c7318c"), "labels"),
    (b"\xd0\xcf\x11\xe0", "ole"),
    (b"PK\x03\x04", "zip"),
    (b"PK\x05\x06", "zip"),
    (b"%PDF", "pdf"),
    (b"\x28\xb5\x2f\xfd", "zstandard"),
    (b"\xfd7zXZ", "xz"),
    (b"7z\xbc\xaf", "7z"),
    (b"Rar!", "rar"),
    (b"ARROW1\0\0", "feather"),
    (b"ASCII SPSS PORT FILE", "portable"),
    (b"\x89PNG", "image"),
    (b"\xff\xd8\xff", "image"),
    (b"II*\0", "image"),
    (b"MM\0*", "image"),
    (b"GIF87a", "image"),
    (b"GIF89a", "image"),
    (b"\x80\x04\x95", "pickle"),
    (b"\x80\x05\x95", "pickle"),
    (b"L\0\0\0\x01\x14\x02\0", "shortcut"),
    (b"version https://git-lfs", "pointer"),
    (b"-----BEGIN PGP", "encrypted"),
    (b"Salted__", "encrypted"),
    (b"age-encryption.org", "encrypted"),
    (b"\x89HDF", "hdf5"),
    (b"RDX2\n", "r"),
    (b"RDX3\n", "r"),
    (b"RDA2\n", "r"),
    (b"RDA3\n", "r"),
    (b"X\n\0\0", "r"),
    (b"\x93NUMPY", "npy"),
    (b"<?xml", "xml"),
    (b"<html", "html"),
    (b"<!DOCTYPE", "html"),
)
BINARY = (
    (0, b"FEA1", "feather"),
    (0, b"ORC", "orc"),
    (4, b"Standard Jet DB", "access"),
    (4, b"Standard ACE DB", "access"),
    (8, b"DUCK", "duckdb"),
    (128, b"DICM", "dicom"),
    (257, b"ustar", "tar"),
)
"""Marks that a header or a record may hold, too, with their places: they count in files with a byte
of 0 before the first end of a line, which no header has."""
WORDS = {
    "csv": "a CSV",
    "parquet": "a Parquet file",
    "parts": "a folder of Parquet files",
    "gzip": "a gzip file",
    "zip": "a zip archive",
    "sqlite": "an SQLite database",
    "spss": "an SPSS file",
    "stata": "a Stata file",
    "xport": "a SAS transport file",
    "sas": "a SAS file",
    "excel": "an Excel file",
    "locked": "an Excel file with a password",
    "ole": "an Office document that is no workbook",
    "ndjson": "an NDJSON file",
    "json": "a JSON file that is one document",
    "npz": "an archive of NumPy",
    "pdf": "a PDF",
    "zstandard": "a file compressed by Zstandard",
    "bzip2": "a file compressed by bzip2",
    "xz": "a file compressed by xz",
    "7z": "a 7z archive",
    "rar": "a RAR archive",
    "feather": "a Feather file",
    "hdf5": "an HDF5 file",
    "r": "an R data file",
    "npy": "a NumPy array",
    "xml": "an XML file",
    "html": "an HTML page",
    "labels": "a SAS catalog of labels",
    "orc": "an ORC file",
    "portable": "an SPSS portable file",
    "image": "an image",
    "pickle": "a pickle of Python",
    "shortcut": "a shortcut of Windows",
    "pointer": "a pointer of Git LFS",
    "encrypted": "an encrypted file",
    "dicom": "a DICOM file",
    "tar": "a tar archive",
    "duckdb": "a DuckDB database",
    "access": "an Access database",
    "dbase": "a dBase file",
    "sql": "an SQL dump",
    "word": "a Word document",
    "slides": "a presentation",
}
"""Kinds of files in words."""
READ = frozenset(
    "csv parquet parts gzip zip sqlite spss stata xport sas excel ndjson".split()  # noqa: SIM905
)
"""Kinds that an import reads."""
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_MUCH = 2**20
_BZIP2 = re.compile(rb"BZh[1-9]1AY&SY")
_NO_PARQUET = re.compile(rb"PAR1[ ,;\t|^_\"'\r\n]")
_JSON = re.compile(rb"\{\s*[\"}]|\[\s*[\[{\]]")
"""Beginnings of a header that is no Parquet, and of JSON, which ``[id],[age]`` is not."""
_OBJECT = re.compile(rb"^\{.*\}\s*$", re.MULTILINE)
_SQL = re.compile(
    rb"create table|insert into|begin transaction|pragma foreign_keys|--[^,;\t]*(dump|create)",
    re.IGNORECASE,
)
_DBASE = (b"\x03", b"\x30", b"\x31", b"\x83", b"\x8b", b"\xf5")


def kind_of_file(path: Path) -> str:
    """Return the kind of a file or folder, a key of :data:`WORDS`.

    Raises:
        DataError: it is not there, or is a folder without Parquet files.
    """
    if path.is_dir():
        if any(path.rglob("*.parquet")):
            return "parts"
        raise DataError("the table is a folder without Parquet files; name a file")
    try:
        with path.open("rb") as file:
            first = file.read(4096)
    except OSError:
        raise _unreadable() from None
    if (kind := _marked(first)) and not _NO_PARQUET.match(first):
        looked_into = {"zip": _kind_of_zip, "ole": _kind_of_ole, "gzip": _kind_of_gzip}.get(kind)
        return looked_into(path) if looked_into else kind
    return _kind_of_text(first, path.suffix.lower())


def _kind_of_text(first: bytes, suffix: str) -> str:
    text = first.removeprefix(b"\xef\xbb\xbf").lstrip()
    if suffix in (".ndjson", ".jsonl"):
        return "ndjson"
    if _JSON.match(text):
        # An object a line ends its line, whatever others do; of a longer one the first bytes alone
        # are known.
        is_whole = b"\n" not in text or _OBJECT.search(text)
        return "ndjson" if text[:1] == b"{" and is_whole else "json"
    if text[:5].lower() in (b"<html", b"<!doc"):
        return "html"
    if _SQL.match(text):
        return "sql"
    if suffix == ".dbf" and first[:1] in _DBASE:
        return "dbase"
    # Stata of before 2011 begins with its number, the order of bytes and a 1.
    is_stata = len(first) > 4 and 102 <= first[0] <= 115 and first[1] in (1, 2) and first[2] == 1
    return "stata" if is_stata and suffix == ".dta" else "csv"


def _marked(first: bytes) -> str:
    """Return the kind of a file by marks in its first bytes; empty: by none."""
    begun = (kind for begin, kind in BEGINNINGS if first.startswith(begin))
    is_binary = b"\0" in first.partition(b"\n")[0]
    inside = (kind for place, mark, kind in BINARY if is_binary and first[place:].startswith(mark))
    return next(chain(begun, inside), "bzip2" if _BZIP2.match(first) else "")


def _kind_of_gzip(path: Path) -> str:
    try:
        with gzip.open(path) as file:
            kind = _marked(file.read(512))
    except (OSError, EOFError, zlib.error):
        return "gzip"
    return kind if kind in ("r", "tar") else "gzip"


def _kind_of_zip(path: Path) -> str:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return "zip"
    if any(name.startswith("xl/") for name in names) or "content.xml" in names:
        return "excel"
    for folder, kind in (("word/", "word"), ("ppt/", "slides")):
        if any(name.startswith(folder) for name in names):
            return kind
    return "npz" if names and all(name.endswith(".npy") for name in names) else "zip"


def _kind_of_ole(path: Path) -> str:
    with path.open("rb") as file:
        content = file.read(64 * _MUCH)
    if "EncryptedPackage".encode("utf-16-le") in content:
        return "locked"
    is_book = any(name.encode("utf-16-le") in content for name in ("Workbook", "Book"))
    return "excel" if is_book else "ole"


def refused(path: Path, wanted: str) -> DataError:
    """Return the error for a file of another kind than ``wanted``."""
    kind = kind_of_file(path)
    remedies = {
        "locked": "remove the password in Excel, or export it as CSV (UTF-8)",
        "npz": "set 'data.format' to \"npz\", if it holds arrays 'x' and 'y'",
        "json": "write one object on each line: jq -c '.[]'; for a FHIR bundle: jq -c "
        "'.entry[].resource'",
        "sql": "load it into its database, and name the database",
        "tar": "unpack it, and name one of its files",
        "pointer": "fetch the file itself: git lfs pull",
        "shortcut": "name the file that it points to",
        "encrypted": "decrypt it",
        "csv": f"so it is not {wanted}; correct 'data.format' or 'data.path'",
    }
    remedy = remedies.get(kind, "export the table as CSV (UTF-8)")
    if kind in READ and kind != "csv":
        remedy = (
            "'data.format' = \"table\" reads it (pip install 'hdpfl-flower[import]'), or save it "
            "as CSV (UTF-8)"
        )
    said = WORDS[kind] + ("" if kind == "csv" else f", not {wanted}")
    return DataError(f"the table is {said}; {remedy}")


@contextmanager
def opened_text(path: Path) -> Iterator[IO[bytes]]:
    """Open a CSV, compressed or not.

    Raises:
        DataError: the file is of another kind, or in two bytes a character, of which one foreign
            byte in a record would change all that follow; an archive is damaged or holds several.
        OSError: it cannot be read.
    """
    kind = kind_of_file(path)
    if kind not in ("csv", "gzip", "zip"):
        raise refused(path, "a CSV")
    with path.open("rb") as raw:
        try:
            file: IO[bytes] = raw
            if kind == "gzip":
                file = io.BufferedReader(gzip.GzipFile(fileobj=raw))
            elif kind == "zip":
                file = _only_member(raw)
            _refuse_wide(file.read(4))
            file.seek(0)
            yield file
        except (EOFError, gzip.BadGzipFile, zlib.error, zipfile.BadZipFile, RuntimeError):
            raise DataError(
                f"the table is {WORDS[kind]} that is damaged or has a password; pack it again"
            ) from None


def _only_member(raw: IO[bytes]) -> IO[bytes]:
    archive = zipfile.ZipFile(raw)
    names = [
        name
        for name in archive.namelist()
        if not name.endswith("/") and not name.startswith("__MACOSX/")
    ]
    if len(names) != 1:
        raise DataError("the table is a zip archive of several files; unpack it, and name one file")
    return archive.open(names[0])


def _refuse_wide(first: bytes) -> None:
    if first[:2] in _UTF_16 or first == b"\0\0\xfe\xff":
        bits = 32 if b"\0\0" in first else 16
        raise DataError(
            f"the table is in UTF-{bits}, in which one damaged record would change others; save "
            f"it as CSV (UTF-8), or run: iconv -f UTF-{bits} -t UTF-8"
        )
    if b"\0" in first:
        raise DataError(
            "the table begins with zero bytes, which no text has: it is not a CSV, or it is "
            "UTF-16 without its mark; save it as CSV (UTF-8)"
        )


def _unreadable() -> DataError:
    return DataError("the table is not there or cannot be read; check its path and its permissions")

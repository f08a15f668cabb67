"""``schema = "diabetes.toml"``: the file's text enters the terms, where its user's config is read.

Terms carry the text itself and never a path: every site and its ledger then hold the very same
schema, and no server can name a file at a site. Only what reads a user's own run config calls this;
``RunTerms`` and ``Schema`` open no file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hdpfl_flower.errors import TermsError

LARGEST = 1_000_000
"""Bytes of a schema's file: its text goes to every site with every message."""


def is_path(schema: object) -> bool:
    r"""Return whether the value of ``schema`` is a path: one line, no ``=``, ending in ``.toml``.

    >>> is_path("diabetes.toml"), is_path("heart"), is_path("missing = []\nfile = 'a.toml'")
    (True, False, False)
    """
    return (
        isinstance(schema, str)
        and schema.endswith(".toml")
        and not any(mark in schema for mark in "=\n")
    )


def with_schema_text(run_config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return ``run_config`` with the text of the file that ``schema`` names in place of its path.

    Args:
        run_config: keys as their user wrote them.
        folder: where a relative path starts.

    Raises:
        TermsError: the file is not there, no text, or too large.
    """
    schema = run_config.get("schema")
    if not is_path(schema):
        return dict(run_config)
    path = folder / Path(str(schema)).expanduser()
    return {**run_config, "schema": read_schema(path)}


def read_schema(path: Path) -> str:
    """Return the text in the file at ``path``; raises ``TermsError`` as above."""
    try:
        if path.stat().st_size > LARGEST:
            raise TermsError(f"'schema': {path} is larger than a megabyte; name a schema's file")
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise TermsError(
            f"'schema': {path} is not there; a relative path starts at the run config's file, "
            "else at the current folder"
        ) from None
    except (OSError, UnicodeDecodeError):
        raise TermsError(f"'schema': {path} cannot be read as a text in UTF-8") from None
    if "=" not in text:
        raise TermsError(f"'schema': {path} holds no key; write one, see docs/how-to/schema.md")
    return text

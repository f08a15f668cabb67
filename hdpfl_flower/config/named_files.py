"""Files that a run config names: their text or digest enters the terms, where it is read.

Terms carry no path: every site and its ledger then hold the very same schema, and no server can
name a file at a site. Only readers of a user's own run config call this; ``RunTerms`` and
``Schema`` open no file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hdpfl_flower.config.terms import MOST_SCHEMA
from hdpfl_flower.config.toml_text import BOM
from hdpfl_flower.errors import TermsError
from hdpfl_flower.system.weight_files import add_weights


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


def with_files(run_config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return ``run_config`` with the text or digest of its files for their paths.

    The text of ``schema``, and the digests of ``start`` and of the ``weights`` of a ``backbone``;
    files of weights are copied to their place on this machine (``system/weight_files.py``).

    Args:
        run_config: keys as their user wrote them.
        folder: where a relative path starts.

    Raises:
        TermsError: a schema is not there, no text, or too large.
        DataError: a file of weights is not there.
    """
    config = dict(run_config)
    if is_path(config.get("schema")):
        config["schema"] = read_schema(folder / Path(str(config["schema"])).expanduser())
    if isinstance(config.get("start"), str):
        config["start"] = _digest_of(config["start"], folder)
    if isinstance(config.get("backbone"), str):
        words = (word.partition("=") for word in config["backbone"].split())
        config["backbone"] = " ".join(
            f"{key}={_digest_of(value, folder)}" if key == "weights" else f"{key}{equals}{value}"
            for key, equals, value in words
        )
    return config


def _digest_of(path: str, folder: Path) -> str:
    """Return the digest of the file at ``path``; an empty text or a digest stays."""
    if not path or path.startswith("sha256:"):
        return path
    return add_weights(folder / Path(path).expanduser())


def read_schema(path: Path) -> str:
    """Return the text in the file at ``path``; raises ``TermsError`` as above."""
    try:
        if path.stat().st_size > MOST_SCHEMA:
            raise TermsError(
                f"'schema': {path} is longer than {MOST_SCHEMA} bytes; remove comments or columns"
            )
        text = path.read_text(encoding="utf-8").removeprefix(BOM)
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

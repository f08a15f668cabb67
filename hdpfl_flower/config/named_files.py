"""Files that a run config names: their text or digest enters the terms, where it is read.

Terms carry no path: every site and its ledger then hold the very same schema, and no server can
name a file at a site. Only readers of a user's own run config call this; ``RunTerms`` and
``Schema`` open no file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hdpfl_flower.config.tables_of_terms import OPEN, flattened
from hdpfl_flower.config.terms import MOST_SCHEMA
from hdpfl_flower.config.toml_text import BOM, as_toml
from hdpfl_flower.errors import TermsError
from hdpfl_flower.system.paths import expanded
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


def with_files(
    run_config: Mapping[str, Any], folder: Path, *, outside: bool = True
) -> dict[str, Any]:
    """Return ``run_config`` with the text or digest of its files for their paths, keys dotted.

    The text of ``schema``, and the digests of ``start`` and ``backbone.weights``; files of weights
    are copied to their place on this machine (``system/weight_files.py``).

    Args:
        run_config: keys as their user wrote them.
        folder: where a relative path starts.
        outside: files outside of the folder may be named; never by a run config of another party.

    Raises:
        TermsError: a schema is not there, no text, or too large; or a file lies outside.
        DataError: a file of weights is not there.
    """
    config = dict(flattened(run_config))

    def place(key: str) -> Path:
        path = folder / expanded(str(config[key]))
        if not outside and not path.resolve().is_relative_to(folder.resolve()):
            raise TermsError(
                f"'{key}' names a file outside of this run config's folder; put the file beside "
                f"the run config, and name it there: {key} = {as_toml(path.name)}"
            )
        return path

    for key in named_paths(config):
        config[key] = read_schema(place(key)) if key == "schema" else add_weights(place(key))
    return config


def named_paths(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the paths that a run config with dotted keys names: key → path.

    >>> named_paths({"schema": "a.toml", "start": "sha256:12", "backbone.weights": "w.safetensors"})
    {'schema': 'a.toml', 'backbone.weights': 'w.safetensors'}
    """
    paths = {"schema": config["schema"]} if is_path(config.get("schema")) else {}
    for key in ("start", "backbone.weights"):
        given = config.get(key, "")
        if isinstance(given, str) and given not in ("", OPEN) and not given.startswith("sha256:"):
            paths[key] = given
    return paths


def as_one_file(path: Path) -> str:
    """Return the text of the run config at ``path``, its files included.

    It means the same in every folder, also in that of a ServerApp and of an invited site.

    Raises:
        TermsError: as above.
        DataError: as above.
        OSError: it cannot be read.
        ValueError: it is no TOML.
    """
    config = with_files(tomllib.loads(path.read_text("utf-8-sig")), path.absolute().parent)
    return "".join(f"{key} = {as_toml(value)}\n" for key, value in config.items())


def read_schema(path: Path) -> str:
    """Return the text in the file at ``path``; raises ``TermsError`` as above."""
    text, fault = "", ""
    try:
        if path.stat().st_size > MOST_SCHEMA:
            fault = f"is longer than {MOST_SCHEMA} bytes; remove comments or columns"
        else:
            text = path.read_text(encoding="utf-8").removeprefix(BOM)
            fault = "" if "=" in text else "holds no key; write one, see docs/how-to/schema.md"
    except FileNotFoundError:
        fault = (
            "is not there; a relative path starts at the run config's file, else at the current "
            "folder"
        )
    except (OSError, UnicodeDecodeError):
        fault = "cannot be read as a text in UTF-8; name another file"
    if fault:
        raise TermsError(f"'schema': {path} {fault}")
    return text

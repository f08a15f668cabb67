"""Common parts of the site's commands: profile choice, file writing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from hdpfl_flower.config.profile import Profile
from hdpfl_flower.errors import DataError, ProfileError
from hdpfl_flower.system.files import replace_file
from hdpfl_flower.system.paths import expanded
from hdpfl_tools.tables.withdrawals import load_profile

ProfileOption = Annotated[
    Path | None,
    typer.Option("--profile", envvar="HDPFL_PROFILE", help="The site's profile, a TOML file."),
]
TERMS_HELP = "The run config: a TOML file with the run's public terms."


def open_profile(path: Path | None) -> Profile:
    """Return the profile at ``path``; its records are read without withdrawn units.

    Raises:
        ProfileError: no path was given, or the file is missing or wrong.
    """
    if path is None:
        raise ProfileError("no profile is named; add --profile PATH, or set HDPFL_PROFILE")
    return load_profile(expanded(path))


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file in its error; run errors omit it, as they may be logged."""
    try:
        yield
    except DataError as error:
        text = str(error)
        raise DataError(text if str(path) in text else f"{path}: {text}") from None


def check_free(path: Path, *, force: bool) -> None:
    """Raise ``DataError`` for an existing ``path`` without ``force``, before long work."""
    if path.exists() and not force:
        raise DataError(f"{path} exists already; name another file, or add --force")


def write_file(path: Path, content: bytes, *, force: bool) -> None:
    """Write ``content`` to ``path`` completely or not at all, mode 0600.

    Raises:
        DataError: the file exists and ``force`` is not given, or it cannot be written.
    """
    check_free(path, force=force)
    try:
        replace_file(path, content)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror}") from None

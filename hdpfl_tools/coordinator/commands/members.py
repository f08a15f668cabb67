"""``hdpfl members``: the line of a run config that lists the sites of shared noise."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hdpfl_flower.config.toml_text import as_toml
from hdpfl_flower.errors import TermsError
from hdpfl_flower.shared_noise.keys import check_members
from hdpfl_flower.shared_noise.peers import read_peer


def members(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE…", help="The files that the sites wrote with 'peers show --to'."
        ),
    ],
) -> None:
    """Print the line 'members' of a run config from the sites' files.

    The line names each site as its node is registered.
    """
    peers = [read_peer(file) for file in files]
    try:
        text = check_members(",".join(f"{peer.name}={peer.fingerprint}" for peer in peers))
    except ValueError as fault:
        raise TermsError(f"'members' {fault}") from None
    typer.echo(f"members = {as_toml(text)}")

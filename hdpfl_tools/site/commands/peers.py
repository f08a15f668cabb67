"""``hdpfl-site peers``: this site's key for shared noise, and the keys of its peers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from hdpfl_flower.config.profile import Profile
from hdpfl_flower.errors import LedgerError
from hdpfl_flower.shared_noise.masks import public_of
from hdpfl_flower.shared_noise.peers import Peer, is_name, read_peer
from hdpfl_flower.system.fingerprints import spoken
from hdpfl_tools.shell.terminal import new_app
from hdpfl_tools.site.options import ProfileOption, open_profile, write_file
from hdpfl_tools.site.reports.shared_noise import peers_of

app = new_app("Keys for shared noise: this site's key and the keys of its peers.")


@app.command()
def show(
    profile: ProfileOption = None,
    to: Annotated[
        Path | None, typer.Option("--to", "--out", help="File for the peers and the coordinator.")
    ] = None,
    name: Annotated[
        str, typer.Option(help="The site's registered name. Default: the profile's 'name'.")
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
) -> None:
    """Print this site's name and fingerprint; make its key where there is none.

    The key lies beside the ledger and belongs to that ledger. Only its owner can read it. Send the
    file of --to to every peer and to the coordinator. Let them compare the fingerprint with you on
    the telephone, by a number that did not come with the file.
    """
    site = open_profile(profile)
    own = _own(site, name)
    typer.echo(f"{own.name}  {spoken(own.fingerprint)}")
    if to is not None:
        write_file(to, own.line().encode(), force=force)
        typer.echo(f"wrote {to}: each peer adds it with: hdpfl-site peers add {to.name}")


@app.command()
def add(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE…", help="Files that 'peers show --to' wrote.")
    ],
    profile: ProfileOption = None,
    fingerprint: Annotated[
        list[str],
        typer.Option(
            help="A fingerprint that its site read out; then the command does not ask. May "
            "be repeated."
        ),
    ] = [],  # noqa: B006
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Add peers, after a comparison of their fingerprints.

    With --fingerprint the command refuses a file whose fingerprint is not among those given. It
    also refuses a name that has another key here, and a key that has another name here.
    """
    peers = peers_of(open_profile(profile))
    heard = ["".join(text.split()).lower() for text in fingerprint]
    for file in files:
        peer = read_peer(file)
        typer.echo(f"{peer.name}  {spoken(peer.fingerprint)}")
        if heard and peer.fingerprint not in heard:
            raise LedgerError(
                f"the fingerprint of {file} is not that of '--fingerprint'; ask its site "
                "for the file and the fingerprint again"
            )
        if not (heard or yes) and not typer.confirm("Did its site read out this fingerprint?"):
            raise LedgerError(f"'{peer.name}' was not added; ask its site for its fingerprint")
        peers.add(peer)
        typer.echo(f"added {peer.name}")


@app.command("list")
def list_peers(
    profile: ProfileOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the peers and their fingerprints."""
    known = peers_of(open_profile(profile)).known()
    if as_json:
        typer.echo(json.dumps({peer.name: peer.fingerprint for peer in known}, indent=1))
        return
    width = max((len(peer.name) for peer in known), default=0)
    for peer in known:
        typer.echo(f"{peer.name:<{width}}  {spoken(peer.fingerprint)}")
    if not known:
        typer.echo("no peer has been added; add one: hdpfl-site peers add FILE")


@app.command()
def remove(
    name: Annotated[str, typer.Argument(help="A peer's name, as 'list' prints it.")],
    profile: ProfileOption = None,
) -> None:
    """Remove a peer: from now on the site declines runs with this member."""
    peers_of(open_profile(profile)).remove(name)
    typer.echo(f"removed {name}")


def _own(site: Profile, name: str) -> Peer:
    """Return this site as its peers add it.

    Raises:
        LedgerError: it has no usable name or key.
    """
    called = name or site.name
    if not is_name(called):
        raise LedgerError(
            "this site needs a name for its peers: add --name NAME, the registered name; only "
            "letters, digits, '-', '_' and '.'"
        )
    return Peer(called, public_of(peers_of(site).own(make=True)))

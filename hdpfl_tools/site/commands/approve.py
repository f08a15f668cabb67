"""``hdpfl-site approve``: approval of a run, of public weights, or of an app."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import Annotated

import typer

import client_app
from client_app.site.app_digest import PACKAGES
from hdpfl_flower.errors import DeploymentError, ModelError
from hdpfl_flower.system.paths import expanded
from hdpfl_flower.system.printable import printable
from hdpfl_tools.site.approval.fab import ENTRY_POINTS, PROJECT, Bundle, install, read_bundle
from hdpfl_tools.site.approval.reading import STAGES, site_files
from hdpfl_tools.site.commands.requests import ByOption, approve_run
from hdpfl_tools.site.options import ProfileOption, open_profile

SHIPPED = ("*.py", "data/schemas/*.toml")
"""File endings of an app's packages; other files are not expected."""
WEIGHTS = (".safetensors", ".pt", ".pth")
"""Endings of files of weights."""


def approve(
    what: Annotated[
        str,
        typer.Argument(
            metavar="REQUEST | WEIGHTS | APP.fab",
            help="A request: its number or its digits, as 'requests' prints them, or, without "
            "--yes, the name of its run. A file of weights: .safetensors, or torch's .pt or .pth. "
            "With --to: an app that 'flwr build' wrote.",
        ),
    ],
    profile: ProfileOption = None,
    by: ByOption = "",
    to: Annotated[
        Path | None,
        typer.Option("--to", "--out", metavar="DIR", help="App: the folder of the approved apps."),
    ] = None,
    sha256: Annotated[
        str, typer.Option(help="App: the expected SHA-256, from the coordinator.")
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    read: Annotated[
        bool,
        typer.Option(
            "--read",
            help="App: show the files that run at a site, in the order in which a "
            "message uses them.",
        ),
    ] = False,
) -> None:
    """Approve a run or a public file of weights; with --to, approve an app.

    Run: the command prints the terms, the price and the disclosures, reads the site's records,
    prints how they changed, and asks. The ledger records who decided, the terms, and the records
    that the run will use. If the terms or the app change later, the run waits for approval again.

    Weights: the command copies the file to this machine's folder of weights and prints its digest.
    List the digest in 'policy.weights' of the profile. A run config names the digest in 'start' or
    'backbone'. Check where a file comes from before you approve it.

    App: the command compares the app bit by bit with the package that is installed here, lists the
    files that differ, and asks. Run it as the administrator: the user of the SuperNode must not be
    able to write to DIR.
    """
    if read:
        typer.echo_via_pager(_reading(read_bundle(Path(what))))
    elif to is not None:
        _approve_app(Path(what), to, sha256, yes=yes)
    elif sha256:
        raise DeploymentError("'--sha256' is for an app: add --to DIR, or leave it out for a run")
    elif Path(what).suffix in WEIGHTS:
        _approve_weights(Path(what))
    else:
        approve_run(open_profile(profile), what, by, yes=yes)


def _approve_weights(file: Path) -> None:
    from hdpfl_flower.models.public_weights import tensors_in
    from hdpfl_flower.system.weight_files import add_weights, read_file, weight_file

    digest = add_weights(file)
    try:
        tensors_in(read_file(digest), str(file))
    except ModelError:
        weight_file(digest).unlink()
        raise
    typer.echo(f'{weight_file(digest)}\nin the profile: [policy] weights = ["{digest}"]')


def _approve_app(app: Path, to: Path, sha256: str, *, yes: bool) -> None:
    bundle = read_bundle(app)
    if sha256 and sha256.strip().lower() != bundle.sha256:
        raise DeploymentError(
            f"{app} is not the expected app: its SHA-256 is {bundle.sha256}; ask the coordinator "
            "which app you should get"
        )
    typer.echo(printable(f"{bundle.app} {bundle.version}, {len(bundle.files)} files"))
    here = site_files(bundle.files)
    lines = sum(file.lines for file in here)
    typer.echo(
        f"{len(here)} of these files can run here, {lines:,} lines; read them in order with --read"
    )
    typer.echo(f"SHA-256 {bundle.sha256}")
    needs = ", ".join(bundle.dependencies) or "none"
    typer.echo(f"{PROJECT} starts {ENTRY_POINTS['clientapp']} here and installs nothing; it says")
    typer.echo(printable(f"  that it needs {needs}"))
    changes = list(differences(bundle))
    typer.echo(f"files that differ from the package installed here: {len(changes) or 'none'}")
    for line in changes:
        typer.echo(f"  {printable(line)}")
    if not yes and not typer.confirm("The app will read this site's records. Approve it?"):
        raise DeploymentError("nothing was approved")
    folder = expanded(to).absolute()
    launcher = install(bundle, folder)
    typer.echo(f"approved: {folder / 'apps' / bundle.sha256}")
    if others := len(list((folder / "apps").glob("[!.]*"))) - 1:
        typer.echo(
            f"other apps that are approved here: {others}; remove those that no run uses from "
            f"{folder / 'apps'}"
        )
    typer.echo(f"start the SuperNode and its flower-superexec with PATH={launcher.parent}")
    if os.geteuid() != 0:
        typer.echo(f"warning: this user can change {folder}; run the SuperNode as another user")


def _reading(bundle: Bundle) -> Iterator[str]:
    """Yield the text of the files that run at a site, stage after stage."""
    stage = -1
    files = site_files(bundle.files)
    for number, file in enumerate(files, 1):
        if file.stage != stage:
            stage = file.stage
            yield f"\n\n##### {stage + 1}. {STAGES[stage].title}\n{STAGES[stage].promise}\n"
        yield f"\n=== {number} of {len(files)}: {printable(file.name)}, {file.lines} lines\n\n"
        for line in bundle.files[file.name].decode(errors="replace").splitlines():
            yield f"{printable(line)}\n"


def differences(bundle: Bundle) -> Iterator[str]:
    """Yield the app's differences from the installed package, one per line.

    Not of its ``pyproject.toml``: no installed package has one.
    """
    mine, sent = dict(_installed()), bundle.files
    for name in sorted((mine.keys() | sent.keys()) - {PROJECT}):
        if name not in mine:
            yield f"added    {name}"
        elif name not in sent:
            yield f"missing  {name}"
        elif sent[name] != mine[name]:
            yield f"changed  {name}"


def _installed() -> Iterator[tuple[str, bytes]]:
    """Yield the installed packages' files, with their bundle names."""
    root = Path(client_app.__file__).parents[1]
    for package, pattern in itertools.product(PACKAGES, SHIPPED):
        for path in (root / package).rglob(pattern):
            yield path.relative_to(root).as_posix(), path.read_bytes()
    # A source folder has an egg-info, too, without the licence.
    for installed in distributions(name="hdpfl-flower"):
        if text := installed.read_text("licenses/LICENSE"):
            yield "LICENSE", text.encode()
            readme = installed.metadata.get_payload()  # type: ignore[attr-defined]
            yield "README.md", str(readme).encode()
            return

"""``hdpfl new``: write a project with own data, model and strategy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hdpfl_tools.coordinator.progress import show_line


def new(
    folder: Annotated[
        Path,
        typer.Argument(metavar="NAME", help="The project's name, or a path that ends in its name."),
    ],
    backbone: Annotated[
        bool,
        typer.Option("--backbone", help="Use a frozen network from a file of public weights."),
    ] = False,
    renew: Annotated[
        bool,
        typer.Option("--renew", help="Replace only the copy of the app in an existing project."),
    ] = False,
    only: Annotated[
        bool,
        typer.Option(
            "--only",
            help="Leave out of the app the kinds that the project's run.toml does not name, so "
            "that a site has less code to read.",
        ),
    ] = False,
) -> None:
    """Write a project: data, model or backbone, strategy, tests, and the app that sites approve."""
    from hdpfl_tools.coordinator.project import renew_app, write_project

    if renew:
        renew_app(folder, only=only)
        show_line(f"{folder}: its app is a copy of the installed one")
        return
    package, network = (
        write_project(folder, backbone=backbone, only=only),
        "backbone" if backbone else "model",
    )
    files = ("data.py", f"{network}.py", "strategy.py")
    show_line(f"{folder}: {', '.join(f'{package}/{file}' for file in files)}, tests, run.toml")
    show_line(f"cd {folder}")
    show_line(
        f"hdpfl compare --terms run.toml --strategies {package}.strategy:InverseLength,fedavg "
        "--clients 5 --seeds 1"
    )

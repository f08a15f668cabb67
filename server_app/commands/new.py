"""``hdpfl new``: write a project with own data, model and strategy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from server_app.progress import console


def new(
    folder: Annotated[
        Path, typer.Argument(metavar="NAME", help="The project's name, or a path that ends in it.")
    ],
    backbone: Annotated[
        bool,
        typer.Option("--backbone", help="With a frozen network from a file of public weights."),
    ] = False,
    renew: Annotated[
        bool,
        typer.Option(
            "--renew", help="Replace the copy of the app in a project that is there, and no more."
        ),
    ] = False,
) -> None:
    """Write a project: data, model or backbone, strategy, tests, and the app to approve."""
    from server_app.project import renew_app, write_project

    if renew:
        renew_app(folder)
        console.print(f"{folder}: the app is a copy of what is installed here", soft_wrap=True)
        return
    package, own = write_project(folder, backbone=backbone), "backbone" if backbone else "model"
    console.print(
        f"{folder}: {package}/data.py, {package}/{own}.py, {package}/strategy.py, tests, run.toml\n"
        f"cd {folder}\n"
        f"hdpfl compare --terms run.toml --strategies {package}.strategy:InverseLength,fedavg "
        "--clients 5 --seeds 1",
        soft_wrap=True, markup=False, highlight=False,
    )  # fmt: skip

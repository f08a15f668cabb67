"""``hdpfl list``: names for the run config and the commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from hdpfl_flower.errors import InstallationError
from hdpfl_tools.coordinator.progress import console, show_json

if TYPE_CHECKING:
    from hdpfl_flower.models.task import Task


class ListedKind(StrEnum):
    """Kinds of listed names."""

    STRATEGIES = "strategies"
    PARTS = "parts"
    MODELS = "models"
    DATASETS = "datasets"
    GUARDS = "guards"
    STUDIES = "studies"


def list_names(
    kind: Annotated[
        ListedKind | None,
        typer.Argument(help="One kind; without it, all kinds.", show_default=False),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print names and meanings as JSON.")
    ] = False,
) -> None:
    """List strategies, parts after a +, models, data sets, guards and studies.

    Name your own strategy module:Class and your own model module:function.
    """
    listed = {name.value: _NAMES[name]() for name in ([kind] if kind else ListedKind)}
    if as_json:
        show_json(listed)
        return
    from rich.table import Table

    for title, names in listed.items():
        table = Table(title=title, title_justify="left", show_header=False)
        table.add_column(no_wrap=True)
        table.add_column()
        for name, meaning in names.items():
            table.add_row(name, meaning)
        console.print(table, markup=False)


def _meaning(documented: object) -> str:
    """Return the first line of a docstring, as plain text."""
    line = (documented.__doc__ or "").strip().partition("\n")[0].rstrip(".")
    line = line.removeprefix("Return ").replace("``", "")
    return line[:1].upper() + line[1:]


def _strategies() -> dict[str, str]:
    from strategies import STRATEGIES

    return {name: _meaning(strategy) for name, strategy in STRATEGIES.items()}


def _parts() -> dict[str, str]:
    from strategies import PARTS

    return {f"+{name}": _meaning(addition) for table in PARTS for name, addition in table.items()}


def _models() -> dict[str, str]:
    from hdpfl_flower.models.networks import OUR_MODELS

    return dict(OUR_MODELS)


def _datasets() -> dict[str, str]:
    from hdpfl_flower.data.run_task import NAMES, task_of

    return {name: in_words(task_of(name)) for name in NAMES}


def in_words(task: Task) -> str:
    """Return the shape and the targets of a task, in words."""
    shape = "×".join(map(str, task.input_shape))
    shape += " features" if len(task.input_shape) == 1 else ""
    survival = f"survival, {task.intervals} intervals" if task.intervals else "regression"
    return f"{shape}, {task.classes} classes" if task.classes else f"{shape}, {survival}"


def _guards() -> dict[str, str]:
    return {
        "cap": (
            "refuses updates that are proven to be forged, and caps each site's share of the step"
        ),
        "content": "judges the class rows of an update with public records",
    }


def _studies() -> dict[str, str]:
    from hdpfl_tools.coordinator.commands.reproduce import load_studies

    try:
        studies = load_studies()
    except InstallationError:
        return {}
    return {study.name: f"{study.title}. Source: {study.source}" for study in studies.values()}


_NAMES: Mapping[ListedKind, Callable[[], dict[str, str]]] = {
    ListedKind.STRATEGIES: _strategies,
    ListedKind.PARTS: _parts,
    ListedKind.MODELS: _models,
    ListedKind.DATASETS: _datasets,
    ListedKind.GUARDS: _guards,
    ListedKind.STUDIES: _studies,
}

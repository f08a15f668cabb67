"""``hdpfl list``: the names that the run config and the other commands take."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Annotated

import typer

from server_app.progress import console


class Kind(StrEnum):
    """What has names."""

    STRATEGIES = "strategies"
    PARTS = "parts"
    MODELS = "models"
    DATASETS = "datasets"
    GUARDS = "guards"
    ATTACKS = "attacks"
    STUDIES = "studies"


def list_names(
    kind: Annotated[
        Kind | None, typer.Argument(help="One kind; without it all.", show_default=False)
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print name and meaning as JSON.")
    ] = False,
) -> None:
    """List the strategies, their parts after a +, models, data sets, guards, attacks and studies.

    Your own are named module:Class (a strategy) or module:function (a model).
    """
    found = {each.value: _NAMES[each]() for each in ([kind] if kind else Kind)}
    if as_json:
        typer.echo(json.dumps(found, indent=1, ensure_ascii=False))
        return
    from rich.table import Table

    for title, names in found.items():
        table = Table(title=title, title_justify="left", show_header=False)
        table.add_column(no_wrap=True)
        table.add_column()
        for name, meaning in names.items():
            table.add_row(name, meaning)
        console.print(table, markup=False)


def _first_line(documented: object) -> str:
    return (documented.__doc__ or "").strip().partition("\n")[0].rstrip(".")


def _strategies() -> dict[str, str]:
    from strategies import STRATEGIES

    return {name: _first_line(rule) for name, rule in STRATEGIES.items()}


def _parts() -> dict[str, str]:
    from strategies import PARTS

    return {f"+{name}": _first_line(part) for table in PARTS for name, part in table.items()}


def _models() -> dict[str, str]:
    from hdpfl_flower.models.networks import OUR_MODELS

    return dict(OUR_MODELS)


def _datasets() -> dict[str, str]:
    from hdpfl_flower.data.datasets import NAMES, task_of

    tasks = {name: task_of(name) for name in NAMES}
    return {
        name: f"{'×'.join(map(str, task.input_shape))}, "
        + (f"{task.classes} classes" if task.classes else "regression")
        for name, task in tasks.items()
    }


def _guards() -> dict[str, str]:
    return {
        "cap": "no site has more than its share of the step",
        "centred-clipping": "updates are clipped around the last step",
        "evidence": "a site is refused once its uploads, over the rounds, contradict the others",
        "content": "class rows of an update are judged by public records",
    }


def _attacks() -> dict[str, str]:
    from hdpfl_flower.simulation.attacks import ATTACKS

    return {name: _first_line(attack) for name, attack in ATTACKS.items()}


def _studies() -> dict[str, str]:
    from studies import STUDIES

    return {study.name: f"{study.title} ({study.source})" for study in STUDIES.values()}


_NAMES: Mapping[Kind, Callable[[], dict[str, str]]] = {
    Kind.STRATEGIES: _strategies,
    Kind.PARTS: _parts,
    Kind.MODELS: _models,
    Kind.DATASETS: _datasets,
    Kind.GUARDS: _guards,
    Kind.ATTACKS: _attacks,
    Kind.STUDIES: _studies,
}

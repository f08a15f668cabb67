"""``hdpfl reproduce``: a paper's table or figure, one command each."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hdpfl_flower.errors import InstallationError, TermsError
from hdpfl_flower.system.paths import runs_dir
from hdpfl_tools.coordinator.progress import console, items, make_table, show_json, show_line
from server_app.plots import check_pictures

if TYPE_CHECKING:
    from studies.framework.study import Options, Study


class Device(StrEnum):
    """Where sites train."""

    AUTO, CPU, CUDA = "auto", "cpu", "cuda"


def reproduce(  # noqa: PLR0913, PLR0917 - options of a command line
    name: Annotated[
        str,
        typer.Argument(help="The name of the study; --list shows all names.", show_default=False),
    ] = "",
    list_: Annotated[bool, typer.Option("--list", help="List the studies and end.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the list, or results.json, as JSON.")
    ] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Run the study as published, which takes hours.")
    ] = False,
    seeds: Annotated[
        int, typer.Option(help="Runs of each cell; 0: as many as the study states.", min=0)
    ] = 0,
    rounds: Annotated[
        int,
        typer.Option(
            help="Stop each run after so many rounds, with the noise of all rounds that the "
            "paper plans; 0: as many as the study states.",
            min=0,
        ),
    ] = 0,
    strategies: Annotated[
        str, typer.Option(help="Rows to run, with commas between.", show_default=False)
    ] = "",
    columns: Annotated[
        str, typer.Option(help="Columns to run, with commas between.", show_default=False)
    ] = "",
    against: Annotated[
        str,
        typer.Option(
            help=(
                "Row with which the other rows are compared seed by seed; default: the first row."
            ),
            show_default=False,
        ),
    ] = "",
    learning_rate: Annotated[
        str,
        typer.Option(
            help="The learning rates over which each method is tuned, with commas between.",
            show_default=False,
        ),
    ] = "",
    noise: Annotated[
        str,
        typer.Option(
            help=(
                "What sets the noise: paper, pld (our accountant), or both with a comma between."
            ),
            show_default=False,
        ),
    ] = "",
    model: Annotated[str, typer.Option(help="logreg, cnn, …", show_default=False)] = "",
    dataset: Annotated[
        str, typer.Option(help="A data set in place of the paper's.", show_default=False)
    ] = "",
    data_dir: Annotated[
        str, typer.Option(help="Folder of the data sets.", show_default=False)
    ] = "",
    device: Annotated[Device, typer.Option(help="Device on which the sites train.")] = Device.AUTO,
    jobs: Annotated[
        int, typer.Option(help="Number of runs at a time; 0: one per core.", min=0)
    ] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for runs and results; a second call continues in it.", show_default=False
        ),
    ] = None,
) -> None:
    """Reproduce a table or figure of a paper; write a table, PNG and JSON.

    The default is a quick form; --full runs the study as published. The folder keeps finished runs
    and reuses them, so that an interrupted study is resumed, and more seeds add only their own
    runs.
    """
    studies = load_studies()
    from studies.framework.study import Options

    if list_ or not name:
        _list(studies.values(), as_json)
        return
    if name not in studies:
        raise TermsError(f"study '{name}' is not known; choose one of {', '.join(studies)}")
    _use(device)
    options = Options(
        full=full,
        seeds=seeds,
        rounds=rounds,
        strategies=items(strategies),
        columns=items(columns),
        against=against,
        learning_rates=tuple(_rate(text) for text in items(learning_rate)),
        noises=items(noise),
        model=model,
        dataset=dataset,
        data_dir=data_dir,
        processes=jobs,
    )
    conduct(studies[name], options, out, as_json)


def load_studies() -> Mapping[str, Study]:
    """Return the studies of this checkout, by name.

    Raises:
        InstallationError: this package was installed without its checkout.
    """
    checkout = Path(__file__).parents[3]
    if not (checkout / "studies" / "__init__.py").is_file():
        raise InstallationError(
            "the package does not contain the studies; to get them run: git clone "
            "https://github.com/hdpfl/hdpfl-flower && cd hdpfl-flower && make demo, and then "
            ".venv/bin/hdpfl reproduce"
        )
    if str(checkout) not in sys.path:
        sys.path.append(str(checkout))
    from studies import STUDIES

    return STUDIES


def conduct(study: Study, options: Options, out: Path | None, as_json: bool) -> None:
    """Conduct a study in a folder; store and print results.

    Raises:
        TermsError: an option has no effect on the study, or names a row or column that it lacks.
    """
    from studies.framework.output import save, show

    check_pictures()
    study.check(options)
    folder = (out or runs_dir() / f"reproduce-{study.name}").absolute()
    folder.mkdir(parents=True, exist_ok=True)
    findings = study.conduct(options, folder)
    save(study, findings, folder, _command(study.name, options))
    if as_json:
        typer.echo((folder / "results.json").read_text(encoding="utf-8"), nl=False)
        return
    console.print(f"[bold]{study.title}[/bold]  ({study.source})")
    show(findings)
    picture = folder / f"{study.name}.png"
    files = ["table.md", "results.json", *([picture.name] if picture.exists() else [])]
    show_line(f"{folder}: {', '.join(files)}")


def _list(studies: Iterable[Study], as_json: bool) -> None:
    if as_json:
        rows = [
            {
                "name": s.name,
                "what": s.title,
                "paper": s.source,
                "minutes": s.minutes,
                "data": list(s.data),
            }
            for s in studies
        ]
        show_json(rows)
        return
    from hdpfl_tools.simulation.datasets import how_to_get

    title = "hdpfl reproduce NAME: the quick form takes so many minutes on two cores"
    head = ("name", "what", "paper", "data", "minutes")
    studies = tuple(studies)
    cells = [(s.name, s.title, s.source, ", ".join(s.data), str(s.minutes)) for s in studies]
    table = make_table(title, head, cells, words=head[:4])
    table.columns[0].no_wrap = True
    console.print(table)
    for name in dict.fromkeys(name for study in studies for name in study.data):
        show_line(f"{name}, for --data-dir DIR: {how_to_get(name)}")


def _use(device: Device) -> None:
    """Hide the GPU or require it, in this process and its children.

    Raises:
        TermsError: there is no GPU that torch can use.
    """
    if device is Device.CPU:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if device is Device.CUDA:
        import torch

        if not torch.cuda.is_available():
            raise TermsError("--device cuda: torch finds no GPU here; take --device cpu")


def _command(name: str, options: Options) -> str:
    """Return the command that computes these findings on any machine."""
    words = ["hdpfl", "reproduce", name, *(["--full"] if options.full else [])]
    return shlex.join([*words, *(word for pair in options.given.items() for word in pair)])


def _rate(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise TermsError(f"--learning-rate: '{text}' is not a number") from None

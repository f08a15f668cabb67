"""``hdpfl statistics``: Table 1 of a federation from one noisy message, before any training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import TermsError
from hdpfl_flower.system.own_traceback import search_here
from hdpfl_tools.coordinator.progress import console, make_table, show_json, show_line, waiting


def statistics(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="A run config (.toml) to try on simulated sites in this process; or the "
            "folder of a finished run.",
        ),
    ],
    clients: Annotated[int, typer.Option(help="Number of simulated sites.", min=1)] = 4,
    columns: Annotated[
        str,
        typer.Option(help="Number columns whose values are counted in bins, with commas between."),
    ] = "",
    bins: Annotated[
        str,
        typer.Option(
            help=(
                "Bins of these columns: a number of bins, or the inner edges with commas between."
            )
        ),
    ] = "10",
    by_label: Annotated[
        bool, typer.Option("--by-label", help="Add a table of each class.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
) -> None:
    """Print Table 1 of a federation from one noisy message of each site, before any training.

    The table shows the count, the missing values, the mean and deviation of number columns, the
    shares of categories and labels, and bins if you ask for them. Its intervals cover the noise.
    For a survival task it shows the survival curve with its band and quantiles, and the command
    writes survival.png. The tables of each site are in statistics.csv and statistics.html in the
    run's folder. To ask real sites, use flwr run with first.moments.alone=true and
    first.moments.content=table (or curve). Each operator approves this run like any other run. A
    second message is a second run, which is charged again.
    """
    search_here()
    from hdpfl_tools.coordinator.reports.survival import (
        CURVE_HEAD,
        PICTURE,
        about,
        curve_table,
        draw_curves,
    )
    from hdpfl_tools.coordinator.reports.table_one import (
        ALL,
        CLASS,
        HEAD,
        csv_rows,
        curves_of,
        facts_in,
        lines_of,
        page_of,
    )
    from hdpfl_tools.shell.csv_text import csv_text
    from server_app.run.resume import run_folder

    is_config = run.suffix == ".toml"
    folder = _asked(run, clients, columns, bins, by_label) if is_config else run_folder(str(run))
    facts = facts_in(folder)
    lines = lines_of(facts)
    (folder / "statistics.csv").write_text(csv_text(csv_rows(lines)), encoding="utf-8")
    draw_curves(curves_of(facts), folder / PICTURE)
    page = page_of(folder.name, facts, folder / PICTURE)
    (folder / "statistics.html").write_text(page, encoding="utf-8")
    if as_json:
        show_json(facts)
        return
    if (curve := curves_of(facts).get(ALL)) is not None:
        title = f"Over all sites: {about(curve)}"
        console.print(make_table(title, CURVE_HEAD, curve_table(curve), words=CURVE_HEAD[:1]))
    in_words = [line for line in lines if not line.of_curve_table]
    classes = [name for name in facts["groups"] if name.startswith(CLASS)]
    for group in (ALL, *classes):
        of_group = [line for line in in_words if line.group == group]
        rows = [(line.column, line.measure, *line.cells) for line in of_group]
        title = "Columns over all sites" if group == ALL else f"Records of {group}"
        console.print(make_table(title, HEAD, rows, words=HEAD[:2]))
    for site, why in facts["without"].items():
        show_line(f"the table does not hold site {site}: {why}")
    show_line(f"the tables of each site: {folder / 'statistics.csv'} and statistics.html")


def _asked(run: Path, clients: int, columns: str, bins: str, by_label: bool) -> Path:
    """Return the folder of a run of the first message alone, in this process."""
    from hdpfl_flower.data.run_task import task_for
    from hdpfl_tools.simulation.in_process.in_process_run import run_in_process
    from hdpfl_tools.simulation.own_data.dataset import with_own_task
    from server_app.run.rounds import finalize_terms

    config = RunConfig.load(run, apart=("resume-from",))
    if config.terms.dataset == "site":
        raise TermsError(
            "run config: 'dataset' is 'site', and these tables are at the sites. Ask the sites "
            "with flwr run and first.moments.alone=true first.moments.content=table, then "
            "call: hdpfl statistics FOLDER; or name a data set to try the run on"
        )
    keys = {**config.as_config(), "rounds": 1, "evaluation": "none"}
    keys = with_own_task(keys, run.absolute().parent)
    config = RunConfig.parse(keys)
    asked = dict(config.terms.first)
    # A curve alone has the least noise; 'table' in the run config, or bins, ask for all.
    is_curve = task_for(config.terms).intervals and not columns and not by_label
    moments: dict[str, Any] = {
        "alone": True,
        "content": asked.get("moments.content", "curve") if is_curve else "table",
        "columns": columns,
        "bins": bins,
        "by-label": by_label,
        "share": asked.get("moments.share", "auto"),
    }
    first = {f"moments.{key}": value for key, value in moments.items()}
    config = finalize_terms(RunConfig.parse({**keys, "first": first}))
    with waiting("first message of each site"):
        return run_in_process(config, clients).folder

"""``hdpfl compare``: strategies side by side, in process."""

from __future__ import annotations

import secrets
import tomllib
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.schema_file import with_schema_text
from hdpfl_flower.config.simulation_terms import SimulationTerms
from hdpfl_flower.errors import TermsError
from hdpfl_flower.system.paths import available_cores, runs_dir
from server_app.plots import plot_panels, why_no_picture
from server_app.progress import console, rounds_bar

if TYPE_CHECKING:
    from server_app.simulation.comparison import Comparison

Text = Annotated[str | None, typer.Option(show_default=False)]
Number = Annotated[int | None, typer.Option(show_default=False)]
Real = Annotated[float | None, typer.Option(show_default=False)]


def compare(  # noqa: PLR0913, PLR0917 - options of a command line
    strategies: Annotated[str, typer.Option(help="Names, with commas between.")] = (
        "fedavg,robust-hdp,mmse,oracle"
    ),
    clients: Annotated[int, typer.Option(help="Simulated sites.", min=1)] = 13,
    seeds: Annotated[
        int, typer.Option(help="Runs of each strategy, each with its own seed.", min=1)
    ] = 3,
    dataset: Text = None,
    data_dir: Text = None,
    model: Text = None,
    partition: Text = None,
    groups: Text = None,
    epsilons: Text = None,
    opt_out: Annotated[
        float | None,
        typer.Option(help="Share of the sites that opt out of privacy.", min=0, max=1),
    ] = None,
    batch_sizes: Text = None,
    delta: Real = None,
    rounds: Number = None,
    local_epochs: Number = None,
    learning_rate: Real = None,
    clip_norm: Real = None,
    seed: Annotated[int | None, typer.Option(help="The first seed.", show_default=False)] = None,
    terms: Annotated[
        Path | None, typer.Option(help="TOML file of run config keys to start from.")
    ] = None,
    set_: Annotated[list[str], typer.Option("--set", help="KEY=VALUE, any run config key.")] = [],  # noqa: B006
    jobs: Annotated[int, typer.Option(help="Runs at a time; 0: a core each.", min=0)] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for the results.")] = None,
) -> None:
    """Compare strategies in process: a table of mean ± sd, JSON and a picture.

    With the same seed every strategy sees the same sites, budgets, batches and noise. Keys that are
    not given keep the defaults of the run config.
    """
    from server_app.run.reuse import NAME, check_same_sites, check_same_terms
    from server_app.run.rounds import finalize_terms, ready_strategy
    from server_app.simulation.comparison import Comparison, jobs_of
    from server_app.simulation.comparison import compare as run_jobs
    from strategies import SETTINGS_OWNERS, check_strategy
    from strategies.settings import check_settings, with_own_settings

    given = {
        "dataset": dataset, "data-dir": data_dir, "model": model, "partition": partition,
        "groups": groups, "epsilons": epsilons, "batch-sizes": batch_sizes, "delta": delta,
        "rounds": rounds, "local-epochs": local_epochs, "learning-rate": learning_rate,
        "clip-norm": clip_norm, "seed": seed,
    }  # fmt: skip
    config: dict[str, object] = dict(RunConfig.load(terms).as_config() if terms else {})
    config.update({key: value for key, value in given.items() if value is not None})
    config.update(_assignments(set_))
    if opt_out is not None:
        spec = config.get("epsilons", SimulationTerms().epsilons)
        config["epsilons"] = f"{spec}+opt-out:{opt_out}"
    names = [name.strip() for name in strategies.split(",") if name.strip()]
    rules = {name: check_strategy(name) for name in names}
    folder = out or _new_folder()
    config = with_schema_text(config, Path.cwd())
    base = RunConfig.parse({**config, "runs-dir": str(folder.absolute())})
    check_settings(base, SETTINGS_OWNERS, running=rules.values())
    comparison = Comparison(base, clients, names=names)
    todo = [
        replace(job, config=with_own_settings(job.config, rules[job.terms.strategy]))
        for job in jobs_of(base, names, seeds, clients)
    ]
    for job in todo:  # all of them before the first
        ready_strategy(job.config)
        least = min(job.config.server.min_sites, clients)
        sent = finalize_terms(job.config.updated(min_sites=least))
        check_same_terms(folder / sent.terms.run_id, sent, "name another --out")
        check_same_sites(folder, sent.terms.run_id, clients)
    if not (folder / NAME).exists():
        comparison.save(folder / NAME)
    try:
        with rounds_bar(len(todo) * base.terms.rounds, f"{len(todo)} runs") as tick:
            for job, events in run_jobs(todo, jobs or available_cores(), tick):
                comparison.rounds[job.key] = events
    finally:
        if comparison.rounds:
            _show(comparison, folder)
            _show_alone(comparison, {job.key: folder / job.terms.run_id for job in todo})
            runs = {job.terms.strategy: folder / job.terms.run_id for job in reversed(todo)}
            _show_promises(comparison, {name: runs[name] for name in names})


def _new_folder() -> Path:
    """Return a folder that is not there yet, named by the time."""
    folder = runs_dir() / f"compare-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    return folder.with_name(f"{folder.name}-{secrets.token_hex(3)}") if folder.exists() else folder


def _show(comparison: Comparison, folder: Path) -> None:
    from server_app.commands.comparison_tables import (
        counted_lines,
        deciding_lines,
        measure_tables,
        picture_of,
    )

    comparison.save(folder / "comparison.json")
    terms, epsilons = comparison.terms, comparison.config.simulation.epsilons
    title = f"{terms.dataset}, {terms.model}, {comparison.num_sites} clients, ε {epsilons}"
    label, metrics = picture_of(comparison)
    panels = {
        panel: {name: comparison.metric(name, metric) for name in comparison.strategies()}
        for panel, metric in metrics.items()
    }
    no_picture = why_no_picture()
    if not no_picture:
        plot_panels(panels, folder / "comparison.png", title, label)
    for table in measure_tables(comparison, f"{title}, {terms.rounds} rounds"):
        console.print(table)
    for line in (*counted_lines(comparison), *deciding_lines(comparison)):
        console.print(line, soft_wrap=True)
    written = "comparison.json" if no_picture else "comparison.json and comparison.png"
    console.print(f"{folder}/{written}", soft_wrap=True)
    if no_picture:
        console.print(f"no picture: {no_picture}", soft_wrap=True, markup=False)


def _show_alone(comparison: Comparison, folders: dict[tuple[str, int], Path]) -> None:
    from server_app.commands.comparison_tables import alone_table

    if table := alone_table(comparison, folders):
        console.print(table)


def _show_promises(comparison: Comparison, folders: dict[str, Path]) -> None:
    from server_app.commands.promises import promises_table, read_promises

    found = read_promises(folders)
    if not found:
        return
    table, lines = promises_table(comparison.config, comparison.num_sites, found)
    console.print(table)
    for line in lines:
        console.print(line, soft_wrap=True)


def _assignments(pairs: list[str]) -> dict[str, object]:
    """Return the run config keys of ``--set``, values as TOML has them; bare words are texts."""
    values: dict[str, object] = {}
    for pair in pairs:
        key, separator, text = pair.partition("=")
        if not separator:
            raise TermsError(f"--set '{pair}' has no '='; write KEY=VALUE")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except (ValueError, RecursionError):
            value = text
        # A date or a list is no term's value: as a text it may be one.
        values[key] = value if isinstance(value, (bool, int, float, str)) else text
    return values

"""``hdpfl compare``: strategies side by side, in process."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hdpfl_flower.config.named_files import with_files
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.simulation_terms import SimulationTerms
from hdpfl_flower.errors import TermsError
from hdpfl_flower.system.files import replace_file
from hdpfl_flower.system.own_code import search_here, shown_to_its_author
from hdpfl_flower.system.paths import available_cores, runs_dir
from hdpfl_flower.system.printable import csv_text, printable
from hdpfl_tools.coordinator.progress import (
    console,
    items,
    make_table,
    rounds_bar,
    show_line,
    waiting,
)
from server_app.plots import plot_panels, why_no_picture

if TYPE_CHECKING:
    from hdpfl_tools.simulation.in_process.comparison import Comparison, RunJob


@shown_to_its_author()
def compare(  # noqa: PLR0913, PLR0917 - options of a command line
    strategies: Annotated[
        str, typer.Option(help="Names, or module:Class of your own, with commas between.")
    ] = "fedavg,robust-hdp,mmse,oracle",
    clients: Annotated[
        int, typer.Option(help="Simulated sites; with --tables one a table.", min=1)
    ] = 13,
    seeds: Annotated[
        int, typer.Option(help="Runs of each strategy, each with its own seed.", min=1)
    ] = 3,
    dataset: Annotated[
        str | None, typer.Option(help="A named data set, or one of your own.")
    ] = None,
    schema: Annotated[
        str | None, typer.Option(help="Schema of --tables, FILE.toml or a built-in one.")
    ] = None,
    tables: Annotated[
        str | None,
        typer.Option(
            help="A table a site, with commas between: a CSV or Parquet file, or a site's profile."
        ),
    ] = None,
    data_dir: Annotated[str | None, typer.Option(help="Folder of the named data sets.")] = None,
    model: Annotated[
        str | None, typer.Option(help="logreg, mlp:WIDTH, cnn, resnet18 or module:function.")
    ] = None,
    partition: Annotated[
        str | None, typer.Option(help="How the sites share the records: iid, natural, …")
    ] = None,
    groups: Annotated[
        str | None, typer.Option(help="Groups of sites with different data: KIND:SIZE:SIZE…")
    ] = None,
    epsilons: Annotated[
        str | None, typer.Option(help="The sites' ε: one, a list, uniform:LOW:HIGH, …")
    ] = None,
    opt_out: Annotated[
        float | None, typer.Option(help="Share of the sites that opt out of privacy.", min=0, max=1)
    ] = None,
    batch_sizes: Annotated[
        str | None, typer.Option(help="Expected batch sizes to draw from, a list.")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="The sites' δ.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds.")] = None,
    local_epochs: Annotated[
        int | None, typer.Option(help="Passes over a site's records a round.")
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Of the sites' steps.")] = None,
    clip_norm: Annotated[float | None, typer.Option(help="Bound of a record's gradient.")] = None,
    seed: Annotated[int | None, typer.Option(help="The first seed.")] = None,
    terms: Annotated[
        Path | None,
        typer.Option("--terms", "--run-config", help="TOML file of run config keys to start from."),
    ] = None,
    set_: Annotated[list[str], typer.Option("--set", help="KEY=VALUE, any run config key.")] = [],  # noqa: B006
    stack: Annotated[
        bool | None, typer.Option("--stack", help="Train the clients of logreg and mlp together.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Runs at a time; 0: a core each.", min=0)] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for the results.")] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Store each run after every round; reuse finished runs in --out, and "
            "resume the rest.",
        ),
    ] = False,
    csv: Annotated[
        Path | None,
        typer.Option(help="Write every measure of every run and round to this CSV, too."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print comparison.json in place of tables.")
    ] = False,
) -> None:
    """Compare strategies in process: a table of mean ± sd, JSON and a picture.

    With the same seed every strategy sees the same sites, budgets, batches and noise. Keys that are
    not given keep the defaults of the run config. After a change of your own code, name another
    --out: --resume takes finished runs as they are.
    """
    with waiting("imports and checks"):  # a second or two, before the first round
        from hdpfl_tools.simulation.in_process.comparison import Comparison, jobs_of
        from hdpfl_tools.simulation.in_process.comparison import compare as run_jobs
        from hdpfl_tools.simulation.in_process.finished_runs import run_anew, run_or_resume
        from hdpfl_tools.simulation.in_process.own_model import rehearse_own_model
        from hdpfl_tools.simulation.own_data.dataset import with_own_task
        from server_app.run.reuse import NAME, check_same_sites, check_same_terms
        from server_app.run.rounds import finalize_terms, ready_kernel
        from strategies import SETTINGS_OWNERS, check_strategy
        from strategies.settings import assigned, check_settings, with_own_settings

        given = dict(
            dataset=dataset,
            data_dir=data_dir,
            model=model,
            partition=partition,
            groups=groups,
            epsilons=epsilons,
            batch_sizes=batch_sizes,
            delta=delta,
            rounds=rounds,
            local_epochs=local_epochs,
            learning_rate=learning_rate,
            clip_norm=clip_norm,
            seed=seed,
            stack=stack,
        )
        search_here()
        names = items(strategies)
        if not names:
            raise TermsError("--strategies names no strategy; write such as fedavg,mmse")
        chosen = {name: check_strategy(name) for name in names}
        config: dict[str, object] = dict(RunConfig.load(terms).as_config() if terms else {})
        config.update({k.replace("_", "-"): v for k, v in given.items() if v is not None})
        config.update(assigned(set_, chosen.values()))
        if opt_out is not None:
            spec = config.get("epsilons", SimulationTerms().epsilons)
            config["epsilons"] = f"{spec}+opt-out:{opt_out}"
        folder = out or _new_folder()
        if schema or tables:
            clients = _take_tables(config, schema, tables, folder)
        config = with_own_task(with_files(config, Path.cwd()), Path.cwd())
        base = RunConfig.parse({**config, "runs-dir": str(folder.absolute())})
        check_settings(base, SETTINGS_OWNERS, running=chosen.values())
        comparison = Comparison(base, clients, names=names)
        todo = [
            replace(job, config=with_own_settings(job.config, chosen[job.terms.strategy]))
            for job in jobs_of(base, names, seeds, clients)
        ]
        for job in todo:  # all of them before the first
            ready_kernel(job.config)
            least = min(job.config.server.min_sites, clients)
            sent = finalize_terms(job.config.updated(min_sites=least))
            check_same_terms(folder / sent.terms.run_id, sent, "name another --out")
            check_same_sites(folder, sent.terms.run_id, clients)
        rehearse_own_model(base.terms)
        if not (folder / NAME).exists():
            comparison.save(folder / NAME)
    try:
        with rounds_bar(len(todo) * base.terms.rounds, f"{len(todo)} runs") as tick:
            work = run_or_resume if resume else run_anew
            for job, events in run_jobs(todo, jobs or available_cores(), tick, work):
                comparison.rounds[job.key] = events
    finally:
        if len(comparison.rounds) < len(todo) and (comparison.rounds or resume):
            _show_remedy(len(comparison.rounds), len(todo), folder)
        if comparison.rounds:
            _show_all(comparison, todo, folder, as_json)
            _write_csv(comparison, {job.key: folder / job.terms.run_id for job in todo}, csv)


def _take_tables(
    config: dict[str, object], schema: str | None, tables: str | None, folder: Path
) -> int:
    """Put a federation of tables into ``config``; return its number of sites.

    The losses of each table are said on stderr. An encoded copy of the records lies in ``folder``.
    """
    from hdpfl_flower.data.schema import schema_text
    from hdpfl_flower.ledger.withdrawals import load_profile
    from hdpfl_tools.simulation.own_data.site_tables import table_sources, write_federation
    from hdpfl_tools.tables.site_check import about_losses

    names = items(tables)
    if not schema or not names:
        raise TermsError("--schema and --tables go together: --schema S.toml --tables a.csv,b.csv")
    for key in ("dataset", "partition", "task", "schema"):
        if config.get(key, "") not in ("", "site" if key == "dataset" else "natural"):
            raise TermsError(f"'{key}' is said by --tables, a site a table; leave one of them out")
    text = schema_text(str(with_files({"schema": schema}, Path.cwd())["schema"]))
    sources = table_sources(names, Path.cwd(), text, load_profile)
    copy = folder.absolute() / "tables.npz"
    task, counts = write_federation(sources, text, copy)
    for table, line in zip(sources, counts, strict=True):
        losses = [f"{table.name}: {loss}" for loss in about_losses(table.source, text)]
        for about in (line, *losses):
            typer.echo(printable(about), err=True)
    config.pop("schema", None)
    config |= {"dataset": f"file:{copy}", "partition": "natural", "task": task}
    return len(sources)


def _show_remedy(done: int, of: int, folder: Path) -> None:
    typer.echo(
        f"{done} of {of} runs are finished; to keep them and resume, call the same command with "
        f"--resume --out {folder}",
        err=True,
    )


def _show_all(comparison: Comparison, todo: Sequence[RunJob], folder: Path, as_json: bool) -> None:
    """Write the comparison and its picture; print tables or JSON."""
    from hdpfl_tools.coordinator.commands.promises import promises_table, read_promises
    from hdpfl_tools.coordinator.reports.comparison_tables import lines, tables

    comparison.save(folder / "comparison.json")
    no_picture = _draw(comparison, folder)
    if as_json:
        typer.echo((folder / "comparison.json").read_text(encoding="utf-8"), nl=False)
        return
    title = f"{_title(comparison)}, {comparison.terms.rounds} rounds"
    folders = {job.key: folder / job.terms.run_id for job in todo}
    for table in tables(comparison, title, folders):
        console.print(make_table(*table))
    for line in (*_rate_lines(comparison), *lines(comparison, folders)):
        show_line(line)
    written = "comparison.json" if no_picture else "comparison.json and comparison.png"
    show_line(f"{folder}/{written}")
    if no_picture:
        show_line(f"no picture: {no_picture}")
    runs = {job.terms.strategy: folder / job.terms.run_id for job in reversed(todo)}
    if promises := read_promises({name: runs[name] for name in comparison.names}):
        promised, about = promises_table(comparison.config, comparison.num_sites, promises)
        console.print(promised)
        for line in about:
            show_line(line)


def _write_csv(
    comparison: Comparison, folders: dict[tuple[str, int], Path], path: Path | None
) -> None:
    """Write a row per strategy, seed, round and measure, given ``path``.

    The final model's measures follow those of the rounds, with their intervals, as round "final";
    those of noisy histograms after ``federated-``.
    """
    if path is None:
        return
    from server_app.run.federated_measures import FEDERATED
    from server_app.run.final_measures import EVENT, read_final_measures

    rows: list[tuple[object, ...]] = [
        ("strategy", "seed", "round", "measure", "value", "low", "high")
    ]
    for (name, seed), events in sorted(comparison.rounds.items()):
        for number, event in enumerate(events, 1):
            for measure, value in event["metrics"].items():
                rows.append((name, seed, event.get("round", number), measure, value, "", ""))
        for kind, prefix in ((EVENT, ""), (FEDERATED, "federated-")):
            final = read_final_measures(folders[name, seed], kind).get("measures", {})
            for measure, estimate in final.items():
                numbers = (estimate[key] for key in ("value", "low", "high"))
                rows.append((name, seed, "final", f"{prefix}{measure}", *numbers))
    replace_file(path, csv_text(rows).encode())
    typer.echo(str(path), err=True)


def _new_folder() -> Path:
    """Return a new folder, named by the time."""
    folder = runs_dir() / f"compare-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    return folder.with_name(f"{folder.name}-{secrets.token_hex(3)}") if folder.exists() else folder


def _rate_lines(comparison: Comparison) -> Iterator[str]:
    """Yield each strategy's rates, where ``learning-rate`` = ``auto`` leaves them open."""
    from hdpfl_flower.config.server_terms import rates_line
    from strategies import check_strategy

    if comparison.config.rate_is_open:
        for name in comparison.strategies():
            config = check_strategy(name).with_rate(comparison.config.updated(strategy=name))
            yield f"{name}: {rates_line(config.as_config())}"


def _title(comparison: Comparison) -> str:
    terms, epsilons = comparison.terms, comparison.config.simulation.epsilons
    return f"{terms.dataset}, {terms.model}, {comparison.num_sites} clients, ε {epsilons}"


def _draw(comparison: Comparison, folder: Path) -> str:
    """Write the picture; return the reason if there is none."""
    from hdpfl_tools.coordinator.reports.comparison_tables import picture_of

    label, metrics = picture_of(comparison)
    panels = {
        panel: {name: comparison.metric(name, metric) for name in comparison.strategies()}
        for panel, metric in metrics.items()
    }
    no_picture = why_no_picture()
    if not no_picture:
        plot_panels(panels, folder / "comparison.png", _title(comparison), label)
    return no_picture

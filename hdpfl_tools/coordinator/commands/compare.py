"""``hdpfl compare``: strategies side by side, in process."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hdpfl_flower.config.named_files import with_files
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.settings import Positive
from hdpfl_flower.config.simulation_terms import SimulationTerms
from hdpfl_flower.errors import TermsError
from hdpfl_flower.system.devices import available_cores
from hdpfl_flower.system.files import replace_file
from hdpfl_flower.system.own_traceback import search_here, shown_to_its_author
from hdpfl_flower.system.paths import runs_dir
from hdpfl_flower.system.printable import printable
from hdpfl_tools.coordinator.progress import (
    console,
    items,
    make_table,
    rounds_bar,
    show_line,
    waiting,
)
from hdpfl_tools.shell.csv_text import csv_text
from server_app.plots import plot_panels, why_no_picture

if TYPE_CHECKING:
    from hdpfl_flower.monitoring.journal import Event
    from hdpfl_tools.coordinator.reports.comparison_tables import TextTable
    from hdpfl_tools.simulation.in_process.comparison import Comparison, OnRound, RunJob
    from hdpfl_tools.simulation.in_process.tuned_rates import TunedRate, TuningJob


@shown_to_its_author()
def compare(  # noqa: PLR0913, PLR0917 - options of a command line
    strategies: Annotated[
        str,
        typer.Option(help=("Names of strategies with commas between; your own are module:Class.")),
    ] = "fedavg,robust-hdp,mmse,oracle",
    clients: Annotated[
        int,
        typer.Option(
            help=("Number of simulated sites; with --tables there is one site per table."), min=1
        ),
    ] = 13,
    seeds: Annotated[
        int, typer.Option(help="Runs of each strategy; each run has its own seed.", min=1)
    ] = 3,
    dataset: Annotated[
        str | None, typer.Option(help="A named data set, or one of your own.")
    ] = None,
    schema: Annotated[
        str | None, typer.Option(help="Schema of --tables: FILE.toml or a built-in one.")
    ] = None,
    tables: Annotated[
        str | None,
        typer.Option(
            help=(
                "One table per site, with commas between: CSV or Parquet files, or sites' profiles."
            )
        ),
    ] = None,
    data_dir: Annotated[str | None, typer.Option(help="Folder of the named data sets.")] = None,
    model: Annotated[
        str | None, typer.Option(help="logreg, mlp:WIDTH, cnn, resnet18 or module:function.")
    ] = None,
    partition: Annotated[
        str | None, typer.Option(help=("How the records are split over the sites: iid, natural, …"))
    ] = None,
    groups: Annotated[
        str | None, typer.Option(help="Groups of sites whose data differ: KIND:SIZE:SIZE…")
    ] = None,
    epsilons: Annotated[
        str | None, typer.Option(help="The sites' ε: one number, a list, uniform:LOW:HIGH, …")
    ] = None,
    opt_out: Annotated[
        float | None, typer.Option(help="Share of the sites that opt out of privacy.", min=0, max=1)
    ] = None,
    batch_sizes: Annotated[
        str | None,
        typer.Option(help=("List of expected batch sizes from which each site draws one.")),
    ] = None,
    delta: Annotated[float | None, typer.Option(help="The sites' δ.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Number of rounds.")] = None,
    local_epochs: Annotated[
        int | None, typer.Option(help="Passes over a site's records in each round.")
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="Learning rate of the sites' steps.")
    ] = None,
    clip_norm: Annotated[float | None, typer.Option(help="Bound on a record's gradient.")] = None,
    seed: Annotated[int | None, typer.Option(help="The first seed.")] = None,
    terms: Annotated[
        Path | None,
        typer.Option(
            "--terms", "--run-config", help="TOML file with run config keys to start from."
        ),
    ] = None,
    set_: Annotated[
        list[str], typer.Option("--set", help="KEY=VALUE for any run config key.")
    ] = [],  # noqa: B006
    stack: Annotated[
        bool | None, typer.Option("--stack", help="Train the clients of logreg and mlp together.")
    ] = None,
    jobs: Annotated[
        int, typer.Option(help="Number of runs at a time; 0: one per core.", min=0)
    ] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for the results.")] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Store each run after every round; reuse the finished runs in --out and "
            "resume the others.",
        ),
    ] = False,
    noise: Annotated[
        str | None,
        typer.Option(help="Sources of noise with commas between, such as records,shared."),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            help=(
                "Row with which the other rows are compared seed by seed; default: the first row."
            )
        ),
    ] = None,
    rates: Annotated[
        str | None,
        typer.Option(
            help="Learning rates with commas between; each row takes its best one, found on "
            "other seeds."
        ),
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option(help="Also write every measure of every run and round to this CSV file."),
    ] = None,
    latex: Annotated[
        Path | None, typer.Option(help="Also write the tables to this LaTeX file.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print comparison.json in place of tables.")
    ] = False,
) -> None:
    """Compare strategies in one process; write a table of mean ± sd, JSON and a picture.

    With the same seed every strategy sees the same sites, budgets, batches and noise. Keys that
    you do not give keep the defaults of the run config. After you change your own code, name
    another --out, because --resume reuses finished runs as they are.
    """
    with waiting("imports and checks"):  # a second or two, before the first round
        from hdpfl_tools.simulation.in_process.comparison import Comparison
        from hdpfl_tools.simulation.in_process.comparison import compare as run_jobs
        from hdpfl_tools.simulation.in_process.finished_runs import run_anew, run_or_resume
        from hdpfl_tools.simulation.in_process.own_model import rehearse_own_model
        from hdpfl_tools.simulation.in_process.tuned_rates import at_tuned_rates, tuning_jobs
        from hdpfl_tools.simulation.own_data.dataset import with_own_task
        from server_app.run.reuse import NAME
        from strategies import SETTINGS_OWNERS, check_strategy
        from strategies.settings import assigned, check_settings

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
            raise TermsError("--strategies names no strategy; write names such as fedavg,mmse")
        chosen = {name: check_strategy(name) for name in names}
        config = _config_of(given, terms, assigned(set_, chosen.values()), opt_out)
        folder = out or _new_folder()
        if schema or tables:
            clients = _take_tables(config, schema, tables, folder)
        config = with_own_task(with_files(config, Path.cwd()), Path.cwd())
        base = RunConfig.parse({**config, "runs-dir": str(folder.absolute())})
        check_settings(base, SETTINGS_OWNERS, running=chosen.values())
        todo = _jobs(base, names, items(noise or ""), seeds, clients)
        comparison = Comparison(base, clients, names=[job.key[0] for job in todo])
        baseline = _baseline(against, comparison.names)
        tuning = tuning_jobs(todo, _grid(rates, base))
        for job in tuning or todo:  # all of them before the first
            _check_job(job, folder)
        rehearse_own_model(base.terms)
        if not (folder / NAME).exists():
            comparison.save(folder / NAME)
    of_rates: dict[str, TunedRate] = {}
    work = run_or_resume if resume else run_anew
    try:
        if tuning:
            of_rates = _tuned(tuning, jobs or available_cores(), work)
            todo = at_tuned_rates(todo, of_rates)
            comparison.tuned = {row: tuned.rate for row, tuned in of_rates.items()}
        with rounds_bar(len(todo) * base.terms.rounds, f"{len(todo)} runs") as tick:
            for job, events in run_jobs(todo, jobs or available_cores(), tick, work):
                comparison.rounds[job.key] = events
    finally:
        if len(comparison.rounds) < len(todo) and (comparison.rounds or resume or tuning):
            _show_remedy(len(comparison.rounds), len(todo), folder)
        if comparison.rounds:
            shown = Shown(comparison, todo, folder, baseline, of_rates)
            _show_all(shown, latex, as_json)
            _write_csv(comparison, {job.key: folder / job.terms.run_id for job in todo}, csv)


def _config_of(
    given: Mapping[str, object],
    terms: Path | None,
    assigned: Mapping[str, object],
    opt_out: float | None,
) -> dict[str, object]:
    """Return the run config's keys: the file's, then options, then ``--set``."""
    config: dict[str, object] = dict(RunConfig.load(terms).as_config() if terms else {})
    config.update({k.replace("_", "-"): v for k, v in given.items() if v is not None})
    config.update(assigned)
    if opt_out is not None:
        spec = config.get("epsilons", SimulationTerms().epsilons)
        config["epsilons"] = f"{spec}+opt-out:{opt_out}"
    return config


def _check_job(job: RunJob, folder: Path) -> None:
    """Raise an ``HDPFLError`` for a run that cannot start, or was another one in ``folder``."""
    from server_app.run.reuse import check_same_sites, check_same_terms
    from server_app.run.rounds import finalize_terms, ready_kernel

    ready_kernel(job.config)
    least = min(job.config.server.min_sites, job.num_sites)
    sent = finalize_terms(job.config.updated(min_sites=least))
    check_same_terms(folder / sent.terms.run_id, sent, "name another --out")
    check_same_sites(folder, sent.terms.run_id, job.num_sites)


def _tuned(
    tuning: Sequence[TuningJob], processes: int, work: Callable[[RunJob, OnRound], list[Event]]
) -> dict[str, TunedRate]:
    """Run the tuning jobs; return each row's best rate."""
    from hdpfl_tools.simulation.in_process.comparison import compare as run_jobs
    from hdpfl_tools.simulation.in_process.tuned_rates import tuned

    rounds = len(tuning) * tuning[0].terms.rounds
    with rounds_bar(rounds, f"{len(tuning)} runs that tune the rates") as tick:
        return tuned(list(run_jobs(tuning, processes, tick, work)))


def _jobs(
    base: RunConfig, names: Sequence[str], noises: Sequence[str], seeds: int, clients: int
) -> list[RunJob]:
    """Return the runs, a row a strategy, and a source of noise where several are asked for."""
    from hdpfl_tools.simulation.in_process.comparison import jobs_by_noise, jobs_of
    from strategies import check_strategy
    from strategies.settings import with_own_settings

    if noises:
        jobs = jobs_by_noise(base, names, [*dict.fromkeys(noises)], seeds, clients)
    else:
        jobs = jobs_of(base, names, seeds, clients)
    own = {job.terms.strategy: check_strategy(job.terms.strategy) for job in jobs}
    return [
        replace(job, config=with_own_settings(job.config, own[job.terms.strategy])) for job in jobs
    ]


def _take_tables(
    config: dict[str, object], schema: str | None, tables: str | None, folder: Path
) -> int:
    """Put a federation of tables into ``config``; return its number of sites.

    The losses of each table are said on stderr. An encoded copy of the records lies in ``folder``.
    """
    from hdpfl_flower.data.schema import schema_text
    from hdpfl_tools.simulation.own_data.site_tables import table_sources, write_federation
    from hdpfl_tools.tables.site_check import about_losses
    from hdpfl_tools.tables.withdrawals import load_profile

    names = items(tables)
    if not schema or not names:
        raise TermsError(
            "--schema and --tables need each other: --schema S.toml --tables a.csv,b.csv"
        )
    for key in ("dataset", "partition", "task.kind", "schema"):
        if config.get(key, "") not in ("", "site" if key == "dataset" else "natural"):
            raise TermsError(
                f"--tables already sets '{key}', because each table is one site; "
                "leave one of them out"
            )
    text = schema_text(str(with_files({"schema": schema}, Path.cwd())["schema"]))
    sources = table_sources(names, Path.cwd(), text, load_profile)
    copy = folder.absolute() / "tables.npz"
    task, counts = write_federation(sources, text, copy)
    for table, line in zip(sources, counts, strict=True):
        losses = [f"{table.name}: {loss}" for loss in about_losses(table.source, text)]
        for about in (line, *losses):
            typer.echo(printable(about), err=True)
    config.pop("schema", None)
    config |= {"dataset": f"file:{copy}", "partition": "natural", "task": task.as_table()}
    return len(sources)


def _show_remedy(done: int, of: int, folder: Path) -> None:
    typer.echo(
        f"{done} of {of} runs are finished; to keep them and resume the others, repeat the "
        f"command with --resume --out {folder}",
        err=True,
    )


def _baseline(against: str | None, rows: Sequence[str]) -> str:
    """Return the row that differences are to; raises ``TermsError`` for a row that is none."""
    if against is not None and against not in rows:
        raise TermsError(f"--against: there is no row '{against}'; choose one of {', '.join(rows)}")
    return against or rows[0]


def _grid(rates: str | None, base: RunConfig) -> tuple[float, ...]:
    """Return the learning rates to tune over, empty without any.

    Raises:
        TermsError: one is no rate, or the run config has a rate already.
    """
    from pydantic import TypeAdapter, ValidationError

    if rates is None:
        return ()
    try:
        grid = tuple(dict.fromkeys(TypeAdapter(list[Positive]).validate_python(items(rates))))
    except ValidationError:
        raise TermsError("--rates: write positive numbers with commas, such as 0.1,0.3") from None
    if not grid or not base.rate_is_open:
        raise TermsError("--rates: name at least one rate, and leave out 'learning-rate'")
    return grid


@dataclass(frozen=True)
class Shown:
    """Results to show.

    Attributes:
        comparison: of the finished runs.
        jobs: of all runs.
        folder: of the results.
        baseline: the row that differences are to.
        rates: row → its tuned rate; empty without a grid.
    """

    comparison: Comparison
    jobs: Sequence[RunJob]
    folder: Path
    baseline: str
    rates: Mapping[str, TunedRate]

    @property
    def folders(self) -> dict[tuple[str, int], Path]:
        """(row, seed) → the run's folder."""
        return {job.key: self.folder / job.terms.run_id for job in self.jobs}

    def tables(self) -> list[TextTable]:
        """Return the tables of results, then those of paired differences."""
        from hdpfl_tools.coordinator.reports.comparison_tables import paired_tables, tables

        title = f"{_title(self.comparison)}, {self.comparison.terms.rounds} rounds"
        return [
            *tables(self.comparison, title, self.folders),
            *paired_tables(self.comparison, self.baseline),
        ]


def _show_all(shown: Shown, latex: Path | None, as_json: bool) -> None:
    """Write the comparison, its picture and its LaTeX; print tables or JSON."""
    from hdpfl_tools.coordinator.commands.promises import promises_table, read_promises
    from hdpfl_tools.coordinator.reports import comparison_tables

    comparison, folder = shown.comparison, shown.folder
    comparison.save(folder / "comparison.json")
    no_picture = _draw(comparison, folder)
    tables = shown.tables()
    if latex is not None:
        replace_file(latex, comparison_tables.latex(tables).encode())
        typer.echo(str(latex), err=True)
    if as_json:
        typer.echo((folder / "comparison.json").read_text(encoding="utf-8"), nl=False)
        return
    for table in tables:
        console.print(make_table(*table))
    for line in (*_rate_lines(shown), *comparison_tables.lines(comparison, shown.folders)):
        show_line(line)
    written = "comparison.json" if no_picture else "comparison.json and comparison.png"
    show_line(f"{folder}/{written}")
    if no_picture:
        show_line(f"there is no picture: {no_picture}")
    runs = {job.key[0]: folder / job.terms.run_id for job in reversed(shown.jobs)}
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


def _rate_lines(shown: Shown) -> Iterator[str]:
    """Yield each row's rates, where a grid or ``learning-rate`` = ``auto`` chose them."""
    from hdpfl_flower.config.server_terms import FOUND, rates_line
    from strategies import check_strategy

    names = shown.comparison.strategies()
    yield from (f"{name}: {shown.rates[name]}" for name in names if name in shown.rates)
    open_rates = {job.key[0]: job.config for job in shown.jobs if job.config.rate_is_open}
    rules = set[bool]()
    for name in names:
        if name in open_rates:
            config = open_rates[name]
            config = check_strategy(config.terms.strategy).with_rate(config)
            rules.add(config.server.server_learning_rate == FOUND)
            yield f"{name}: {rates_line(config.as_config())}"
    if len(rules) > 1:
        yield (
            "warning: the server finds the rate of some rows, and other rows have a fixed "
            "rate, so their rates differ too; --rates 0.03,0.1,0.3,1 tunes the rate of each row"
        )


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

"""``hdpfl advise``: settings of a run from public numbers, and the best changes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.toml_text import as_toml
from hdpfl_flower.errors import TermsError
from hdpfl_flower.noise_sources import SOURCES
from hdpfl_flower.system.own_traceback import search_here
from hdpfl_tools.coordinator.progress import console, make_table, show_json, show_line, waiting

if TYPE_CHECKING:
    from hdpfl_tools.coordinator.reports.advice import Help, RunSetting
    from hdpfl_tools.coordinator.reports.expected_accuracy import Expected


def advise(  # noqa: PLR0913, PLR0917 - options of a command line
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN.TOML", help="A run config: it states the task and the terms."),
    ],
    epsilons: Annotated[
        str, typer.Option(help="ε of each site for the whole run, such as 0.5×4,8.")
    ],
    sites: Annotated[int, typer.Option(help="Number of sites.", min=0, max=100_000)] = 0,
    records: Annotated[
        str, typer.Option(help="Records of each site, such as 600, or 600×4,2000.")
    ] = "",
    first: Annotated[
        str,
        typer.Option(
            metavar="FOLDER",
            help="Folder of a finished run with a first message and its table (hdpfl "
            "statistics), in place of --sites and --records.",
        ),
    ] = "",
    delta: Annotated[float, typer.Option(help="δ of each site.")] = 1e-5,
    batch_sizes: Annotated[
        str,
        typer.Option(help=("Present expected batch size of each site, such as 64, or 64×4,128.")),
    ] = "64",
    most_rounds: Annotated[
        int, typer.Option(help="Most rounds that you can wait for.", min=1, max=100_000)
    ] = 40,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print both settings and the changes that help as JSON.")
    ] = False,
) -> None:
    """Advise on the rounds, steps, batches, model and rate of a run; name the best changes.

    The advice uses the task of the run config, and the numbers that you type or the noisy numbers
    of a first message. The command reads no record and asks no site. The signal-to-noise ratio
    compares settings; it is not an accuracy. With a first message the command also shows the
    accuracy of a constant answer, which a model has to beat. If the message has a table of each
    class (by-label), the command also shows bounds on the accuracy of the proposed run.
    """
    search_here()
    config = RunConfig.load(run, apart=("resume-from",))
    lines: list[str] = []
    facts: dict[str, Any] = {}
    if first:
        from hdpfl_tools.coordinator.reports.table_one import counts_of, facts_in
        from server_app.run.resume import run_folder

        sites, records, lines = counts_of(first)
        facts = facts_in(run_folder(first))
    if not sites or not records:
        raise TermsError(
            "give --sites and --records, or give --first with the folder of the "
            "run of a first message"
        )
    with waiting("noise of each site"):
        from hdpfl_flower.data.run_task import task_for
        from hdpfl_tools.coordinator.reports.advice import asked_setting, helps, propose

        asked = asked_setting(config.terms, sites, records, epsilons, delta, batch_sizes)
        proposal = propose(asked, task_for(config.terms), most_rounds)
        changes = helps(proposal, task_for(config.terms))
    expected = _expected(config, proposal, facts)
    if as_json:
        help_facts = [asdict(change) for change in changes]
        proposed = _facts(proposal) | ({"accuracy": asdict(expected)} if expected else {})
        show_json({"asked": _facts(asked), "proposed": proposed, "helps": help_facts})
        return
    if expected:
        lines.insert(0, _accuracy_line(expected))
    _show(asked, proposal, changes)
    typer.echo("\n".join(["", *lines, *_lines(proposal)]))


def _expected(config: RunConfig, setting: RunSetting, facts: dict[str, Any]) -> Expected | None:
    """Return the bounds of the accuracy; None without a table of each class."""
    from hdpfl_tools.coordinator.reports.expected_accuracy import classes_of, expected_accuracy

    if not classes_of(facts):
        return None
    with waiting("runs on made-up records"):
        return expected_accuracy(config, setting, facts)


def _accuracy_line(expected: Expected) -> str:
    return (
        f"# expected accuracy: {100 * expected.least:.0f} to {100 * expected.most:.0f} %. The "
        f"lower bound is the best single column ({expected.column}) without noise; the upper "
        "bound is the mean of runs with this noise on made-up records whose columns are "
        "independent in each class"
    )


def _facts(setting: RunSetting) -> dict[str, Any]:
    """Return a setting for programs; a ratio without noise is None."""
    ratios = {"snr-round": setting.of_round, "snr-run": setting.of_run}
    return {
        "rounds": setting.rounds,
        **setting.noise_terms,
        "local-steps": list(setting.steps),
        "batch-sizes": [site.batch_size for site in setting.sites],
        "model": setting.model,
        "parameters": setting.size,
        **{name: ratio if math.isfinite(ratio) else None for name, ratio in ratios.items()},
    }


def _show(asked: RunSetting, proposal: RunSetting, changes: Sequence[Help]) -> None:
    asked_cells, proposed_cells = _cells(asked), _cells(proposal)
    rows = [(name, cell, proposed_cells[name]) for name, cell in asked_cells.items()]
    title = "Predicted signal-to-noise ratio of the aggregate"
    console.print(make_table(title, ("", "asked", "proposed"), rows))
    if changes:
        show_line("These changes raise the predicted ratio of the run the most:")
    else:
        show_line("No change can raise the ratio, because the run has no noise.")
    for number, change in enumerate(changes, 1):
        show_line(f"{number:2}. × {change.gain:.2f}  {change.what}")


def _cells(setting: RunSetting) -> dict[str, str]:
    """Return a setting for people."""
    return {
        "rounds": f"{setting.rounds}",
        "local steps a round": _counted(setting.steps),
        "batch size": _counted([site.batch_size for site in setting.sites]),
        "model": setting.model,
        "numbers in the model": f"{setting.size:,}",
        "signal to noise of a round": f"{setting.of_round:.3g}",
        "signal to noise of the run": f"{setting.of_run:.3g}",
    }


def _counted(numbers: Sequence[int]) -> str:
    """Return numbers as ``VALUE×COUNT`` where sites are alike."""
    counts = Counter(numbers)
    if len(counts) == 1:
        return f"{numbers[0]}"
    return ",".join(f"{number}×{count}" for number, count in counts.items())


def _lines(proposal: RunSetting) -> Iterator[str]:
    """Yield the lines of the run config."""
    batches = [site.batch_size for site in proposal.sites]
    same = len(set(batches)) == 1
    text = f"{batches[0]}" if same else "each:" + ":".join(map(str, batches))
    yield "# lines for the run config"
    yield f"rounds = {proposal.rounds}"
    if proposal.noise_terms:
        permission = SOURCES[str(proposal.noise_terms["noise"])].permission
        yield (
            f"# a site allows this noise with {permission}, and its sites may have to exchange keys"
        )
        yield from (f"{key} = {as_toml(value)}" for key, value in proposal.noise_terms.items())
    else:
        yield f"local-steps = {proposal.steps[0]}"
    yield f'model = "{proposal.model}"'
    yield 'learning-rate = "auto"'
    yield (
        f'batch-sizes = "{text}"  # only in a simulation: a site sets its own training.batch-size'
    )

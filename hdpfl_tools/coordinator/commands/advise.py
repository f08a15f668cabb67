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
from hdpfl_flower.system.own_code import search_here
from hdpfl_tools.coordinator.progress import console, make_table, show_json, show_line, waiting

if TYPE_CHECKING:
    from hdpfl_tools.coordinator.reports.advice import Help, RunSetting


def advise(  # noqa: PLR0913, PLR0917 - options of a command line
    run: Annotated[
        Path, typer.Argument(metavar="RUN.TOML", help="A run config: what is learned, and asked.")
    ],
    sites: Annotated[int, typer.Option(help="Sites.", min=1, max=100_000)],
    records: Annotated[str, typer.Option(help="Records of each: 600, or 600×4,2000.")],
    epsilons: Annotated[str, typer.Option(help="ε of each for the whole run: 0.5×4,8.")],
    delta: Annotated[float, typer.Option(help="δ of each.")] = 1e-5,
    batch_sizes: Annotated[
        str, typer.Option(help="Expected batch of each, as it is now: 64, or 64×4,128.")
    ] = "64",
    most_rounds: Annotated[
        int, typer.Option(help="Rounds that you can wait for.", min=1, max=100_000)
    ] = 40,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print both settings and what helps as JSON.")
    ] = False,
) -> None:
    """Advise rounds, steps, batches, model and rate of a run, and the best changes.

    From the numbers that you type, and the task of the run config: no record is read and no site
    asked. The signal-to-noise ratio compares settings; it is no accuracy.
    """
    search_here()
    config = RunConfig.load(run, apart=("resume-from",))
    with waiting("noise of each site"):
        from hdpfl_flower.data.run_task import task_for
        from hdpfl_tools.coordinator.reports.advice import asked_setting, helps, propose

        asked = asked_setting(config.terms, sites, records, epsilons, delta, batch_sizes)
        proposal = propose(asked, task_for(config.terms), most_rounds)
        changes = helps(proposal, task_for(config.terms))
    if as_json:
        help_facts = [asdict(change) for change in changes]
        show_json({"asked": _facts(asked), "proposed": _facts(proposal), "helps": help_facts})
        return
    _show(asked, proposal, changes)
    typer.echo("\n".join(["", *_lines(proposal)]))


def _facts(setting: RunSetting) -> dict[str, Any]:
    """Return a setting for programs; a ratio without noise is None."""
    ratios = {"snr-round": setting.of_round, "snr-run": setting.of_run}
    return {
        "rounds": setting.rounds,
        "local-steps": list(setting.steps),
        "batch-sizes": [site.batch_size for site in setting.sites],
        "model": setting.model,
        "parameters": setting.size,
        **{name: ratio if math.isfinite(ratio) else None for name, ratio in ratios.items()},
    }


def _show(asked: RunSetting, proposal: RunSetting, changes: Sequence[Help]) -> None:
    asked_cells, proposed_cells = _cells(asked), _cells(proposal)
    rows = [(name, cell, proposed_cells[name]) for name, cell in asked_cells.items()]
    title = "Predicted signal to noise of the aggregate"
    console.print(make_table(title, ("", "asked", "proposed"), rows))
    if changes:
        show_line("What would help most, by the predicted ratio of the run:")
    else:
        show_line("Nothing would raise the ratio: the run has no noise.")
    for number, change in enumerate(changes, 1):
        show_line(f"{number:2}. × {change.gain:.2f}  {change.what}")


def _cells(setting: RunSetting) -> dict[str, str]:
    """Return a setting for people."""
    return {
        "rounds": f"{setting.rounds}",
        "local steps a round": _counted(setting.steps),
        "batch size": _counted([site.batch_size for site in setting.sites]),
        "model": setting.model,
        "numbers in it": f"{setting.size:,}",
        "signal to noise, a round": f"{setting.of_round:.3g}",
        "signal to noise, the run": f"{setting.of_run:.3g}",
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
    yield "# lines of the run config"
    yield f"rounds = {proposal.rounds}"
    yield f"local-steps = {proposal.steps[0]}"
    yield f'model = "{proposal.model}"'
    yield 'learning-rate = "auto"'
    yield f'batch-sizes = "{text}"  # in a simulation; a site sets training.batch-size itself'

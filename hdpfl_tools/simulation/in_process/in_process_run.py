"""Federation in this process: same apps, no network.

Tests the personal models at the end, where the run trained some and there is a public test set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from client_app.after_run.personal_model import PersonalModel, read_personal_model
from client_app.training.ditto import load_personal_model
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import TermsError
from hdpfl_flower.models.site_summary import PERSONAL, SITE, SiteMeasures
from hdpfl_flower.monitoring.journal import Event
from hdpfl_flower.privacy.noise import Positions, ReleaseStreams
from hdpfl_flower.releases.of_run import makes_personal_model
from hdpfl_tools.simulation.central_test import own_tests_of
from hdpfl_tools.simulation.in_process.grid import LocalGrid
from hdpfl_tools.simulation.in_process.liars import Attack, AttackGrid
from hdpfl_tools.simulation.in_process.metrics_by_site import write_site_metrics
from hdpfl_tools.simulation.in_process.personal_accuracy import (
    SiteModels,
    Vector,
    personal_measures,
    personal_table,
    site_scores,
    write_personal_table,
)
from hdpfl_tools.simulation.own_data.dataset import dataset_of
from hdpfl_tools.simulation.scenarios.groups import parse_groups, seen_by
from hdpfl_tools.simulation.sites import (
    check_draws,
    draw_profile,
    simulated_model_path,
    simulated_personal_path,
)
from server_app.run.checkpoint import Checkpoint
from server_app.run.checkpointing import Checkpoints
from server_app.run.rounds import (
    OnEnd,
    OnEvent,
    RunResult,
    ready_kernel,
    run,
    write_result,
)


def _test_personal_models(
    result: RunResult, config: RunConfig, num_sites: int
) -> Mapping[str, Mapping[str, float]]:
    """Write the table of personal models, if there is a public test set.

    Returns site → metrics of its personal model; empty where there are none.
    """
    terms, simulation = config.terms, config.simulation
    # With the terms that the strategy proposed, and the name.
    sent = replace(config, terms=result.sent or terms)
    has_own_model = makes_personal_model(sent.terms)
    if not (has_own_model or sent.terms.second is not None) or terms.evaluation != "server":
        return {}
    data, site_tests = dataset_of(sent.terms, simulation.data_dir), own_tests_of(sent, num_sites)
    if site_tests is None:
        return {}
    groups = parse_groups(simulation.groups, data.task)
    number = len(groups.sizes) if groups else 1
    size = sum(array.size for array in result.arrays.values())

    def personal_of(index: int) -> Vector | PersonalModel | None:
        if has_own_model:
            return read_personal_model(simulated_model_path(sent, index))
        return load_personal_model(simulated_personal_path(sent, index), size)

    def models() -> Iterator[SiteModels]:
        for index in range(num_sites):
            yield SiteModels(
                index,
                draw_profile(config, index, num_sites).run.epsilon,
                personal_of(index),
                groups.of_site(index, num_sites) if groups else 0,
            )

    tests = [seen_by(site_tests.test, groups, group, data.task) for group in range(number)]
    # A part of a model, or several of them, is no global model that could be tested here.
    arrays = {} if sent.terms.work.sent_part or result.models else result.arrays
    scores = list(site_scores(terms.model, site_tests, arrays, tests, models()))
    write_personal_table(personal_table(scores), result.folder)
    if result.rounds:
        _add(personal_measures(scores, groups.minority if groups else ()), result.rounds[-1])
        write_result(result, config)
    return {str(site.number): facts["personal"] for site, facts in scores if "personal" in facts}


def _add(personal: SiteMeasures, last: Event) -> None:
    """Add the personal models' test to the last round."""
    last["metrics"] |= personal.metrics
    tested = last.setdefault("tested", {"sites": personal.asked, "counted": {}, "missing": {}})
    tested["counted"] |= personal.counted
    if personal.missing:
        tested["without-personal-model"] = sorted(personal.missing, key=int)


def on_rounds(call: Callable[[], None]) -> OnEvent:
    """Return a receiver of events that calls ``call`` after every round."""

    def receive(event: Event) -> None:
        if event["event"] == "round":
            call()

    return receive


def run_in_process(
    config: RunConfig,
    num_sites: int,
    on_event: OnEvent = lambda _: None,
    *,
    present: Iterable[int] | None = None,
    stop_after: int = 0,
    attack: Attack | None = None,
    resumable: bool = False,
) -> RunResult:
    """Run the federation of ``config`` over simulated sites in this process.

    Args:
        config: run config.
        num_sites: number of sites over which the data set is split.
        on_event: function that is called with every event of the journal.
        present: the sites that take part; None means all of them.
        stop_after: rounds after which the run ends early, with the noise of all planned rounds; 0
            means that it runs all of them.
        attack: sites that overstate their ε; None means that all are honest.
        resumable: whether :func:`resume_in_process` can resume the run after any crash. Each round
            then takes some milliseconds for each site, because its ledger is in a file.

    Raises:
        TermsError: a resumable run has an attack, which checkpoints do not hold.
        HDPFLError: as :func:`server_app.run.rounds.run` does.
    """
    sites = None if present is None else list(present)
    if attack is not None:
        if resumable:
            raise TermsError("attack: a run with an attack cannot be resumed; start it again")
        attacked = AttackGrid(num_sites, sites, attack=attack, config=config)
        return _run(attacked, config, on_event, stop_after)
    grid = LocalGrid(num_sites, sites, config=config, ledgers_in_files=resumable)
    engine = {"engine": grid.engine, "num-sites": num_sites}
    origin = {**engine, "present": sites, "stop-after": stop_after}
    checkpoints = Checkpoints(origin, seeded=True) if resumable else None
    return _run(grid, config, on_event, stop_after, checkpoints)


def resume_in_process(
    checkpoint: Checkpoint, on_event: OnEvent = lambda _: None, *, on_end: OnEnd = lambda _: None
) -> RunResult:
    """Resume a resumable run from its checkpoint.

    Args:
        checkpoint: of the run.
        on_event: called with every event of the journal.
        on_end: called last with the result, see :func:`server_app.run.rounds.run`.

    Raises:
        HDPFLError: as :func:`server_app.run.rounds.run` does.
    """
    origin, config = checkpoint.origin, checkpoint.config
    grid = LocalGrid(origin["num-sites"], origin["present"], config=config, ledgers_in_files=True)
    checkpoints = Checkpoints(origin, checkpoint, seeded=True)
    return _run(grid, config, on_event, origin["stop-after"], checkpoints, on_end)


def _run(
    grid: LocalGrid,
    config: RunConfig,
    on_event: OnEvent,
    stop_after: int,
    checkpoints: Checkpoints | None = None,
    on_end: OnEnd = lambda _: None,
) -> RunResult:
    """Run over ``grid`` with seeded randomness, test the personal models, close the ledgers."""
    check_draws(config, grid.num_sites)
    kernel = ready_kernel(config)
    grid.ask_for(kernel.needs | kernel.welcomes)
    # Fewer than 'min-sites' may be all there are: no wait for the rest.
    least = min(config.server.min_sites, len(list(grid.get_node_ids())))
    config = config.updated(min_sites=least)
    checkpoint = checkpoints.checkpoint if checkpoints else None
    # Where the server's streams stood: a resumed run draws as the whole run would have drawn.
    positions = (checkpoint.streams if checkpoint else None) or Positions()
    try:
        streams = ReleaseStreams.simulated(config.simulation.seed, "server", 0, "round", positions)
        result = run(
            grid,
            config,
            on_event,
            on_end=on_end,
            stop_after=stop_after,
            streams=streams,
            checkpoints=checkpoints,
        )
        personal = _test_personal_models(result, config, grid.num_sites)
        write_site_metrics(result.folder, {SITE: result.by_site, PERSONAL: personal})
        return result
    finally:
        grid.close()

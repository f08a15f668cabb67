"""The round runner: quorum, deadline, evaluation, journal, and what a run leaves behind.

A run's folder ``<runs-dir>/<run id>`` holds ``journal.jsonl``, ``model.safetensors`` (after every
round), ``result.json`` and ``run.png``; until it is complete also the checkpoint that it can go on
from (``checkpoint.py``). A run that ends early keeps all it had.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from flwr.app import ConfigRecord
from flwr.serverapp import Grid

from hdpfl_flower import wire
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.datasets import task_for
from hdpfl_flower.errors import StrategyError, TermsError
from hdpfl_flower.system.files import replace_file
from hdpfl_flower.monitoring.journal import Event, Journal
from hdpfl_flower.models.networks import Arrays, arrays_of, build_model
from hdpfl_flower.privacy.noise import ReleaseStreams
from hdpfl_flower.system.paths import runs_dir
from hdpfl_flower.up_front import check_up_front
from hdpfl_flower.versions import versions
from server_app.run.checkpointing import NoCheckpoints
from server_app.plots import plot_run
from server_app.run.resume import engine_of, told_privacy, told_rounds
from server_app.reuse import check_same_terms
from server_app.round_evaluation import RoundEvaluation
from server_app.run.round_event import round_facts, round_times
from strategies import make_strategy
from strategies.core.base import HDPStrategy

log = logging.getLogger("hdpfl.server")

FAILED_ROUNDS = 3
"""Rounds without a quorum, one after another, that end a run."""

OnEvent = Callable[[Event], None]


@dataclass
class RunResult:
    """What a run leaves.

    Attributes:
        run_id: its name, and its folder's.
        folder: where its files lie.
        arrays: the final model.
        rounds: one journal event a round.
        privacy: what the run promises to whom; see ``HDPStrategy.privacy``.
        sent: the terms as the sites got them last.
        models: under rules with several models, the one that each site uses.
    """

    run_id: str
    folder: Path
    arrays: Arrays
    rounds: list[Event] = field(default_factory=list)
    privacy: Event = field(default_factory=dict)
    sent: RunTerms | None = None
    models: dict[str, int] = field(default_factory=dict)


def settle(terms: RunTerms) -> RunTerms:
    """Return the terms with a run id and an absolute ``runs-dir``.

    Raises:
        TermsError: the run id is not a plain name.
    """
    run_id = terms.run_id or f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
    if not run_id.replace("-", "").replace("_", "").replace(".", "").isalnum() or "." in run_id[:1]:
        raise TermsError("run config: 'run-id' may hold letters, digits, '-', '_' and '.' alone")
    return terms.updated(run_id=run_id, runs_dir=str(runs_dir(terms.runs_dir)))


def ready_strategy(terms: RunTerms) -> HDPStrategy:
    """Return the rule of ``terms``, whose own terms hold what it sets.

    Raises:
        StrategyError, TermsError: what no site could follow, before any is asked.
    """
    strategy = make_strategy(terms)
    check_up_front(strategy.terms)
    return strategy


def run(
    grid: Grid,
    terms: RunTerms,
    on_event: OnEvent = lambda _: None,
    *,
    picture: bool = True,
    stop_after: int = 0,
    streams: ReleaseStreams | None = None,
    checkpoints: NoCheckpoints | None = None,
) -> RunResult:
    """Run the federation of ``terms`` over ``grid`` to its end.

    Args:
        grid: Flower's, or the local one.
        terms: the public terms, see :func:`settle`.
        on_event: called with every event of the journal, for progress.
        picture: whether to draw ``run.png`` at the end.
        stop_after: rounds after which the run ends early; 0: after all of them. The terms stay as
            they are, so the sites' noise is that of all their rounds.
        streams: the server's randomness in a seeded simulation; None: fresh from the system.
        checkpoints: what keeps the run able to go on, and where it goes on; None: nothing does.

    Raises:
        StrategyError: no strategy of that name, too few sites, or three rounds in a row without
            a quorum; the model and the journal are kept.
        TermsError, DataError, ModelError: before anything is asked of a site.
        CheckpointError: another process has the run, or it is there already and can go on.
    """
    terms, checkpoints = settle(terms), checkpoints or NoCheckpoints()
    at, folder = checkpoints.at, Path(terms.runs_dir) / terms.run_id
    strategy = ready_strategy(terms)
    strategy.streams = streams or strategy.streams
    if at is None:
        check_same_terms(folder, terms)
        arrays = arrays_of(build_model(terms.model, task_for(terms), terms.seed))
    else:
        at.restore(strategy)
        arrays = at.model
    test = RoundEvaluation(grid, terms)
    journal = Journal(folder / "journal.jsonl")
    try:
        checkpoints.begin(folder, terms, journal)
    except BaseException:
        journal.close()
        raise

    def tell(event: str, **facts: object) -> Event:
        line = journal.write(event, **facts)
        on_event(line)
        return line

    result = RunResult(terms.run_id, folder, arrays)
    try:
        last = min(stop_after or terms.rounds, terms.rounds)
        facts = {"engine": engine_of(grid), "versions": versions()}
        if at is None:
            size = sum(a.size for a in arrays.values())
            tell("run-started", terms=terms.as_config(), parameters=size, **facts)
        else:
            result.rounds = told_rounds(checkpoints.before, at.server_round)
            result.privacy = told_privacy(checkpoints.before)
            tell(
                "run-resumed", run_id=terms.run_id, after_round=at.server_round, last=last, **facts
            )
        _rounds(grid, strategy, result, test, tell, last, checkpoints)
        result.sent = strategy.terms
        _distribute(grid, strategy, result)
        tell("run-finished", status="completed")
        checkpoints.end()
    except BaseException as error:
        tell("run-finished", status="interrupted", reason=type(error).__name__)
        if way_on := checkpoints.way_on():
            log.warning("the run can go on: %s", way_on)
        raise
    finally:
        write_result(result, terms)
        journal.close()
        if picture and result.rounds:
            plot_run(result.rounds, folder / "run.png")
    return result


def _rounds(
    grid: Grid,
    strategy: HDPStrategy,
    result: RunResult,
    test: RoundEvaluation,
    tell: Callable[..., Event],
    last: int,
    checkpoints: NoCheckpoints,
) -> None:
    terms, at, missed, done = strategy.terms, checkpoints.at, 0, 0
    record = wire.write_model(result.arrays)
    told = {event["site"] for event in checkpoints.before if event["event"] == "left-out"}

    def end_round(facts: Event, laps: list[float]) -> None:
        if "weights" in facts:
            save_model(result)
        models, result.models = strategy.assigned(result.arrays)
        tested = test(strategy, record, facts["round"], models, result.models)
        laps.append(time.perf_counter())
        said = {"metrics": tested.metrics, **tested.facts}
        result.rounds.append(tell("round", **facts, **round_times(laps), **said))
        _check_missed(missed, last, result.folder)

    checkpoints.prepare(strategy, grid, record)
    if at is not None and at.facts is not None:
        done, missed = at.server_round, at.missed
        if len(result.rounds) < done:
            end_round(at.facts, [time.perf_counter()] * 4)
        if done == last:
            _check_missed(missed, last, result.folder)
        missed %= FAILED_ROUNDS  # who goes on after three wants three more
    for server_round in range(done + 1, last + 1):
        laps = [time.perf_counter()]
        messages = strategy.configure_train(server_round, record, ConfigRecord(), grid)
        if not result.privacy:
            result.privacy = tell("privacy", **strategy.privacy())
        _tell_left_out(strategy, told, tell)
        if strategy.used_up:
            done = server_round - 1
            log.warning("%s after round %d: the run is complete", strategy.used_up, done)
            tell("budgets-used-up", after_round=done, reason=strategy.used_up)
            return
        laps.append(time.perf_counter())
        replies = grid.send_and_receive(messages, timeout=terms.round_timeout)
        laps.append(time.perf_counter())
        new, _ = strategy.aggregate_train(server_round, replies)
        missed = 0 if new is not None else missed + 1
        if new is not None:
            record, result.arrays = new, wire.read_own(new)
        facts = round_facts(strategy.report, len(strategy.roster.nodes))
        checkpoints.save(strategy, record, server_round, missed, facts)
        laps.append(time.perf_counter())
        end_round(facts, laps)


def _tell_left_out(strategy: HDPStrategy, told: set[str], tell: Callable[..., Event]) -> None:
    for site in sorted(strategy.left_out.keys() - told):
        reason = strategy.roster.why_left_out(site)
        tell("left-out", site=site, missing=strategy.left_out[site], reason=reason)
        told.add(site)


def _check_missed(missed: int, last: int, folder: Path) -> None:
    """Raise ``StrategyError`` after too many rounds in a row without a quorum."""
    if missed == min(FAILED_ROUNDS, last):  # a short run can have learned nothing, too
        rounds = "1 round" if missed == 1 else f"{missed} rounds in a row"
        raise StrategyError(
            f"{rounds} without a quorum; the model of the last good round is kept in "
            f"{folder}; the journal says what became of each site"
        )


def _distribute(grid: Grid, strategy: HDPStrategy, result: RunResult) -> None:
    """Send every site the final model; one that does not answer gets it with the next run."""
    messages = strategy.finish_messages(wire.write_model(result.arrays), grid)
    grid.send_and_receive(messages, timeout=strategy.terms.round_timeout)


def save_model(result: RunResult) -> None:
    """Write the model to the run's folder; an interruption leaves the round before."""
    from safetensors.numpy import save

    replace_file(result.folder / "model.safetensors", save(result.arrays), mode=0o644)


def write_result(result: RunResult, terms: RunTerms) -> None:
    """Write ``result.json``: the terms and the last metrics."""
    last = result.rounds[-1] if result.rounds else {}
    content = {
        "run-id": result.run_id,
        "terms": terms.as_config(),
        "rounds": len(result.rounds),
        "metrics": last.get("metrics", {}),
        **({"tested": last["tested"]} if "tested" in last else {}),
        **({"privacy": result.privacy} if result.privacy else {}),
        **({"models": result.models} if result.models else {}),
    }
    (result.folder / "result.json").write_text(json.dumps(content, indent=2) + "\n")

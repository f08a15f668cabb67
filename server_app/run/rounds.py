"""Rounds of a run: configure → exchange → aggregate → save → evaluate.

A run's folder ``<runs-dir>/<run id>`` holds ``journal.jsonl``, ``model.safetensors`` (after every
round) and ``result.json``; until the run is complete also the checkpoint from which it resumes
(``checkpoint.py``). The ServerApp and ``hdpfl resume`` draw ``run.png`` beside them. A run that
ends early keeps all it had.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.errors import DataError, StrategyError, TermsError
from hdpfl_flower.models.networks import Arrays
from hdpfl_flower.models.parts import parts_of
from hdpfl_flower.monitoring.influence import Decided, Influence, decided, warn_of
from hdpfl_flower.monitoring.journal import Event, Journal
from hdpfl_flower.monitoring.series import PHASES
from hdpfl_flower.privacy.noise import ReleaseStreams
from hdpfl_flower.releases import asked
from hdpfl_flower.releases.feasibility import check_up_front
from hdpfl_flower.releases.of_run import ends_first, needs_head
from hdpfl_flower.server_wire import read_own, write_model
from hdpfl_flower.system.files import replace_file
from hdpfl_flower.system.paths import runs_dir
from hdpfl_flower.versions import versions
from server_app.run.checkpointing import NoCheckpoints
from server_app.run.federated_measures import federated_measures
from server_app.run.final_measures import EVENT
from server_app.run.first_message import first_facts
from server_app.run.resume import origin_of, recorded_privacy, recorded_rounds
from server_app.run.reuse import check_same_terms
from server_app.run.round_evaluation import RoundEvaluation
from strategies import check_strategy, make_kernel
from strategies.core.kernel import Kernel
from strategies.core.model_record import initial_arrays
from strategies.core.round_messages import RoundReport
from strategies.settings import with_own_settings

log = logging.getLogger("hdpfl.server")

FAILED_ROUNDS = 3
"""Consecutive rounds without a quorum that end a run."""

OnEvent = Callable[[Event], None]


OnEnd = Callable[["RunResult"], None]
Record = Callable[..., Event]
"""Writer of an event with its facts to the journal; returns the line."""


@dataclass
class RunResult:
    """Result of a run.

    Attributes:
        run_id: its name, and its folder's.
        folder: where its files lie.
        arrays: the final model.
        rounds: one journal event a round.
        privacy: the promises of the run to its sites; see ``HDPStrategy.privacy``.
        sent: the terms as the sites got them last.
        models: under strategies with several models, the one that each site uses.
        by_site: simulated site → metrics of the model it uses, on records like its own, after the
            last round.
        measures: of the final model on the public test set, with intervals, as the journal's last
            ``measures`` event has them; empty without a test set.
        federated: by the payloads that sites sent: the journal's event → its facts.
    """

    run_id: str
    folder: Path
    arrays: Arrays
    rounds: list[Event] = field(default_factory=list)
    privacy: Event = field(default_factory=dict)
    sent: RunTerms | None = None
    models: dict[str, int] = field(default_factory=dict)
    by_site: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    measures: Mapping[str, Any] = field(default_factory=dict)
    federated: Mapping[str, Any] = field(default_factory=dict)


def finalize_terms(config: RunConfig) -> RunConfig:
    """Return the configuration with a run id, a rate in numbers and an absolute ``runs-dir``.

    Raises:
        TermsError: the run id is not a plain name.
        StrategyError: there is no strategy of that name.
    """
    run_id = config.terms.run_id or f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
    if not run_id.replace("-", "").replace("_", "").replace(".", "").isalnum() or "." in run_id[:1]:
        raise TermsError("run config: 'run-id' may hold only letters, digits, '-', '_' and '.'")
    config = check_strategy(config.terms.strategy).with_rate(config)
    return config.updated(run_id=run_id, runs_dir=str(runs_dir(config.server.runs_dir)))


def ready_kernel(config: RunConfig) -> Kernel:
    """Return the strategy of ``config``, with its settled terms.

    Raises:
        StrategyError, TermsError, ModelError: no site could follow the terms; none is asked.
    """
    kernel = make_kernel(config)
    terms = kernel.terms
    check_up_front(terms)
    choice = (terms.choice,) if terms.choice else ()
    for kind in (*choice, *asked(terms)):
        task = task_for(terms)
        try:
            kind.check_task(task)
        except DataError as reason:
            raise TermsError(f"run config: {reason}; leave it out") from None
    if needs_head(terms):
        parts_of(terms.model, task_for(terms))
    return kernel


def run(
    grid: Grid,
    config: RunConfig,
    on_event: OnEvent = lambda _: None,
    *,
    on_end: OnEnd = lambda _: None,
    stop_after: int = 0,
    streams: ReleaseStreams | None = None,
    checkpoints: NoCheckpoints | None = None,
) -> RunResult:
    """Run the federation of ``config`` over ``grid`` to its end.

    Args:
        grid: Flower's, or the local one.
        config: the run's, see :func:`finalize_terms`.
        on_event: called with every event of the journal, for progress.
        on_end: called last with the result, also where the run is interrupted; it may draw it.
        stop_after: rounds after which the run ends early; 0: after all of them. The terms stay as
            they are, so the sites' noise is that of all their rounds.
        streams: the server's randomness in a seeded simulation; None: fresh from the system.
        checkpoints: when the run is stored, and from where it resumes; None: it never is.

    Raises:
        StrategyError: no strategy of that name, too few sites, or three rounds in a row without
            a quorum; the model and the journal are kept.
        TermsError, DataError, ModelError: before any site is asked.
        CheckpointError: another process has the run, or a new run finds a checkpoint.
    """
    config, checkpoints = finalize_terms(config), checkpoints or NoCheckpoints()
    terms, checkpoint = config.terms, checkpoints.checkpoint
    folder = Path(config.server.runs_dir) / terms.run_id
    kernel = ready_kernel(config)
    config = with_own_settings(config, check_strategy(terms.strategy))
    # The server's sampling and noise; a seed is for simulations alone.
    kernel.streams = streams or kernel.streams
    if checkpoint is None:
        check_same_terms(folder, config)
        arrays = initial_arrays(kernel.terms, config.simulation.seed)
    else:
        checkpoint.restore(kernel)
        arrays = read_own(kernel.reported.record(write_model(checkpoint.model)))
    evaluation = RoundEvaluation(grid, replace(config, terms=kernel.terms))
    journal = Journal(folder / "journal.jsonl")
    try:
        # The journal is locked before the first event: two processes must not write one run.
        checkpoints.begin(folder, config, journal)
    except BaseException:
        journal.close()
        raise

    def record(event: str, **facts: object) -> Event:
        line = journal.write(event, **facts)
        on_event(line)
        return line

    result = RunResult(terms.run_id, folder, arrays)
    try:
        last = min(stop_after or terms.rounds, terms.rounds)
        facts = {**origin_of(grid), "versions": versions()}
        if checkpoint is None:
            size = sum(a.size for a in arrays.values())
            record("run-started", terms=config.as_config(), parameters=size, **facts)
        else:
            result.rounds = recorded_rounds(checkpoints.before, checkpoint.server_round)
            result.privacy = recorded_privacy(checkpoints.before)
            record(
                "run-resumed",
                run_id=terms.run_id,
                after_round=checkpoint.server_round,
                last=last,
                **facts,
            )
        model = write_model(arrays if checkpoint is None else checkpoint.model)
        RoundLoop(grid, kernel, evaluation, checkpoints, record, result, model).run(last)
        result.sent = kernel.terms
        _conclude(grid, kernel, evaluation, result, record)
        # The journal first: a crash between the two leaves a complete run with a checkpoint, which
        # open_run refuses. The other way round a run could be neither complete nor resumed.
        record("run-finished", status="completed")
        checkpoints.end()
    except BaseException as error:
        record("run-finished", status="interrupted", reason=type(error).__name__)
        if command := checkpoints.resume_command():
            log.warning("the run can be resumed: %s", command)
        raise
    finally:
        # Also after an error: the model and the rounds so far are results.
        write_result(result, config)
        journal.close()
        on_end(result)
    return result


class RoundLoop:
    """The rounds of one run.

    Guarantees:
        A round's model goes to a site, a test, ``model.safetensors`` or the journal only after
        :meth:`save`: a run that resumes never releases a round twice with different noise.

    Attributes:
        done: rounds that are complete.
        missed: rounds without a quorum, one after another.
        model: the current model, or the models of a strategy with several, as they are sent to be
            trained; ``result`` holds the reported one (``server_step/reported_model.py``).
    """

    def __init__(
        self,
        grid: Grid,
        kernel: Kernel,
        evaluation: RoundEvaluation,
        checkpoints: NoCheckpoints,
        record: Record,
        result: RunResult,
        model: ArrayRecord,
    ) -> None:
        """Prepare the rounds from ``model``; they fill ``result``."""
        self._grid, self._kernel, self._evaluation = grid, kernel, evaluation
        self._checkpoints, self._record, self._result = checkpoints, record, result
        self.done = self.missed = 0
        self.model = model
        before = checkpoints.before
        self._left_out = {event["site"] for event in before if event["event"] == "left-out"}
        self._laps: list[float] = []
        roster = kernel.roster
        roster.on_decision = lambda site, status: record("approval", site=site, status=status)
        roster.on_presence = lambda site, status: record("presence", site=site, status=status)
        self._influence = Influence()
        self._deciding: set[Decided] = set()

    def run(self, last: int) -> None:
        """Run the rounds up to ``last``, or until budgets are spent.

        Raises:
            StrategyError: too few sites, or too many rounds in a row without a quorum.
        """
        self._resume(last)
        if ends_first(self._kernel.terms):
            return
        # A lost round of a shared sum has a spare one in its place, as long as there are some.
        spare = self._kernel.terms.last_round - self._kernel.terms.rounds
        while self.done < last + spare and self._combined < last:
            server_round = self.done + 1
            self._laps = [time.perf_counter()]
            # The order is the class's guarantee: these messages hold the model of an earlier save.
            messages = self.configure(server_round)
            if self._kernel.sampler.used_up:
                self._end_early()
                return
            self._lap()
            replies = self.exchange(messages)
            self._lap()
            self.aggregate(server_round, replies)
            facts = self.save(server_round)  # nothing of the round has left the server so far
            self._lap()
            self.evaluate(facts)
            self._check_missed(last)
            self.done = server_round

    @property
    def _combined(self) -> int:
        """Rounds that moved the model; where no round is spare, those that are done."""
        if not self._kernel.terms.source.is_summed:
            return self.done
        return sum("weights" in facts for facts in self._result.rounds)

    def configure(self, server_round: int) -> Iterable[Message]:
        """Return messages for the sampled sites; record promises and excluded sites."""
        kernel = self._kernel
        messages = kernel.configure_train(server_round, self.model, ConfigRecord(), self._grid)
        # From this event on the terms count as sent to sites (reuse.py).
        if not self._result.privacy:
            self._result.privacy = self._record("privacy", **kernel.privacy())
        for site in sorted((left := kernel.roster.left_out()).keys() - self._left_out):
            reason = kernel.roster.why_left_out(site)
            self._record("left-out", site=site, missing=left[site], reason=reason)
            self._left_out.add(site)
        return messages

    def exchange(self, messages: Iterable[Message]) -> Iterable[Message]:
        """Send the messages; return the replies before the deadline."""
        timeout = self._kernel.server.round_timeout
        return self._grid.send_and_receive(messages, timeout=timeout)

    def aggregate(self, server_round: int, replies: Iterable[Message]) -> None:
        """Combine the replies into a model; without a quorum it stays."""
        new, _ = self._kernel.aggregate_train(server_round, replies)
        self.missed = 0 if new is not None else self.missed + 1
        if new is not None:
            # The record as it is sent, and the reported model decoded: with several models the
            # record holds all of them.
            self.model = new
            self._result.arrays = read_own(self._kernel.reported.record(new))

    def save(self, server_round: int) -> Event:
        """Store the next round's data; return this round's facts."""
        kernel = self._kernel
        facts = round_facts(kernel.report, len(kernel.roster.nodes))
        self._checkpoints.save(self._kernel, self.model, server_round, self.missed, facts)
        return facts

    def evaluate(self, facts: Event) -> None:
        """Write the model, test it and write the round's line in the journal."""
        kernel, result = self._kernel, self._result
        if "weights" in facts:
            save_model(result)
        models, result.models = kernel.models_by_site(result.arrays)
        tested = self._evaluation(kernel, self.model, facts["round"], models, result.models)
        self._lap()
        result.by_site = tested.by_site
        facts = {**facts, **self._shares(facts)}
        measured = {"metrics": tested.metrics, **tested.facts}
        line = self._record("round", **facts, **round_times(self._laps), **measured)
        result.rounds.append(line)

    def _shares(self, facts: Event) -> dict[str, Any]:
        """Add a round to the shares; warn of sites with a new majority."""
        self._influence.add(facts)
        verdicts, models = list(self._influence.deciding()), self._influence.models
        for verdict in verdicts:
            if decided(verdict) not in self._deciding:
                named = self._kernel.terms.source.site_plans
                warn_of(facts["round"], verdict, named=named, several=len(models) > 1)
        self._deciding = set(map(decided, verdicts))
        shares = [self._influence.largest_shares(model) for model in range(len(models))]
        return {"shares": [{s: round(p, 6) for s, p in of.items()} for of in shares]}

    def _resume(self, last: int) -> None:
        """Prepare the strategy; resume from the checkpoint, if there is one."""
        for event in self._result.rounds:
            self._influence.add(event)
        self._deciding = set(map(decided, self._influence.deciding()))
        checkpoint = self._checkpoints.checkpoint
        self._checkpoints.prepare(self._kernel, self._grid, self.model)
        self._result.federated = first_facts(
            self._grid, self._kernel, self.model, self._checkpoints, self._record
        )
        self._evaluation.follow(self._kernel.terms)
        if checkpoint is None or checkpoint.facts is None:
            return
        self.done, self.missed = checkpoint.server_round, checkpoint.missed
        # The facts were stored with the model: the round's line is written now, and no site trains
        # it again.
        if len(self._result.rounds) < self.done:  # ended after the save, before the journal's line
            self._laps = [time.perf_counter()] * len(PHASES)
            self.evaluate(checkpoint.facts)
            self._check_missed(last)
        if self.done == last:
            self._check_missed(last)
        if self._kernel.together:
            for event in self._result.rounds:
                self._kernel.together.recall(event)
        self.missed %= FAILED_ROUNDS  # a run that resumes after three may miss three more

    def _end_early(self) -> None:
        """Record that the budgets are used up: the run is complete after the rounds it has."""
        reason = self._kernel.sampler.used_up
        log.warning("%s after round %d: the run is complete", reason, self.done)
        self._record("budgets-used-up", after_round=self.done, reason=reason)

    def _check_missed(self, last: int) -> None:
        """Raise ``StrategyError`` after too many rounds without a quorum."""
        if self.missed == min(FAILED_ROUNDS, last):  # a short run can have learned nothing, too
            rounds = "1 round" if self.missed == 1 else f"{self.missed} rounds in a row"
            raise StrategyError(
                f"{rounds} without a quorum; the model of the last round with a quorum is in "
                f"{self._result.folder}; the journal states why each site's update is missing"
            )

    def _lap(self) -> None:
        self._laps.append(time.perf_counter())


def round_facts(report: RoundReport, online: int) -> dict[str, Any]:
    """Return the journal's facts of a round.

    Args:
        report: of the round.
        online: how many sites were there.
    """
    facts: dict[str, Any] = {
        "round": report.server_round,
        "online": online,
        "asked": report.asked,
        "accepted": report.accepted,
        "rejected": {site: reason.words for site, reason in report.rejected.items()},
        "rejections": {site: reason.code.value for site, reason in report.rejected.items()},
        "quorum": report.quorum,
        "bytes_down": report.bytes_down,
        "bytes_up": report.bytes_up,
    }
    if report.norms:
        facts["norms"] = [round(norm, 6) for norm in report.norms]
    if report.outcome is not None:
        facts["weights"] = report.outcome.weights
        facts["gauges"] = dict(report.outcome.gauges)
        if report.outcome.scale != 1:
            facts["scale"] = report.outcome.scale
        if report.outcome.from_first:
            facts["from-first"] = True
        if report.taken_back:
            facts["taken-back"] = report.taken_back
    return facts


def round_times(laps: list[float]) -> dict[str, Any]:
    """Return the seconds of a round and of its phases."""
    parts = (round(end - begin, 4) for begin, end in pairwise(laps))
    return {
        "seconds": round(laps[-1] - laps[0], 4),
        "phases": dict(zip(PHASES, parts, strict=True)),
    }


def _conclude(
    grid: Grid,
    kernel: Kernel,
    evaluation: RoundEvaluation,
    result: RunResult,
    record: Record,
) -> None:
    """Measure the final model, on public and held-out records, and send every site the model.

    A site that does not answer gets it with the next run.
    """
    if not ends_first(kernel.terms):
        result.measures = evaluation.final(*kernel.models_by_site(result.arrays))
    if result.measures:
        record(EVENT, **result.measures)
    # A site's ledger answers a repeated request of a resumed run with the same bytes.
    measured = federated_measures(grid, kernel, result.arrays)
    for event, facts in measured.items():
        record(event, **facts)
    result.federated = {**result.federated, **measured}
    messages = kernel.finish_messages(write_model(result.arrays), grid)
    grid.send_and_receive(messages, timeout=kernel.server.round_timeout)


def save_model(result: RunResult) -> None:
    """Write the model to the run's folder; an interruption leaves the old one."""
    from safetensors.numpy import save

    replace_file(result.folder / "model.safetensors", save(result.arrays), mode=0o644)


def write_result(result: RunResult, config: RunConfig) -> None:
    """Write ``result.json``: the terms and the last metrics."""
    last = result.rounds[-1] if result.rounds else {}
    content = {
        "run-id": result.run_id,
        "terms": config.as_config(),
        "rounds": len(result.rounds),
        "metrics": last.get("metrics", {}),
        **({"tested": last["tested"]} if "tested" in last else {}),
        **({"privacy": result.privacy} if result.privacy else {}),
        **({"models": result.models} if result.models else {}),
        **({EVENT: result.measures} if result.measures else {}),
        **result.federated,
    }
    (result.folder / "result.json").write_text(json.dumps(content, indent=2) + "\n")

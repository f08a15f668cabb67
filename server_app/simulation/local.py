"""A federation in this process: the same ServerApp and ClientApp code, with no network between.

The one place where client and server meet, and the only one that knows what Flower's own engines
do behind a Grid.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import cast
from uuid import uuid4

import numpy as np
import numpy.typing as npt
from flwr.app import Context, Message, RecordDict
from flwr.app.user_config import UserConfig
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from client_app.app import app
from client_app.personal.ditto import load_personal_model, simulated_personal_path
from client_app.site.simulated import InProcessContext, draw_profile
from client_app.site.site import close_ledgers, open_site
from client_app.in_process import portions, trained_together
from client_app.training.trainer import Trainer
from hdpfl_flower import wire
from hdpfl_flower.simulation.attacks import Attack
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.datasets import load_dataset
from hdpfl_flower.config.personal_lambda import read_lambdas
from hdpfl_flower.simulation.groups import parse_groups, seen_by
from hdpfl_flower.monitoring.journal import Event
from hdpfl_flower.privacy.noise import ReleaseStreams
from hdpfl_flower.site_summary import Measured
from server_app.run.checkpoint import Checkpoint
from server_app.run.checkpointing import Checkpoints, NoCheckpoints
from server_app.simulation.personal_accuracy import (
    SiteModels,
    personal_measures,
    personal_table,
    site_scores,
    write_personal_table,
)
from server_app.round_evaluation import own_tests_of
from server_app.run.rounds import OnEvent, RunResult, run, write_result


class LocalGrid(Grid):
    """Nodes 1…n in this process, named by their partition index, answering one after another."""

    engine = "in-process"
    stacked = True
    """Whether the nodes of a round train together where they can (``client_app/in_process.py``),
    which changes the last bits of their updates."""
    num_sites = 0
    """Sites that the data set is split over; 0: the nodes are no simulated sites."""

    def __init__(
        self,
        num_sites: int,
        present: Iterable[int] | None = None,
        *,
        ledgers_in_files: bool = False,
    ) -> None:
        """Make the nodes of a simulation of ``num_sites``; ``present`` names some of them.

        With ``ledgers_in_files`` what a site has charged and released outlives the process.
        """
        self.num_sites = num_sites
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self._contexts: dict[int, InProcessContext] = {
            index + 2: InProcessContext(
                run_id=1,
                node_id=index + 2,
                node_config=cast(UserConfig, {"partition-id": index, "num-partitions": num_sites}),
                state=RecordDict(),
                run_config=cast(UserConfig, {}),
            )
            for index in (range(num_sites) if present is None else present)
        }
        for node in self._contexts.values():
            node.ledger_in_file = ledgers_in_files

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return the nodes, named by their partition index."""
        return [NodeInfo(node_id=node, name=str(node - 2)) for node in self._contexts]

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes' ids."""
        return list(self._contexts)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Let the ClientApp answer each message, in this thread."""
        del timeout  # nothing here can be late
        replies = []
        for portion in portions(list(messages)):
            nodes = ((message, self._contexts[message.metadata.dst_node_id]) for message in portion)
            # Others have profiles of their own: no simulation's, but a test's sites.
            mine = [(m, node) for m, node in nodes if isinstance(node, InProcessContext)]
            with trained_together(mine if self.stacked else []):
                replies += [self._answer(message) for message in portion]
        return replies

    def close(self) -> None:
        """Close the ledgers that the sites left open."""
        close_ledgers()

    def _answer(self, message: Message) -> Message:
        message.metadata.__dict__["_message_id"] = uuid4().hex
        reply = self.reply(message, self._contexts[message.metadata.dst_node_id])
        reply.metadata.__dict__["_message_id"] = uuid4().hex
        return reply

    def reply(self, message: Message, context: Context) -> Message:
        """Return what the node of ``context`` answers; a simulated liar answers otherwise."""
        return app(message, context)

    @staticmethod
    def noiseless_update(message: Message, context: Context) -> npt.NDArray[np.float32]:
        """Return what the node's training would give without noise, shape ``(d,)``.

        A liar knows its own records: it needs none of the noise that protects them.
        """
        instructions = replace(wire.read_instructions(message.content), project=None)
        site = open_site(context, instructions.terms)
        plan, _ = site.plan(site.ledger)
        trainer = Trainer(site, instructions)
        payload = trainer.run(replace(plan, noise_multiplier=0.0))
        return wire.read_update(wire.write_update(payload, trainer.size), trainer.size)

    # The rest of Flower's interface, which the round runner has no use for.

    def set_run(self, run: Run) -> None:
        """There is one run."""

    @property
    def run(self) -> Run:
        """Raises: the local grid has no Flower run."""
        raise RuntimeError("a local grid belongs to no run of Flower's")

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str,
        ttl: float | None = None,
    ) -> Message:  # fmt: skip
        """Return a message; Flower deprecates this in favour of ``Message``."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Raises: the local grid answers at once, see :meth:`send_and_receive`."""
        del messages
        raise RuntimeError("a local grid answers at once; use send_and_receive")

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Raises: the local grid answers at once, see :meth:`send_and_receive`."""
        del message_ids
        raise RuntimeError("a local grid answers at once; use send_and_receive")


def _grid(num_sites: int, present: Iterable[int] | None, attack: Attack | None) -> LocalGrid:
    if attack is None:
        return LocalGrid(num_sites, present)
    from server_app.simulation.liars import LiarsGrid  # it is a LocalGrid, of this file

    return LiarsGrid(num_sites, present, attack=attack)


def _test_personal_models(result: RunResult, terms: RunTerms, num_sites: int) -> None:
    """Write the table of the personal models, where there are some and a public test set."""
    sent = result.sent or terms  # with what the rule proposed, and the run's name
    if read_lambdas(sent.personal_lambda) is None or terms.evaluation != "server":
        return
    data, own = load_dataset(terms.dataset, terms.data_dir), own_tests_of(terms, num_sites)
    if own is None:
        return
    groups = parse_groups(terms.groups, data.task)
    number = len(groups.sizes) if groups else 1
    size = sum(array.size for array in result.arrays.values())

    def models() -> Iterator[SiteModels]:
        for index in range(num_sites):
            yield SiteModels(
                index,
                draw_profile(terms, index, num_sites).run.epsilon,
                load_personal_model(simulated_personal_path(sent, index), size),
                groups.of_site(index, num_sites) if groups else 0,
            )

    tests = [seen_by(own.test, groups, m, data.task) for m in range(number)]
    found = list(site_scores(terms.model, own, result.arrays, tests, models()))
    write_personal_table(personal_table(found), result.folder)
    if result.rounds:
        _add(personal_measures(found, groups.minority if groups else ()), result.rounds[-1])
        write_result(result, terms)


def _add(personal: Measured, last: Event) -> None:
    """Put the test of the personal models to the last round's."""
    last["metrics"] |= personal.metrics
    said = last.setdefault("tested", {"sites": personal.asked, "counted": {}, "missing": {}})
    said["counted"] |= personal.counted
    if personal.missing:
        said["without-personal-model"] = sorted(personal.missing, key=int)


def run_in_process(
    terms: RunTerms,
    num_sites: int,
    on_event: OnEvent = lambda _: None,
    *,
    present: Iterable[int] | None = None,
    picture: bool = False,
    stop_after: int = 0,
    attack: Attack | None = None,
) -> RunResult:
    """Run the federation of ``terms`` over simulated sites in this process.

    Args:
        terms: the public terms.
        num_sites: sites that the data set is split over.
        on_event: called with every event of the journal.
        present: the sites that take part; None: all of them.
        picture: whether to draw ``run.png`` at the end.
        stop_after: rounds after which it ends early, with the noise of all; 0: after all of them.
        attack: sites that lie, and how; None: nobody does.

    Raises:
        HDPFLError: as :func:`server_app.run.rounds.run` does.
    """
    grid = _grid(num_sites, present, attack)
    return _run(grid, terms, num_sites, on_event, picture, stop_after)


def run_resumable(
    terms: RunTerms,
    num_sites: int,
    on_event: OnEvent = lambda _: None,
    *,
    present: Iterable[int] | None = None,
    picture: bool = False,
    stop_after: int = 0,
    at: Checkpoint | None = None,
) -> RunResult:
    """Run as :func:`run_in_process` does, and keep what it needs to go on after any crash.

    Each round costs some milliseconds a site, for its ledger lies in a file.

    Args:
        terms: the public terms.
        num_sites: sites that the data set is split over.
        on_event: called with every event of the journal.
        present: the sites that take part; None: all of them.
        picture: whether to draw ``run.png`` at the end.
        stop_after: rounds after which it ends early.
        at: where the run goes on; None: it is new.

    Raises:
        HDPFLError: as :func:`server_app.run.rounds.run` does.
    """
    some = None if present is None else list(present)
    grid = LocalGrid(num_sites, some, ledgers_in_files=True)
    origin = {
        "engine": grid.engine, "num-sites": num_sites, "present": some, "stop-after": stop_after
    }  # fmt: skip
    checkpoints = Checkpoints(origin, at, seeded=True)
    return _run(grid, terms, num_sites, on_event, picture, stop_after, checkpoints)


def resume_in_process(
    at: Checkpoint, on_event: OnEvent = lambda _: None, *, picture: bool = False
) -> RunResult:
    """Go on with a run of :func:`run_resumable`; raises as that does."""
    origin = at.origin
    return run_resumable(
        at.terms,
        origin["num-sites"],
        on_event,
        present=origin["present"],
        picture=picture,
        stop_after=origin["stop-after"],
        at=at,
    )


def _run(
    grid: LocalGrid,
    terms: RunTerms,
    num_sites: int,
    on_event: OnEvent,
    picture: bool,
    stop_after: int,
    checkpoints: NoCheckpoints | None = None,
) -> RunResult:
    sites = list(grid.get_node_ids())
    for index in range(num_sites):
        draw_profile(terms, index, num_sites)  # what cannot be drawn is said here, before a round
    terms = terms.updated(min_sites=min(terms.min_sites, len(sites)))
    at = checkpoints.at if checkpoints else None
    positions = at.streams if at else None
    try:
        streams = ReleaseStreams.simulated(terms.seed, "server", 0, "round", positions or (0, 0))
        result = run(
            grid, terms, on_event, picture=picture, stop_after=stop_after, streams=streams,
            checkpoints=checkpoints,
        )  # fmt: skip
        _test_personal_models(result, terms, num_sites)
        return result
    finally:
        grid.close()

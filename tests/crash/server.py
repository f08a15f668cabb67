"""A whole federation in a child process, whose server is killed at a named point.

Points are reached by wrapping from outside; the product has no hooks for them. What every site
answered is noted in a file, as the sites saw it: kind, round, the request's digest, the payload's.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from flwr.app import Context, Message, RecordDict
from flwr.app.user_config import UserConfig

from hdpfl_flower import wire
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.monitoring.journal import Journal, read_journal
from hdpfl_tools.simulation.in_process.grid import LocalGrid
from hdpfl_tools.simulation.in_process.in_process_run import resume_in_process, run_in_process
from hdpfl_tools.simulation.sites import InProcessContext
from server_app.run import checkpointing, rounds
from server_app.run.checkpointing import Checkpoints
from server_app.run.resume import open_run
from strategies.core.kernel import Kernel

SIGKILL, PATIENCE = 9, 240
RUN_ID = "r"


class ProductionGrid(LocalGrid):
    """Nodes in this process that have profiles, ledgers and records of their own."""

    engine = "test"

    def __init__(self, profiles: dict[str, Path]) -> None:
        super().__init__(len(profiles))
        self._names = dict(zip(self._contexts, profiles, strict=True))
        self._contexts = {
            node: cast(
                "InProcessContext",
                Context(1, node, cast(UserConfig, {"profile": str(path)}), RecordDict(), {}),
            )
            for node, path in zip(self._contexts, profiles.values(), strict=True)
        }

    def get_nodes(self) -> Any:
        from flwr.proto.node_pb2 import NodeInfo

        return [NodeInfo(node_id=node, name=name) for node, name in self._names.items()]


@dataclass
class Server:
    """Where a run's server is, and where it is to die."""

    folder: Path
    die_at: str = ""
    at_round: int = 0
    trace: list[str] = field(default_factory=list)

    def reach(self, event: str) -> None:
        point = f"{self.at_round}: {event}"
        self.trace.append(point)
        if point == self.die_at and self.trace.count(point) == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    def put_points(self) -> None:
        self._around(Kernel, "configure_train", before=self._begin, after="round opened")
        self._around(Kernel, "aggregate_train", after="aggregated")
        self._around(LocalGrid, "_answer", after=self._answered)
        self._around(LocalGrid, "send_and_receive", after="all have answered")
        self._around(checkpointing, "write_checkpoint", after="checkpoint written")
        self._around(Path, "replace", before=self._beside)
        self._around(rounds, "save_model", after="model saved")
        self._around(Journal, "write", before=self._line, after=self._written)

    def _around(
        self, owner: Any, name: str, before: Any = None, after: str | Callable[..., None] = ""
    ) -> None:
        inner = getattr(owner, name)

        @functools.wraps(inner)
        def outer(*args: Any, **kwargs: Any) -> Any:
            if before:
                before(*args, **kwargs)
            done = inner(*args, **kwargs)
            if callable(after):
                after(done, *args)
            elif after:
                self.reach(after)
            return done

        setattr(owner, name, outer)

    def _begin(self, _: Any, server_round: int, *__: Any) -> None:
        self.at_round = server_round

    def _beside(self, path: Path, *_: Any) -> None:
        if path.name.startswith("checkpoint"):
            self.reach("checkpoint written beside")

    def _line(self, journal: Any, event: str, **_: Any) -> None:
        if event == "round":
            self.reach("tested")
            if self.die_at == f"{self.at_round}: line torn":
                journal._file.write('{"event": "round", "round": ')
                journal._file.flush()
                self.reach("line torn")

    def _written(self, _: Any, __: Any, event: str, *___: Any) -> None:
        if event in ("round", "federated-measures", "run-finished"):
            self.reach(f"line of {event} written")

    def _answered(self, reply: Message, _: Any, message: Message) -> None:
        kind, asked = message.metadata.message_type, wire.read_instructions(message.content)
        if kind in (wire.TRAIN, wire.EVALUATE):
            said = "" if reply.has_error() else hashlib.sha256(_payload(reply)).hexdigest()
            site = message.metadata.dst_node_id
            fact = [[site, kind, asked.server_round], asked.digest, said]
            with (self.folder / "seen").open("a") as file:
                file.write(json.dumps(fact) + "\n")
        self.reach(f"somebody answered {kind}")


def _payload(reply: Message) -> bytes:
    return b"".join(a.data for r in reply.content.array_records.values() for a in r.values())


def in_a_child(server: Server, work: Callable[[], object]) -> tuple[int, list[str]]:
    """Do ``work`` in a child with the points put; return the signal it died of, and its trace."""
    child = os.fork()
    if not child:
        code = 1
        try:
            torch.set_num_threads(1)
            signal.alarm(PATIENCE)
            server.put_points()
            work()
            (server.folder / "trace").write_text(json.dumps(server.trace))
            code = 0
        except BaseException as error:
            (server.folder / "bug").write_text(repr(error))
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    bug = server.folder / "bug"
    assert not bug.exists(), bug.read_text()
    trace = server.folder / "trace"
    killed = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    return killed, json.loads(trace.read_text()) if not killed else []


def simulated(terms: RunConfig, sites: int) -> None:
    """Run ``terms`` over simulated sites, or go on with it."""
    folder = Path(terms.server.runs_dir) / RUN_ID
    if (folder / "checkpoint.safetensors").exists():
        resume_in_process(open_run(folder))
    else:
        run_in_process(terms, sites, resumable=True)


def production(terms: RunConfig, profiles: dict[str, Path]) -> None:
    """Run ``terms`` over sites with profiles of their own, or go on with it."""
    folder = Path(terms.server.runs_dir) / RUN_ID
    resumed = (folder / "checkpoint.safetensors").exists()
    checkpoints = Checkpoints({"engine": "test"}, open_run(folder) if resumed else None)
    begun = checkpoints.checkpoint.config if checkpoints.checkpoint else terms
    rounds.run(ProductionGrid(profiles), begun, checkpoints=checkpoints)


def told(folder: Path) -> list[dict[str, Any]]:
    """Return the journal's rounds without what differs by time or folder."""
    but = ("at", "seconds", "phases", "bytes_down")
    events = read_journal(folder / "journal.jsonl")
    return [
        {k: v for k, v in event.items() if k not in but}
        for event in events
        if event["event"] == "round"
    ]


def seen(folder: Path) -> list[tuple[tuple[int, str, int], str, str]]:
    """Return what was asked and answered, over all processes: (site, kind, round), digests."""
    lines = [json.loads(line) for line in (folder / "seen").read_text().splitlines()]
    return [((key[0], key[1], key[2]), asked, said) for key, asked, said in lines]

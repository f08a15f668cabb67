"""A simulated site that keeps a part of its model, asked round by round; its batches in view."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from client_app.app import app
from client_app.site.personal_state import PersonalState, load_state
from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.models.networks import flatten, unflatten
from hdpfl_flower.models.parts import Parts, parts_of
from hdpfl_flower.privacy.noise import ReleaseStreams
from hdpfl_flower.privacy.plan import Plan, make_plan
from hdpfl_tools.simulation.sites import InProcessContext, draw_profile
from strategies import make_strategy
from strategies.core.model_record import initial_arrays
from tests.client_app.messages import simulated_state_path

SITES = 4
PARTED: dict[str, dict[str, Any]] = {
    "fedper": {},
    "lg-fedavg": {"strategy": "fedper", "work": {"kind": "joint", "stays": "body"}},
    "fedrep": {"work": {"own-steps": 1}},
    "fedbabu": {},
    "ppsgd": {},
    "ppsgd-head": {"strategy": "ppsgd", "work": {"of": "head"}},
    "dsu": {"work": {"share": 0.3}},
    "dsu top-k": {"strategy": "dsu", "work": {"mask": "charged-top-k"}},
    "dsu random": {"strategy": "dsu", "work": {"mask": "random"}},
    "dsu global": {"strategy": "dsu", "work": {"mask": "global-magnitude"}},
}
"""Terms under which a part of the model, or an offset to it, stays at its site."""


class PartedSite:
    """Site 0 of four on digits; the same round gets the same noise.

    Attributes:
        config: with what the strategy sets.
        parts: of the whole model.
        path: of the site's own state.
    """

    def __init__(self, folder: Path, **more: Any) -> None:
        config = RunConfig.parse({
            "dataset": "digits", "model": "mlp:10", "rounds": 3, "local-steps": 4, "run-id": "r",
            "batch-sizes": "8", "epsilons": "3", "runs-dir": str(folder), "seed": 5,
            "evaluation": "none", "learning-rate": 0.5, **more,
        })  # fmt: skip
        self.config = RunConfig(make_strategy(config).terms, config.server, config.simulation)
        self.terms = self.config.terms
        task = task_for(self.terms)
        self.parts: Parts = parts_of(self.terms.model, task)
        self.layout = initial_arrays(self.terms, 5)
        self.path = simulated_state_path(self.config, 0)

    @property
    def size(self) -> int:
        return sum(array.size for array in self.layout.values())

    @property
    def plan(self) -> Plan:
        return make_plan(draw_profile(self.config, 0, SITES), self.terms)

    @property
    def state(self) -> PersonalState:
        return load_state(self.path)

    def shared(self, server_round: int) -> np.ndarray:
        """Return the shared model of a round: it moves another way each time."""
        draws = np.random.default_rng(server_round)
        step = draws.standard_normal(self.size).astype(np.float32) / 8
        return flatten(self.layout) + (server_round > 1) * step

    def message(self, server_round: int, shared: np.ndarray | None = None) -> Message:
        vector = self.shared(server_round) if shared is None else shared
        model = server_wire.write_model(unflatten(vector, self.layout))
        content = server_wire.write_instructions(self.terms, server_round, model)
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        message = Message(content, 5, wire.TRAIN)
        message.metadata.__dict__["_message_id"] = "m"
        node = {"partition-id": 0, "num-partitions": SITES}
        context = InProcessContext(1, 5, node, RecordDict(), self.config.drawn())
        context.ledger_in_file = True  # as in a run that can be resumed: it keeps what was sent
        return app(message, context)

    def ask(self, server_round: int, shared: np.ndarray | None = None) -> np.ndarray:
        """Return the update of a round."""
        reply = self.message(server_round, shared)
        assert reply.has_content(), reply.error
        return server_wire.read_update(reply.content, self.size)

    def drawn(
        self, server_round: int, records: int, kinds: tuple[str, ...] = ("update", "mask")
    ) -> set[int]:
        """Return the records that the batches of a round draw."""
        q, seed = self.plan.steps[0].sampling_prob, self.config.simulation.seed
        found: set[int] = set()
        for kind in kinds:
            stream = ReleaseStreams.simulated(seed, "0", server_round, kind).sampling
            stream.bytes(7)  # the seed of dropout
            for _ in range(self.plan.steps[0].count):
                found |= set(stream.bernoulli(records, q).tolist())
        return found


def parted(folder: Path, case: str, **more: Any) -> PartedSite:
    """Return a site under the terms of :data:`PARTED`."""
    return PartedSite(folder, **{"strategy": case, **PARTED[case], **more})

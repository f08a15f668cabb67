"""Messages as a server would send them, to call the ClientApp directly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from client_app.app import app
from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.models.networks import arrays_of, build_model

SCHEMA = """
[label]
column = "sick"
classes = [["no"], ["yes"]]
[[columns]]
name = "age"
type = "number"
bounds = [0, 100]
[[columns]]
name = "dose"
type = "number"
bounds = [0, 10]
"""

PROFILE = """
approval = "standing"
disclose = {disclose}
[budget]
epsilon = 2.4691356
delta = 1e-5
exact-answers = 20
[run]
epsilon = 1.2345678
delta = 1e-6
[training]
batch-size = 7
declared-records = 61
device = "cpu"
torch-threads = 1
[data]
format = "csv"
path = "records.csv"
holdout = {holdout}
[ledger]
path = "ledger.sqlite"
[state]
path = "state"
{more}
"""


UNKNOWN = (
    "train.x", "train.default", "evaluate.all", "query", "query.PATIENT", "system", "reconnect",
    "get_parameters",
)  # fmt: skip
"""Types that Flower delivers, and that are none of ours."""
CLIENT_NOISE = "[policy]\nclient-noise = true\n"
"""What a profile must say before terms may ask for noise = client."""


def config_of(**more: Any) -> RunConfig:
    """Return the run config of a run over sites' own tables."""
    config = {"dataset": "site", "schema": SCHEMA, "rounds": 3, "run-id": "run-1"}
    config["evaluation"] = "none"
    return RunConfig.parse({**config, **more})


def terms_of(**more: Any) -> RunTerms:
    """Return the terms of :func:`config_of`."""
    return config_of(**more).terms


def model_of(terms: RunTerms) -> ArrayRecord:
    """Return the initial model of ``terms``."""
    return server_wire.write_model(arrays_of(build_model(terms.model, task_for(terms), 1)))


def check_table_again(profile: Path | Profile) -> None:
    """Import a changed table, as an operator does after a check."""
    from hdpfl_tools.tables.frozen_table import import_table

    site = Profile.load(profile) if isinstance(profile, Path) else profile
    assert site.data is not None and site.ledger is not None
    import_table(site.data, site.ledger.path)


def make_site(
    folder: Path, *, disclose: str = "[]", holdout: float = 0.0, more: str = "", rows: int = 61
) -> Path:
    """Write a production site: profile, ledger and records; returns the profile's path."""
    from hdpfl_flower.ledger.ledger import Ledger

    folder.mkdir(parents=True, exist_ok=True)
    profile = folder / "profile.toml"
    profile.write_text(PROFILE.format(disclose=disclose, holdout=holdout, more=more))
    profile.chmod(0o600)
    lines = [f"{20 + i},{i % 10},{'yes' if i % 3 else 'no'}" for i in range(rows)]
    (folder / "records.csv").write_text("age,dose,sick\n" + "\n".join(lines) + "\n")
    if not (folder / "ledger.sqlite").exists():
        Ledger.create(folder / "ledger.sqlite", 2.4691356, 1e-5).close()
    return profile


def send(
    node_config: dict[str, Any],
    kind: str,
    content: RecordDict,
    *,
    in_process: bool = False,
    memory: RecordDict | None = None,
    config: RunConfig | None = None,
) -> Message:
    """Give the ClientApp one message and return its reply; ``memory`` is the node's, if any.

    A simulated node reads from ``config`` what it is drawn from.
    """
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    message = Message(content, 5, kind)
    message.metadata.__dict__["_message_id"] = "m"
    kind_of_context: type[Context] = Context
    if in_process:
        from hdpfl_tools.simulation.sites import InProcessContext

        kind_of_context = InProcessContext
    drawn = config.drawn() if config else {}
    return app(
        message,
        kind_of_context(1, 5, node_config, RecordDict() if memory is None else memory, drawn),
    )


def terms_with_test(**more: Any) -> RunTerms:
    """Return the terms of a run whose models are tested at the sites."""
    return terms_of(**{"evaluation": "sites", **more})


def ask(profile: Path, terms: RunTerms, server_round: int = 1, kind: str = wire.TRAIN) -> Message:
    """Send one well-formed instruction to the site of ``profile``; it joins before round 1."""
    server_round = 0 if kind == wire.JOIN else server_round
    content = server_wire.write_instructions(terms, server_round, model_of(terms))
    return send({"profile": str(profile)}, kind, content)


def model_in(terms: RunTerms, server_round: int) -> ArrayRecord:
    """Return the model of a round: the initial one, moved another way each time."""
    arrays = arrays_of(build_model(terms.model, task_for(terms), 1))
    for number in range(1, server_round):
        draws = np.random.default_rng(number)
        arrays = {
            name: array + draws.standard_normal(array.shape, np.float32) / 64
            for name, array in arrays.items()
        }
    return server_wire.write_model(arrays)


def ask_with_offset(
    profile: Path, terms: RunTerms, server_round: int = 1, kind: str = wire.TRAIN
) -> Message:
    """Send a round's instructions with an offset to the site; other kinds as :func:`ask`."""
    if kind != wire.TRAIN:
        return ask(profile, terms, server_round, kind)
    content = server_wire.write_instructions(
        terms, server_round, model_of(terms), others=[model_in(terms, 3)], use=wire.OFFSET
    )
    return send({"profile": str(profile)}, kind, content)


class Projecting:
    """A server that asks for one number from round 2 on, and a node that remembers.

    Attributes:
        memory: the node's.
    """

    def __init__(self) -> None:
        self.memory = RecordDict()

    def __call__(
        self, profile: Path, terms: RunTerms, server_round: int = 1, kind: str = wire.TRAIN
    ) -> Message:
        """Send a round's instructions to the site of ``profile``, other kinds as :func:`ask`."""
        project = None
        if kind == wire.TRAIN:
            before = server_round > 1 and wire.model_digest(model_in(terms, server_round - 1))
            project = before or server_wire.WHOLE
        content = server_wire.write_instructions(
            terms, server_round, model_in(terms, server_round), project
        )
        return send({"profile": str(profile)}, kind, content, memory=self.memory)


def simulated_state_path(config: RunConfig, index: int) -> Path:
    """Return the path of a simulated site's personal state."""
    from client_app.site.personal_state import kept_state_path
    from hdpfl_tools.simulation.sites import simulated_ledger

    return kept_state_path(simulated_ledger(config, index).parent, config.terms)

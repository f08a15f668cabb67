"""Who reads a key: what the server or a simulation alone uses is in no message and no ledger."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict
from flwr.common.serde import recorddict_to_proto

from hdpfl_flower.config.run_config import GROUPS, RunConfig
from hdpfl_flower.config.server_terms import ServerTerms
from hdpfl_flower.config.simulation_terms import SimulationTerms
from hdpfl_flower.config.tables_of_terms import TABLES
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import TermsError
from hdpfl_tools.simulation.in_process.grid import LocalGrid
from hdpfl_tools.simulation.sites import InProcessContext
from server_app.run.rounds import run
from tests.client_app.messages import config_of, make_site

OTHERS = [*ServerTerms.keys(), *SimulationTerms.keys()]
"""Keys that no site is sent."""
VALUES: dict[str, Any] = {
    "quorum": 1, "min-sites": 1, "join-timeout": 119.71875, "round-timeout": 3599.71875,
    "fraction": 0.9171875, "noise-floor": 0.0171875, "max-liars": 717171, "seed": 717172,
    "epsilons": "uniform:0.371:8", "batch-sizes": "17,371", "data-dir": "/data/of/the/server",
    "partition": "dirichlet:0.371", "torch-threads": 717173, "public-split": "top:0.371",
}  # fmt: skip
"""Values that nothing else in a message or a ledger has."""


class Deployed(LocalGrid):
    """One deployed site in this process; keeps the bytes of every message that it is sent."""

    def __init__(self, profile: Path) -> None:
        super().__init__(1)
        (node,) = self._contexts
        config = {"profile": str(profile)}
        self._contexts[node] = InProcessContext(1, node, config, RecordDict(), {})
        self.sent: list[bytes] = []

    def reply(self, message: Message, context: Context) -> Message:
        self.sent.append(bytes(recorddict_to_proto(message.content).SerializeToString()))
        return super().reply(message, context)


def test_what_the_server_alone_uses_is_in_no_message_and_no_ledger(tmp_path: Path) -> None:
    folder = tmp_path / "the-servers-own-folder"
    grid = Deployed(make_site(tmp_path / "site"))
    result = run(grid, config_of(**{"runs-dir": str(folder), "rounds": 1, **VALUES}))
    assert result.rounds[0]["accepted"] == ["0"]
    ledger = (tmp_path / "site" / "ledger.sqlite").read_bytes()
    assert b"clip-norm" in ledger  # the terms are in it
    assert all(b"clip-norm" in content for content in grid.sent)
    values = ["the-servers-own-folder", *(v for v in VALUES.values() if v != 1)]
    for content in (*grid.sent, ledger):
        assert [key for key in OTHERS if f'"{key}"'.encode() in content] == []
        assert [value for value in values if str(value).encode() in content] == []


def test_no_key_has_two_owners() -> None:
    keys = [key for group in GROUPS.values() for key in group.keys()]  # noqa: SIM118 - no dict
    assert len(keys) == len(set(keys))
    assert {*RunConfig().as_config()} == {*keys} - {*TABLES} | {
        "spend.kind"
    }  # of them only what is given


def test_a_servers_key_among_terms_is_refused() -> None:
    sent = json.dumps({**RunTerms().as_config(), "runs-dir": "/of/the/server"})
    with pytest.raises(TermsError, match="'runs-dir' is not a known key"):
        RunTerms.from_json(sent)

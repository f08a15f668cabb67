"""Clients that train on their records under (ε, δ) of their own, paid for by their ledgers."""

import os
from functools import lru_cache
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from eight_clients.task import model, records_of
from hdpfl_flower import PrivateRecords

EPSILONS = (0.3, 0.3, 0.5, 0.5, 1.0, 2.0, 4.0, 8.0)
# The client's own: nothing that pays or is paid may come from context.run_config, which is the
# server's word.
ROUNDS = 10
LEDGERS = Path(os.environ.get("FLWR_HOME", Path.home() / ".flwr")) / "eight-clients"

app = ClientApp()


@lru_cache
def client(partition: int) -> PrivateRecords:
    """Return the terms of a client: its own ε, and numbers that count as public."""
    ledger = LEDGERS / f"{partition}.sqlite"
    private = PrivateRecords(
        ledger,
        model,
        records_of,
        epsilon=EPSILONS[partition],
        delta=1e-5,
        rounds=ROUNDS,
        records=180,
        batch_size=36,
        steps=5,
        learning_rate=0.5,
    )
    if not ledger.exists():  # a simulation; a real client makes it once, by hand
        ledger.parent.mkdir(parents=True, exist_ok=True)
        private.create_ledger(ledger, runs=20)
    return private


@app.train()
def train(message: Message, context: Context) -> Message:
    """Answer a round with an update under the client's own (ε, δ)."""
    return client(int(context.node_config["partition-id"]) % len(EPSILONS))(message, context)

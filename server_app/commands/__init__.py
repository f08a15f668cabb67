"""``hdpfl``: command line of coordinators and researchers, one module per command."""

from __future__ import annotations

from hdpfl_flower.system.later import Later
from hdpfl_flower.system.terminal import guarded_main, new_app
from hdpfl_flower.versions import __version__

_HERE = "server_app.commands"
COMMANDS = {
    "demo": Later(
        f"{_HERE}.demo",
        "demo",
        "Train on scikit-learn's digits at 13 sites, each with its own ε, in process.",
    ),
    "compare": Later(
        f"{_HERE}.compare",
        "compare",
        "Compare strategies in process: a table of mean ± sd, JSON and a picture.",
    ),
    "list": Later(
        f"{_HERE}.listing",
        "list_names",
        "List strategies, parts after a +, models, data sets, guards and studies.",
    ),
    "check": Later(
        f"{_HERE}.check",
        "check",
        "Check a run config before flwr run, or a strategy by its contract; exit 1 at a fault.",
    ),
    "advise": Later(
        f"{_HERE}.advise",
        "advise",
        "Advise rounds, steps, batches, model and rate of a run, and what would help most.",
    ),
    "new": Later(
        f"{_HERE}.new",
        "new",
        "Write a project: data, model or backbone, strategy, tests, and the app to approve.",
    ),
    "reproduce": Later(
        f"{_HERE}.reproduce",
        "reproduce",
        "Reproduce a table or figure of a paper: table, PNG and JSON.",
    ),
    "report": Later(
        f"{_HERE}.report",
        "report",
        "Write an HTML page about a run: results, figures, sites, terms, versions.",
    ),
    "resume": Later(
        f"{_HERE}.resume",
        "resume",
        "Resume an interrupted run: same run id and plans, no charge twice.",
    ),
    "certs": Later(
        f"{_HERE}.certs",
        "certs",
        "Make a CA, the server's certificate and a key pair for each site.",
    ),
    "exporter": Later(
        f"{_HERE}.exporter",
        "exporter",
        "Show the newest runs to Prometheus, from their journals.",
    ),
}

app = new_app(
    "Federated learning in which every client keeps its own differential privacy.",
    version=f"hdpfl-flower {__version__}",
    commands=COMMANDS,
)


def main() -> None:
    """Run ``hdpfl``."""
    guarded_main(app)

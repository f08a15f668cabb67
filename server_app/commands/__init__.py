"""``hdpfl``: the coordinator's and the researcher's command line, a file a command."""

from __future__ import annotations

from hdpfl_flower.system.later import Later
from hdpfl_flower.system.terminal import guarded_main, new_app
from hdpfl_flower.versions import VERSION

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
        "List the strategies, their parts after a +, models, data sets, guards, attacks and "
        "studies.",
    ),
    "bench": Later(
        f"{_HERE}.bench",
        "bench",
        "List the natural federations, or compare the rules on some of them.",
    ),
    "contract": Later(
        f"{_HERE}.contract",
        "contract",
        "Hold a strategy to its contract: a line a check; exit 1 if one fails.",
    ),
    "new": Later(
        f"{_HERE}.new",
        "new",
        "Write a project: data.py, model.py, strategy.py, tests, and the app that sites approve.",
    ),
    "reproduce": Later(
        f"{_HERE}.reproduce",
        "reproduce",
        "Reproduce a table or figure of a paper: progress, table, PNG and JSON.",
    ),
    "plot": Later(
        f"{_HERE}.plot",
        "plot",
        "Draw a run, finished or not: its metrics and the sites' weights by round.",
    ),
    "report": Later(
        f"{_HERE}.report",
        "report",
        "Write a run, finished or not, as one page: results, figures, sites, terms, versions.",
    ),
    "export": Later(
        f"{_HERE}.export",
        "export",
        "Write the measures of every round, and the terms, to TensorBoard's or MLflow's files.",
    ),
    "resume": Later(
        f"{_HERE}.resume",
        "resume",
        "Resume a run where it was interrupted: same run id, same plans, nothing charged twice.",
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
    "metrics": Later(f"{_HERE}.metrics", "app", "The numbers of a run, for Prometheus."),
}

app = new_app(
    "Federated learning in which every client keeps its own differential privacy.",
    version=f"hdpfl-flower {VERSION}",
    commands=COMMANDS,
)


def main() -> None:
    """Run ``hdpfl``."""
    guarded_main(app)

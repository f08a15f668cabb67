"""``hdpfl``: command line of coordinators and researchers, one module per command."""

from __future__ import annotations

from hdpfl_flower.versions import __version__
from hdpfl_tools.shell.later import Later
from hdpfl_tools.shell.terminal import guarded_main, new_app

_HELP = {
    "demo": (
        "Train on scikit-learn's digits at 13 simulated sites, each with its own ε, in one process."
    ),
    "compare": (
        "Compare strategies in one process; write a table of mean ± sd, JSON and a picture."
    ),
    "list": "List strategies, parts after a +, models, data sets, guards and studies.",
    "check": "Check a run config before flwr run, or a strategy against its contract; "
    "exit 1 at a fault.",
    "advise": (
        "Advise on the rounds, steps, batches, model and rate of a run; name the best changes."
    ),
    "statistics": (
        "Print Table 1 of a federation from one noisy message of each site, before any training."
    ),
    "new": (
        "Write a project: data, model or backbone, strategy, tests, and the app that sites approve."
    ),
    "reproduce": "Reproduce a table or figure of a paper; write a table, PNG and JSON.",
    "report": "Write an HTML page about a run: results, figures, sites, terms and versions.",
    "resume": (
        "Resume an interrupted run with the same run id and plans; no site is charged twice."
    ),
    "certs": "Make a CA, the server's certificate and a key pair for each site.",
    "invite": "Write a signed file with which a site joins: address, CA, app, terms and other "
    "public files.",
    "members": "Print the line 'members' of a run config from the sites' files.",
    "exporter": "Show the newest runs to Prometheus, from their journals.",
}
_ELSEWHERE = {"list": ("listing", "list_names")}
"""Command → its module and function, where they have another name."""
COMMANDS = {
    name: Later(f"hdpfl_tools.coordinator.commands.{module}", function, text)
    for name, text in _HELP.items()
    for module, function in [_ELSEWHERE.get(name, (name, name))]
}

app = new_app(
    "Federated learning in which every client keeps its own differential privacy.",
    version=f"hdpfl-flower {__version__}",
    commands=COMMANDS,
)


def main() -> None:
    """Run ``hdpfl``."""
    guarded_main(app)

"""``hdpfl``: command line of coordinators and researchers, one module per command."""

from __future__ import annotations

from hdpfl_flower.versions import __version__
from hdpfl_tools.shell.later import Later
from hdpfl_tools.shell.terminal import guarded_main, new_app

_HELP = {
    "demo": "Train on scikit-learn's digits at 13 sites, each with its own ε, in process.",
    "compare": "Compare strategies in process: a table of mean ± sd, JSON and a picture.",
    "list": "List strategies, parts after a +, models, data sets, guards and studies.",
    "check": "Check a run config before flwr run, or a strategy by its contract; "
    "exit 1 at a fault.",
    "advise": "Advise rounds, steps, batches, model and rate of a run, and the best changes.",
    "statistics": "Print Table 1 of a federation from one noisy message, before any training.",
    "new": "Write a project: data, model or backbone, strategy, tests, and the app to approve.",
    "reproduce": "Reproduce a table or figure of a paper: table, PNG and JSON.",
    "report": "Write an HTML page about a run: results, figures, sites, terms, versions.",
    "resume": "Resume an interrupted run: same run id and plans, no charge twice.",
    "certs": "Make a CA, the server's certificate and a key pair for each site.",
    "invite": "Write a signed file by which a site joins: address, CA, app, terms, other public "
    "files.",
    "members": "Print the line 'members' of a run config, from the sites' files.",
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

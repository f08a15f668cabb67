"""``hdpfl-site``: the site operator's tool, beside records, profile and ledger.

The output of commands for it (plan, ledger, report) shows the site's private values; error messages
never do.
"""

from __future__ import annotations

from hdpfl_flower.versions import __version__
from hdpfl_tools.shell.later import Later
from hdpfl_tools.shell.terminal import guarded_main, new_app
from hdpfl_tools.tables.lines_read import shown_on_a_terminal

_HERE = "hdpfl_tools.site.commands"
COMMANDS = {
    "plan": Later(f"{_HERE}.plan", "plan", "Print the cost of a run at this site."),
    "report": Later(f"{_HERE}.report", "report", "Print the site's privacy report."),
    "evaluate": Later(
        f"{_HERE}.worth",
        "evaluate",
        "Measure the last run's model on the site's own records.",
    ),
    "worth": Later(
        f"{_HERE}.worth",
        "worth",
        "Judge whether the last run was worth joining; with --terms, predict a run's worth.",
    ),
    "audit": Later(f"{_HERE}.audit", "audit", "Test this build's clipping and noise by an attack."),
    "requests": Later(
        f"{_HERE}.requests",
        "requests",
        "List the runs that wait and the decisions so far; with --refuse, refuse a run.",
    ),
    "approve": Later(
        f"{_HERE}.approve",
        "approve",
        "Approve a run or a public file of weights; with --to, approve an app.",
    ),
    "data": Later(
        f"{_HERE}.prepare",
        "app",
        "Import the site's export into the table that runs read; compare or delete this table.",
    ),
    "prepare": Later(
        f"{_HERE}.prepare",
        "prepare",
        "List the records that are prepared for runs; prepare them again or delete them.",
    ),
    "withdraw": Later(
        f"{_HERE}.ledger",
        "withdraw",
        "Take persons out of every later run, because they withdrew their consent.",
    ),
    "health": Later(
        f"{_HERE}.health",
        "health",
        "Check that the node hears from its SuperLink; or ask a SuperLink and compare clocks.",
    ),
    "exporter": Later(
        f"{_HERE}.exporter",
        "exporter",
        "Show this site's budget, releases, refusals and ledger to its own Prometheus.",
    ),
    "join": Later(
        f"{_HERE}.join",
        "join",
        "Check an invitation, write the files of a site's node, and test the connection.",
    ),
    "profile": Later(
        f"{_HERE}.profile", "app", "Write a new profile of the site, or check the profile."
    ),
    "schema": Later(
        f"{_HERE}.schema",
        "schema",
        "Check a public schema; with --to, draft one from a table; with --mock, make up a table.",
    ),
    "ledger": Later(
        f"{_HERE}.ledger",
        "ledger",
        "Print the charges, the releases and the budget left; create the ledger; raise its cap.",
    ),
    "peers": Later(
        f"{_HERE}.peers", "app", "Keys for shared noise: this site's key and the keys of its peers."
    ),
    "model": Later(f"{_HERE}.model", "app", "The final model of the last run."),
}

app = new_app(
    "The tool of a site: its profile, its ledger, its model.",
    version=f"hdpfl-flower {__version__}",
    commands=COMMANDS,
)


def main() -> None:
    """Run ``hdpfl-site``."""
    with shown_on_a_terminal():
        guarded_main(app)

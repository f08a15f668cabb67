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
        "Judge whether the last run was worth joining; with --terms predict a run's worth.",
    ),
    "audit": Later(f"{_HERE}.audit", "audit", "Attack this build's clipping and noise."),
    "requests": Later(
        f"{_HERE}.requests",
        "requests",
        "List the runs that wait, and the decisions so far; with --refuse decline one.",
    ),
    "approve": Later(
        f"{_HERE}.approve",
        "approve",
        "Approve a run, a public file of weights, or with --to an app.",
    ),
    "data": Later(
        f"{_HERE}.prepare",
        "app",
        "The site's export: import it into the table that runs read, compare, delete.",
    ),
    "prepare": Later(
        f"{_HERE}.prepare",
        "prepare",
        "List the records prepared for runs; with a run prepare them anew, or delete them.",
    ),
    "withdraw": Later(
        f"{_HERE}.ledger",
        "withdraw",
        "Take persons out of every later run, because they withdrew their consent.",
    ),
    "health": Later(
        f"{_HERE}.health",
        "health",
        "Say whether the node answers its SuperLink; or ask that one, and compare clocks.",
    ),
    "exporter": Later(
        f"{_HERE}.exporter",
        "exporter",
        "Show this site's budget, releases, refusals and ledger to its own Prometheus.",
    ),
    "join": Later(
        f"{_HERE}.join",
        "join",
        "Check an invitation, write all that a site's node needs, test the connection.",
    ),
    "profile": Later(f"{_HERE}.profile", "app", "The site's profile: write a new one, check one."),
    "schema": Later(
        f"{_HERE}.schema",
        "schema",
        "Check a public schema; with --to draft one from a table, with --mock make up a table.",
    ),
    "ledger": Later(
        f"{_HERE}.ledger",
        "ledger",
        "Print the charges, releases and budget left; or create the ledger, or raise its cap.",
    ),
    "peers": Later(f"{_HERE}.peers", "app", "Keys for shared noise: this site's, and its peers'."),
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

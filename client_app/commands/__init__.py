"""``hdpfl-site``: the site operator's own tool, run where the records, the profile and ledger lie.

Its output may show the site's private values where that is what a command is for (plan, ledger,
report); its error messages never do.
"""

from __future__ import annotations

from client_app.commands.approve import approve
from client_app.commands.audit import audit
from client_app.commands.connect import connect
from client_app.commands.evaluate import evaluate
from client_app.commands.exporter import exporter
from client_app.commands.ledger import app as ledger_app
from client_app.commands.model import app as model_app
from client_app.commands.plan import plan
from client_app.commands.profile import app as profile_app
from client_app.commands.report import report
from client_app.commands.requests import refuse, requests
from client_app.commands.schema import app as schema_app
from client_app.commands.worth import worth
from hdpfl_flower.system.terminal import guarded_main, new_app
from hdpfl_flower.versions import VERSION

app = new_app(
    "The tool of a site: its profile, its ledger, its model.", version=f"hdpfl-flower {VERSION}"
)
app.add_typer(profile_app, name="profile")
app.add_typer(schema_app, name="schema")
app.command("plan")(plan)
app.add_typer(ledger_app, name="ledger")
app.command("report")(report)
app.add_typer(model_app, name="model")
app.command("evaluate")(evaluate)
app.command("worth")(worth)
app.command("audit")(audit)
app.command("requests")(requests)
app.command("approve")(approve)
app.command("refuse")(refuse)
app.command("connect")(connect)
app.command("exporter")(exporter)


def main() -> None:
    """Run ``hdpfl-site``."""
    guarded_main(app)

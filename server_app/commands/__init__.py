"""``hdpfl``: the coordinator's and the researcher's command line, a file a command."""

from __future__ import annotations

from hdpfl_flower.system.terminal import guarded_main, new_app
from hdpfl_flower.versions import VERSION
from server_app.commands.bench import bench
from server_app.commands.certs import certs
from server_app.commands.compare import compare
from server_app.commands.contract import contract
from server_app.commands.demo import demo
from server_app.commands.export import export
from server_app.commands.exporter import exporter
from server_app.commands.listing import list_names
from server_app.commands.metrics import app as metrics_app
from server_app.commands.new import new
from server_app.commands.plot import plot
from server_app.commands.report import report
from server_app.commands.reproduce import reproduce
from server_app.commands.resume import resume

app = new_app(
    "Federated learning in which every client keeps its own differential privacy.",
    version=f"hdpfl-flower {VERSION}",
)
app.command()(demo)
app.command()(compare)
app.command("list")(list_names)
app.command()(bench)
app.command()(contract)
app.command()(new)
app.command()(reproduce)
app.command()(plot)
app.command()(report)
app.command()(export)
app.command()(resume)
app.command()(certs)
app.command()(exporter)
app.add_typer(metrics_app, name="metrics")


def main() -> None:
    """Run ``hdpfl``."""
    guarded_main(app)

"""``hdpfl contract``: run the contract suite on a strategy."""

from __future__ import annotations

from typing import Annotated

import typer

from hdpfl_flower.system.printable import printable
from server_app.progress import console


def contract(
    strategy: Annotated[
        str, typer.Argument(help="A strategy of the table, or module:Class of your own.")
    ],
) -> None:
    """Hold a strategy to its contract: a line a check; exit 1 if one fails."""
    from strategies.contract import run_contract

    failed = 0
    for text, wrong in run_contract(strategy):
        failed += bool(wrong)
        line = f"FAILED  {text}: {printable(wrong)}" if wrong else f"ok      {text}"
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    if failed:
        raise typer.Exit(1)

"""``hdpfl contract``: run the contract suite on a strategy."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from hdpfl_flower.system.own_code import show_own, shown_to_its_author
from hdpfl_flower.system.printable import printable
from server_app.progress import console


def contract(
    strategy: Annotated[
        str, typer.Argument(help="A strategy of the table, or module:Class of your own.")
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print check and fault as JSON; no fault: it passed.")
    ] = False,
) -> None:
    """Hold a strategy to its contract: a line a check; exit 1 if one fails."""
    from strategies.contract import run_contract

    found = {}
    with shown_to_its_author():
        for text, wrong in run_contract(strategy, show_own):
            found[text] = wrong
            if not as_json:
                line = f"FAILED  {text}: {printable(wrong)}" if wrong else f"ok      {text}"
                console.print(line, soft_wrap=True, markup=False, highlight=False)
    if as_json:
        typer.echo(json.dumps(found, indent=1, ensure_ascii=False))
    failed = any(found.values())
    if failed:
        raise typer.Exit(1)

"""The command lines' one way to fail: a line on stderr, a status other than 0, no traceback."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable

import typer
import typer.core

from hdpfl_flower.errors import HDPFLError
from hdpfl_flower.printable import printable

# Help is plain here, but typer escapes its brackets for rich as long as it believes in rich.
typer.core.HAS_RICH = False
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # read when Flower is imported, later

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""


def new_app(help_text: str) -> typer.Typer:
    """Return a command line that shows help when called bare, and no locals in a traceback."""
    return typer.Typer(
        help=help_text,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_show_locals=False,
        rich_markup_mode=None,
    )


def guarded_main(command: Callable[[], object]) -> None:
    """Run ``command``; what a user can mend becomes one line, the rest a short traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without Greek letters gets escapes
            stream.reconfigure(errors="backslashreplace")
    try:
        command()
    except HDPFLError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        sys.exit(1)
    except SystemExit as end:  # typer turns Ctrl-C into an exit of its own
        if end.code == INTERRUPTED:
            print("interrupted; what was finished is kept", file=sys.stderr)
        raise
    except BrokenPipeError:
        sys.exit(1)

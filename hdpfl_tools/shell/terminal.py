"""Shared command-line parts: help by rich, ``--version``, error output.

A failure is one line on stderr and a status other than 0, without a traceback.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Mapping

import typer

from hdpfl_flower.errors import HDPFLError
from hdpfl_flower.system.printable import printable
from hdpfl_tools.shell.later import Later, group_of

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # read when Flower is imported, later

INTERRUPTED = 130
"""Exit status after Ctrl-C, as in shells."""
EXIT_CODES = (
    "Exit status: 0: done; 1: an error (one line on stderr), or a check failed; 2: an unknown "
    f"command or option, or a value of the wrong type; {INTERRUPTED}: interrupted by Ctrl-C."
)
"""Exit codes of both command lines, shown below their help."""


def new_app(
    help_text: str, *, version: str = "", commands: Mapping[str, Later] | None = None
) -> typer.Typer:
    """Return a command line with help when called bare, and plain tracebacks without locals.

    Args:
        help_text: its description.
        version: text of ``--version``, for a whole command line; empty: a group of commands,
            without that option, completion and the list of exit codes.
        commands: those that are imported when they are run.
    """
    app = typer.Typer(
        cls=group_of(commands) if commands else None,
        help=help_text,
        epilog=EXIT_CODES if version else None,
        no_args_is_help=True,
        add_completion=bool(version),
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",  # in "rich" the word [budget] is markup, and vanishes
    )
    if version:
        app.callback()(_version_option(version))
    return app


def _version_option(version: str) -> Callable[..., None]:
    """Return a callback that adds the option ``--version``."""

    def show(wanted: bool) -> None:
        if wanted:
            typer.echo(version)
            raise typer.Exit

    def options(
        version: bool = typer.Option(
            False, "--version", help="Print the version and exit.", callback=show, is_eager=True
        ),
    ) -> None: ...

    return options


def guarded_main(command: Callable[[], object]) -> None:
    """Run ``command``; print user errors as one line, others with traceback."""
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
            print("interrupted; finished work is kept", file=sys.stderr)
        raise
    except BrokenPipeError:
        sys.exit(1)

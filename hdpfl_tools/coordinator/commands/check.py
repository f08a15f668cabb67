"""``hdpfl check``: checks of a run config before ``flwr run``, or of a strategy by its contract."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from hdpfl_flower.config.named_files import as_one_file, named_paths
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.tables_of_terms import flattened
from hdpfl_flower.config.validation import hint
from hdpfl_flower.data.stated_task import is_own
from hdpfl_flower.errors import TermsError
from hdpfl_flower.releases.feasibility import rules_of
from hdpfl_flower.system.files import replace_file
from hdpfl_flower.system.own_traceback import search_here, show_own, shown_to_its_author
from hdpfl_flower.system.paths import expanded
from hdpfl_flower.system.printable import printable
from hdpfl_tools.coordinator.progress import show_json, show_line, waiting

RESUME_FROM = "resume-from"


def check(
    what: Annotated[
        str,
        typer.Argument(
            metavar="RUN.TOML|STRATEGY",
            help="A run config; or a strategy by its name, or your own as module:Class.",
        ),
    ],
    set_: Annotated[
        list[str],
        typer.Option("--set", help="KEY=VALUE of the run for which a strategy is checked."),
    ] = [],  # noqa: B006
    to: Annotated[
        Path | None,
        typer.Option(
            "--to", "--out", help=("Write the run config and its schema as one file for flwr run.")
        ),
    ] = None,
    app: Annotated[Path, typer.Option(help="The folder of the app, as for flwr run.")] = Path(),
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print the checks and faults as JSON; an empty fault means that the check passed.",
        ),
    ] = False,
) -> None:
    """Check a run config before flwr run, or a strategy against its contract; exit 1 at a fault.

    For a fault in a run config the message names the key and the remedy, where flwr run prints
    only a code.
    """
    search_here()
    faults = {what: ""}
    if what.endswith(".toml"):
        if set_:
            raise TermsError("--set is only for a strategy; write the key into the run config")
        _check_run(Path(what), app)
        if to is not None:
            replace_file(to, as_one_file(Path(what)).encode(), mode=0o644)
        if not as_json:
            show_line(f"ok      {what}")
            for line in _paths_in(Path(what)) if to is None else ():
                show_line(line)
    else:
        if to is not None:
            raise TermsError("--to is only for a run config; a strategy has no file to write")
        faults = _faults_of(what, _keys_of(what, set_), quiet=as_json)
    if as_json:
        show_json(faults)
    if any(faults.values()):
        raise typer.Exit(1)


def _check_run(path: Path, app: Path) -> None:
    """Raise an ``HDPFLError`` for a fault that Flower, the server or every site would refuse."""
    sys.path.append(str(app.absolute()))  # a project's own strategy and model
    config = RunConfig.load(path, apart=(RESUME_FROM,))
    declared = _declared(app)
    for key, _ in flattened(config.settings):
        if declared and key not in declared:
            remedy = f"; declare it, with its default, under [tool.flwr.app.config] in {app}"
            raise TermsError(
                f"terms {path}: '{key}' is not a key of the run config"
                + (hint(key, declared) or f"{remedy}/pyproject.toml")
            )
    if is_own(config.terms.dataset):  # for simulations, in which the data set says the task
        return
    rules = rules_of(config.terms) if config.terms.dataset == "site" else None
    if rules and (fault := rules.fault_of_deployed(config.terms, config.server.min_sites)):
        raise TermsError(f"terms {path}: {fault}")
    with waiting("imports and checks"):
        from server_app.run.rounds import ready_kernel

        ready_kernel(config)


def _paths_in(path: Path) -> Iterator[str]:
    """Yield a note for each file whose path ``flwr run`` would read from another folder."""
    given = dict(flattened(tomllib.loads(path.read_text("utf-8-sig"))))
    for key, named in named_paths(given).items():
        if not expanded(named).is_absolute():
            yield (
                f"note    '{key}' is a path from the folder of this file, and flwr run does not "
                f"read it there; write all of it into one file with: hdpfl check {path} --to "
                "SENT.toml"
            )


def _declared(app: Path) -> set[str]:
    """Return the keys that ``flwr run`` of ``app`` lets a user set; none where no app is."""
    try:
        content = tomllib.loads((app / "pyproject.toml").read_text(encoding="utf-8-sig"))
        return set(dict(flattened(content["tool"]["flwr"]["app"]["config"])))
    except (OSError, ValueError, LookupError):
        return set()


def _keys_of(strategy: str, words: Sequence[str]) -> Mapping[str, object]:
    """Return the keys of ``--set``, with the strategy's own settings."""
    from strategies import check_strategy
    from strategies.settings import assigned, with_own_settings

    own = check_strategy(strategy)
    config = RunConfig.parse({**assigned(words, [own]), "strategy": strategy})
    return with_own_settings(config, own).as_config()


def _faults_of(strategy: str, keys: Mapping[str, object], *, quiet: bool) -> dict[str, str]:
    from hdpfl_tools.contract import run_contract

    faults = {}
    with shown_to_its_author():
        for text, fault in run_contract(strategy, show_own, keys):
            faults[text] = fault or ""
            if not quiet:
                show_line(f"FAILED  {text}: {printable(fault)}" if fault else f"ok      {text}")
    for line in () if quiet else _missing(keys):
        show_line(line)
    return faults


def _missing(keys: Mapping[str, object]) -> Iterator[str]:
    """Yield each property that the strategy lacks, with the options that need it."""
    from strategies import make_strategy, options
    from strategies.core.declaration import PROPERTIES

    offers = make_strategy(RunConfig.parse(keys)).declare()
    for name, words in PROPERTIES.items():
        without = [option for option, needs in options() if name in needs]
        if not getattr(offers, name):
            yield f"without {', '.join(without)} (needs {words.needed})"

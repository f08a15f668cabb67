"""``hdpfl-site profile``: a new one, and readiness for a run without training or charges."""

from __future__ import annotations

import itertools
import math
import os
import sys
import tomllib
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import typer

from hdpfl_flower.config.data_source import TABLES
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import HDPFLError, ModelError, ProfileError
from hdpfl_flower.ledger.account import Account
from hdpfl_flower.privacy.plan import make_plan
from hdpfl_flower.privacy.policy import check_policy
from hdpfl_flower.system.printable import printable
from hdpfl_tools.shell.terminal import new_app
from hdpfl_tools.site.commands.texts.render import text_of
from hdpfl_tools.site.new_profile import NewProfile, lines_of_table
from hdpfl_tools.site.options import (
    TERMS_HELP,
    ProfileOption,
    check_free,
    naming,
    open_profile,
    write_file,
)
from hdpfl_tools.site.reports.ledger_view import notes_on_cap, read_ledger
from hdpfl_tools.site.reports.lifetime import fit_of_next, runs_that_fit
from hdpfl_tools.tables.withdrawals import withdrawn_by

app = new_app("Write a new profile of the site, or check the profile.")

NO_RUN_FITS = (
    "ledger: the site would decline another run, because the run does not fit into what is left, "
    "or because 'policy.runs' runs were charged: lower [run], or decide on a higher cap: "
    "hdpfl-site ledger --raise-cap"
)
OK, ERROR = "ok", "error"
Finding = tuple[str, str]
"""Level and text; an error must be corrected before a run."""


@app.command()
def new(  # noqa: PLR0913, PLR0917 - options of a command line
    to: Annotated[Path, typer.Option("--to", "--out", help="The profile to write.")] = Path(
        "profile.toml"
    ),
    data: Annotated[
        Path | None,
        typer.Option(
            help="The records: a table in a file of any kind, an npz file, or a folder of images."
        ),
    ] = None,
    id_: Annotated[
        str, typer.Option("--id", help="Column of the table that names the person.")
    ] = "",
    terms: Annotated[
        Path | None,
        typer.Option(
            "--terms",
            "--run-config",
            help="The run config of a run: the command looks up the names of its schema "
            "in the table.",
        ),
    ] = None,
    records: Annotated[
        int | None,
        typer.Option(
            help="About how many records are for training. The number is public: round it.", min=1
        ),
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="ε of one run; inf: no privacy.")] = None,
    cap: Annotated[
        float | None, typer.Option(help="ε of all runs together, over the records' life.")
    ] = None,
    delta: Annotated[
        float,
        typer.Option(
            help="δ of one run; all runs together get ten times as much. 0: a δ for --records."
        ),
    ] = 0.0,
    batch_size: Annotated[
        int, typer.Option(help="Expected records of a step; 0: an eighth of --records.", min=0)
    ] = 0,
    name: Annotated[str, typer.Option(help="Name of the site, for its own report.")] = "",
    anchor: Annotated[
        str, typer.Option(help="File of the anchor, on other storage than the ledger's.")
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
) -> None:
    """Write a new profile, with comments; a terminal asks for missing values.

    The command looks in the table to see how it is written: encoding, delimiter, decimal comma,
    marks. It sends nothing. The next step is 'profile check'.
    """
    check_free(to, force=force)
    schema = RunConfig.load(terms, mailed=True).terms.schema_text if terms is not None else ""
    data = _asked(data, "--data", "Where do the records lie (a table, npz, a folder)?", Path)
    records = _asked(records, "--records", "About how many records are for training (public)?", int)
    epsilon = _asked(epsilon, "--epsilon", "ε of one run (smaller protects more; 1 to 4)?", float)
    cap = _asked(cap, "--cap", "ε of all runs together, for ever?", float)
    text = NewProfile(
        _data_lines(data, to, id_, schema),
        records,
        epsilon,
        cap,
        delta,
        batch_size,
        anchor=anchor,
        name=name,
    ).text()
    try:
        Profile.parse(tomllib.loads(text))
    except ProfileError as error:
        raise ProfileError(f"the options make no profile: {error}") from None
    write_file(to, text.encode(), force=force)
    typer.echo(
        f"wrote {to}: read it (each key has a comment); then: hdpfl-site ledger --init, and "
        "hdpfl-site profile check --terms RUN.toml"
    )


_Answer = TypeVar("_Answer")


def _asked(
    given: _Answer | None, option: str, question: str, kind: Callable[[str], _Answer]
) -> _Answer:
    """Return an option, or a terminal's answer to ``question``."""
    if given is not None:
        return given
    if not sys.stdin.isatty():
        raise ProfileError(f"{option} is missing: {question} On a terminal the command would ask")
    return cast(_Answer, typer.prompt(question.removesuffix("?"), value_proc=kind))


def _data_lines(data: Path, to: Path, id_: str, schema_text: str) -> str:
    """Return the keys of ``[data]``; open choices are comments."""
    from hdpfl_flower.config.toml_text import as_toml
    from hdpfl_flower.data.schema import Schema
    from hdpfl_tools.tables.schema_draft import draft_schema

    if not data.exists():
        raise ProfileError(f"--data: there is nothing at {data}")
    here, home = data.absolute(), to.absolute().parent
    path = here.relative_to(home) if here.is_relative_to(home) else here
    is_images = data.is_dir() and not any(data.rglob("*.parquet"))
    if is_images or data.suffix.lower() == ".npz":
        kind = "images" if is_images else "npz"
        lines = ["[data]", f'format = "{kind}"', f"path = {as_toml(str(path))}"]
        return "\n".join([*lines, *([f"id = {as_toml(id_)}"] if id_ else [])])
    with naming(data):
        draft = draft_schema(data, unit=id_)
    drafted = draft.profile.replace(as_toml(str(data)), as_toml(str(path)), 1)
    schema = Schema.load(schema_text) if schema_text else None
    return lines_of_table(drafted, draft.names, id_, schema)


@app.command()
def check(
    profile: ProfileOption = None,
    terms: Annotated[Path | None, typer.Option("--terms", "--run-config", help=TERMS_HELP)] = None,
) -> None:
    """Check whether the site can take part.

    The command prints each finding on one line. The exit status is 1 if you must correct something.
    With --terms it also reads the records and rehearses the model of the run. It trains, charges
    and sends nothing.
    """
    site = open_profile(profile)
    config = RunConfig.load(terms, mailed=True) if terms is not None else None
    account, ledger = _ledger_facts(site)
    text = text_of(
        "profile",
        site=site,
        config=config,
        account=account,
        ledger=ledger,
        fits=account is None or config is not None or fit_of_next(account, site).runs > 0,
        no_run_fits=NO_RUN_FITS,
        state_is_writable=site.state is not None and _is_writable(_existing(site.state.path)),
        infinity=math.inf,
    )
    typer.echo(text)
    faults = sum(line.startswith(ERROR) for line in text.splitlines())
    if config is not None:
        records = _data(site, config.terms)
        for level, finding in itertools.chain(records, _training(site, config.terms, account)):
            typer.echo(printable(f"{level:<9}{finding}"))
            faults += level == ERROR
    if faults:
        raise typer.Exit(1)


def _ledger_facts(site: Profile) -> tuple[Account | None, dict[str, Any]]:
    """Return the ledger's account, None if it cannot be read, and the state of its files."""
    paths = site.ledger
    if paths is None:
        return None, {}
    account, error, notes, withdrawn = None, "", list[str](), 0
    try:
        account = read_ledger(site).account
        notes = list(notes_on_cap(account, site.budget))
        if account.withdrawn and site.data is not None:
            withdrawn = len(withdrawn_by(account, site.data, paths.path).digests)
    except HDPFLError as fault:
        error = str(fault)
    writable = {paths.path: os.access(paths.path, os.W_OK)}
    writable[paths.path.parent] = _is_writable(paths.path.parent)  # SQLite writes there, too
    return account, {
        "error": error,
        "notes": notes,
        "withdrawn": withdrawn,
        "read_only": [path for path, may in writable.items() if not may],
        "open_to_others": account is not None and paths.path.stat().st_mode & 0o077,
        "one_storage": paths.anchor is not None
        and _device_of(paths.anchor) == _device_of(paths.path),
    }


def _data(site: Profile, run: RunTerms) -> Iterator[Finding]:
    from hdpfl_flower.data.run_task import task_for
    from hdpfl_flower.privacy.policy import id_of
    from hdpfl_tools.tables.site_check import check_site_data

    if site.data is None or (run.schema_text and id_of(run.schema_text) != site.data.column):
        return  # the terms' error; the records would be those of another unit
    from hdpfl_tools.tables.frozen_table import import_table

    try:
        if site.data.format in TABLES and site.ledger and site.ledger.path.parent.is_dir():
            facts = import_table(site.data, site.ledger.path, run.schema_text)
            yield OK, f"data: imported, table {facts.table[:12]}; runs read only this table"
        declared = site.training.declared_records
        for line in check_site_data(site.data, task_for(run).of_records, run.schema_text, declared):
            level, _, text = line.partition(": ")
            yield (level, f"data: {text}") if level in (ERROR, "warning") else (OK, f"data: {line}")
    except HDPFLError as error:
        yield ERROR, f"data: {site.data.path}: {error}"


def _training(site: Profile, run: RunTerms, account: Account | None) -> Iterator[Finding]:
    """Check the terms against the policy, then model, memory and plan."""
    try:
        check_policy(site, run)
        yield OK, "terms: the policy allows them"
        device = yield from _device(site)
        if device is not None:
            yield from _model(site, run, device)
        plan = make_plan(site, run)
        yield OK, "plan: the noise is calibrated; see: hdpfl-site plan"
        # A trusted server charges nothing here, and a run that was charged is not charged again.
        if not run.source.site_plans or account is None or run.run_id in account.plans:
            return
        if not runs_that_fit(account, site, (plan.epsilon, plan.delta), plan):
            yield ERROR, NO_RUN_FITS
    except HDPFLError as error:
        yield ERROR, f"terms: {error}"


def _device(site: Profile) -> Generator[Finding, None, str | None]:
    import torch

    from hdpfl_flower.system.devices import present

    try:
        device = present(site.training.device)
    except ModelError as error:
        yield ERROR, f"device: {error}"
        return None
    count = torch.cuda.device_count()
    others = f", the first of {count}; to use another one, set 'training.device', such as 'cuda:1'"
    yield OK, f"device: {device}" + (others if device == "cuda" and count > 1 else "")
    return device


def _model(site: Profile, run: RunTerms, device: str) -> Iterator[Finding]:
    from client_app.site.site import allowed_layout
    from client_app.training.trainer import engine_at
    from hdpfl_flower.data.run_task import task_for
    from hdpfl_flower.engines.dpsgd import rehearsal_size, settle
    from hdpfl_flower.engines.engines import rehearse

    training = site.training
    try:
        task = task_for(run)
        allowed_layout(site, run.model, task)  # before the network takes memory
        engine, physical = engine_at(site, run.model, task, device)
        size = engine.theta.numel()
        yield OK, f"model: '{run.model}', {size} parameters, trained by {type(engine).__name__}"
        try:
            settle(engine, float(training.batch_size), physical)
            rehearse(engine, rehearsal_size(float(training.batch_size), physical))
            yield OK, "memory: the largest batch fits"
        except (RuntimeError, MemoryError):
            yield ERROR, "memory: the largest batch does not fit; lower 'training.physical-batch'"
    except HDPFLError as error:
        yield ERROR, f"model: {error}"


def _is_writable(folder: Path) -> bool:
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def _existing(path: Path) -> Path:
    """Return ``path``, or the nearest folder above it that exists."""
    return path if path.exists() else next(p for p in path.parents if p.exists())


def _device_of(path: Path) -> int:
    return _existing(path).stat().st_dev

"""``hdpfl-site profile``: a new one, and readiness for a run without training or charges."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, TypeVar, cast

import typer

from client_app.commands.options import (
    TERMS_HELP,
    ProfileOption,
    check_free,
    naming,
    open_profile,
    write_file,
)
from client_app.reports.ledger_view import notes_on_cap, read_ledger
from client_app.reports.lifetime import runs_that_fit
from client_app.site.new_profile import NewProfile, lines_of_table
from hdpfl_flower.config.profile import LedgerPaths, Profile
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import HDPFLError, ModelError, ProfileError
from hdpfl_flower.ledger.account import Account
from hdpfl_flower.ledger.withdrawals import withdrawn_by
from hdpfl_flower.privacy.plan import make_plan
from hdpfl_flower.privacy.policy import check_policy
from hdpfl_flower.system.printable import printable
from hdpfl_flower.system.terminal import new_app

app = new_app("The site's profile: write a new one, check one.")


@app.command()
def new(  # noqa: PLR0913, PLR0917 - options of a command line
    to: Annotated[Path, typer.Option("--to", "--out", help="The profile to write.")] = Path(
        "profile.toml"
    ),
    data: Annotated[
        Path | None, typer.Option(help="CSV, Parquet or npz file, or folder of images.")
    ] = None,
    id_: Annotated[str, typer.Option("--id", help="Column of a table that names the person.")] = "",
    terms: Annotated[
        Path | None,
        typer.Option(
            "--terms",
            "--run-config",
            help="A run's public terms: names of its schema are looked up.",
        ),
    ] = None,
    records: Annotated[
        int | None, typer.Option(help="About the records for training; public: round it.", min=1)
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="ε of one run; inf: no privacy.")] = None,
    cap: Annotated[
        float | None, typer.Option(help="ε of all runs together, over the records' life.")
    ] = None,
    delta: Annotated[
        float, typer.Option(help="δ of one run; all together: ten times. 0: by --records.")
    ] = 0.0,
    batch_size: Annotated[
        int, typer.Option(help="Records of a step; 0: an eighth of --records.", min=0)
    ] = 0,
    name: Annotated[str, typer.Option(help="Of the site, for its own report.")] = "",
    anchor: Annotated[str, typer.Option(help="File on other storage than the ledger's.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
) -> None:
    """Write a new profile, with comments; a terminal asks for missing values.

    How a CSV is written (encoding, delimiter, decimal comma, marks) is looked up in it. Nothing is
    sent; 'profile check' comes next.
    """
    check_free(to, force=force)
    schema = RunConfig.load(terms).terms.schema_text if terms is not None else ""
    data = _asked(data, "--data", "Where do the records lie (CSV, Parquet, npz, folder)?", Path)
    records = _asked(records, "--records", "About how many records are for training (public)?", int)
    epsilon = _asked(epsilon, "--epsilon", "ε of one run (smaller protects more; 1 to 4)?", float)
    cap = _asked(cap, "--cap", "ε of all runs together, for ever?", float)
    text = NewProfile(
        _data_lines(data, to, id_, schema), records, epsilon, cap, delta, batch_size,
        anchor=anchor, name=name,
    ).text()  # fmt: skip
    try:
        Profile.parse(tomllib.loads(text))
    except ProfileError as error:
        raise ProfileError(f"the options make no profile: {error}") from None
    write_file(to, text.encode(), force=force)
    typer.echo(
        f"wrote {to}: read it, each key has its comment; then: hdpfl-site ledger --init, and "
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
        raise ProfileError(f"{option} is missing: {question} On a terminal it would be asked")
    return cast(_Answer, typer.prompt(question.removesuffix("?"), value_proc=kind))


def _data_lines(data: Path, to: Path, id_: str, schema_text: str) -> str:
    """Return the keys of ``[data]``; open choices are comments."""
    from hdpfl_flower.config.toml_text import as_toml
    from hdpfl_flower.data.schema import Schema
    from hdpfl_flower.data.schema_draft import draft_schema

    if not data.exists():
        raise ProfileError(f"--data: there is nothing at {data}")
    here, home = data.absolute(), to.absolute().parent
    path = here.relative_to(home) if here.is_relative_to(home) else here
    kinds = {".parquet": "parquet", ".npz": "npz"}
    kind = "images" if data.is_dir() else kinds.get(data.suffix.lower(), "csv")
    if kind != "csv":
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

    A line a finding; exit status 1 if something must be corrected. With the terms of a run the
    records are read, and the model is rehearsed. Nothing is trained, charged or sent.
    """
    site = open_profile(profile)
    config = RunConfig.load(terms) if terms is not None else None
    run = config.terms if config is not None else None
    findings = ProfileFindings()
    findings.ok("profile: complete, and readable by its owner alone")
    _check_protection(site, findings)
    account = _check_ledger(site, findings)
    if account is not None and run is None:
        _check_fit(account, site, (site.run.epsilon, site.run.delta), findings)
    _check_state(site, findings)
    _check_disclosure(site, findings)
    _check_time(site, config, findings)
    if run is None:
        _check_data_is_there(site, findings)
        findings.warning("terms: none given; add --terms to read the records and try the model")
    else:
        _check_data(site, run, findings)
        _check_training(site, run, account, findings)
    if findings.errors:
        raise typer.Exit(1)


class ProfileFindings:
    """Printer of findings, with a count of faults."""

    def __init__(self) -> None:
        """Start without findings."""
        self.errors = 0

    def ok(self, text: str) -> None:
        """Print a passed check."""
        typer.echo(printable(f"ok       {text}"))

    def warning(self, text: str) -> None:
        """Print a warning."""
        typer.echo(printable(f"warning  {text}"))

    def error(self, text: str) -> None:
        """Print a fault that must be corrected before a run."""
        self.errors += 1
        typer.echo(printable(f"error    {text}"))

    @contextlib.contextmanager
    def catching(self, about: str = "") -> Iterator[None]:
        """Turn a user's error into a finding, and continue."""
        try:
            yield
        except HDPFLError as error:
            self.error(f"{about}: {error}" if about else str(error))


def _check_protection(site: Profile, findings: ProfileFindings) -> None:
    if site.simulated:
        findings.warning(
            "simulation: [simulation] makes the noise from a seed, which gives no privacy; "
            "remove it at a real site"
        )
    if math.isinf(site.run.epsilon):
        findings.warning("protection: 'run.epsilon' is inf, which means no privacy")


def _check_ledger(site: Profile, findings: ProfileFindings) -> Account | None:
    """Return the ledger's account; None if it cannot be read."""
    if site.ledger is None:
        if site.simulated:
            findings.ok("ledger: a simulated site keeps its own in the run's folder")
        else:
            findings.error("ledger: [ledger] is missing; a site without one releases nothing")
        return None
    account = None
    with findings.catching():
        account = read_ledger(site).account
        findings.ok(f"ledger: verified from the first entry to the last: {site.ledger.path}")
        for path, mode in (
            (site.ledger.path, os.W_OK),
            (site.ledger.path.parent, os.W_OK | os.X_OK),
        ):
            if not os.access(path, mode):  # SQLite writes beside the file, too
                findings.error(
                    f"ledger: {path} cannot be written by this user; a run would be refused: check "
                    "its owner, and that its volume is not mounted read-only"
                )
        if site.ledger.path.stat().st_mode & 0o077:
            findings.warning(f"ledger: others can read it; run: chmod 600 {site.ledger.path}")
        for note in notes_on_cap(account, site.budget):
            findings.warning(f"ledger: {note}")
        if account.withdrawn and site.data is not None:
            withdrawn = withdrawn_by(account, site.data, site.ledger.path)
            findings.ok(f"withdrawals: {len(withdrawn.digests)}, none of whose records is read")
    _check_anchor(site.ledger, findings)
    return account


def _check_fit(
    account: Account, site: Profile, cost: tuple[float, float], findings: ProfileFindings
) -> None:
    """Check whether the ledger would charge a run of ``cost`` (ε, δ)."""
    if not runs_that_fit(account, site, cost):
        findings.error(
            "ledger: another run does not fit into what is left, or 'policy.runs' were charged, "
            "and the site would decline it: lower [run], or decide on more: hdpfl-site "
            "ledger --raise-cap"
        )


def _check_anchor(paths: LedgerPaths, findings: ProfileFindings) -> None:
    if paths.anchor is None:
        findings.warning(
            "anchor: 'ledger.anchor' is missing: nobody would notice an older ledger put back; "
            "name a file on other storage before 'hdpfl-site ledger --init'"
        )
    elif _device_of(paths.anchor) == _device_of(paths.path):
        findings.warning("anchor: it lies on the ledger's own storage; other storage is better")
    else:
        findings.ok("anchor: on other storage than the ledger")


def _check_state(site: Profile, findings: ProfileFindings) -> None:
    if site.state is None:
        findings.warning("state: [state] is missing: the site keeps no final model for itself")
        return
    folder = _existing(site.state.path)
    if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK):
        findings.ok(f"state: the folder can be written: {site.state.path}")
    else:
        findings.error(f"state: {site.state.path} is no folder that this user can write")


def _check_disclosure(site: Profile, findings: ProfileFindings) -> None:
    for name in site.disclose:
        findings.warning(f"disclosure: '{name}' leaves the site, and ε does not cover it")
    if not site.disclose:
        findings.ok("disclosure: 'disclose' is empty: nothing leaves but noisy updates")
    if "metrics" in site.disclose and (site.data is None or site.data.holdout == 0):
        findings.warning(
            "disclosure: 'metrics' needs records to test on: 'data.holdout' keeps none, and the "
            "site will decline every test"
        )
    if "metrics" in site.disclose and not site.simulated and not site.budget.exact_answers:
        findings.warning(
            "disclosure: 'budget.exact-answers' is 0, and the site will decline every test; a run "
            "with 'scores' shows the coordinator as much with noise, within ε"
        )


def _check_time(site: Profile, config: RunConfig | None, findings: ProfileFindings) -> None:
    if not site.reply_after:
        findings.warning(
            "time: 'reply-after' is not set: the time of a reply discloses the size of its batches"
        )
    elif config is not None and site.reply_after >= config.server.round_timeout:
        findings.error(
            "time: 'reply-after' is as long as the run's 'round-timeout': every reply arrives too "
            "late; lower it, or ask the coordinator for more time"
        )
    else:
        findings.ok("time: replies leave at a constant time after the request")


def _check_data_is_there(site: Profile, findings: ProfileFindings) -> None:
    if site.data is None:
        _tell_no_data(site, findings)
        return
    images = site.data.format == "images"
    if site.data.path.is_dir() if images else site.data.path.is_file():
        findings.ok(f"data: there is a {'folder' if images else 'file'} at {site.data.path}")
    else:
        findings.error(f"data: nothing that 'data.format' names is at {site.data.path}")


def _tell_no_data(site: Profile, findings: ProfileFindings) -> None:
    if site.simulated:
        findings.ok("data: a simulated site takes its part of the run's data set")
    else:
        findings.error("data: [data] is missing; say where the site's records lie")


def _check_data(site: Profile, run: RunTerms, findings: ProfileFindings) -> None:
    if site.data is None:
        _tell_no_data(site, findings)
        return
    from hdpfl_flower.data.datasets import task_for
    from hdpfl_flower.data.site_check import check_site_data
    from hdpfl_flower.privacy.unit import id_of

    if run.schema_text and id_of(run.schema_text) != site.data.column:
        return  # the terms' error; the records would be those of another unit
    with findings.catching(f"data: {site.data.path}"):
        declared = site.training.declared_records
        for line in check_site_data(site.data, task_for(run).of_records, run.schema_text, declared):
            if line.startswith("error: "):
                findings.error(f"data: {line.removeprefix('error: ')}")
            elif line.startswith("warning: "):
                findings.warning(f"data: {line.removeprefix('warning: ')}")
            else:
                findings.ok(f"data: {line}")


def _check_training(
    site: Profile, run: RunTerms, account: Account | None, findings: ProfileFindings
) -> None:
    """Check the terms against the policy, then model, memory and plan."""
    with findings.catching("terms"):
        check_policy(site, run)
        findings.ok("terms: the policy allows them")
        device = _check_device(site, findings)
        if device is not None:
            _check_model(site, run, device, findings)
        made = make_plan(site, run)
        findings.ok("plan: the noise is calibrated; see: hdpfl-site plan")
        # A trusted server charges nothing here, and a run that was charged is not charged again.
        if account is not None and run.noise != "server" and run.run_id not in account.plans:
            _check_fit(account, site, (made.epsilon, made.delta), findings)


def _check_device(site: Profile, findings: ProfileFindings) -> str | None:
    import torch

    from hdpfl_flower.system.devices import present

    try:
        device = present(site.training.device)
    except ModelError as error:
        findings.error(f"device: {error}")
        return None
    count = torch.cuda.device_count()
    others = f", the first of {count}; for another set 'training.device' to 'cuda:1'"
    findings.ok(f"device: {device}" + (others if device == "cuda" and count > 1 else ""))
    return device


def _check_model(site: Profile, run: RunTerms, device: str, findings: ProfileFindings) -> None:
    from client_app.site.site import allowed_layout
    from client_app.training.dpsgd import rehearsal_size, settle
    from client_app.training.engines import rehearse
    from client_app.training.trainer import engine_at
    from hdpfl_flower.data.datasets import task_for

    training = site.training
    with findings.catching("model"):
        task = task_for(run)
        allowed_layout(site, run.model, task)  # before the network takes memory
        engine, physical = engine_at(site, run.model, task, device)
        size = engine.theta.numel()
        findings.ok(f"model: '{run.model}', {size} parameters, trained by {type(engine).__name__}")
        try:
            settle(engine, float(training.batch_size), physical)
            rehearse(engine, rehearsal_size(float(training.batch_size), physical))
        except (RuntimeError, MemoryError):
            findings.error(
                "memory: the largest batch does not fit; lower 'training.physical-batch'"
            )
        else:
            findings.ok("memory: the largest batch fits")


def _existing(path: Path) -> Path:
    """Return ``path``, or the nearest folder above it that exists."""
    return path if path.exists() else next(p for p in path.parents if p.exists())


def _device_of(path: Path) -> int:
    return _existing(path).stat().st_dev

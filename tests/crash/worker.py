"""A site reduced to its ledger, which kills itself at a named point.

Its order of things is the site's own: the very text of ``Site.release``, without
Flower's imports. Points are reached by wrapping from outside; the product has no hooks for them.
``serve`` forks a child a job from a process that imported the ledger and nothing heavy.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import logging
import math
import os
import resource
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hdpfl_flower.errors import Declined, LedgerError
from hdpfl_flower.ledger import hash_chain as chain
from hdpfl_flower.ledger.account import ChargedPlan, Request
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.ledger.site_ledger import SiteLedger
from tests.crash import mutants

ROOT = Path(__file__).parents[2]
now = SimpleNamespace(stage="", point="", armed=False, trace=[])
"""Where the worker is, and where it is to die."""


def reach(event: str) -> None:
    """Come to a point; the end, if it is the one."""
    here = f"{now.stage}: {event}"
    now.trace.append(here)
    if now.armed and here == now.point:
        os.kill(os.getpid(), signal.SIGKILL)


class Connection(sqlite3.Connection):
    """SQLite's connection, with points before and after the ends of a transaction."""

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        word = sql.split(maxsplit=1)[0]
        if word in ("BEGIN", "COMMIT"):
            reach(f"before {word}")
        done = super().execute(sql, *values)
        if word in ("BEGIN", "COMMIT"):
            reach(f"after {word}")
        return done


def around(owner: Any, name: str, before: str = "", after: str = "", stage: str = "") -> None:
    """Put points around a function; ``{}`` stands for its second argument."""
    inner = getattr(owner, name)

    @functools.wraps(inner)
    def outer(*args: Any, **kwargs: Any) -> Any:
        now.stage = stage or now.stage
        if before:
            reach(before)
        done = inner(*args, **kwargs)
        if after:
            reach(after.format(*args[1:2]))
        return done

    setattr(owner, name, outer)


def put_points() -> None:
    sqlite3.connect = functools.partial(sqlite3.connect, factory=Connection)  # type: ignore[assignment]
    around(chain.Chain, "append", after="{} appended")
    around(chain.Chain, "attach", after="payload attached")
    around(chain, "write_anchor", after="anchor replaced")
    around(Path, "replace", before="anchor written beside")
    around(SiteLedger, "broken_off", stage="look back")
    around(SiteLedger, "reserve", stage="reserve")
    around(SiteLedger, "seal", stage="seal")
    around(SiteLedger, "mark_sent", stage="sent")


def release_of_the_site() -> Callable[..., bytes]:
    """Return ``Site.release``, compiled with ``Site.reserve`` from their own text."""
    tree = ast.parse((ROOT / "client_app" / "site" / "site.py").read_text())
    wanted = {"release", "reserve"}
    (site,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Site")
    functions = [n for n in site.body if isinstance(n, ast.FunctionDef) and n.name in wanted]
    assert len(functions) == len(wanted)
    log = logging.getLogger("hdpfl.site")
    names: dict[str, Any] = {
        "Request": Request,
        "ClippedUpdate": SimpleNamespace(release="never asked for here"),
        "Sealed": lambda payload, replayed: payload,
        "log": log,
        "math": math,
    }
    exec(
        compile(ast.Module([*functions], []), "client_app/site/site.py", "exec"), names
    )  # annotations stay text, as here
    kind = SimpleNamespace(release="update", is_covered=True, is_sent=True)

    def release(site: Any, instructions: Any, work: Callable[[], bytes]) -> bytes:
        site.reserve = functools.partial(names["reserve"], site)
        return names["release"](site, instructions, kind, work)  # type: ignore[no-any-return]

    return release


def limit_files(size: int | None) -> int:
    """Let no file grow beyond ``size`` bytes, as on a full disk; return the limit before."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard if size is None else size, hard))
    return soft


def note(path: Path, ask: dict[str, Any], payload: bytes) -> None:
    """Add a line to what was worked on, or to what the recording server saw."""
    limit = limit_files(None)
    line = json.dumps({"key": [ask["run"], ask["round"], "update"], "payload": payload.hex()})
    fd = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    os.write(fd, line.encode() + b"\n")
    os.close(fd)
    limit_files(limit)


def answer(folder: Path, ask: dict[str, Any], release: Callable[..., bytes]) -> dict[str, str]:
    """Answer one message as a deployed site does: the ledger is opened anew for it."""

    def work() -> bytes:
        now.stage = "work"
        reach("begun")
        payload = os.urandom(ask.get("size", 100))  # fresh noise: two attempts never agree
        note(folder / "worked", ask, payload)
        reach("half done")
        time.sleep(ask.get("sleep", 0))
        reach("done")
        return payload

    profile = SimpleNamespace(
        budget=SimpleNamespace(epsilon=math.inf, delta=math.inf, exact_answers=0),
        policy=SimpleNamespace(runs=0),
    )
    site = SimpleNamespace(profile=profile, simulated=False, reserved=lambda *_: None)
    terms = SimpleNamespace(run_id=ask["run"])
    instructions = SimpleNamespace(
        terms=terms, server_round=ask["round"], digest=ask.get("digest", "d")
    )
    plan = ChargedPlan(ask.get("plan", "{}"), "{}", ask["epsilon"], ask["delta"])
    if "create" in ask:
        now.stage = "create"
        epsilon, delta = ask["create"]
        Ledger.create(folder / "ledger.sqlite", epsilon, delta, folder / "anchor")
    now.stage = "open"
    limit_files(ask.get("limit"))
    try:
        site.ledger = Ledger(folder / "ledger.sqlite", folder / "anchor")
        site.paid_plan = SimpleNamespace(charged=plan, plan=SimpleNamespace(paid=lambda _: 0))
        payload = release(site, instructions, work)
    except Declined as reason:
        return {"declined": str(reason)}
    except LedgerError as reason:
        return {"failed": str(reason)}
    finally:
        limit_files(None)
    now.stage = "send"
    reach("begun")
    note(folder / "seen", ask, payload)
    reach("done")
    return {"payload": hashlib.sha256(payload).hexdigest()}


class WildClock(datetime):
    """A clock that jumps by thousands of years, forth and back."""

    @classmethod
    def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
        return datetime(1 + os.urandom(1)[0] * 39, 1, 1, tzinfo=tz)


def work_on(job: dict[str, Any], out: int) -> None:
    """Do a job: a list of messages, the last of which is the one to die in."""
    release = release_of_the_site()
    if job.get("mutant"):
        release = getattr(mutants, job["mutant"])(release, note) or release
    if job.get("clock"):
        chain.datetime = WildClock  # type: ignore[attr-defined]
    now.point = job.get("point", "")
    time.sleep(max(0, job.get("start", 0) - time.monotonic()))
    for index, ask in enumerate(job["asks"]):
        now.armed = index == len(job["asks"]) - 1
        now.trace.clear()
        said = answer(Path(job["folder"]), ask, release)
        os.write(out, json.dumps(said).encode() + b"\n")
    os.write(out, json.dumps({"trace": now.trace}).encode() + b"\n")


def begin(job: dict[str, Any]) -> tuple[int, int]:
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            os.close(reader)
            work_on(job, writer)
            code = 0
        except BaseException as error:
            os.write(writer, json.dumps({"bug": repr(error)}).encode() + b"\n")
        finally:
            os._exit(code)
    os.close(writer)
    return child, reader


def end(child: int, reader: int) -> dict[str, Any]:
    with os.fdopen(reader) as pipe:
        said = [json.loads(line) for line in pipe if line.endswith("\n")]
    _, status = os.waitpid(child, 0)
    killed = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    return {"killed": killed, "said": said}


def serve() -> None:
    """Do the jobs of each line at once, each in a child; answer with a line."""
    put_points()
    modules = sorted({name.split(".")[0] for name in sys.modules})
    print(json.dumps(modules), flush=True)
    for line in sys.stdin:
        jobs = json.loads(line)
        start = time.monotonic() + 0.01 * (len(jobs) > 1)
        children = [begin({**job, "start": start}) for job in jobs]
        for (child, _), job in zip(children, jobs, strict=True):
            if "delay" in job:
                time.sleep(job["delay"])
                os.kill(child, signal.SIGKILL)
        print(json.dumps([end(*child) for child in children]), flush=True)

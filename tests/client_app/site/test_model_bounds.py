"""A server's text can make no site build a network that its policy does not allow."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Array, ArrayRecord, RecordDict
from torch import nn

from client_app.site import site
from client_app.site.site import check_sizes
from hdpfl_flower import server_wire, wire
from hdpfl_flower.models import networks as models
from hdpfl_flower.models.task import Task
from tests.client_app.messages import CLIENT_NOISE, ask, make_site, model_of, send, terms_of

ROOT = Path(__file__).parents[3]
SMALL = CLIENT_NOISE + "max-payload-mb = 0.001\n"
"""Holds two messages of logreg's 3 numbers, and not the 401 numbers of ``mlp:100``."""
MORE = "trust-server = true\n"
SERVER = {"noise": "server", "strategy": "fedhdp", "delta": 1e-7}
KEPT = {**SERVER, "run-id": "kept"}
"""A run that the site takes part in first: it declines the final model of any other."""
WAYS = {
    "train": (wire.TRAIN, {}, ""),
    "a layer of images": (wire.TRAIN, {"dataset": "mnist"}, ""),
    "client's noise": (wire.TRAIN, {"noise": "client"}, ""),
    "server's noise": (wire.TRAIN, SERVER, ""),
    "personal": (wire.TRAIN, {"second": {"kind": "kept", "pull": 0.5}}, ""),
    "private personal": (
        wire.TRAIN, {"second": {"kind": "private", "pull": 0.5}}, "",
    ),
    "choose": (wire.TRAIN, {"choice": {"kind": "gaussian", "times": 1}}, wire.CHOOSE),
    "pull": (wire.TRAIN, {"work": {"kind": "plain", "pull": 0.1}}, wire.PULL),
    "offset": (wire.TRAIN, {}, wire.OFFSET),
    "project": (wire.TRAIN, {}, "project"),
    "evaluate": (wire.EVALUATE, {**KEPT, "evaluation": "sites"}, ""),
    "finish": (wire.FINISH, KEPT, ""),
}  # fmt: skip
"""Message types, terms and uses by which a site comes to build the network of the terms."""


@pytest.mark.parametrize("way", WAYS)
def test_large_models_stay_meta(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    devices: list[str] = []
    named = models._named

    def noted(spec: str, task: Task) -> nn.Module:
        devices.append(torch.empty(0).device.type)
        return named(spec, task)

    profile = make_site(tmp_path, disclose="['metrics']", holdout=0.2, more=SMALL)
    profile.write_text(MORE + profile.read_text())
    assert ask(profile, terms_of(**KEPT)).has_content()
    kind, more, use = WAYS[way]
    small, terms = model_of(terms_of()), terms_of(model="mlp:100", **more)
    monkeypatch.setattr(models, "_named", noted)
    models.layout_of.cache_clear()
    reply = send(
        {"profile": str(profile)},
        kind,
        server_wire.write_instructions(terms, 1, small, **extra(use, small)),
    )
    assert reply.error.code == wire.DECLINED
    assert devices == ["meta"]


def extra(use: str, small: ArrayRecord) -> dict[str, Any]:
    """Return what else a message of this use carries."""
    if use in (wire.CHOOSE, wire.PULL, wire.OFFSET):
        return {"others": [small], "use": use}
    return {"project": server_wire.WHOLE} if use else {}


SCRIPT = """
import json, resource, sys, time
from pathlib import Path
from tests.client_app.messages import ask, model_of, send, terms_of
from tests.client_app.site.test_model_bounds import KEPT, WAYS, extra
from hdpfl_flower import wire, server_wire

def bytes_in(column):
    return int(open("/proc/self/statm").read().split()[column]) * resource.getpagesize()

profile, spec, ways = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
small = model_of(terms_of())
assert ask(profile, terms_of(**KEPT)).has_content()
assert ask(profile, terms_of(**{"run-id": "first"})).has_content()  # everything is imported
resource.setrlimit(resource.RLIMIT_AS, (bytes_in(0) + 1_000_000_000,) * 2)
before, found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, {}
for way in ways:
    kind, more, use = WAYS[way]
    terms = terms_of(model=spec, **more)
    begun = time.monotonic()
    content = server_wire.write_instructions(terms, 1, small, **extra(use, small))
    reply = send({"profile": str(profile)}, kind, content)
    code = reply.error.code if reply.has_error() else 0
    found[way] = [code, time.monotonic() - begun]
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(json.dumps([found, grown]))
"""


def run(folder: Path, spec: str, ways: list[str]) -> tuple[dict[str, list[float]], int, str]:
    """Return (way → code and seconds), kB of memory that were added, and the site's log."""
    profile = make_site(folder, disclose="['metrics']", holdout=0.2, more=CLIENT_NOISE)
    profile.write_text(MORE + profile.read_text())
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(profile), spec, json.dumps(ways)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found, grown = json.loads(done.stdout.splitlines()[-1])
    return found, grown, done.stderr


def test_a_model_above_the_policy_is_declined_before_it_takes_memory(tmp_path: Path) -> None:
    """``mlp:14000:14000`` is 784 MB: above a site's 512 MB, below what is refused everywhere."""
    found, grown, log = run(tmp_path, "mlp:14000:14000", list(WAYS))
    assert {way: code for way, (code, _) in found.items()} == dict.fromkeys(WAYS, wire.DECLINED)
    assert max(seconds for _, seconds in found.values()) < 10
    assert grown < 150_000
    assert log.count("'policy.max-payload-mb'") == len(WAYS)


def test_an_absurd_name_is_refused_by_every_handler(tmp_path: Path) -> None:
    ways = ["train", "server's noise", "evaluate", "finish"]
    found, grown, log = run(tmp_path, "mlp:1000000000", ways)
    assert {way: code for way, (code, _) in found.items()} == dict.fromkeys(ways, wire.FAILED)
    assert grown < 150_000
    assert log.count("at most 9999999, in plain digits") >= len(ways)


LONG: dict[str, dict[str, Any]] = {
    "a run's name": {"run-id": "r" * 65},
    "half of a character": {"run-id": "\ud800"},
    "a strategy": {"strategy": "s" * 501},
    "a schema": {"schema": "#" * 65_537},
    "a deep schema": {"schema": "a = [[[[[1]]]]]"},
    "a key of many parts": {"schema": "a." * 30_000 + "a = 1"},
    "unknown keys": {f"key-{number}": 1 for number in range(5_000)},
    "all": {f"key-{number}": 1 for number in range(50_000)},
    "a long key": {"k" * 100_000: 1},
}


@pytest.mark.parametrize("what", LONG)
def test_limits_of_terms_hold(tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str) -> None:
    profile = make_site(tmp_path)
    before = (tmp_path / "ledger.sqlite").read_bytes()
    content = server_wire.write_instructions(terms_of(), 1, model_of(terms_of()))
    content["instructions"]["terms"] = json.dumps({**terms_of().as_config(), **LONG[what]})
    with caplog.at_level("ERROR", "hdpfl.site"):
        reply = send({"profile": str(profile)}, wire.TRAIN, content)
    assert (reply.error.code, reply.error.reason) == (wire.FAILED, "failed")
    (line,) = caplog.messages
    assert line.startswith(("failed: run config: ", "failed: schema: ")) and len(line) < 500
    assert (tmp_path / "ledger.sqlite").read_bytes() == before


@pytest.mark.parametrize("with_others", [False, True])
def test_a_message_above_the_policy_is_declined_before_a_byte_of_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, with_others: bool
) -> None:
    terms, read = terms_of(), []
    size = sum(len(array.data) for array in model_of(terms).values())
    profile = make_site(tmp_path, more=f"[policy]\nmax-payload-mb = {1.5 * size / 1e6}\n")
    assert ask(profile, terms).has_content()
    one = Array("float32", (1,), "numpy.ndarray", b"x" * (2 * size))
    model, others = model_of(terms), [ArrayRecord({"x": one})] if with_others else []
    if not with_others:
        model["more"] = one
    content = server_wire.write_instructions(terms, 2, model, others=others, use=wire.PULL)
    monkeypatch.setattr(wire, "model_digest", lambda model: read.append(model) or "0" * 64)
    reply = send({"profile": str(profile)}, wire.TRAIN, content)
    assert reply.error.code == wire.DECLINED
    assert not read


def test_array_counts_and_names_are_bounded_before_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    def named(name: str = "a", dtype: str = "float32", shape: tuple[int, ...] = (0,),
              stype: str = "numpy.ndarray") -> ArrayRecord:  # fmt: skip
        return ArrayRecord({name: Array(dtype, shape, stype, b"")})

    limits: tuple[dict[str, Any], ...] = (
        {"name": "n" * 500}, {"dtype": "d" * 500}, {"stype": "s" * 500}, {"shape": (1,) * 8},
    )  # fmt: skip
    for limit in limits:
        check_sizes(RecordDict({"model": named(**limit)}), None)
        beyond = {key: value + value[:1] for key, value in limit.items()}
        with pytest.raises(wire.WireError, match="too long"):
            check_sizes(RecordDict({"model": named(), "others": named(**beyond)}), None)
    monkeypatch.setattr(site, "MOST_ARRAYS", 2)
    check_sizes(RecordDict({"model": named(), "others": named()}), None)
    with pytest.raises(wire.WireError, match="too many"):
        check_sizes(RecordDict({"model": named(), "others": named(), "more": named()}), None)

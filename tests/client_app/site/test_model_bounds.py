"""A server's text can make no site build a network that its policy does not allow."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord
from torch import nn

from hdpfl_flower import wire
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
    "personal": (wire.TRAIN, {"personal-lambda": "0.5"}, ""),
    "private personal": (
        wire.TRAIN, {"personal-lambda": "0.5", "personal-noise": "records"}, "",
    ),
    "choose": (wire.TRAIN, {"selections": 1}, wire.CHOOSE),
    "pull": (wire.TRAIN, {"prox-lambda": 0.1}, wire.PULL),
    "offset": (wire.TRAIN, {}, wire.OFFSET),
    "project": (wire.TRAIN, {}, "project"),
    "evaluate": (wire.EVALUATE, {}, ""),
    "finish": (wire.FINISH, KEPT, ""),
}  # fmt: skip
"""Message types, terms and uses by which a site comes to build the network of the terms."""


@pytest.mark.parametrize("way", WAYS)
def test_a_model_above_the_policy_is_built_on_meta_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
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
        wire.write_instructions(terms, 1, small, **extra(use, small)),
    )
    assert reply.error.code == wire.DECLINED
    assert devices == ["meta"]


def extra(use: str, small: ArrayRecord) -> dict[str, Any]:
    """Return what else a message of this use carries."""
    if use in (wire.CHOOSE, wire.PULL, wire.OFFSET):
        return {"others": [small], "use": use}
    return {"project": wire.WHOLE} if use else {}


SCRIPT = """
import json, resource, sys, time
from pathlib import Path
from tests.client_app.messages import ask, model_of, send, terms_of
from tests.client_app.site.test_model_bounds import KEPT, WAYS, extra
from hdpfl_flower import wire

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
    content = wire.write_instructions(terms, 1, small, **extra(use, small))
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

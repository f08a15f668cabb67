"""Every guard of the threat model in every mode of noise, with levels and without, at a real site.

A guard that is asked in one mode alone is none: the mode is the server's choice. The levels
themselves are the server's alone: of them a site reads no more than the strategy's name.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.ledger.ledger import Ledger
from tests.client_app.messages import CLIENT_NOISE, SCHEMA, ask, make_site, model_of, send, terms_of

NOISES, STRATEGIES = ("records", "client", "server"), ("dp-fedavg", "fedhdp")
MODES = [
    pytest.param(noise, strategy, id=f"{noise}-{strategy}")
    for noise, strategy in itertools.product(NOISES, STRATEGIES)
]
TRUST = "trust-server = true\n"


def terms_in(noise: str, strategy: str, **more: Any) -> RunTerms:
    mode = {"noise": noise, "strategy": strategy, "delta": 1e-6}
    return terms_of(**{**mode, **more})


def willing(folder: Path, **more: Any) -> Path:
    """Return the profile of a site that takes part in every mode."""
    profile = make_site(folder, more=CLIENT_NOISE, **more)
    profile.write_text(TRUST + profile.read_text())
    return profile


def change(profile: Path, old: str, new: str) -> None:
    text = profile.read_text()
    assert text.count(old) == 1, old
    profile.write_text(text.replace(old, new))


def allow(line: str) -> Callable[[Path], None]:
    return lambda profile: change(profile, CLIENT_NOISE, f"{CLIENT_NOISE}{line}\n")


def without_ledger(profile: Path) -> None:
    change(profile, '[ledger]\npath = "ledger.sqlite"\n', "")


def with_id(profile: Path) -> None:
    change(profile, 'path = "records.csv"', 'path = "records.csv"\nid = "dose"')


def charge(profile: Path, runs: int) -> None:
    """Charge other runs; the cap holds two."""
    for number in range(runs):
        other = terms_in("records", "dp-fedavg", **{"run-id": f"other-{number}"})
        assert ask(profile, other).has_content()


class Guard(NamedTuple):
    """What a site forbids, and how a server asks for it.

    Attributes:
        setup: what the profile says.
        asks: terms that it forbids.
        noises: the modes in which it means anything.
    """

    setup: Callable[[Path], None]
    asks: dict[str, Any]
    noises: tuple[str, ...] = NOISES


GUARDS = {
    "trust-server": Guard(lambda p: change(p, TRUST, ""), {}, ("server",)),
    "client-noise": Guard(lambda p: change(p, CLIENT_NOISE, ""), {}, ("client",)),
    "delta": Guard(lambda _: None, {"delta": 1e-5}, ("server",)),
    "strategies": Guard(allow('strategies = ["fedavg"]'), {}),
    "models": Guard(lambda _: None, {"model": "os:system"}),
    "max-rounds": Guard(allow("max-rounds = 2"), {}),
    "min-clip-norm": Guard(allow("min-clip-norm = 0.5"), {"clip-norm": 0.49}),
    "max-clip-norm": Guard(allow("max-clip-norm = 0.5"), {"clip-norm": 0.51}),
    "max-local-epochs": Guard(allow("max-local-epochs = 1"), {"local-epochs": 2}),
    "max-local-steps": Guard(allow("max-local-steps = 1"), {"local-steps": 2}),
    "schema's id": Guard(lambda _: None, {"schema": 'id = "ward"\n' + SCHEMA}),
    "profile's id": Guard(with_id, {}),
    "ledger": Guard(without_ledger, {}),
    "calibration": Guard(lambda _: None, {"calibration": "pfa"}, ("records", "client")),
    "cap": Guard(lambda p: charge(p, 2), {}, ("records", "client")),
    "runs": Guard(lambda p: (allow("runs = 1")(p), charge(p, 1))[1], {}, ("records", "client")),
}


CASES = [
    pytest.param(name, noise, strategy, id=f"{name}-{noise}-{strategy}")
    for (name, guard), strategy in itertools.product(GUARDS.items(), STRATEGIES)
    for noise in guard.noises
]


def kinds(folder: Path, run: str = "run-1") -> dict[tuple[int, str], str]:
    path = folder / "ledger.sqlite"
    if not path.exists():
        return {}
    releases = Ledger(path).account().releases
    return {(key[1], key[2]): each.status for key, each in releases.items() if key[0] == run}


def code_of(reply: Any) -> int | None:
    return reply.error.code if reply.has_error() else None


@pytest.mark.parametrize(("noise", "strategy"), MODES)
def test_a_willing_site_takes_part_in_every_mode(tmp_path: Path, noise: str, strategy: str) -> None:
    """Else a refusal below would say nothing."""
    assert ask(willing(tmp_path), terms_in(noise, strategy)).has_content()
    assert list(kinds(tmp_path).values()) == ["sent"]


@pytest.mark.parametrize(("name", "noise", "strategy"), CASES)
def test_the_forbidden_is_declined(tmp_path: Path, name: str, noise: str, strategy: str) -> None:
    guard, profile = GUARDS[name], willing(tmp_path)
    guard.setup(profile)
    asked = terms_in(noise, strategy, **guard.asks)
    content = server_wire.write_instructions(asked, 1, model_of(terms_of()))
    reply = send({"profile": str(profile)}, wire.TRAIN, content)
    assert code_of(reply) == wire.DECLINED
    assert reply.error.reason == "declined"
    assert kinds(tmp_path) == {}


@pytest.mark.parametrize(("noise", "strategy"), MODES)
def test_a_model_above_the_bound_is_refused(tmp_path: Path, noise: str, strategy: str) -> None:
    profile = willing(tmp_path)
    allow("max-payload-mb = 0.00001")(profile)
    assert code_of(ask(profile, terms_in(noise, strategy))) in (wire.DECLINED, wire.FAILED)
    assert kinds(tmp_path) == {}


@pytest.mark.parametrize(("noise", "strategy"), MODES)
def test_metrics_leave_only_where_disclosed(tmp_path: Path, noise: str, strategy: str) -> None:
    closed, terms = willing(tmp_path / "closed", holdout=0.5), terms_in(noise, strategy)
    terms = terms.updated(evaluation="sites")
    assert ask(closed, terms).has_content()
    assert code_of(ask(closed, terms, 1, wire.EVALUATE)) == wire.DECLINED
    assert (1, "metrics") not in kinds(tmp_path / "closed")
    told = willing(tmp_path / "open", holdout=0.5, disclose='["metrics"]')
    assert ask(told, terms).has_content()
    assert ask(told, terms, 1, wire.EVALUATE).has_content()
    assert kinds(tmp_path / "open")[1, "metrics"] == "sent"


@pytest.mark.parametrize(("noise", "strategy"), MODES)
def test_a_joining_site_tells_no_secret(tmp_path: Path, noise: str, strategy: str) -> None:
    reply = ask(willing(tmp_path), terms_in(noise, strategy), 0, wire.JOIN)
    assert reply.has_content(), reply.error
    assert server_wire.read_site(reply.content) == {}


@pytest.mark.parametrize(("noise", "strategy"), MODES)
def test_a_round_gets_one_payload(tmp_path: Path, noise: str, strategy: str) -> None:
    profile = willing(tmp_path)
    one, again = (ask(profile, terms_in(noise, strategy)) for _ in range(2))
    np.testing.assert_array_equal(
        server_wire.read_update(one.content, 3), server_wire.read_update(again.content, 3)
    )
    other = ask(profile, terms_in(noise, strategy, **{"clip-norm": 0.9}))
    assert code_of(other) == wire.DECLINED
    assert len(kinds(tmp_path)) == 1


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("noise", ["records", "client"])
def test_an_unpaid_round_is_declined(tmp_path: Path, noise: str, strategy: str) -> None:
    profile = willing(tmp_path)
    assert code_of(ask(profile, terms_in(noise, strategy), 4)) == wire.DECLINED
    assert kinds(tmp_path) == {}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("before", "after"), [pair for pair in itertools.permutations(NOISES, 2) if pair[0] != "server"]
)
def test_a_charged_run_keeps_noise(tmp_path: Path, before: str, after: str, strategy: str) -> None:
    profile = willing(tmp_path)
    assert ask(profile, terms_in(before, strategy)).has_content()
    assert code_of(ask(profile, terms_in(after, strategy), 2)) == wire.DECLINED
    assert list(kinds(tmp_path)) == [(1, "update")]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("noise", ["records", "client"])
def test_a_charged_runs_terms_stay(tmp_path: Path, noise: str, strategy: str) -> None:
    profile = willing(tmp_path)
    assert ask(profile, terms_in(noise, strategy)).has_content()
    changed = terms_in(noise, strategy, **{"local-epochs": 2})
    assert code_of(ask(profile, changed, 2)) == wire.DECLINED
    assert list(kinds(tmp_path)) == [(1, "update")]

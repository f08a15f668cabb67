"""``hdpfl-site audit``: what it prints, when it fails, and that it leaves everything alone."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

from client_app import audit as audit_module
from client_app.audit import ENGINES
from client_app.training import dpsgd
from hdpfl_flower.privacy.noise import RandomStream, add_noise

FEW = ("--canaries", "1000")
COMMAND = import_module("client_app.commands.audit")


def rows(text: str) -> list[tuple[str, float, float, float, float, str]]:
    """Return engine, claim, estimate, both bounds and the verdict of each row of an engine."""
    found = re.findall(
        r"^(\w+) +([\d.]+) +([\d.e+]+) +([\d.e+]+) +([\d.e+]+)  (.*)$", text, re.MULTILINE
    )
    return [(name, *map(float, numbers), verdict) for name, *numbers, verdict in found]


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def half_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    def halved(total: torch.Tensor, std: float, stream: RandomStream) -> torch.Tensor:
        return add_noise(total, std / 2, stream)

    monkeypatch.setattr(dpsgd, "add_noise", halved)


@pytest.fixture
def two_engines(monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """The audit of two engines, where what is tested is the same for all."""
    engines = ("linear", "opacus")
    monkeypatch.setattr(audit_module, "ENGINES", engines)
    return engines


@pytest.mark.slow
def test_bare_it_audits_every_engine(site) -> None:
    result = site.bare("audit")
    assert result.code == 0
    found = rows(result.out)
    assert [row[:2] for row in found] == [(name, claim) for name in ENGINES for claim in (1, 4, 8)]
    for _, claim, _, likely, sure, verdict in found:
        assert claim / 2 < sure < likely
        assert sure <= claim
        assert verdict == "consistent with the claim"
    assert "50000 canaries a row" in result.out
    assert result.err == "", "the bar is for terminals"


def test_an_engine_that_is_not_installed_is_named_and_not_audited(
    site, monkeypatch, two_engines
) -> None:
    assert "Not audited" not in site.bare("audit", "--epsilon", 2, "--canaries", 1000).out
    monkeypatch.setattr(COMMAND, "is_installed", lambda name: name != "opacus")
    result = site.bare("audit", "--epsilon", 2, "--canaries", 1000)
    assert result.code == 0
    assert [row[0] for row in rows(result.out)] == ["linear"]
    assert "Not audited: the engine 'opacus'" in result.out
    assert "hdpfl-flower[opacus]" in result.out


def test_claims_and_canaries_can_be_chosen(site, two_engines) -> None:
    result = site.bare("audit", "--epsilon", 2, "--epsilon", 6, "--canaries", 1200)
    assert result.code == 0
    assert [row[:2] for row in rows(result.out)] == [(n, c) for n in two_engines for c in (2, 6)]
    assert "1200 canaries a row" in result.out
    assert "proves nothing" in result.out
    assert "this site" not in result.out


def test_half_the_noise_violates_the_claim(site, half_noise) -> None:
    result = site.bare("audit", "--epsilon", 8, "--terms", site.terms_path)
    assert result.code == 1
    ((engine, claim, _, _, sure, verdict),) = rows(result.out)
    assert engine == "linear"
    assert sure > claim
    assert verdict == "VIOLATES the claim"
    facts = json.loads(site.bare("audit", "--epsilon", 8, "--terms", site.terms_path, "--json").out)
    assert facts["claims"][0]["violates"]


def test_for_machines(site) -> None:
    result = site("audit", *FEW, "--epsilon", 4, "--terms", site.terms_path, "--json")
    facts = json.loads(result.out)
    (claim,) = facts["claims"]
    assert claim["engine"] == facts["run"]["engine"] == "linear"
    assert (claim["claim"], claim["delta"], claim["canaries"]) == (4.0, 1e-5, 1000)
    assert claim["bound-sure"] < claim["bound-95"] < claim["estimate"]
    assert claim["violates"] is False
    assert facts["run"]["epsilon"] == 1.2345678
    assert not {"violates", "bound-95", "bound-sure"} & set(facts["run"]), "nothing is asserted"


def test_the_sites_own_run_is_estimated_and_not_judged(
    site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where it is plainly wrong: here its batches are not sampled, and its ε is passed."""
    monkeypatch.setattr(RandomStream, "bernoulli", lambda stream, count, _: np.arange(count))
    result = site("audit", *FEW, "--epsilon", 1, "--terms", site.terms_path)
    assert result.code == 0
    found = re.search(
        r"^this site's run: ε 1.235, δ 1e-05, q 0.25, 6 steps; estimate ([\d.]+) from 1000 ",
        result.out,
        re.MULTILINE,
    )
    assert found
    assert float(found[1]) > 1.235
    assert "nothing follows from this number" in result.out


def test_a_profile_without_terms_and_one_without_privacy(site, two_engines) -> None:
    assert "Add --terms" in site("audit", *FEW, "--epsilon", 1).out
    site.write_profile(
        ("epsilon = 4.0", "epsilon = inf"),
        ("epsilon = 1.2345678", "epsilon = inf"),
        ("[data]", "[simulation]\nseed = 1\n[data]"),
    )
    result = site("audit", *FEW, "--epsilon", 1, "--terms", site.terms_path)
    assert "there is no claim to audit" in result.out
    assert "noise from a seed" in result.out


def test_no_record_is_read_no_ledger_touched_and_nothing_written(opened) -> None:
    (opened.folder / "records.csv").unlink()
    before = tree(opened.folder)
    assert opened("audit", *FEW, "--epsilon", 1, "--terms", opened.terms_path).code == 0
    assert tree(opened.folder) == before
    opened.ledger_path.unlink()
    assert opened("audit", *FEW, "--epsilon", 1, "--terms", opened.terms_path).code == 0


BAD: dict[str, tuple[Callable[..., object], tuple[object, ...], str]] = {
    "too few canaries": (lambda site: None, ("--canaries", 999), "at least 1000"),
    "an ε of zero": (lambda site: None, ("--epsilon", 0), "positive, finite"),
    "a negative ε": (lambda site: None, ("--epsilon", -1), "positive, finite"),
    "an infinite ε": (lambda site: None, ("--epsilon", "inf"), "positive, finite"),
    "no number for ε": (lambda site: None, ("--epsilon", "nan"), "positive, finite"),
    "an ε that no noise fits": (lambda site: None, ("--epsilon", 1e-9), "no noise multiplier"),
    "a model that mixes records": (
        lambda site: (
            site.write_terms(model="tests.client_app.test_canaries:normed"),
            site.write_profile(
                ("[data]", "[policy]\nmodels = ['tests.client_app.test_canaries:normed']\n[data]")
            ),
        ),
        (),
        "mixes the records",
    ),
    "a model that its engine cannot train": (
        lambda site: (
            site.write_terms(model="mlp:4"),
            site.write_profile(("[data]", "engine = 'linear'\n[data]")),
        ),
        (),
        "engine 'linear' cannot train model 'mlp:4'",
    ),
    "code that the policy does not list": (
        lambda site: site.write_terms(model="os:getcwd"),
        (),
        "'policy.models' does not list",
    ),
    "a device that is not there": (
        lambda site: site.write_profile(('device = "cpu"', 'device = "cuda:99"')),
        (),
        "'training.device' is not on this machine",
    ),
    "terms that are not there": (lambda site: site.terms_path.unlink(), (), "are not there"),
    "a profile that others can read": (
        lambda site: site.profile_path.chmod(0o644),
        (),
        "chmod 600",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_leaves_nothing(opened, case: str) -> None:
    damage, words, reason = BAD[case]
    damage(opened)
    before = tree(opened.folder)
    result = opened("audit", *FEW, "--terms", opened.terms_path, *words)
    assert reason in result.error()
    assert result.out == ""
    assert tree(opened.folder) == before


@pytest.mark.parametrize("noise", ["client", "server"])
def test_a_run_whose_noise_is_not_that_of_steps_gets_no_estimate(opened, noise: str) -> None:
    more = "trust-server = true\n[budget]" if noise == "server" else "[budget]"
    opened.write_profile(("[budget]", more), ("[data]", "[policy]\nclient-noise = true\n[data]"))
    opened.write_terms(noise=noise)
    result = opened("audit", *FEW, "--epsilon", "4", "--terms", opened.terms_path)
    assert result.code == 0, result.err
    assert "there is no estimate of such a run" in result.out
    assert "this site's run" not in result.out


def test_code_without_a_profile_is_not_built(site) -> None:
    site.write_terms(model="os:getcwd")
    result = site.bare("audit", "--terms", site.terms_path)
    assert "name a profile" in result.error()
    assert result.out == ""

"""``hdpfl-site audit``: what it prints, when it fails, and that it leaves everything alone."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from hdpfl_flower.engines import dpsgd
from hdpfl_flower.privacy.noise import RandomStream, add_noise
from hdpfl_tools.site.audit import ENGINES

FEW = ("--canaries", "1000")


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
    assert "each row has 50000 canaries" in result.out
    assert result.err == "", "the bar is for terminals"


def test_half_the_noise_violates_the_claim(site, half_noise) -> None:
    result = site.bare("audit", "--epsilon", 8, "--terms", site.terms_path)
    assert result.code == 1
    ((engine, claim, _, _, sure, verdict),) = rows(result.out)
    assert engine == "linear"
    assert sure > claim
    assert verdict == "VIOLATES the claim"
    facts = json.loads(site.bare("audit", "--epsilon", 8, "--terms", site.terms_path, "--json").out)
    assert facts["claims"][0]["violates"]


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


def test_no_record_is_read_no_ledger_touched_and_nothing_written(opened) -> None:
    (opened.folder / "records.csv").unlink()
    before = tree(opened.folder)
    assert opened("audit", *FEW, "--epsilon", 1, "--terms", opened.terms_path).code == 0
    assert tree(opened.folder) == before
    opened.ledger_path.unlink()
    assert opened("audit", *FEW, "--epsilon", 1, "--terms", opened.terms_path).code == 0


def test_code_without_a_profile_is_not_built(site) -> None:
    site.write_terms(model="os:getcwd")
    result = site.bare("audit", "--terms", site.terms_path)
    assert "add a --profile" in result.error()
    assert result.out == ""

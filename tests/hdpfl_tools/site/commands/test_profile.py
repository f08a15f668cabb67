"""``hdpfl-site profile check``: what would stop a run is found before it."""

from __future__ import annotations

import os

import pytest

from hdpfl_flower.engines import engines
from hdpfl_tools.site.reports.ledger_view import read_ledger

WITH_ID = 'id = "who"\n'


def check(site, *args: object) -> list[str]:
    """Return the findings, a line each; status 1 exactly if one is an error."""
    result = site("profile", "check", *args)
    lines = result.out.splitlines()
    assert all(line.split("  ")[0].strip() in ("ok", "warning", "error") for line in lines), lines
    assert result.code == any(line.startswith("error") for line in lines), result
    assert result.err == ""
    assert "1.2345678" not in result.out
    assert "PATIENT-123" not in result.err
    return lines


def errors(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("error")]


def test_a_site_that_is_ready(opened) -> None:
    lines = check(opened, "--terms", opened.terms_path)
    text = "\n".join(lines)
    assert "ok       data: records: 41 found, 40 for training" in text
    assert "1, no known label" in text
    assert "trained by LinearEngine" in text
    assert "the largest batch fits" in text
    assert "the noise is calibrated" in text
    assert "own storage" in text, "the anchor lies beside the ledger here"
    assert not read_ledger(opened.profile).account.plans, "a check charges nothing"


def test_without_terms_the_records_are_not_read(opened) -> None:
    lines = check(opened)
    assert any("add --terms" in line for line in lines)
    (opened.folder / "records.csv").unlink()
    assert "data:" in errors(check(opened))[0]


def test_a_ledger_that_others_can_read(opened) -> None:
    opened.ledger_path.chmod(0o644)
    assert any("chmod 600" in line for line in check(opened))


def test_a_budget_that_is_used_up(opened) -> None:
    opened.write_profile(("[data]", "[policy]\nruns = 1\n[data]"))
    opened.charge("run-0", rounds=1)
    for given in ((), ("--terms", opened.terms_path)):
        found = errors(check(opened, *given))
        assert len(found) == 1
        assert "the site would decline another run" in found[0]
    opened.write_terms(**{"run_id": "run-0"})
    lines = check(opened, "--terms", opened.terms_path)
    assert not any("the site would decline another run" in line for line in lines)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("[data]", "[other]"), "'other' is not a known key"),
        (('[state]\npath = "state"', '[state]\npath = "records.csv"'), "state:"),
        (('device = "cpu"', 'device = "cuda:99"'), "device: 'training.device'"),
        (('device = "cpu"', 'device = "PATIENT-123"'), "device: 'training.device'"),
        (('device = "cpu"', 'engine = "opacus"\ndevice = "cpu"'), ""),
        (('path = "records.csv"', 'path = "none.csv"'), "data: "),
        (('format = "csv"', 'format = "images"'), "data: "),
        (("[data]", "[policy]\nstrategies = ['fedavg']\n[data]"), "terms: policy: 'strategy'"),
        (("[data]", "[policy]\nmax-payload-mb = 1e-6\n[data]"), "'policy.max-payload-mb'"),
    ],
)
def test_what_must_be_mended(opened, change: tuple[str, str], words: str) -> None:
    opened.write_profile(change)
    if change[1] == "[other]":
        assert words in opened("profile", "check").error()
        return
    found = errors(check(opened, "--terms", opened.terms_path))
    assert bool(found) == bool(words), found
    assert words in "".join(found)


def test_two_records_of_one_patient(opened) -> None:
    opened.write_profile(('path = "records.csv"', 'path = "records.csv"\nid = "who"'))
    opened.write_terms(schema=WITH_ID + opened.schema)
    opened.write_records(header="y,a,c,who", row="{label},{number},x,P{i}")
    assert not errors(check(opened, "--terms", opened.terms_path))
    opened.write_records(header="y,a,c,who", row="{label},{number},x,PATIENT-123")
    lines = check(opened, "--terms", opened.terms_path)
    assert not errors(lines)
    assert any(line.startswith("warning  data: 39 records have a repeated id") for line in lines)


def test_a_batch_that_does_not_fit(opened, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(engines, "rehearse", full)
    (error,) = errors(check(opened, "--terms", opened.terms_path))
    assert "'training.physical-batch'" in error


def test_terms_that_no_noise_can_pay_for(opened) -> None:
    opened.write_profile(("epsilon = 1.2345678", "epsilon = 1e-7"))
    (error,) = errors(check(opened, "--terms", opened.terms_path))
    assert "no noise multiplier" in error


def test_what_leaves_is_named(opened) -> None:
    assert any("only noisy updates leave" in line for line in check(opened))
    opened.write_profile(("\n[budget]", 'disclose = ["epsilon", "metrics"]\n[budget]'))
    text = "\n".join(check(opened))
    assert "'epsilon' leaves the site, and ε does not cover it" in text
    assert "'metrics' leaves the site, and ε does not cover it" in text
    assert "'data.holdout' keeps none" in text
    assert "'budget.exact-answers' is 0, so the site will decline every test" in text
    more = ("delta = 1e-4\n", "delta = 1e-4\nexact-answers = 5\n")
    opened.write_profile(more, ("\n[budget]", 'disclose = ["metrics"]\n[budget]'))
    assert "'budget.exact-answers'" not in "\n".join(check(opened))


def test_the_time_of_replies_is_looked_at(opened) -> None:
    assert "warning  time: 'reply-after' is not set" in opened("profile", "check").out
    opened.write_profile(("[budget]", "reply-after = 45\n[budget]"))
    assert "ok       time: replies leave at a constant time" in opened("profile", "check").out
    opened.write_terms(round_timeout=45.0)
    done = opened("profile", "check", "--terms", opened.terms_path)
    assert done.code == 1
    assert "error    time: 'reply-after' is not below the run's 'round-timeout'" in done.out


@pytest.mark.parametrize("part", ["ledger.sqlite", "ledger"])
def test_a_ledger_that_cannot_be_written_is_found_before_a_run(opened, monkeypatch, part) -> None:
    """Its file, or its folder, on a volume that is mounted read-only, say."""
    access = os.access
    denied = {"ledger.sqlite": opened.ledger_path, "ledger": opened.ledger_path.parent}[part]
    monkeypatch.setattr(os, "access", lambda path, mode: path != denied and access(path, mode))
    done = opened("profile", "check")
    assert done.code == 1
    (line,) = [line for line in done.out.splitlines() if line.startswith("error")]
    assert "cannot be written by this user, so the site would refuse a run" in line

"""``hdpfl-site plan``: its numbers are those of the plan, and it charges nothing."""

from __future__ import annotations

import math
import re
import time

import numpy as np
import pytest

from hdpfl_flower.config.profile import Profile
from hdpfl_flower.privacy.accounting import Steps, calibrate
from hdpfl_flower.privacy.plan import make_plan
from hdpfl_tools.site.commands.plan import signal_to_noise
from hdpfl_tools.site.reports.ledger_view import read_ledger

SIZE = 4  # two categories, a number and the bias


def number(text: str, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} +([0-9.e+-]+|inf)", text, re.MULTILINE)
    assert found, text
    return float(found[1])


def test_the_numbers(opened) -> None:
    result = opened("plan", "--terms", opened.terms_path)
    assert result.code == 0
    terms = opened.terms
    z = calibrate([Steps(0.25, 2 * 3)], 1.2345678, 1e-5)
    std = math.sqrt(2) * terms.learning_rate * z * terms.clip_norm / 10
    signal = 2 * terms.learning_rate * terms.clip_norm
    expected = {
        "sampling probability q": 0.25,
        "steps a round k": 2,
        "noise multiplier z": z,
        "noise in a coordinate": std,
        "noise, length": math.sqrt(SIZE) * std,
        "signal, length": signal,
        "signal to noise": signal / (math.sqrt(SIZE) * std),
    }
    for name, value in expected.items():
        assert number(result.out, name) == pytest.approx(value, rel=1.1e-3), name
    assert number(result.out, "noise multiplier z") >= z
    assert "ε 1.235, δ 1e-05; nothing returns" in result.out
    assert "left after it: ε 2.765, δ 9e-05; runs of this cost that fit: 3" in result.out
    rows = re.findall(r"^ +(\d+)(?: \(this run\))? +([0-9.]+) ", result.out, re.MULTILINE)
    assert [int(rounds) for rounds, _ in rows] == [1, 3, 6, 12]
    assert [float(z) for _, z in rows] == sorted(float(z) for _, z in rows)
    assert not read_ledger(opened.profile).account.plans, "a plan is only looked at"


def test_the_noise_is_that_of_an_update() -> None:
    """An update from no record is noise alone: its spread is the one that is printed."""
    from hdpfl_flower.config.terms import RunTerms
    from hdpfl_flower.engines.dpsgd import train
    from hdpfl_flower.engines.engine_choice import engine_for
    from hdpfl_flower.models.task import Records, Task
    from hdpfl_flower.privacy.noise import ReleaseStreams

    profile = Profile.parse(
        {
            "budget": {"epsilon": 1.2345678, "delta": 1e-5},
            "run": {"epsilon": 1.2345678, "delta": 1e-5},
            "training": {"batch-size": 10, "declared-records": 40},
        }
    )
    terms = RunTerms(rounds=3).updated(local_steps=2, learning_rate=0.7, clip_norm=3.0)
    task, made = Task((9999,), 1, "logistic"), make_plan(profile, terms)
    none = Records(np.zeros((0, 9999), np.float32), np.zeros(0, np.int64))
    update = train(
        engine_for("logreg", task, "auto", "cpu"),
        np.zeros(10_000, np.float32),
        none,
        made.round(1, terms.clip_norm),
        terms.learning_rate,
        ReleaseStreams.simulated(1, "0", 1, "update"),
        16,
    )
    loud = signal_to_noise(made, terms, update.size)
    # The standard error of a standard deviation from 10,000 normals is 0.7 %; 5 of them are 3.5 %.
    assert update.std() == pytest.approx(loud.std, rel=0.035)
    assert np.linalg.norm(update) == pytest.approx(loud.noise, rel=0.035)


def test_a_run_that_does_not_fit(opened) -> None:
    for run in "abc":
        opened.charge(run, rounds=1)
    result = opened("plan", "--terms", opened.terms_path)
    assert result.code == 1
    assert "does NOT fit" in result.out
    opened.write_terms(run_id="a")
    charged = opened("plan", "--terms", opened.terms_path)
    assert charged.code == 0
    assert "runs of this cost that still fit: 0" in charged.out


def test_a_run_that_was_charged_keeps_its_plan(opened) -> None:
    opened.charge("run-1")
    opened.write_profile(("epsilon = 1.2345678", "epsilon = 0.9"))
    opened.write_terms(runs_dir="/elsewhere", seed=5)
    result = opened("plan", "--terms", opened.terms_path)
    assert "charged already: ε 1.235, δ 1e-05" in result.out
    opened.write_terms(rounds=4)
    error = opened("plan", "--terms", opened.terms_path).error()
    assert "'rounds' changed after the plan was frozen" in error


def test_the_policy_and_the_model_are_checked(site) -> None:
    site.write_terms(rounds=5000)
    assert "'policy.max-rounds'" in site("plan", "--terms", site.terms_path).error()
    site.write_terms(model="cnn")
    assert "images" in site("plan", "--terms", site.terms_path).error()
    site.write_profile(("[data]", "[policy]\nmax-rounds = 3\n[data]"))
    site.write_terms()
    assert site("plan", "--terms", site.terms_path).out.count("refused: policy.max-rounds") == 2


def test_steps_and_sizes_are_bounded_before_anything_is_computed(site) -> None:
    begun = time.monotonic()
    site.write_terms(rounds=1000, local_steps=10_000)
    assert "'policy.max-steps'" in site("plan", "--terms", site.terms_path).error()
    site.write_terms(model="mlp:1000000000")
    assert "at most 9999999" in site("plan", "--terms", site.terms_path).error()
    site.write_terms(model="mlp:20000:20000")
    for words in (("plan",), ("audit", "--profile", site.profile_path)):
        error = site(*words, "--terms", site.terms_path).error()
        assert "'policy.max-payload-mb'" in error
    assert time.monotonic() - begun < 60
    site.write_profile(("[data]", "[policy]\nmax-steps = 12\n[data]"))
    site.write_terms(local_steps=1, rounds=6)
    assert site("plan", "--terms", site.terms_path).out.count("refused: policy.max-steps") == 1


def test_a_common_noise_pays_for_the_rounds_that_fit(opened) -> None:
    opened.write_terms(rounds=12, noise_multiplier=3.0)
    made = make_plan(opened.profile, opened.terms)
    assert 0 < made.rounds < 12
    result = opened("plan", "--terms", opened.terms_path)
    assert result.code == 0
    paid = f"rounds paid for {made.rounds:>18}   of 12: what ε affords at this z; then the"
    assert paid in result.out
    assert number(result.out, "noise multiplier z") == 3
    assert "more rounds add no noise here" in result.out
    assert "(this run)" not in result.out
    opened.write_terms(noise_multiplier=0.2)
    error = opened("plan", "--terms", opened.terms_path).error()
    assert "'noise-multiplier' is too small for a single round" in error


def test_a_papers_formula_is_refused(opened) -> None:
    opened.write_terms(calibration="pfa")
    assert "paper's formula" in opened("plan", "--terms", opened.terms_path).error()

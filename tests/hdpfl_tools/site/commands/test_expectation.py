"""``hdpfl-site worth --terms``: what the records would reach alone; it costs no budget."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import pytest

from hdpfl_flower.measures.bootstrap import Estimate
from hdpfl_flower.privacy.plan import make_plan
from hdpfl_tools.site.worth import expectation
from hdpfl_tools.site.worth.candidates import CONSTANT, HOME
from hdpfl_tools.site.worth.comparison import Judged, ModelComparison, Question
from hdpfl_tools.site.worth.expectation import ALONE, Expectation, expect, in_words
from tests.hdpfl_tools.site.commands.conftest import SiteFolder
from tests.hdpfl_tools.site.commands.test_worth import files, prepare

QUICK = Question(folds=2)


@pytest.fixture(autouse=True)
def fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hdpfl_flower.measures.bootstrap.DRAWS", 500)


def quiet(title: str, total: int) -> AbstractContextManager[Callable[[], None]]:
    """Show no progress."""
    return nullcontext(lambda: None)


def expected(site: SiteFolder, epsilon: float = 1.2345678, **terms: object) -> Expectation:
    """Return the expectation where one run may cost ``epsilon``."""
    prepare(site)
    text = site.profile_path.read_text().replace("epsilon = 1.2345678", f"epsilon = {epsilon}")
    site.profile_path.write_text(text.replace("epsilon = 4.0", "epsilon = inf"))
    site.write_terms(**{"learning_rate": 1.0, "rounds": 10, "local_steps": 5, **terms})
    plan = make_plan(site.profile, site.terms)
    return expect(site.profile, site.terms, plan, QUICK, quiet)


def accuracy(expectation_of: Expectation, name: str) -> float:
    (model,) = [
        candidate for candidate in expectation_of.comparison.models if candidate.name == name
    ]
    return model.measures["accuracy"].value


def test_noise_of_the_plan_takes_away_what_is_learned(site) -> None:
    """The same steps at another ε: nearly all right without noise, a coin's toss with much."""
    much, little, none = (expected(site, epsilon) for epsilon in (0.01, 8.0, float("inf")))
    assert accuracy(none, ALONE) > 0.85
    assert accuracy(little, ALONE) > 0.7
    # 80 records, 3 simulations of 2 folds: a model of noise is right on half of them, ± 0.25.
    assert abs(accuracy(much, ALONE) - 0.5) < 0.3
    assert accuracy(much, ALONE) < accuracy(none, ALONE) - 0.1
    assert much.spread > 0.01
    for expectation_of in (much, little, none):
        assert accuracy(expectation_of, HOME) == accuracy(none, HOME) > 0.85


def test_held_out_records_take_no_part(site) -> None:
    expectation_of = expected(site).comparison
    prepare(site)
    data = expectation.read_unit_records(
        site.profile.data, expectation.task_for(site.terms), site.schema
    )
    assert 0 < expectation_of.records == int((~data.held_out).sum()) < 160


def test_the_simulation_is_that_of_the_plan(site, monkeypatch) -> None:
    """Each step's noise, divisor and number are the plan's; only the randomness is made up."""
    seen: list[tuple] = []

    def note(engine, start, records, plan, rate, streams, batch):
        seen.append((plan, rate, streams.noise.bytes(8)))
        return np.zeros_like(start)

    monkeypatch.setattr(expectation, "train", note)
    expected(site)
    plan = make_plan(site.profile, site.terms)
    assert len(seen) == 10 * 2 * expectation.SEEDS
    assert {plan for plan, _, _ in seen} == {plan.round(1, site.terms.clip_norm)}
    assert {rate for _, rate, _ in seen} == {1.0}
    assert len({drawn for _, _, drawn in seen}) == len(seen)  # no noise twice


def test_it_is_shown_and_nothing_is_written(opened) -> None:
    prepare(opened)
    before = files(opened.folder)
    words = ("worth", "--terms", opened.terms_path, "--folds", "2")
    shown = opened(*words)
    assert shown.code == 0, shown.err
    assert "2-fold cross-validated over this site's" in shown.out
    assert ALONE in shown.out
    assert "Nothing was charged or written" in shown.out
    assert "verdict" not in shown.out
    assert files(opened.folder) == before
    expectation_of = json.loads(opened(*words, "--json").out)
    assert [model["name"] for model in expectation_of["models"]] == [CONSTANT, HOME, ALONE]
    for more in (("--run", "run-1"), ("--plot", "a.png"), ("--folds", "0")):
        assert opened(*words, *more).code == 2


def test_a_label_told_too_well_at_home_gives_no_conclusion() -> None:
    gains = {CONSTANT: Estimate(0.2, 0.1, 0.3)}
    for value, is_doubted in ((0.975, False), (0.985, True), (1.0, True)):
        home = Judged(HOME, "none", {"auroc": Estimate(value, 0.9, 1.0)}, gains)
        expectation_of = ModelComparison(
            "accuracy", 0.95, 9, 9, [home, Judged(ALONE, "none", {}, gains)]
        )
        said = in_words(Expectation(expectation_of, 0.1, 3))
        assert said.startswith("no conclusion: ") == is_doubted
        assert ("would be better than the constant" in said) != is_doubted

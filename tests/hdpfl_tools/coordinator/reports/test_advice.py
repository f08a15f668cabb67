"""The predicted ratio against the plans of sites, and what is proposed by it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import TermsError
from hdpfl_flower.models.task import Task
from hdpfl_flower.privacy.plan import make_plan
from hdpfl_tools.coordinator.reports.advice import (
    ENOUGH,
    PlannedSite,
    RunSetting,
    asked_setting,
    propose,
)
from tests.hdpfl_flower.ledger.plans import profile

TASK = Task.classification((20,), 3)
TERMS = RunTerms.parse(
    {
        "dataset": "site",
        "task": {"kind": "classification", "shape": "20", "classes": 3},
        "rounds": 5,
    }
)


def asked(epsilons: str, sites: int = 4, records: str = "200", **terms: object) -> RunSetting:
    return asked_setting(TERMS.updated(**terms), sites, records, epsilons, 1e-5, "50")


def test_the_ratio_is_that_of_the_sites_own_plans() -> None:
    """Signal √T·C over the noise √d·s, s by the plans' own noise: of an update, over its steps."""
    run = TERMS.updated(local_steps=3, clip_norm=2.0, learning_rate=0.5)
    setting = asked_setting(run, 3, "200×2,90", "0.5,2,8", 1e-5, "50×2,30")
    precision = 0.0
    for records, epsilon, batch in ((200, 0.5, 50), (200, 2.0, 50), (90, 8.0, 30)):
        site = profile(
            run={"epsilon": epsilon, "delta": 1e-5},
            training={"batch-size": batch, "declared-records": records},
        )
        std = make_plan(site, run).update_noise_std(5, 2.0, 0.5)
        precision += std**-2
    signal = 3 * 0.5 * 2.0
    assert setting.size == 63
    assert setting.of_round == pytest.approx(signal * math.sqrt(precision / 63), rel=1e-4)
    assert setting.of_run == pytest.approx(setting.of_round * math.sqrt(5))


@pytest.mark.usefixtures("guessed_noise")
def test_a_larger_model_is_proposed_where_the_ratio_allows() -> None:
    strict, loose = (propose(asked(epsilon, model="mlp:8"), TASK, 30) for epsilon in ("0.1", "60"))
    assert (strict.model, strict.rounds, set(strict.steps)) == ("logreg", 30, {4})
    assert loose.model.startswith("mlp:")
    assert loose.of_run >= ENOUGH > replace(strict, size=loose.size).of_run
    assert {site.batch_size for site in loose.sites} == {50}
    task = Task.classification((1, 28, 28), 10)
    run = {"dataset": "mnist", "task": None, "model": "cnn"}
    assert propose(asked("0.1", **run), task, 30).model == "logreg"
    assert propose(asked("80", 80, "9000", **run), task, 30).model == "cnn"


@pytest.mark.parametrize(
    "changes", [{"noise": "client"}, {"noise_multiplier": 1.0}, {"calibration": "pfa"}]
)
def test_noise_that_is_not_calibrated_for_records_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(TermsError, match="'noise-multiplier'"):
        asked("1", **changes)


def test_the_text_of_a_site_shows_none_of_its_numbers() -> None:
    assert "0.123" not in repr(asked("0.123")) + repr(PlannedSite(10, 0.123, 5))

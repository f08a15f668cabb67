"""What strategies with personal parts set, what they refuse, and what a run promises then."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import Declined, HDPFLError, ModelError
from hdpfl_flower.monitoring.journal import read_journal
from hdpfl_flower.privacy.policy import check_policy
from server_app.commands.promises import promises_table, read_promises
from server_app.run.rounds import ready_strategy
from server_app.simulation.in_process_run import run_in_process
from strategies.core.privacy_statement import describe
from tests.hdpfl_flower.ledger.plans import profile

MODEL: dict[str, Any] = {"model": "mlp:8", "local-steps": 5}
SETS: dict[str, dict[str, Any]] = {
    "fedper": {"personal_part": "head", "personal_training": "joint"},
    "fedrep": {"personal_part": "head", "personal_training": "alternate"},
    "ppsgd": {"personal_part": "", "personal_training": "offset"},
    "fedbabu": {"personal_part": "head", "personal_training": "frozen", "tuning_steps": 5,
                "tuning_part": "head"},
    "dp-fedavg-fb": {"personal_part": "", "personal_training": "joint", "tuning_steps": 5,
                     "tuning_part": "head"},
    "pmtl": {"tuning_steps": 5, "tuning_part": "all", "prox_lambda": 0.1},
    "dsu": {"personal_part": "head", "personal_training": "alternate",
            "shared_mask": "noisy-updates"},
    "dsu-published": {"personal_part": "head", "personal_training": "alternate",
                      "shared_mask": "published"},
    "fedavg": {"personal_part": "", "personal_training": "joint", "tuning_steps": 0,
               "tuning_part": "head", "shared_mask": "none"},
}  # fmt: skip


def terms_of(**config: Any) -> Any:
    return ready_strategy(RunConfig.parse({**MODEL, **config})).terms


@pytest.mark.parametrize("name", SETS)
def test_a_strategy_sets_what_the_terms_leave_open(name: str) -> None:
    for strategy in (name, f"{name}+pfa") if name != "pmtl" else (name,):
        terms = terms_of(strategy=strategy)
        assert {key: getattr(terms, key) for key in SETS[name]} == SETS[name]


@pytest.mark.parametrize("name", ["fedbabu", "dp-fedavg-fb", "pmtl"])
def test_tuning_is_as_long_as_a_round_where_the_terms_leave_it_open(name: str) -> None:
    for given, steps in (
        ({"local-steps": 7}, 7),
        ({"local-steps": 0, "local-epochs": 2}, 20),
        ({"tuning-steps": 3}, 3),
    ):
        assert terms_of(strategy=name, **given).tuning_steps == steps


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"strategy": "fedrep", "personal-training": "joint"},
         "'personal-training' is 'joint', and 'fedrep' trains 'alternate': leave it out"),
        ({"strategy": "fedper", "personal-training": "offset"}, "'fedper' trains 'joint'"),
        ({"strategy": "ppsgd", "personal-training": "frozen"}, "'ppsgd' trains 'offset'"),
        ({"strategy": "fedbabu", "personal-part": "body"}, "'personal-part' is 'body'"),
        ({"strategy": "fedbabu", "tuning-part": "all"}, "'tuning-part' is 'all'"),
        ({"strategy": "pmtl", "tuning-part": "head"}, "'pmtl' tunes 'all'"),
        ({"strategy": "dsu", "shared-mask": "published"}, "take 'dsu-published', which says so"),
        ({"strategy": "dsu-published", "shared-mask": "random"}, "take 'dsu'"),
        ({"personal-training": "alternate"}, "set 'personal-part'"),
        ({"personal-training": "frozen"}, "set 'personal-part'"),
        ({"shared-mask": "random"}, "set 'personal-part', or leave it out"),
        ({"strategy": "ppsgd", "personal-part": "head", "shared-mask": "random"},
         "shares everything: leave one of them out"),
        ({"strategy": "fedrep", "local-steps": 1}, "raise 'local-steps', or lower"),
        ({"strategy": "fedrep", "personal-steps": 5}, "raise 'local-steps', or lower"),
        ({"strategy": "fedper", "noise": "client", "dataset": "site", "schema": "heart"},
         "for simulated sites alone"),
        ({"strategy": "ditto", "personal-part": "head"}, "'personal-lambda' trains a personal"),
        ({"strategy": "ditto", "tuning-steps": 4}, "'personal-lambda' trains a personal"),
        ({"strategy": "fedavg+r-dpcfl", "personal-shrink": 1.0}, "would be of several models"),
        ({"strategy": "dsu-published", "dataset": "site", "schema": "heart"},
         "runs on simulated sites alone"),
        ({"strategy": "fedavg", "shared-mask": "published", "personal-part": "head",
          "dataset": "site", "schema": "heart"}, "take 'noisy-updates', or a named 'dataset'"),
    ],
)  # fmt: skip
def test_what_contradicts_is_refused_up_front_by_key_and_remedy(
    config: dict[str, Any], words: str
) -> None:
    with pytest.raises(HDPFLError) as error:
        terms_of(**config)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("strategy", ["fedper", "fedbabu", "dp-fedavg-fb", "dsu"])
def test_a_model_without_a_body_is_refused_before_any_site_is_asked(strategy: str) -> None:
    with pytest.raises(ModelError, match=r"is one layer \(.*weight.*nothing to share"):
        terms_of(strategy=strategy, model="logreg")
    for whole in ("ppsgd", "pmtl"):
        terms_of(strategy=whole, model="logreg")


@pytest.mark.parametrize(
    "terms",
    [
        {"personal-training": "alternate"},
        {"shared-mask": "random"},
        {"personal-part": "head", "shared-mask": "published"},
        {"personal-part": "head", "noise": "client", "dataset": "site", "schema": "heart"},
    ],
)
def test_sites_decline_the_same(terms: dict[str, Any]) -> None:
    site = profile(policy={"client-noise": True})
    with pytest.raises(Declined):
        check_policy(site, RunConfig.parse(terms).terms)


@pytest.mark.parametrize(
    "terms", [{"personal-prior": 0.1}, {"tuning-steps": 3}, {"selections": 2}], ids=str
)
def test_a_profile_can_forbid_releases_beside_the_rounds(terms: dict[str, Any]) -> None:
    asked = RunConfig.parse(terms).terms
    check_policy(profile(), asked)
    with pytest.raises(Declined, match=r"'policy\.extra-releases' is false") as error:
        check_policy(profile(policy={"extra-releases": False}), asked)
    assert next(iter(terms)) in str(error.value)
    check_policy(profile(policy={"extra-releases": False}), RunConfig.parse({}).terms)


# The mark of what violates.


def test_clean_masks_violate_under_whichever_strategy() -> None:
    for strategy in ("dsu-published", "fedrep"):
        terms = terms_of(strategy=strategy, **{"shared-mask": "published"})
        said = describe(terms)
        assert (said["violates"], said["epsilon"]) == ("every private site", math.inf)
    for honest in ("dsu", "fedrep", "ppsgd", "fedbabu"):
        assert "violates" not in describe(terms_of(strategy=honest))


@pytest.mark.usefixtures("guessed_noise")
def test_every_output_of_a_published_run_says_that_it_violates(tmp_path: Path) -> None:
    config = RunConfig.parse({
        **MODEL, "strategy": "dsu-published", "dataset": "digits", "rounds": 2, "run-id": "r",
        "runs-dir": str(tmp_path), "epsilons": "1,2", "local-steps": 2, "evaluation": "none",
    })  # fmt: skip
    run_in_process(config, 2)
    result = json.loads((tmp_path / "r" / "result.json").read_text())
    assert result["privacy"].get("violates") == "every private site"
    (event,) = (
        e for e in read_journal(tmp_path / "r" / "journal.jsonl") if e["event"] == "privacy"
    )
    assert event.get("violates") == "every private site"
    table, _ = promises_table(config, 2, read_promises({"dsu-published": tmp_path / "r"}))
    console = Console(width=120, record=True)
    console.print(table)
    shown = console.export_text()
    assert "VIOLATED for every private site" in shown
    assert " inf " in shown

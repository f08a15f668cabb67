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
from hdpfl_flower.work import Alternate, Frozen, Joint, Offset, Plain
from hdpfl_tools.coordinator.commands.promises import promises_table, read_promises
from hdpfl_tools.simulation.in_process.in_process_run import run_in_process
from server_app.run.rounds import ready_kernel
from strategies.core.privacy_statement import describe
from tests.hdpfl_flower.ledger.plans import profile

HEAD = {"after.tuning.part": "head", "after.tuning.steps": "round"}
MODEL: dict[str, Any] = {"model": "mlp:8", "local-steps": 5}
SETS: dict[str, dict[str, Any]] = {
    "fedper": {"work": Joint()},
    "fedrep": {"work": Alternate()},
    "ppsgd": {"work": Offset()},
    "fedbabu": {"work": Frozen(), **HEAD},
    "dp-fedavg-fb": {"work": Plain(), **HEAD},
    "pmtl": {"work": Plain(pull=0.1), "after.tuning.part": "all"},
    "dsu": {"work": Alternate(mask="noisy-updates")},
    "dsu-published": {"work": Alternate(mask="published")},
    "fedavg": {"work": Plain(), "after.tuning.steps": None},
}


def terms_of(**config: Any) -> Any:
    return ready_kernel(RunConfig.parse({**MODEL, **config})).terms


@pytest.mark.parametrize("name", SETS)
def test_a_strategy_sets_what_the_terms_leave_open(name: str) -> None:
    for strategy in (name, f"{name}+pfa") if name != "pmtl" else (name,):
        terms = terms_of(strategy=strategy)
        values = {**terms.as_config(), "work": terms.work}
        assert {key: values.get(key) for key in SETS[name]} == SETS[name]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"strategy": "fedrep", "work": {"kind": "joint"}},
         "'work.kind' is 'joint', but 'fedrep' works 'alternate': leave it out"),
        ({"strategy": "fedper", "work": {"kind": "offset"}}, "'fedper' works 'joint'"),
        ({"strategy": "ppsgd", "work": {"kind": "frozen"}}, "'ppsgd' works 'offset'"),
        ({"after.tuning.share": 0.5}, "'after.tuning.share' is not a known key"),
        ({"after": {"prior": {"share": 1}}}, "'after.prior.share' must be less than 1"),
        ({"after.pior.share": 0.5},
         "'after.pior' is of a kind that this version does not know; did you mean 'after.prior'?"),
        ({"after": "prior share=0.5"}, "'after' must be tables, written [after.KIND]"),
        ({"after": {"prior": 0.5}}, "'after' has a key in another form than a setting of [after.K"),
        ({"after": {"prior": {"share": [1]}}}, "'after.prior.share' must be a finite number"),
        ({"after.shrink.scale": -1}, "'after.shrink.scale' must be greater than or equal to 0"),
        ({"after.tuning.part": "all"}, "'after.tuning' is set without 'steps'"),
        ({"work": {"kind": "alternate", "own-step": 2}}, "did you mean 'work.own-steps'?"),
        ({"work": "alternate own-steps=2"}, "'work' is a table: write [work] with a line 'kind ="),
        ({"work": "plain", "work.pull": 0.1}, "'work' is a table: write [work]"),
        ({"work": {"own-step": 2}}, "that no kind has; did you mean 'work.own-steps'?"),
        ({"work": {"own_steps": 2}}, "'work' has a key in another form than a setting of [work]"),
        ({"spend.ratio": 2}, "'spend' is of no known kind; write as 'spend.kind' one of even"),
        ({"work": {"kind": "offset"}, "after.shrink.scale": 0.05}, "already carries them on"),
        ({"work": {"kind": "offset", "mask": "random"}}, "'work.mask' is not a known key"),
        ({"strategy": "ppsgd", "work": {"mask": "random"}},
         "'work' of 'ppsgd' is of kind 'offset': 'work.mask' is not a known key"),
        ({"strategy": "fedrep", "local-steps": 1}, "raise 'local-steps', or lower"),
        ({"strategy": "fedrep", "work": {"own-steps": 5}}, "raise 'local-steps', or lower"),
        ({"strategy": "fedper", "noise": "client", "dataset": "site", "schema": "heart"},
         "only simulated sites"),
        ({"strategy": "ditto", "work": {"kind": "joint"}}, "'second' is a model beside the whole"),
        ({"strategy": "ditto", "after.tuning.steps": 4}, "'second' is a model beside the whole"),
        ({"strategy": "fedavg+r-dpcfl", "after.shrink.scale": 0.05}, "needs one model"),
        ({"strategy": "dsu-published", "dataset": "site", "schema": "heart"},
         "runs only on simulated sites"),
        ({"strategy": "fedavg", "work": {"kind": "joint", "mask": "published"}, "dataset": "site",
          "schema": "heart"}, "take 'noisy-updates', or a named 'dataset'"),
    ],
)  # fmt: skip
def test_contradictions_are_refused_by_key(config: dict[str, Any], words: str) -> None:
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
        {"work": {"mask": "random"}},
        {"work": {"kind": "joint", "mask": "published"}},
        {"work": {"kind": "joint"}, "noise": "client", "dataset": "site", "schema": "heart"},
    ],
)
def test_sites_decline_the_same(terms: dict[str, Any]) -> None:
    site = profile(policy={"client-noise": True})
    with pytest.raises(Declined):
        check_policy(site, RunConfig.parse(terms).terms)


@pytest.mark.parametrize(
    ("terms", "named"),
    [({"after.prior.share": 0.25}, "'after.prior'"),
     ({"after.tuning.steps": "round"}, "'after.tuning'"),
     ({"after.scores.share": 0.5}, "'after.scores'"),
     ({"choice.kind": "gaussian"}, "'choice.kind'")],
)  # fmt: skip
def test_a_profile_can_forbid_releases_beside_the_rounds(terms: dict[str, Any], named: str) -> None:
    asked = RunConfig.parse(terms).terms
    check_policy(profile(), asked)
    with pytest.raises(Declined, match=r"'policy\.extra-releases' is false") as error:
        check_policy(profile(policy={"extra-releases": False}), asked)
    assert named in str(error.value)
    check_policy(profile(policy={"extra-releases": False}), RunConfig.parse({}).terms)


# The mark of what violates.


def test_clean_masks_violate_under_whichever_strategy() -> None:
    for strategy in ("dsu-published", "fedrep"):
        terms = terms_of(strategy=strategy, work={"mask": "published"})
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

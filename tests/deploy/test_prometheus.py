"""Every panel against a real Prometheus that watched a real run; the rules by promtool."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from hdpfl_flower.monitoring.journal import finished_rounds, read_journal
from tests.deploy.dashboards import GPU, Panel, panels_of
from tests.deploy.observatory import (
    FEDERATION,
    REFUSED,
    ROOT,
    WATCHED,
    Watched,
    fetch,
    missing,
    run_all,
    wait_for,
    watched,
)

pytestmark = [
    pytest.mark.prometheus,
    pytest.mark.skipif(bool(missing()), reason=f"{missing()} not found: apt install prometheus"),
]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A federation that has run under Prometheus' eyes."""
    with watched(tmp_path_factory.mktemp("watched")) as found:
        run_all(found, rounds=8, pause=0.5)
        yield found


@pytest.mark.parametrize(
    "panel",
    [panel for place in ("coordinator", "site") for panel in panels_of(place) if panel.row != GPU],
    ids=lambda panel: panel.title,
)
def test_every_query_of_every_panel_returns_data(here: Watched, panel: Panel) -> None:
    for query in panel.queries:
        found = here.ask(query.replace("$run", ".*"))
        assert found, query
        assert all(sample["value"][1] != "NaN" for sample in found), query


def test_what_prometheus_kept_is_what_the_journal_says(here: Watched) -> None:
    events = finished_rounds(read_journal(here.runs / FEDERATION / "journal.jsonl"))
    assert len(events) == 8
    for name, column in (("weight_ratio", "weights"), ("update_norm", "norms")):
        found = {
            sample["metric"]["site"]: float(sample["value"][1])
            for sample in here.ask(f'hdpfl_site_{name}{{run="{FEDERATION}"}}')
        }
        told = dict(zip(events[-1]["accepted"], events[-1][column], strict=True))
        assert found == pytest.approx(told)
    assert here.ask(f'hdpfl_site_bad_updates_total{{run="{FEDERATION}", site="0"}} == 1')
    for reason in ("failed", "malformed"):
        name = f'hdpfl_run_rejected_updates_total{{run="{FEDERATION}", reason="{reason}"}}'
        assert here.ask(f"{name} == 1"), reason
    (spent,) = here.ask("hdpfl_budget_taken_ratio")
    assert float(spent["value"][1]) == pytest.approx(6 / 7)


def test_rules_are_healthy_and_what_happened_alerts(here: Watched) -> None:
    expected = {"HDPFLBudgetNearlySpent", "HDPFLRefused", "HDPFLBadUpdate"}

    def firing() -> set[str]:
        alerts = fetch(here.url, "alerts")["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    wait_for(lambda: expected <= firing())
    assert "HDPFLLedgerBroken" not in firing()
    rules = [rule for group in fetch(here.url, "rules")["groups"] for rule in group["rules"]]
    texts = [path.read_text() for path in (ROOT / "docker" / "prometheus" / "rules").iterdir()]
    assert len(rules) == sum(text.count("- alert:") for text in texts) > 0
    assert {rule["health"] for rule in rules} == {"ok"}


def test_no_series_of_the_coordinator_has_a_value_of_a_profile(here: Watched) -> None:
    """What the sites' profiles say: ε 2, a batch of 16, 288 records, and no one else's is near."""
    profile = (here.sites[WATCHED] / "profile.toml").read_text()
    declared = float(profile.split("declared-records = ")[1].split("\n")[0])
    for sample in here.ask(f'{{job="hdpfl", run="{FEDERATION}"}}'):
        assert "epsilon" not in sample["metric"]["__name__"]
        assert float(sample["value"][1]) != declared, sample
    assert here.ask(f'{{job="hdpfl", run="{REFUSED}"}}')


@pytest.mark.parametrize(
    "words", [["check", "rules"], ["test", "rules"], ["check", "config", "--syntax-only"]]
)
def test_promtool_is_content(words: list[str]) -> None:
    folder = {"check rules": "rules", "test rules": "tests"}.get(" ".join(words), "")
    files = sorted((ROOT / "docker" / "prometheus" / folder).glob("*.yml"))
    assert len(files) == 2
    done = subprocess.run(["promtool", *words, *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

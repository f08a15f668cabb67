"""``hdpfl-site evaluate``: measures of the kept model on this site's own records."""

from __future__ import annotations

import json

import numpy as np
import pytest

from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.measures.concordance import concordance, risk_of
from hdpfl_flower.models.evaluation import predict
from hdpfl_tools.tables.site_data import read_site_data
from tests.hdpfl_tools.site.commands.test_model import keep
from tests.hdpfl_tools.site.commands.test_predict import without_schema

HELD_OUT = ('path = "records.csv"', 'path = "records.csv"\nholdout = 0.5')


@pytest.fixture(autouse=True)
def fewer_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test here needs many resamples."""
    monkeypatch.setattr("hdpfl_tools.measures.clinical.AT_MOST", 1)


def prepare(site, *more: str, records: int = 200, header: str = "y,a,c,ward") -> None:
    """Write records whose label is mostly whether column a is above 5."""
    site.write_profile((HELD_OUT[0], "\n".join([HELD_OUT[1], *more])))
    random = np.random.default_rng(1)
    numbers = random.uniform(0, 10, records)
    labels = (numbers + random.normal(0, 2, records) > 5).astype(int)
    rows = [
        f"{y},{a:.4f},{'xz'[i % 2]},{'west' if i % 4 else 'east'}"
        for i, (y, a) in enumerate(zip(labels, numbers, strict=True))
    ]
    (site.folder / "records.csv").write_text("\n".join([header, *rows]) + "\n")
    keep(site, (3, 0, 0), 0)


def asked(site, *words: object) -> dict:
    result = site("evaluate", "--json", *words)
    assert result.code == 0, result.err
    return json.loads(result.out)


def test_the_measures_are_of_the_held_out_records(site) -> None:
    prepare(site)
    test = read_site_data(site.profile.data, task_for(site.terms), site.schema).test
    right = (3 * test.features[:, 0] > 0) == test.targets
    facts = asked(site)
    assert facts["which"] == "held-out"
    assert facts["records"] == facts["units"] == len(test)
    accuracy = facts["measures"]["accuracy"]
    assert accuracy["value"] == pytest.approx(right.mean())
    assert accuracy["low"] < accuracy["value"] < accuracy["high"]
    assert asked(site, "--all")["records"] == 200


def test_survival_has_concordance_with_an_interval(site) -> None:
    draws = np.random.default_rng(1)
    x = draws.normal(size=(200, 2)).astype(np.float32)
    y = np.stack([draws.integers(3, size=200), draws.integers(2, size=200)], 1)
    np.savez(site.folder / "records.npz", x=x, y=y)
    site.write_profile(
        ('format = "csv"', 'format = "npz"'), (HELD_OUT[0], 'path = "records.npz"\nholdout = 0.5')
    )
    task, arrays = without_schema(site, task={"kind": "survival", "shape": "2", "intervals": 3})
    test = read_site_data(site.profile.data, task, "").test
    facts = asked(site)
    assert set(facts["measures"]) == {"concordance", "log-loss"}
    risks = risk_of(predict("logreg", task, arrays, test.features))
    estimate = facts["measures"]["concordance"]
    assert estimate["value"] == pytest.approx(concordance(risks, test.targets))
    assert estimate["low"] < estimate["value"] < estimate["high"]
    assert "concordance" in site("evaluate").out


def test_subgroups_are_by_schema_and_by_the_sites_own_columns(site) -> None:
    prepare(site, 'subgroups = ["c", "ward", "a"]', records=400)
    facts = asked(site)
    assert list(facts["subgroups"]["c"]) == ["x", "z"]
    assert set(facts["subgroups"]["ward"]) == {"east", "west"}
    lowest, middle, highest = facts["subgroups"]["a"]
    assert lowest.startswith("≤") and "≤" in middle and "≤" not in highest
    for groups in facts["subgroups"].values():
        assert sum(estimate["records"] for estimate in groups.values()) == facts["records"]
    shown = site("evaluate")
    assert "by ward:" in shown.out and "west" in shown.out


def test_a_small_subgroup_is_not_shown(site) -> None:
    prepare(site, 'subgroups = ["ward"]', records=100)
    facts = asked(site)
    assert list(facts["subgroups"]["ward"]) == ["west"]
    assert facts["subgroups-too-small"] == {"ward": 1}
    shown = site("evaluate").out
    assert "by ward; 1 with fewer than 20 units are not shown:" in shown
    assert "east" not in shown


def test_another_table_and_a_file(site) -> None:
    prepare(site)
    later = site.folder / "later.csv"
    later.write_text("y,a,c\n" + "\n".join(f"{i % 2},{i % 10},x" for i in range(40)) + "\n")
    facts = asked(site, "--table", later)
    assert (facts["which"], facts["records"]) == ("table", 40)
    out = site.folder / "measures.json"
    assert site("evaluate", "--json", "--out", out).code == 0
    assert json.loads(out.read_text())["run"] == "run-1"
    assert "exists already" in site("evaluate", "--out", out).error()

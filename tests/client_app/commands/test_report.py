"""``hdpfl-site report``: nothing that left the site, and nothing uncovered, goes unnamed."""

from __future__ import annotations

import json

import pytest

from hdpfl_flower.config.profile import Disclosure


def words(site) -> str:
    return site.whole_report()


def facts(site) -> dict:
    result = site("report", "--json")
    assert result.code == 0, result.err

    def no_constants(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(result.out, parse_constant=no_constants)


def test_the_promise_and_what_was_spent(opened) -> None:
    opened.charge("run-1", rounds=3)
    opened.charge("run-2", rounds=1)
    text = words(opened)
    assert "with ε = 2.47 and δ = 2e-05" in text
    assert "Protected is one record." in text
    assert "adding or removing one such unit" in text
    assert "see every byte this site ever sends, in all rounds and all runs" in text
    assert "at most 11.82 times as probable (e^ε)" in text  # e^2.4691356 = 11.8122, rounded up
    assert "sent 4:" in text
    assert "not sent. It does not mean secret" in text
    assert "no constant time of reply ('reply-after') is set" in text
    assert "declared number of records" in text
    found = facts(opened)
    assert found["spent"]["epsilon"] == pytest.approx(2 * 1.2345678)
    assert found["spent"]["epsilon"] + found["left"]["epsilon"] <= found["cap"]["epsilon"]
    assert [run["updates"]["sent"] for run in found["runs"]] == [3, 1]
    assert [run["rounds"] for run in found["runs"]] == [3, 3]
    assert found["ledger"]["entries"] == 1 + 2 + 3 * 4
    assert not found["no-privacy"]


@pytest.mark.parametrize("name", Disclosure.__args__)
def test_each_disclosure_is_named(opened, name: str) -> None:
    names = ["metrics", name] if name == "personal-metrics" else [name]
    opened.write_profile(("\n[budget]", f"disclose = {json.dumps(names)}\n[budget]"))
    assert f"'{name}', which the profile discloses" in words(opened)
    assert facts(opened)["disclosed"] == names


def test_metrics_that_left_are_counted_although_no_longer_disclosed(opened) -> None:
    opened.charge("run-1", rounds=2)
    opened.charge("run-1", rounds=2, kind="metrics")
    assert "Metrics without noise: 2 were released so far (exact accuracies: 2 of 0" in words(
        opened
    )
    opened.write_profile(("delta = 1e-4\n", "delta = 1e-4\nexact-answers = 20\n"))
    assert "exact accuracies: 2 of 20 answered" in words(opened)
    found = facts(opened)
    assert found["exact-answers"] == {"given": 2, "most": 20}
    assert found["metrics-released"] == 2
    assert found["updates"]["sent"] == 2


def test_an_infinite_epsilon_is_no_privacy_in_words(opened) -> None:
    opened.write_profile(
        ("epsilon = 4.0", "epsilon = inf"), ("epsilon = 1.2345678", "epsilon = inf")
    )
    assert "they give no privacy" in words(opened), "before the first run, too"
    opened.ledger_path.unlink()
    (opened.folder / "anchor" / "ledger.anchor").unlink()
    assert opened("ledger", "--init").code == 0
    opened.charge("run-1", rounds=1)
    text = words(opened)
    assert "NO PRIVACY: ε is infinite" in text
    assert "differentially private with" not in text
    found = facts(opened)
    assert found["no-privacy"]
    assert found["spent"]["epsilon"] == "inf"


def test_a_simulation_protects_nobody(opened) -> None:
    opened.write_profile(("[data]", "[simulation]\nseed = 1\n[data]"))
    text = words(opened)
    assert "NOTHING: this is a simulation" in text
    assert "differentially private with" not in text
    assert facts(opened)["simulation"]


def test_a_constant_time_of_reply_is_told_as_what_it_is(opened) -> None:
    opened.write_profile(("[budget]", "reply-after = 45\n[budget]"))
    text = words(opened)
    assert "no constant time of reply" not in text
    assert "took longer than the constant 'reply-after'" in text
    assert facts(opened)["reply-after"] == 45.0
    alone = opened.whole_report("--ledger", opened.ledger_path)
    assert "unless the profile sets a constant time of reply ('reply-after')" in alone

"""``hdpfl-site report --html``: in short, the budget's picture, the runs, and the whole report."""

from __future__ import annotations

import math
from html.parser import HTMLParser

import pytest
from scipy.stats import norm

from client_app.reports.attack import FALSE_POSITIVES, found_by_an_attacker, in_words
from client_app.reports.page import as_html
from hdpfl_flower.ledger.account import ChargedPlan


class Page(HTMLParser):
    """The elements and texts of a page; every element must be closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "br", "rect") or (
            tag == "rect" and not self.get_starttag_text().endswith("/>")
        ):
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self._open:
            self.words += data.split()

    @property
    def text(self) -> str:
        return " ".join(self.words)


def page(opened, *options: object) -> Page:
    result = opened("report", "--html", *options)
    assert result.code == 0, result.err
    return Page(result.out)


def test_the_name_of_a_run_and_its_strategy_are_text(opened) -> None:
    opened.charge("<script>alert(1)</script>", rounds=1)
    result = opened("report", "--html")
    assert "<script" not in result.out
    assert "&lt;script&gt;" in result.out
    assert "default-src 'none'" in result.out


def test_no_privacy_is_said_first(opened) -> None:
    opened.charge("run-1", rounds=1)
    facts = _facts(opened)
    facts |= {"no-privacy": True, "spent": {"epsilon": math.inf, "delta": 0.0}}
    facts["runs"][0]["epsilon"] = math.inf
    found = Page(as_html(facts))
    assert found.text.index("NO PRIVACY") < found.text.index("What leaves?")
    assert "What is promised?" not in found.text
    assert "not all of them with noise" in found.text


def _facts(opened) -> dict:
    import json

    return json.loads(opened("report", "--json").out)


# --- what an attacker gains ------------------------------------------------------------------


def test_the_attackers_rates_are_those_of_all_runs_together(opened) -> None:
    """Two runs are more than one, and no more than their sum of ε allows."""
    opened.charge("run-1", rounds=2)
    one = _facts(opened)["sums"][0]["attacker-finds"]
    opened.charge("run-2", rounds=2)
    (row,) = _facts(opened)["sums"]
    two = row["attacker-finds"]
    for rate in FALSE_POSITIVES:
        assert rate < one[f"{rate:g}"] < two[f"{rate:g}"]
        assert two[f"{rate:g}"] <= math.exp(row["epsilon"]) * rate + row["delta"]


def test_a_run_without_noise_finds_everybody_and_an_unreadable_one_says_nothing() -> None:
    unreadable = ChargedPlan('{"format": 1}', "{}", 1.0, 1e-5)
    assert found_by_an_attacker([unreadable]) is None
    assert found_by_an_attacker([]) is None


def test_rates_are_rounded_up() -> None:
    assert norm.cdf(norm.ppf(0.01) + 1) == pytest.approx(0.0924, abs=1e-4)
    assert in_words({"0.01": 0.0924}).startswith("could identify at most 10 of 100 records")
    assert in_words({"0.01": 0.03}).startswith("could identify at most 3 of 100 records")
    assert in_words({"0.01": 1.0}).startswith("could identify at most 100 of 100 records")

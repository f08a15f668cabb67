"""Numbers in the words of README and of the results are those of the committed tables."""

from __future__ import annotations

import operator
import re
from pathlib import Path

import pytest

from tests.docs.blocks import of_language
from tests.test_docs import DOCS, ROOT, TABLES

_NUMBER = re.compile(r"(?<![\w.])\d*\.\d+(?!\w|\.\d)")
_INCLUDED = re.compile(r'^ *--8<-- "(.*?)"$', re.M)
PAGES = [
    ROOT / "README.md",
    DOCS / "index.md",
    DOCS / "how-to" / "which-rule.md",
    *(
        DOCS / "concepts" / f"{name}.md"
        for name in ("guards", "noise-aware", "performance", "server-step", "shared-noise")
    ),
    *sorted((DOCS / "results").glob("*.md")),
]
DIFFERENCES = {
    "fedhdp.md": {"2.9": "92.5 - 89.6", "3.7": "92.48 - 88.75", "1.4": "90.36 - 88.93"},
    "pfa.md": {"1.1": "76.7 - 75.6"},
    "earlier.md": {"6.9": "79.0 - 72.1", "2.8": "81.0 - 78.2", ".00141": "0.02235 - 0.02094"},
}
"""Page → number → what it is computed from; the operands are in the page's tables."""
OF_NO_TABLE = {
    "README.md": ".56 .79 (tests/e2e/test_any_app.py runs it) 3.11 3.13 (Python)",
    "clusters.md": "0.03 (a rate)",
    "earlier.md": ".00007 (of ten paired seeds) .606 .704 .700 (FLamby) 0.05 .05 (settings)",
    "fedhdp.md": "3.6 (ε)",
    "first-message.md": ".2 .4 (points, of shares in the table) .05 .07 (rounded) .5 (ε)",
    "pfa.md": "0.8 0.05 (settings)",
    "robust-hdp.md": "1.5 0.19 (of the table: a bound) 3.5 (a table of the thesis) 0.03 (a rate)",
    "splitting.md": "2.4 2.8 (figures of the thesis) 2.0 (a ratio of two tables)",
    "which-rule.md": ".05 0.03 .15 (settings)",
    "noise-aware.md": "0.023 0.027 1.1 1.381 45.2 97.2 (of the commit that the page names)",
    "performance.md": "0.31 (of the commit that the page names)",
    "server-step.md": "0.1 0.3 (rates) 82.1 83.0 83.6 84.5 85.9 (the command below them)",
    "shared-noise.md": "84.3 (the same command, another number of colluders)",
}
"""Page → numbers that no table has, with the reason."""


def numbers(text: str) -> set[float]:
    return {float(number) for number in _NUMBER.findall(text)}


def words_of(text: str) -> str:
    """Return a page without its code, links, includes and generated tables."""
    return re.sub(r"```.*?```|`[^`\n]*`|\]\([^)]*\)|^ *--8<--[^\n]*", "", text, flags=re.S | re.M)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_number_of_a_page_is_in_a_table(page: Path) -> None:
    """In those that it shows; of an overview, in those of all pages and in outputs."""
    text = page.read_text()
    names = _INCLUDED.findall(text) or [path.name for path in TABLES.glob("*.md")]
    if page.name == "which-rule.md":  # two pages of one study
        names = [path.name for path in TABLES.glob("which-rule*.md")]
    shown = "".join((TABLES / name).read_text() for name in names)
    if page.name == "performance.md":
        shown += (ROOT / "benchmarks" / "README.md").read_text()
    known = numbers(shown) | numbers(OF_NO_TABLE.get(page.name, ""))
    if page.name in {"README.md", "index.md"}:
        known |= {number for block in of_language("text") for number in numbers(block.text)}
    for number, computed in DIFFERENCES.get(page.name, {}).items():
        left, right = map(float, computed.split(" - "))
        assert {left, right} <= numbers(shown), computed
        digits = len(number.partition(".")[2])
        assert round(operator.sub(left, right), digits) == float(number), computed
        known.add(float(number))
    assert numbers(words_of(text)) - known == set()


@pytest.mark.parametrize("named", [DIFFERENCES, OF_NO_TABLE])
def test_every_exception_is_needed(named: dict[str, object]) -> None:
    """Of a page that exists; a number that its page lost is dropped here."""
    pages = {page.name: page for page in PAGES}
    for name, listed in named.items():
        texts = "".join(words_of(page.read_text()) for page in PAGES if page.name == name)
        assert name in pages
        assert numbers(" ".join(listed) if isinstance(listed, dict) else str(listed)) <= numbers(
            texts
        ), name

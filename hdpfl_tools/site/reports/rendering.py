"""Texts of the site's report: its facts in the words of two templates.

The page forbids scripts and anything from elsewhere.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hdpfl_flower.ledger.account import sum_rounded_up
from hdpfl_flower.releases import RELEASES
from hdpfl_tools.site.reports.formatting import ROUNDING, ceil_digits, table
from hdpfl_tools.site.reports.ledger_view import exact_answers
from hdpfl_tools.site.reports.templates import templates
from hdpfl_tools.site.reports.units import BY_SERVER, MORE_OR_LESS, NOT_HERE, RECORD, WHOLE_SITE

if TYPE_CHECKING:
    from jinja2 import Environment

MOST_RUNS = 6
"""Runs whose coordinator and purpose are named in short, the last ones."""
_SHORT, _PAGE, _BUDGET = "short.txt.j2", "page.html.j2", "budget.txt.j2"
_LONGEST = 60
"""Characters of a server's text in short."""
_WIDTH = 92

Item = tuple[str, list[str]]
"""Mark of an item of ``short.txt.j2``, and its lines."""


def as_html(facts: dict[str, Any]) -> str:
    """Return the page of the facts of :func:`hdpfl_tools.site.reports.facts.gather`."""
    return _templates().get_template(_PAGE).render(_context(facts))


def as_text(facts: dict[str, Any]) -> str:
    """Return the facts in short, with every limit of the promise."""
    text = _templates().get_template(_SHORT).render(_context(facts))
    return "\n".join([*_laid_out(_items(text)), ""])


def sentences(facts: dict[str, Any], *blocks: str) -> list[str]:
    """Return the answers in blocks of ``short.txt.j2``, without their questions."""
    return [text for block in blocks for mark, text in _marked(facts, block) if mark != "?"]


def charges(facts: dict[str, Any]) -> list[list[str]]:
    """Return a header and a row of charges for each run; empty without runs."""
    return [cells for _, cells in _block(_SHORT, "charges", _context(facts))]


def lines(block: str, **values: object) -> list[str]:
    """Return the lines of a block of ``budget.txt.j2``."""
    return [" ".join(line) for _, line in _block(_BUDGET, block, values)]


def failed(facts: dict[str, Any]) -> list[str]:
    """Return the claims that the ledger's entries contradict."""
    return [row["claim"] for row in facts["assumptions"] if row["status"] == "fails"]


def runs_asked(facts: dict[str, Any]) -> list[dict[str, str]]:
    """Return the runs charged or decided on, with coordinator, purpose and decisions."""
    decisions, charged = facts["decisions"], {run["run-id"]: run for run in facts["runs"]}
    asked = []
    for name in dict.fromkeys([*charged, *(row["run-id"] for row in decisions)]):
        decided = [row for row in decisions if row["run-id"] == name]
        stated = [charged[name]] if name in charged else [r for r in decided if r["coordinator"]]
        run = stated[-1] if stated else {}
        missing = "not stated" if stated else "not in the ledger"
        by_whom = [
            f"{row['decision']} {row['at'][:16].replace('T', ' ')} UTC by {row['by']}"
            for row in decided
        ]
        asked.append(
            {
                "name": name,
                "charged": run.get("charged") or "-",
                "coordinator": run.get("coordinator") or missing,
                "purpose": run.get("purpose") or missing,
                "decisions": "; ".join(by_whom) or "no entry (standing approval)",
            }
        )
    return asked


def _marked(facts: dict[str, Any], block: str) -> list[tuple[str, str]]:
    return [(mark, " ".join(text)) for mark, text in _block(_SHORT, block, _context(facts))]


def _block(template: str, block: str, values: dict[str, Any]) -> list[Item]:
    source = _templates().get_template(template)
    return _items("".join(source.blocks[block](source.new_context(values))))


def _items(text: str) -> list[Item]:
    items: list[Item] = []
    for line in filter(None, text.split("\n")):
        if line.startswith("  "):
            items[-1][1].append(line[2:])
        else:
            items.append((line[0], [line[2:]]))
    return items


def _laid_out(items: list[Item]) -> Iterator[str]:
    """Yield the lines of a terminal for items of each kind."""
    for mark, group in groupby(items, key=lambda item: item[0]):
        if mark == "|":
            yield from ("", *table([cells for _, cells in group]))
            continue
        for _, words in group:
            text = " ".join(words)
            if mark in "?=":
                yield from ("", text) if mark == "?" else (text,)
                continue
            bullet = "- " if mark == "-" else ""
            # A path or a name longer than a line is not cut: it is there to be copied.
            yield from textwrap.wrap(
                text,
                _WIDTH,
                initial_indent=f"  {bullet}",
                subsequent_indent=" " * (2 + len(bullet)),
                break_long_words=False,
                break_on_hyphens=False,
            )


def _context(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the variables of a template: facts by name, with _ for -, and sums of them."""
    epsilons = [run["epsilon"] for run in facts["runs"] if run["epsilon"] is not None]
    return {
        **{name.replace("-", "_"): value for name, value in facts.items()},
        "failed": failed(facts),
        "asked": runs_asked(facts),
        "without_noise": math.inf in epsilons,
        "sum_of_epsilons": sum_rounded_up(epsilons),
        "charges": lambda: charges(facts),
        "marked": lambda block: _marked(facts, block),
    }


@cache
def _templates() -> Environment:
    environment = templates(Path(__file__).parent)
    environment.filters.update(
        up=lambda value: "-" if value is None else ceil_digits(value),
        factor=factor,
        hundredths=hundredths,
        counted=lambda number, thing: f"{number} {thing}{'' if number == 1 else 's'}",
        names=names_of,
        cut=lambda text: text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…",
    )
    environment.globals.update(
        RECORD=RECORD,
        WHOLE_SITE=WHOLE_SITE,
        BY_SERVER=BY_SERVER,
        NOT_HERE=NOT_HERE,
        MORE_OR_LESS=MORE_OR_LESS,
        MOST_RUNS=MOST_RUNS,
        ROUNDING=ROUNDING,
        INFINITY=math.inf,
        answered=exact_answers,
        kind_of_release=RELEASES.get,
    )
    return environment


def names_of(runs: list[str]) -> str:
    """Return the names of runs in a sentence."""
    return ("run " if len(runs) == 1 else "runs ") + ", ".join(f"'{run}'" for run in runs)


def factor(epsilon: float) -> str:
    """Return e^ε in print, rounded up."""
    return ceil_digits(math.exp(epsilon)) if epsilon < 20 else "more than a hundred million"


def hundredths(share: float) -> int:
    """Return a share in hundredths, rounded up beyond float64's own rounding.

    >>> hundredths(0.0312), hundredths(0.03), hundredths(1.0)
    (4, 3, 100)
    """
    return min(math.ceil(100 * share - 1e-9), 100)

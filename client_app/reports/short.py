"""A site's report in short: as text for a terminal, and as the head of the page."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator
from typing import Any

from client_app.reports.attack import in_words
from client_app.reports.board import exact_in_words, runs_asked
from client_app.reports.formatting import ROUNDING, ceil_digits, floor_digits, table
from client_app.reports.lifetime import bar
from client_app.reports.units import MORE_OR_LESS, NOT_HERE, things_of
from client_app.reports.wording import charges, failed, names_of
from hdpfl_flower.ledger.account import sum_rounded_up
from hdpfl_flower.system.printable import printable

TITLE = "Privacy report of this site"
CANNOT_BE_UNDONE = (
    "What has left stays with its receiver. Ending a run stops further updates; it recalls none "
    "and restores none of their budget."
)
THE_REST = "All runs, releases and checks: hdpfl-site report --html --out FILE, or --json."
_WIDTH = 92


def as_text(facts: dict[str, Any]) -> str:
    """Return the facts in short, with every limit of the promise."""
    ledger = facts["ledger"]
    lines = [
        TITLE.upper(),
        *_wrapped(alarms(facts), ""),
        *_wrapped([head(facts)], ""),
        *_wrapped([f"ledger {ledger['path']}, {ledger['entries']} entries verified"], ""),
        *_wrapped([f"digest of the last one: {ledger['digest']}"], ""),
    ]
    if facts["runs"]:
        lines += ["", *table([*charges(facts["runs"])])]
    for name, charged, coordinator, purpose, decision in runs_asked(facts, whole=False)[1:]:
        asked = f"run {name} ({charged}): {decision}. Asked by {coordinator}, for: {purpose}"
        lines += _wrapped([asked], "- ")
    not_covered = ("What does the promise not cover?", facts["not-covered"])
    for question, answers in (*in_short(facts), not_covered):
        lines += ["", question, *_wrapped(answers, "- ")]
    return "\n".join([*lines, "", ROUNDING, THE_REST, ""])


def head(facts: dict[str, Any]) -> str:
    """Return site and date in a line."""
    site = facts["site"] or "this site (no 'name' in its profile)"
    return f"{site}; made on {facts['made']} (UTC)"


def _wrapped(texts: Iterator[str] | list[str], mark: str) -> Iterator[str]:
    for text in texts:
        # A path or a name longer than a line is not cut: it is there to be copied.
        yield from textwrap.wrap(
            printable(text),
            _WIDTH,
            initial_indent=f"  {mark}",
            subsequent_indent=" " * (2 + len(mark)),
            break_long_words=False,
            break_on_hyphens=False,
        )


def alarms(facts: dict[str, Any]) -> Iterator[str]:
    """Yield faults that void the numbers, and runs outside of them."""
    for claim in failed(facts):
        yield (
            "CONTRADICTED: do not rely on the numbers of this report before it is cleared up. The "
            f"ledger's own entries say otherwise than '{claim}', see the assumptions checked."
        )
    if facts["simulation"]:
        yield "NOTHING: this is a simulation. Its noise comes from a seed, without protection."
        return
    if facts["clipped-updates-opted-out"]:
        yield (
            "NO PRIVACY in the runs of a trusted server: this site declared an infinite ε to it, "
            f"so {facts['clipped-updates-opted-out']} of its updates went into models without any "
            "noise. What follows does not cover them."
        )
    if facts["clipped-updates-released"] > facts["clipped-updates-opted-out"]:
        trusted = facts["trusted-server"]
        amount = f", at an ε of {ceil_digits(trusted['epsilon'])} in all"
        yield (
            f"CLIENT-LEVEL DP BY A TRUSTED SERVER for {names_of(trusted['runs'])}: their updates "
            "left without noise, and what follows does not cover them. That server promises, on "
            f"its word alone{amount}: {NOT_HERE}."
        )
    if _without_noise(facts):
        yield (
            "NO PRIVACY: ε is infinite. At least one run added no noise, so what this site sent "
            "may disclose anything about its records."
        )


def in_short(facts: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Yield a board's questions, each with its answers."""
    if not facts["simulation"] and not _without_noise(facts):
        yield "What is promised?", [*_promise(facts)]
    yield "What leaves?", [*_leaves(facts)]
    withdrawn = withdrawn_in_words(facts)
    yield "What cannot be undone?", [CANNOT_BE_UNDONE, *([withdrawn] if withdrawn else [])]
    yield "What was spent, and what is left?", [*(_taken if facts["order"] else _spent)(facts)]
    yield "What does an attacker gain who sees all of it?", [*_gain(facts)]


def withdrawn_in_words(facts: dict[str, Any]) -> str:
    """Return how many units withdrew their consent and when; empty for none."""
    days = facts["withdrawn"]
    if not days:
        return ""
    return (
        f"Consent was withdrawn for {_count(sum(days.values()), 'unit')} "
        f"({', '.join(f'{day}: {units}' for day, units in days.items())}): no record of theirs is "
        "read since. What left before stays, within the ε and δ of its run."
    )


def _promise(facts: dict[str, Any]) -> Iterator[str]:
    cap = f"ε = {floor_digits(facts['cap']['epsilon'])}, δ = {floor_digits(facts['cap']['delta'])}"
    if len(facts["sums"]) > 1 and not facts["order"]:
        yield from _by_unit(facts, cap)
    else:
        promise, spent = facts["promise"], facts["spent"] or facts["cap"]
        if facts["order"]:
            yield (
                "All noisy updates that this site releases under this ledger, over its life and "
                f"taken together, are (ε, δ)-differentially private with {cap}, whatever the "
                "server does. A run that does not fit under that is declined. The filter "
                "gives no ε of what was released so far."
            )
        else:
            yield (
                "All noisy updates that this site has released under this ledger, taken together, "
                f"are (ε, δ)-differentially private with ε = {ceil_digits(spent['epsilon'])} and δ "
                f"= {ceil_digits(spent['delta'])}, whatever the server does. Charges only grow, "
                f"and a run that does not fit under the cap {cap} is declined."
            )
        if len(facts["sums"]) > 1:
            yield "It holds for each unit, by the runs that protect it."
        for each in facts["sums"] if len(facts["sums"]) > 1 else [promise]:
            yield f"Protected is {each['unit']}."
            yield f"Compared is {each['relation']}."
        if spent["epsilon"]:
            more_or_less = promise["relation"] == MORE_OR_LESS
            what = "one unit more or less" if more_or_less else "what is compared"
            yield (
                f"In words: with {what}, whatever can be seen is at most "
                f"{_factor(spent['epsilon'])} times as probable (e^ε), but for a probability δ."
            )
    if row := facts["promise"]["row"]:
        yield f"By the present profile training uses the {row} of an id."
    yield f"The adversary is {facts['promise']['adversary']}."


def _by_unit(facts: dict[str, Any], cap: str) -> Iterator[str]:
    """Yield the promise of several units: a sum for each."""
    yield (
        "The runs of this ledger protect units of different size, so there is no single ε. The "
        "noisy updates of the runs of one unit, taken together, are (ε, δ)-differentially private "
        "for that unit, whatever the server does. Charges of all units count against the one cap "
        f"{cap}, only grow, and a run that does not fit under it is declined."
    )
    for each in facts["sums"]:
        yield (
            f"Protected is {each['unit']}, compared is {each['relation']}: "
            f"ε = {ceil_digits(each['epsilon'])}, δ = {ceil_digits(each['delta'])} "
            f"(e^ε = {_factor(each['epsilon'])}), by {names_of(each['runs'])} alone."
        )
        if total := each["with-all-records"]:
            yield (
                f"The runs of all records protect {each['unit']} as well. With them counted, its "
                f"ε is {ceil_digits(total['epsilon'])} and its δ {ceil_digits(total['delta'])}."
            )


def _leaves(facts: dict[str, Any]) -> Iterator[str]:
    left = facts["updates"]["sealed"] + facts["updates"]["sent"]
    yield (
        f"{_count(left, 'model update')} of {_count(len(facts['runs']), 'run')}, each with noise "
        "added at this site before it left. No record leaves."
        if not facts["no-privacy"]
        else f"{_count(left, 'model update')} of {_count(len(facts['runs']), 'run')}, not all of "
        "them with noise. No record leaves as such."
    )
    if facts["scores-released"]:
        found = _count(facts["scores-released"], "histogram")
        yield f"{found} of a model's scores on records held out, with noise in each count."
    yield exact_in_words(facts)
    if facts["clipped-updates-released"]:
        clipped = _count(facts["clipped-updates-released"], "update")
        yield f"{clipped} without noise, to a server that this site trusts to add it."
    if facts["disclosed"] is not None:
        named = ", ".join(
            f"{name} ({facts[name]})" if name in facts else name for name in facts["disclosed"]
        )
        yield f"Beside that, what the profile discloses, not protected by ε: {named or 'nothing'}."
    time = "at a constant time" if facts["reply-after"] else "at a time that depends on its work"
    yield f"Each reply leaves {time}."


def _spent(facts: dict[str, Any]) -> Iterator[str]:
    cap, spent, left = facts["cap"], facts["spent"], facts["left"]
    for name, word in (("epsilon", "ε"), ("delta", "δ")):
        yield (
            f"{word} {ceil_digits(spent[name])} of {floor_digits(cap[name])}; "
            f"{floor_digits(left[name])} is left."
        )
    yield (
        "ε is the privacy budget: the smaller, the less can be learned. A run that does not fit "
        "into what is left is declined."
    )
    yield from facts["notes"]


def _taken(facts: dict[str, Any]) -> Iterator[str]:
    cap = facts["cap"]
    yield f"{bar(facts['full'])} of the promise is taken."
    yield (
        "While a run is open, all that it may release is reserved. When it has ended, what was "
        "sealed, sent or lost of it stays taken, and the rest returns."
    )
    total = sum_rounded_up(run["epsilon"] for run in facts["runs"] if run["epsilon"] is not None)
    yield (
        f"The sum of the runs' ε would be {ceil_digits(total)} of {floor_digits(cap['epsilon'])}: "
        "adding up is not how this ledger composes them (a Rényi filter)."
    )
    yield from facts["notes"]


def _without_noise(facts: dict[str, Any]) -> bool:
    return math.inf in [run["epsilon"] for run in facts["runs"]]


def _gain(facts: dict[str, Any]) -> Iterator[str]:
    rows = [each for each in facts["sums"] if each["attacker-finds"]]
    if not rows:
        yield "Nothing so far: no run was charged." if not facts["runs"] else "It is not known."
        return
    for each in rows:
        names = f" ({names_of(each['runs'])})" if len(rows) > 1 else ""
        yield (
            f"An attacker who has seen everything that left with noise{names} "
            f"{in_words(each['attacker-finds'], things_of(each['unit']))}. By guessing alone it "
            "would be 1 of 100, or 10 of 100."
        )


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _factor(epsilon: float) -> str:
    """Return e^ε in print, rounded up."""
    return ceil_digits(math.exp(epsilon)) if epsilon < 20 else "more than a hundred million"

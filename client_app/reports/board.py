"""Facts for a board beside the promise: decisions, exact answers, NIST's questions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from client_app.reports.formatting import ceil_digits, floor_digits
from client_app.reports.ledger_view import LedgerView
from hdpfl_flower.ledger.account import APPROVED, REFUSED, Account

MOST_RUNS = 6
"""Runs listed in short, the last ones; the whole report has all."""
_LONGEST = 60
NIST = "https://doi.org/10.6028/NIST.SP.800-226"


def decisions(view: LedgerView) -> list[dict[str, str]]:
    """Return the operator's approvals and refusals, in the ledger's order."""
    return [
        {
            "run-id": e.body["run_id"],
            "decision": e.kind,
            "at": e.at,
            "by": e.body["by"],
            **asked_by(e.body.get("terms", "{}")),
        }
        for e in view.entries
        if e.kind in (APPROVED, REFUSED)
    ]


def withdrawn_by_day(account: Account) -> dict[str, int]:
    """Return day (UTC) → units that withdrew their consent on it and did not give it again."""
    noted = max(account.withdrawn.values(), key=len, default={})
    return dict(sorted(Counter(at[:10] for at in noted.values()).items()))


def asked_by(terms: str) -> dict[str, str]:
    """Return coordinator and purpose in the JSON of terms; empty where they are none."""
    try:
        found = json.loads(terms)
    except ValueError:
        found = {}
    found = found if isinstance(found, dict) else {}
    return {name: str(found.get(name, "")) for name in ("coordinator", "purpose")}


def exact_releases(view: LedgerView) -> list[dict[str, Any]]:
    """Return the releases without noise that may have left: run, round, answers."""
    return [
        {"run-id": run_id, "round": number, "answers": release.exact, "status": release.status}
        for (run_id, number, kind), release in view.account.releases.items()
        if (release.exact or kind == "metrics") and release.status in ("sealed", "sent")
    ]


def runs_asked(facts: dict[str, Any], *, whole: bool) -> list[tuple[str, ...]]:
    """Return runs with coordinator, purpose and decision, a header first.

    In short the last :data:`MOST_RUNS` alone, long texts cut.
    """
    decided = facts["decisions"]
    charged = {run["run-id"]: run for run in facts["runs"]}
    names = list(dict.fromkeys([*charged, *(each["run-id"] for each in decided)]))
    rows: list[tuple[str, ...]] = [
        ("run", "charged", "coordinator", "purpose", "decision of this site")
    ]
    for name in names if whole else names[-MOST_RUNS:]:
        approved = [each for each in decided if each["run-id"] == name and each["coordinator"]]
        run = {**(approved[-1] if approved else {}), **charged.get(name, {})}
        said = "; ".join(
            f"{each['decision']} {each['at'][:16].replace('T', ' ')} UTC by {each['by']}"
            for each in decided
            if each["run-id"] == name
        )
        missing = "not stated" if name in charged or approved else "not in the ledger"
        texts = (
            name,
            run.get("charged") or "-",
            run.get("coordinator") or missing,
            run.get("purpose") or missing,
            said or "no entry (standing approval)",
        )
        rows.append(texts if whole else tuple(map(_cut, texts)))
    return rows


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def exact_in_words(facts: dict[str, Any]) -> str:
    """Return which releases without noise left, run by run."""
    if not facts["exact-releases"]:
        return "Exact results without noise: none left."
    runs: dict[str, list[str]] = {}
    for each in facts["exact-releases"]:
        runs.setdefault(each["run-id"], []).append(str(each["round"]))
    listed = "; ".join(
        f"run '{name}': round{'' if len(rounds) == 1 else 's'} {', '.join(rounds)}"
        for name, rounds in runs.items()
    )
    answers = sum(each["answers"] for each in facts["exact-releases"])
    return (
        f"Exact test results WITHOUT noise: {answers}, in {len(facts['exact-releases'])} of the "
        f"replies ({listed}). No ε protects them; each may show more than one patient."
    )


def nist_rows(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield topics of NIST SP 800-226, and this report's statement on each; a header first."""
    cap, promise = facts["cap"], facts["promise"]
    yield ("topic of NIST SP 800-226", "what this report says")
    yield (
        "How large are ε and δ?",
        f"Over the life of the ledger at most ε {floor_digits(cap['epsilon'])}, δ "
        f"{floor_digits(cap['delta'])}; of each run: 'What was spent'. In words: 'What does an "
        "attacker gain'.",
    )
    yield (
        "What is the unit of privacy?",
        f"{promise['unit']}; compared is {promise['relation']}.",
    )
    yield (
        "Do several releases add up?",
        "Yes, in one ledger: "
        + (
            f"a Rényi filter of order {facts['order']}."
            if facts["order"]
            else "the sum of ε and of δ."
        )
        + " Each cost is computed again from the ledger, by two methods.",
    )
    yield (
        "Are algorithm and implementation correct?",
        "Noisy gradient descent (Gaussian noise, Poisson sampling), accounted by privacy loss "
        "distributions. 'Assumptions checked' says what the ledger shows and what it cannot; "
        "'hdpfl-site audit' attacks the code. Noise is of 64-bit numbers on a public grid: no "
        "proof against attacks on low-order bits.",
    )
    trusted = facts["clipped-updates-released"]
    yield (
        "Whom must one trust (threat model)?",
        f"Noise is added at this site before data leave it. The adversary is "
        f"{promise['adversary']}."
        + (f" But {ceil_digits(trusted)} updates left for a trusted server." if trusted else ""),
    )
    yield (
        "What of side channels?",
        "Times of replies: "
        + ("constant ('reply-after')." if facts["reply-after"] else "not made constant.")
        + " See 'What the promise does not cover'.",
    )
    yield (
        "How are the data secured, and who has access?",
        "Outside of ε. Profile and ledger are readable by the site's user alone; disk, memory and "
        "people of this machine are not covered.",
    )
    yield (
        "What of utility and bias?",
        "Not in this report. 'hdpfl-site evaluate' measures the model, also by subgroups "
        "('data.subgroups'); 'hdpfl-site worth' compares it with a model of this site alone.",
    )
    yield (
        "What of the collection of the data?",
        "Records stay where they were collected; who may hold them is outside of this report, "
        "and so is any use of them outside of this ledger.",
    )

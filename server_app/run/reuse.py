"""Reuse of a run's folder: allowed under the same terms only.

A site's ledger names its releases by the run's id and round. Every site declines a request of that
id under other terms, and the coordinator would see nothing but rounds without a quorum.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import DataError, TermsError
from hdpfl_flower.monitoring.journal import Event, read_journal

NAME = "comparison.json"
"""A comparison's file in its folder."""
_SHOWN = 40
"""Characters of a value that an error shows."""


def check_same_terms(
    folder: Path, config: RunConfig, remedy: str = "name another 'run-id'"
) -> None:
    """Refuse terms that differ from those of the run in ``folder``.

    One that was refused before it asked any is none: its mistake can be put right.

    Args:
        folder: a run's, new or used before.
        config: of the run that is to begin, settled.
        remedy: the alternative to putting the key back.

    Raises:
        TermsError: names each key that differs, and the remedy.
    """
    try:
        events = read_journal(folder / "journal.jsonl")
    except DataError:
        return  # a new run
    before, now = _asked_terms(events), config.as_config()
    # A table has keys only where it is asked for.
    differ = [key for key in {**now, **before} if before.get(key) != now.get(key)] if before else []
    if differ:
        key = differ[0]
        others = ", ".join(f"'{other}'" for other in differ[1:])
        more = f" (and {others})" if others else ""
        raise TermsError(
            f"run config: '{key}' is {_value(now.get(key))}, and the run in {folder} began with "
            f"{_value(before.get(key))}{more}. Sites answer only the same requests of that run "
            f"again; put the value back, or {remedy}"
        )


def check_same_sites(folder: Path, run_id: str, num_sites: int) -> None:
    """Refuse another number of sites than the comparison in ``folder`` has.

    Args:
        folder: of the comparison, with its ``comparison.json``.
        run_id: of a run that is to begin; where it is new, its sites have no ledgers yet.
        num_sites: sites that are to take part.

    Raises:
        TermsError: names ``--clients`` and the remedy.
    """
    if not (folder / run_id / "journal.jsonl").exists():
        return
    try:
        before = json.loads((folder / NAME).read_text(encoding="utf-8"))["clients"]
    except (OSError, ValueError, LookupError, TypeError):
        return  # the folder is not a comparison's
    if before != num_sites:
        raise TermsError(
            f"--clients is {num_sites}, and run {run_id} in {folder} has {before} sites, which "
            "keep their records and ledgers; put the value back, or name another --out"
        )


def _asked_terms(events: Sequence[Event]) -> dict[str, Any]:
    """Return the terms of the journal's last run with asked sites."""
    began: dict[str, Any] = {}
    asked: dict[str, Any] = {}
    for event in events:
        # The last run with asked sites counts: a later one that was refused changes nothing.
        if event["event"] == "run-started" and isinstance(event.get("terms"), dict):
            began = event["terms"]
        if event["event"] == "privacy":  # written with the first round's messages
            asked = began
    return asked


def _value(value: object) -> str:
    if value is None:
        return "nothing"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"

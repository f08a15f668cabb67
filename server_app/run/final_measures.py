"""Names and rows of a run's final measures."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hdpfl_flower.measures.words import SPECIFICITY, WORDS

EVENT = "measures"
"""The journal's event, and the key of ``result.json``."""
PUBLIC = "public test set"


def folder_name(strategy: str, seed: int) -> str:
    """Return the name of a compared run, and of its folder."""
    return f"{re.sub('[+:, ]+', '.', strategy)}-seed{seed}"


def read_final_measures(folder: Path, event: str = EVENT) -> dict[str, Any]:
    """Return the final measures in a folder's ``result.json``, or empty.

    Args:
        folder: the run's.
        event: which of them: on the public test set, or ``federated_measures.FEDERATED``.
    """
    path = folder / "result.json"
    facts = json.loads(path.read_text()).get(event) if path.is_file() else None
    return facts if isinstance(facts, dict) else {}


def measure_words(name: str, specificity: float = SPECIFICITY) -> str:
    """Return the words of a final measure.

    >>> measure_words("auroc"), measure_words("sensitivity")
    ('AUROC', 'sensitivity at 90 % specificity')
    """
    threshold = f" at {100 * specificity:g} % specificity" if name == "sensitivity" else ""
    return f"{WORDS.get(name, name)}{threshold}"


def measure_rows(facts: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return a row per measure: name, value and interval."""
    rows = []
    for name, estimate in facts.get("measures", {}).items():
        words = measure_words(name, facts.get("specificity", SPECIFICITY))
        ends = ["?" if estimate[end] is None else f"{estimate[end]:.3f}" for end in ("low", "high")]
        rows.append((words, f"{estimate['value']:.3f}", f"{ends[0]} to {ends[1]}"))
    for name, why in facts.get("missing", {}).items():
        rows.append((WORDS.get(name, name), "–", str(why)))
    return rows

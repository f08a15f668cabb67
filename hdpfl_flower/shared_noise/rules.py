"""Rules of a shared sum: one step of all sites a round, members and colluders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.shared_noise.members import default_colluders, members_of
from hdpfl_flower.work.base import Work

_EACH_SITE = "leave it out, or take noise = 'records'"


def contradictions(terms: RunTerms) -> Iterator[str]:
    """Yield terms that one clipped sum a round cannot follow, each with the remedy.

    Several local steps without noise between them would give a record no bounded move of the sum;
    an offset, a mask or a choice of a site is not in the sum of all of them.
    """
    wrong = {
        "local-steps": terms.local_steps > 1,
        "local-epochs": terms.local_epochs > 1,
        "work": not _is_one_step(terms.work),
        "choice": terms.choice is not None and terms.choice.kind != "none",
        "calibration": terms.calibration != "pld",
    }
    keys = [f"'{key}'" for key, is_wrong in wrong.items() if is_wrong]
    if keys:
        yield (
            "noise = 'shared' sums one step of the whole model a round, without "
            f"{' and '.join(keys)}; {_EACH_SITE}"
        )
    members = len(members_of(terms.members))
    if members and members < colluders_of(terms, members) + 2:
        yield (
            "'members' are fewer than 'colluders' + 2: two honest sites at least have "
            "to share the noise; name more members, or lower 'colluders'"
        )


def _is_one_step(work: Work) -> bool:
    """Return whether a round is one step of whole parts: plain, or joint or frozen parts."""
    whole = work.sends_every_coordinate and not work.full_first
    return whole and work.kind in {"auto", "plain", "joint", "frozen"}


def colluders_of(terms: RunTerms, members: int) -> int:
    """Return t of a run with so many members: stated, or a third of the others."""
    return terms.colluders or default_colluders(members)


def fault_of_deployed(terms: RunTerms, least: int) -> str:
    """Return the fault of terms for deployed sites: unnamed, or fewer than a run waits for."""
    members = len(members_of(terms.members))
    if not members:
        return (
            "noise = 'shared' needs 'members', NAME=KEY of every site: let each send its file "
            "(hdpfl-site peers show --to FILE), then print the line by: hdpfl members FILE…"
        )
    if members < least:  # those without a key take no part
        return (
            f"'min-sites' is {least} and 'members' has {members} keys; add those of the other "
            "sites, or lower 'min-sites'"
        )
    return ""


def facts(terms: RunTerms) -> dict[str, Any]:
    """Return the numbers of members and colluders, where members are named or settled."""
    members = len(members_of(terms.members))
    return {"members": members, "colluders": colluders_of(terms, members)} if members else {}


def settled(terms: RunTerms, sites: int) -> RunTerms:
    """Return the terms with the colluders of a simulation, all of whose sites are members."""
    return terms if terms.members else terms.updated(colluders=colluders_of(terms, sites))

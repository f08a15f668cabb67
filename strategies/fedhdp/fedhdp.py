"""FedHDP: average within privacy levels, then across them by noise.

Aldaghri, Mahdavifar and Beirami, Federated Learning with Heterogeneous Differential Privacy
(arXiv:2110.15252; TMLR), Algorithm 1: clients that opt out of privacy count fully, private ones r
times that, 0 ≤ r ≤ 1. ``level-ratio`` is r; r = 1 is the uniform average with the same privacy.
``auto`` is ours (``auto_weights.py``): noise averages out over the rounds planned, the bias of a
level that is unlike the others does not (``levels.drift_weights``); and noise lies in all
directions, updates in few, so the part of the means in the span of opted-out clients' earlier
updates and the rest are weighed each on its own. ``precision`` is weights by noise alone, which
collapse where opted-out clients are all alike: the case to compare with.

Threat model: see ``level_averaging.py``: the server is trusted where ``noise = "server"``, else
not. Every site discloses its ε; opted-out sites (ε infinite) are promised nothing, and the run's
report says so.
"""

from __future__ import annotations

from pydantic import Field

from strategies.fedhdp.level_averaging import Floats, LevelAveraging, LevelSettings
from strategies.fedhdp.levels import Menu, Ratios, menu_of


class FedHDPSettings(LevelSettings):
    """Settings of the levels and of their weights."""

    levels: Menu = Field(
        "",
        description="List of levels of ε, such as 1,3.6,inf. A site joins the level with the "
        "largest ε that it allows. Empty means two levels: the smallest disclosed "
        "ε, and inf.",
    )
    level_ratio: Ratios = Field(
        "auto",
        description="Weight of a client of a stricter level, from 0 to 1: auto, one number, "
        "one number for each level except the loosest, or precision (decided only "
        "by noise, for comparison).",
    )


class FedHDP(LevelAveraging):
    """Average within each privacy level, then across levels."""

    name = "fedhdp"
    settings_type = FedHDPSettings
    settings: FedHDPSettings

    @property
    def level_ratio(self) -> str:
        """Return the setting of a stricter level's relative weight."""
        return self.settings.level_ratio

    def menu(self, epsilons: Floats) -> tuple[float, ...]:
        """Return ε of each level, loosest first, from disclosed ε."""
        return menu_of(self.settings.levels, epsilons)

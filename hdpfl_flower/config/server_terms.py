"""What only the server uses: whom it asks, how long it waits, where it writes, what it refuses.

None of it is in a message or in a site's ledger. Flower itself hands each node the run config that
``flwr run`` was given, these keys included, so that nothing private belongs in any of them.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from hdpfl_flower.config.settings import AtLeastOne, Count, NotNegative, Positive, Settings, Share


class ServerTerms(Settings):
    """Keys that the server alone reads, whatever the strategy. Frozen."""

    fraction: Share = Field(
        1.0,
        description="Share of the sites asked each round; amplification with noise = server alone.",
    )
    quorum: Count = Field(0, description="Updates a round needs; 0: two thirds of those asked.")
    min_sites: AtLeastOne = Field(2, description="Sites to wait for before the first round.")
    join_timeout: Positive = Field(120.0, description="Seconds to wait for min-sites.")
    round_timeout: Positive = Field(3600.0, description="Seconds to wait for a round's replies.")
    runs_dir: str = Field("", description="Folder of the runs; empty: $HDPFL_HOME/runs.")
    public_split: str = Field(
        "auto",
        description="PFA: whose ε are loose (public), among all sites that joined: auto (gmm, or "
        "nobody where a single site's leaving moves others across), gmm (PFA's), kmeans, "
        "top:SHARE or threshold:EPSILON.",
    )
    require_public: bool = Field(
        False,
        description="Draw a round's sites again until one of them is public, whatever the "
        "strategy; sites must disclose their ε.",
    )
    guard: Literal["none", "cap", "centred-clipping", "evidence"] = Field(
        "none",
        description="Against sites that lie: none, cap (on a site's weight), centred-clipping, or "
        "evidence (gathered over the rounds).",
    )
    max_liars: Count = Field(
        2,
        description="Guard evidence: sites refused at most on suspicion, by the others' votes; "
        "what is proven (no noise, shared noise) is refused whatever the limit.",
    )
    noise_floor: NotNegative = Field(
        0.0,
        description="Guard evidence: least standard deviation of an honest update's noise, a "
        "coordinate; 0: not known.",
    )

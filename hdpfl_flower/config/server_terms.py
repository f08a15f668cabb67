"""Keys of the server: clients, waiting, output, refusals.

None of it is in a message or in a site's ledger. Flower itself hands each node the run config that
``flwr run`` was given, these keys included, so that nothing private belongs in any of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field, PlainValidator

from hdpfl_flower.config.settings import AtLeastOne, Count, NotNegative, Positive, Settings, Share
from hdpfl_flower.config.terms import AUTO

LEAST_RATE, LARGEST_RATE = 1e-9, 1e6
"""A server's rate beyond them has no meaning, and updates in float32 would vanish or overflow."""
FOUND: Final = "found"
"""A server's rate that the server finds from the rounds' aggregates."""


def _read_rate(value: object) -> float | Literal["auto", "found"]:
    if value == AUTO:
        return "auto"
    if value == FOUND:
        return "found"
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not LEAST_RATE <= value <= LARGEST_RATE:  # type: ignore[operator]
        raise ValueError(
            f"must be a number above 0, from {LEAST_RATE:g} to {LARGEST_RATE:g}, 'auto' or 'found'"
        )
    return float(value)  # type: ignore[arg-type]


Rate = Annotated[float | Literal["auto", "found"], PlainValidator(_read_rate)]


def rates_line(keys: Mapping[str, Any]) -> str:
    """Return a run's rates in words, from its run config.

    >>> rates_line({"learning-rate": 0.3, "server-learning-rate": "found"})
    "learning rate: the sites' 0.3, the server's found"
    """
    site, server = keys.get("learning-rate"), keys.get("server-learning-rate")
    return f"learning rate: the sites' {site}, the server's {server}"


class ServerTerms(Settings):
    """Keys that only the server reads. Frozen."""

    fraction: Share = Field(
        1.0,
        description="Share of the sites asked each round; amplification with noise = server alone.",
    )
    quorum: Count = Field(0, description="Updates a round needs; 0: two thirds of those asked.")
    min_sites: AtLeastOne = Field(2, description="Sites to wait for before the first round.")
    join_timeout: Positive = Field(
        120.0,
        description="Seconds to wait for min-sites, and for the operators of sites that are "
        "online to approve the run; a day is 86400.",
    )
    round_timeout: Positive = Field(3600.0, description="Seconds to wait for a round's replies.")
    memory_mb: Positive = Field(
        4096.0,
        description="Most megabytes that a strategy keeps of the sites' vectors: starts "
        "(splittings) or control variates (scaffold). A run that needs more is refused before "
        "round 1, a site that joins later for the round.",
    )
    runs_dir: str = Field("", description="Folder of the runs; empty: $HDPFL_HOME/runs.")
    notify: str = Field(
        "",
        description="Told of a site whose approval is pending, and of the run's end: path of a "
        "program that reads a notice (JSON) from standard input, or of a file with a URL to post "
        "it to.",
    )
    public_split: str = Field(
        "auto",
        description="PFA: whose ε are loose (public), among all sites that joined: auto (gmm, or "
        "none where a single site's leaving moves others across), gmm (PFA's), kmeans, "
        "top:SHARE or threshold:EPSILON.",
    )
    require_public: bool = Field(
        False,
        description="Draw a round's sites again until one of them is public, for any "
        "strategy; sites must disclose their ε.",
    )
    guard: Literal["none", "cap", "content"] = Field(
        "none",
        description="Against sites that lie: none, cap (on a site's weight), or content (of the "
        "class rows, by public records); both refuse what is proven.",
    )
    max_liars: Count = Field(
        2,
        description="Guard content: sites refused at most by public records; so many quiet sites "
        "are not believed. What is proven (no noise, copied noise) is always refused.",
    )
    public_records: str = Field(
        "",
        description="Guard content: the server's file of public records like the sites': .npz "
        "(arrays x and y as the model reads them), .csv or .parquet (by the run's schema); empty: "
        "the test set of the named 'dataset'.",
    )
    server_learning_rate: Rate = Field(
        AUTO,
        description="Factor of a round's aggregate at the server, for any strategy; "
        "auto: 1, but 0.01 after +adam and +yogi; found: by the server, from the aggregates.",
    )
    server_schedule: str = Field(
        "constant",
        description="Factor of server-learning-rate in round e + 1 of E: constant, linear "
        "(1 - e/E), log (1/(log10(e + 1) + 1)), sqrt (1/sqrt(e + 1)), inverse (1/(e + 1)), or "
        "halved:T (every T rounds).",
    )
    average: Literal["none", "tail", "ema", "ergodic"] = Field(
        "none",
        description="Which model is tested, stored and sent at the end: that of the last round "
        "(none), or a mean of the rounds' models: of the last half (tail), of all, of which each "
        "round keeps 0.8 (ema), or of all alike (ergodic). Sites always train from the last one.",
    )
    noise_floor: NotNegative = Field(
        0.0,
        description="Guards cap and content: least standard deviation of an honest update's "
        "noise, a coordinate; 0: not known.",
    )

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
        description="Share of the sites that is asked in each round. Sampling lowers ε only "
        "with noise = server.",
    )
    quorum: Count = Field(
        0, description="Updates that a round needs. 0 means two thirds of the sites asked."
    )
    min_sites: AtLeastOne = Field(
        2, description="Number of sites to wait for before the first round."
    )
    join_timeout: Positive = Field(
        120.0,
        description="Seconds to wait for min-sites, and for the operators of online sites to "
        "approve the run. A day is 86400.",
    )
    round_timeout: Positive = Field(3600.0, description="Seconds to wait for a round's replies.")
    memory_mb: Positive = Field(
        4096.0,
        description="Most megabytes of sites' vectors that a strategy keeps: starts "
        "(splittings) or control variates (scaffold). A run that needs more is "
        "refused before round 1. A site that joins later and would need more is "
        "left out of the round.",
    )
    runs_dir: str = Field("", description="Folder of the runs. Empty means $HDPFL_HOME/runs.")
    notify: str = Field(
        "",
        description="Where to send a notice when a site's approval is pending, and when the "
        "run ends: path of a program that reads the notice (JSON) from standard "
        "input, or of a file that holds a URL to post it to.",
    )
    public_split: str = Field(
        "auto",
        description="For PFA: how the sites that joined are split into public ones (with a "
        "loose ε) and private ones: gmm (as in PFA), kmeans, top:SHARE, "
        "threshold:EPSILON, or auto. auto is gmm, or no public site if the split "
        "changes for other sites when a single site leaves.",
    )
    require_public: bool = Field(
        False,
        description="Draw the sites of a round again until one of them is public, for any "
        "strategy. Sites must disclose their ε.",
    )
    guard: Literal["none", "cap", "content"] = Field(
        "none",
        description="Guard against sites that lie: none, cap (a bound on a site's weight), or "
        "content (a check of the class rows with public records). cap and content "
        "both refuse an update that is proven to be forged.",
    )
    max_liars: Count = Field(
        2,
        description="Guard content: most sites that the guard may refuse because of public "
        "records. It also does not trust this many sites with the least noise. A "
        "proven forgery (no noise, copied noise) is always refused.",
    )
    public_records: str = Field(
        "",
        description="Guard content: file at the server with public records like those of the "
        "sites: .npz (arrays x and y as the model reads them), .csv or .parquet "
        "(by the run's schema). Empty means the test set of the named 'dataset'.",
    )
    server_learning_rate: Rate = Field(
        AUTO,
        description="Factor by which the server multiplies the aggregate of a round, for any "
        "strategy. auto means 1, but 0.01 after +adam and +yogi. found means that "
        "the server finds it from the aggregates.",
    )
    server_schedule: str = Field(
        "constant",
        description="Factor of server-learning-rate in round e + 1 of E: constant, linear (1 - "
        "e/E), log (1/(log10(e + 1) + 1)), sqrt (1/sqrt(e + 1)), inverse (1/(e + "
        "1)), or halved:T (halved every T rounds).",
    )
    average: Literal["none", "tail", "ema", "ergodic"] = Field(
        "none",
        description="Which model is tested, stored and sent at the end: the model of the last "
        "round (none), the mean of the last half of the rounds (tail), a mean of "
        "all rounds in which each round keeps 0.8 of the mean before it (ema), or "
        "the plain mean of all rounds (ergodic). Sites always train from the model "
        "of the last round.",
    )
    noise_floor: NotNegative = Field(
        0.0,
        description="Guards cap and content: least standard deviation of the noise in a "
        "coordinate of an honest update. 0 means that it is not known.",
    )

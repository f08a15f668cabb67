"""Panels of both dashboards as data, with queries of ``monitoring/series.py``.

``dashboards.py`` builds Grafana's JSON from this, and the tests send every query to a real
Prometheus.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hdpfl_flower.monitoring import series as metrics
from hdpfl_flower.monitoring.series import Series

Kind = Literal["timeseries", "stacked", "heatmap", "stat", "status"]
RUN = "run"
"""Dashboard variable with the names of the shown runs."""
CLUSTERED, MEASURED = "Where a strategy clusters", "Where the model is measured"
GPU = "GPU, where NVIDIA's dcgm-exporter is scraped"
"""Rows that are folded up."""


@dataclass(frozen=True)
class Query:
    """Query of a panel, with Grafana's ``legend`` (labels in double braces)."""

    expr: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """One panel.

    Attributes:
        title: its heading.
        says: its meaning.
        queries: its queries.
        kind: its form; ``status`` is green at 1 and red at 0.
        unit: Grafana's name of it, or the text that stands at the axis after ``suffix:``.
        width: of 24 columns.
        log: whether the axis is logarithmic.
        row: heading of the row, folded up at first, of panels that only some runs or machines fill.
    """

    title: str
    says: str
    queries: tuple[Query, ...]
    kind: Kind = "timeseries"
    unit: str = "short"
    width: int = 8
    log: bool = False
    row: str = ""


def of(series: Series, legend: str = "") -> Query:
    """Return the chosen runs' query of a series, with legend or last label."""
    chosen = f'{{{RUN}=~"${RUN}"}}' if RUN in series.labels else ""
    shown = legend or (f"{{{{{series.labels[-1]}}}}}" if series.labels else series.noun)
    return Query(series.name + chosen, shown)


def over(upper: Series, lower: Series, legend: str) -> Query:
    """Return the query of a ratio of equally labelled series."""
    return Query(f"{of(upper).expr} / {of(lower).expr}", legend)


def ago(series: Series, legend: str) -> Query:
    """Return the query of the time since an event."""
    return Query(f"time() - {of(series).expr}", legend)


def rejected(*reasons: str) -> Query:
    """Return the query of unused updates for some reasons."""
    chosen = f'{{{RUN}=~"${RUN}", reason=~"{"|".join(reasons)}"}}'
    return Query(metrics.REJECTED.name + chosen, "{{reason}}")


COORDINATOR = (
    Panel("Round", "The last round that ended, and the run's last.",
          (of(metrics.FINISHED, "ended"), of(metrics.PLANNED, "planned")), "stat", width=6),
    Panel("Running", "Whether the journal says that the run still runs.",
          (of(metrics.ACTIVE),), "status", width=4),
    Panel("Silent for", "Time since the journal was last written to.",
          (ago(metrics.LAST_EVENT, "{{run}}"),), "stat", "s", 4),
    Panel("Effective clients now", "As many clients of equal weight would count as much.",
          (of(metrics.EFFECTIVE, "{{run}}"),), "stat", width=10),
    Panel("Rounds", "Rounds that ended, of those planned; those without a quorum.",
          (of(metrics.FINISHED, "ended"), of(metrics.PLANNED, "planned"),
           of(metrics.NO_QUORUM, "without a quorum"))),
    Panel("Weight of each client", "Share of its update in the aggregate: a client a row.",
          (of(metrics.WEIGHT),), "heatmap", "percentunit", 12),
    Panel("Effective number of clients", "(Σ wᵢ)² / Σ wᵢ², beside those whose update was used.",
          (of(metrics.EFFECTIVE, "effective"), of(metrics.ACCEPTED, "used")), width=12),
    Panel("Share of the model", "How much of what moved the model is a client's, over all rounds.",
          (of(metrics.SHARE, "{{site}}, model {{model}}"),), unit="percentunit", width=24),
    Panel("Estimated noise of each client",
          "Standard deviation in a coordinate, as the server finds it in the updates alone.",
          (of(metrics.NOISE),), width=12, log=True),
    Panel("Norm of each update", "l2 norm of the update received, noise included.",
          (of(metrics.NORM),), width=12, log=True),
    Panel("Participation", "Clients asked, updates used, updates needed.",
          (of(metrics.ASKED, "asked"), of(metrics.ACCEPTED, "used"),
           of(metrics.QUORUM, "needed"))),
    Panel("Participation of each client", "Share of the rounds that asked it and used it.",
          (over(metrics.SITE_ACCEPTED, metrics.SITE_ASKED, "{{site}}"),), unit="percentunit"),
    Panel("Sites online", "Sites that were online in the run: 0, the SuperLink hears it no more.",
          (of(metrics.SITE_ONLINE),)),
    Panel("Rounds missed offline", "Rounds that ended while a site was offline, online before.",
          (of(metrics.SITE_ABSENT),)),
    Panel("Approvals pending", "Sites online whose operators have not decided; ends of runs.",
          (of(metrics.PENDING_SITES, "pending"), of(metrics.ENDED, "{{how}}"))),
    Panel("Certificates", "Time until a certificate ends, of those that are watched.",
          (Query(f"{metrics.CERTIFICATE_END.name} - time()", "{{file}}"),), unit="s"),
    Panel("Files and disks", "Size of watched files, and what is free beside them.",
          (Query(metrics.FILE_SIZE.name, "{{file}}"),
           Query(metrics.FILE_FREE.name, "free, {{file}}")), unit="bytes"),
    Panel("Failures", "Updates that were asked for and could not be used.",
          (rejected("failed", "late", "undelivered", "malformed"),)),
    Panel("Refused", "Sites that declined, updates that the guard refused, sites left out.",
          (rejected("declined", "guard"), of(metrics.LEFT_OUT, "left out"))),
    Panel("Bad updates of each client", "Malformed, or refused by the guard.",
          (of(metrics.SITE_BAD),)),
    Panel("Unreadable events", "Events of the journal that the exporter had to pass over.",
          (of(metrics.UNREADABLE, "{{run}}"),)),
    Panel("Where a round's time goes", "The sites train in 'exchange'.",
          (of(metrics.PHASE),), "stacked", "s"),
    Panel("Round time", "The last round, and the median.",
          (of(metrics.DURATION, "last"), of(metrics.MEDIAN, "median")), unit="s"),
    Panel("Bytes up and down", "Replies and instructions of all rounds so far.",
          (of(metrics.RECEIVED, "up"), of(metrics.SENT, "down")), unit="bytes"),
    Panel("Late", "Rounds that ended before a client's reply: its work was charged, and not used.",
          (of(metrics.SITE_LATE),)),
    Panel("Measures of the final model", "On a public test set, or by the scores that sites send.",
          (of(metrics.MEASURED),), "stat"),
    Panel("Accuracy now", "On the public test set, or the mean of what sites disclose.",
          (Query(f'{metrics.ACCURACY.name}{{{RUN}=~"${RUN}", group="all"}}', "{{run}}"),),
          "stat", "percentunit", row=MEASURED),
    Panel("Accuracy", "After each round: of all, of the smallest groups, of each group.",
          (of(metrics.ACCURACY),), unit="percentunit", row=MEASURED),
    Panel("Loss", "Mean loss after each round.", (of(metrics.LOSS),), row=MEASURED),
    Panel("Error of a regression", "Mean squared and mean absolute error after each round.",
          (of(metrics.SQUARED, "squared, {{group}}"), of(metrics.ABSOLUTE, "absolute, {{group}}")),
          row=MEASURED),
    Panel("Sites tested", "Sites that the mean over the sites counts, and those without a test.",
          (of(metrics.TESTED, "counted"), of(metrics.UNTESTED, "not counted")), row=MEASURED),
    Panel("Cluster of each client", "Where a strategy clusters: the model that a client is put to.",
          (of(metrics.CLUSTER),), row=CLUSTERED),
    Panel("Surety of each cluster", "How surely a client belongs to its cluster.",
          (of(metrics.CONFIDENCE),), unit="percentunit", row=CLUSTERED),
    Panel("Clusters", "How many; how well they are separated; the last round that draws.",
          (of(metrics.CLUSTERS, "clusters"), of(metrics.MSS, "separation"),
           of(metrics.LAST_SOFT, "last soft round")), row=CLUSTERED),
)  # fmt: skip

SITE = (
    Panel("Budget taken", "Share of the lifetime promise; a run is reserved whole at its start.",
          (of(metrics.FULL),), "stat", "percentunit", 8),
    Panel("Runs left", "At what the profile's [run] takes.",
          (of(metrics.LEFT_RUNS),), "stat", width=4),
    Panel("Ledger verifies", "Every entry and the anchor, at the last check.",
          (of(metrics.INTACT),), "status", width=4),
    Panel("Profile", "Whether it can be read and is valid.",
          (of(metrics.PROFILE),), "status", width=4),
    Panel("Refused in a day", "Requests that got no update.",
          (Query(f"sum(increase({metrics.REFUSED.name}[1d]))", "refused"),), "stat", width=4),
    Panel("Requests pending", "Runs that wait for the operator's decision.",
          (of(metrics.PENDING_REQUESTS),), "stat", width=8),
    Panel("Runs like the last", "That still fit, by the filter where there is one.",
          (of(metrics.LEFT_LIKE_LAST),), "stat", width=8),
    Panel("Room for the ledger", "Free space of its disk.",
          (of(metrics.LEDGER_FREE),), "stat", "bytes", 8),
    Panel("Burn-down of ε", "What the sum leaves of the cap; none under a Rényi filter.",
          (of(metrics.LEFT_EPSILON, "left"), of(metrics.LIMIT_EPSILON, "cap"),
           of(metrics.SPENT_EPSILON, "spent")), width=12),
    Panel("Burn-down of δ", "What the sum leaves of the cap; none under a Rényi filter.",
          (of(metrics.LEFT_DELTA, "left"), of(metrics.LIMIT_DELTA, "cap"),
           of(metrics.SPENT_DELTA, "spent")), width=12),
    Panel("Releases left", "Noisy updates that a run's plan still pays for.",
          (of(metrics.LEFT_RELEASES),)),
    Panel("Releases", "By kind and status.", (of(metrics.RELEASES, "{{kind}} {{status}}"),)),
    Panel("ε of each run", "As it was charged.", (of(metrics.RUN_EPSILON),)),
    Panel("Noise multiplier", "z: the noise of a step is z times C.", (of(metrics.MULTIPLIER),)),
    Panel("Signal to noise", "Of an update, at most; below 1 it drowns in its noise.",
          (of(metrics.SIGNAL),), log=True),
    Panel("Refusals", "Requests that got no update, and over what.",
          (of(metrics.REFUSED, "{{answer}}: {{reason}}"),)),
    Panel("Ledger's entries", "They only grow.", (of(metrics.ENTRIES, "entries"),)),
    Panel("Last check of the ledger", "From the first entry to the last, and the anchor.",
          (ago(metrics.CHECKED, "ago"),), unit="s"),
    Panel("Anchor", "Whether an older copy of the ledger would be noticed.",
          (of(metrics.ANCHORED),), "status"),
    Panel("GPU at work", "Share of the time in which a GPU computes.",
          (Query("DCGM_FI_DEV_GPU_UTIL / 100", "GPU {{gpu}}"),), unit="percentunit", width=12,
          row=GPU),
    Panel("Memory of the GPU", "In use, and free.",
          (Query("DCGM_FI_DEV_FB_USED * 1048576", "used, GPU {{gpu}}"),
           Query("DCGM_FI_DEV_FB_FREE * 1048576", "free, GPU {{gpu}}")), unit="bytes", width=12,
          row=GPU),
)  # fmt: skip

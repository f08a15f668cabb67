"""Table of all Prometheus series with unit, labels, meaning and exporter.

Names are ``hdpfl_<noun>_<unit>``, counters end in ``_total``. The coordinator's series show data
that the server has anyway, from its journals; a site's come from its own ledger, and no ε, δ, batch
size or number of records is anywhere else. Exporters, dashboards, rules and documents name only
series of this table.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

Place = Literal["coordinator", "site"]

COORDINATOR_PORT, SITE_PORT = 28290, 28291
"""Default ports of the two exporters."""
PHASES = ("prepare", "exchange", "aggregate", "evaluate")
"""Phases of a round with exported times; sites train in ``exchange``."""


@dataclass(frozen=True)
class Series:
    """One metric.

    Attributes:
        at: exporter that shows it.
        noun: counted or measured quantity.
        unit: its unit; ``bool`` is 0 or 1, ``info`` is always 1, with its content in the labels.
        meaning: one sentence for people.
        labels: their names, in order.
        counter: whether it only grows for the same run or site.
    """

    at: Place
    noun: str
    unit: str
    meaning: str
    labels: tuple[str, ...] = ()
    counter: bool = False

    @property
    def name(self) -> str:
        """Name in Prometheus.

        >>> RECEIVED.name, WEIGHT.name
        ('hdpfl_run_received_bytes_total', 'hdpfl_site_weight_ratio')
        """
        return f"hdpfl_{self.noun}_{self.unit}{'_total' if self.counter else ''}"

    def reads(self, value: float, *labels: str) -> Reading:
        """Return a value of this series, with ``labels`` in its order."""
        return Reading(self, labels, float(value))


class Reading(NamedTuple):
    """Value of a series with labels and Unix time (None: now)."""

    series: Series
    labels: tuple[str, ...]
    value: float
    at: float | None = None


def _ours(noun: str, unit: str, meaning: str, *more: str, counter: bool = False) -> Series:
    """Return a series of the coordinator, labelled by run."""
    return Series("coordinator", noun, unit, meaning, ("run", *more), counter)


def _sites(noun: str, unit: str, meaning: str, *labels: str, counter: bool = False) -> Series:
    """Return a series of a site's own exporter."""
    return Series("site", noun, unit, meaning, labels, counter)


# --- the coordinator: a run -----------------------------------------------------------------------

RUN = _ours(
    "run", "info", "Public terms of the run, as sent to the sites.", "strategy", "model", "dataset"
)
STARTED = _ours("run_started_timestamp", "seconds", "When the run started.")
LAST_EVENT = _ours("run_last_event_timestamp", "seconds", "When its journal was last written.")
ACTIVE = _ours("run_active", "bool", "Whether the journal says that it still runs.")
PLANNED = _ours("run_planned", "rounds", "Rounds of the run.")
FINISHED = _ours("run_finished", "rounds", "The last round that ended.")
NO_QUORUM = _ours(
    "run_no_quorum",
    "rounds",
    "Rounds with too few updates, which left the model unchanged.",
    counter=True,
)
LEFT_OUT = _ours("run_left_out", "sites", "Sites that do not disclose what the strategy needs.")
UNREADABLE = _ours("run_unreadable", "events", "Events of the journal that could not be read.")

# --- the coordinator: its machine -----------------------------------------------------------------

FILE_SIZE = Series("coordinator", "file_size", "bytes", "Size of a file of --watch.", ("file",))
FILE_FREE = Series("coordinator", "file_free", "bytes", "Free space of its disk.", ("file",))
_CERTIFICATE = "When a certificate of --watch ends."
CERTIFICATE_END = Series(
    "coordinator", "certificate_end_timestamp", "seconds", _CERTIFICATE, ("file",)
)

# --- the coordinator: a round ---------------------------------------------------------------------

DURATION = _ours("round_duration", "seconds", "Duration of the last round.")
MEDIAN = _ours("round_median", "seconds", "Median duration of the last 101 rounds.")
TIMEOUT = _ours("round_timeout", "seconds", "Longest wait for the replies of a round.")
PHASE = _ours(
    "round_phase",
    "seconds",
    f"Time of the last round by phase: {', '.join(PHASES)}; sites train in exchange.",
    "phase",
)
ASKED = _ours("round_asked", "sites", "Sites that the last round asked.")
ACCEPTED = _ours("round_accepted", "sites", "Sites whose update the last round used.")
QUORUM = _ours("round_quorum", "sites", "Updates that the last round needed.")
EFFECTIVE = _ours(
    "round_effective", "sites", "Effective number of clients, (Σ wᵢ)² / Σ wᵢ², of the last round."
)
REJECTED = _ours(
    "run_rejected",
    "updates",
    "Requested updates that were not used: declined, failed, late, undelivered, refused by the "
    "guard, malformed, not asked.",
    "reason",
    counter=True,
)
RECEIVED = _ours("run_received", "bytes", "Replies of all rounds, used or not.", counter=True)
SENT = _ours("run_sent", "bytes", "Instructions of all rounds, to all sites.", counter=True)

# --- the coordinator: the model -------------------------------------------------------------------

ACCURACY = _ours(
    "model_accuracy",
    "ratio",
    "On the server's public test set (regression: R²), or the mean of what sites disclose. "
    "group: all, minority (the smallest groups' sites), or a group's number; sites (the mean over "
    "the sites, each on records like its own) or worst-tenth (of those).",
    "group",
)
LOSS = _ours("model_loss", "mean", "Mean loss on the same records.", "group")
SQUARED = _ours("model_squared_error", "mean", "Mean squared error, of a regression.", "group")
ABSOLUTE = _ours("model_absolute_error", "mean", "Mean absolute error, of a regression.", "group")
TESTED = _ours("model_tested", "sites", "Sites in the mean over the sites.")
MEASURED = _ours(
    "model_measure",
    "value",
    "Measure of the final model: measures (the public test set) or federated-measures (held-out "
    "records, by scores that sites send with noise).",
    "event",
    "measure",
)
UNTESTED = _ours("model_untested", "sites", "Sites without a test, which that mean leaves out.")

# --- the coordinator: a site, as far as its updates show it ---------------------------------------

SHARE = _ours(
    "site_model_share",
    "ratio",
    "Its share of the model's movement over all rounds so far, for each model if there are "
    "several.",
    "model",
    "site",
)
WEIGHT = _ours("site_weight", "ratio", "Share of its update in the last aggregate.", "site")
NOISE = _ours(
    "site_noise",
    "std",
    "Noise in a coordinate of its update as the server estimates it from updates alone.",
    "site",
)
NORM = _ours("site_update", "norm", "l2 norm of its last, noisy update.", "site")
CLUSTER = _ours("site_cluster", "index", "Cluster of its update.", "site")
CONFIDENCE = _ours(
    "site_cluster_confidence", "ratio", "Probability that it belongs to its cluster.", "site"
)
SITE_ASKED = _ours("site_asked", "rounds", "Rounds that asked it.", "site", counter=True)
SITE_ACCEPTED = _ours("site_accepted", "rounds", "Rounds that used it.", "site", counter=True)
SITE_ONLINE = _ours(
    "site_online", "bool", "Whether its node is heard; 0: it was online in the run.", "site"
)
_ABSENT = "Rounds that ended while it was offline, online before."
SITE_ABSENT = _ours("site_absent", "rounds", _ABSENT, "site", counter=True)
PENDING_SITES = _ours("run_pending", "sites", "Sites online whose operators have not decided.")
ENDED = _ours("run_ended", "bool", "How its last attempt ended, 1 for one of them.", "how")
SITE_LATE = _ours(
    "site_late", "rounds", "Rounds that ended before its reply.", "site", counter=True
)
_BAD = "Its updates that were malformed or refused by guard."
SITE_BAD = _ours("site_bad", "updates", _BAD, "site", counter=True)
CLUSTERS = _ours("clustering", "clusters", "Number of models, one a cluster.")
MSS = _ours("clustering_mss", "score", "Least separation of two clusters.")
LAST_SOFT = _ours("clustering_last_soft", "round", "Last round that clusters softly.")

# --- a site: its budget ---------------------------------------------------------------------------

FULL = _sites("budget_taken", "ratio", "Share of the lifetime promise that is taken.")
SPENT_EPSILON = _sites(
    "budget_spent", "epsilon", "Σε charged, of any unit, rounded up; none under a Rényi filter."
)
LIMIT_EPSILON = _sites("budget_limit", "epsilon", "Lifetime cap in force.")
LEFT_EPSILON = _sites("budget_left", "epsilon", "ε that is left of the sum, rounded down.")
SPENT_DELTA = _sites(
    "budget_spent", "delta", "Σδ charged, of any unit, rounded up; none under a Rényi filter."
)
LIMIT_DELTA = _sites("budget_limit", "delta", "Lifetime cap in force.")
LEFT_DELTA = _sites("budget_left", "delta", "δ that is left of the sum, rounded down.")
CHARGED_RUNS = _sites("budget_charged", "runs", "Runs that were charged.")
LEFT_LIKE_LAST = _sites(
    "budget_left_like_last",
    "runs",
    "Runs like the last one that still fit, by the filter where there is one; before any run, by "
    "the profile's [run].",
)

# --- a site: its runs -----------------------------------------------------------------------------

RUN_EPSILON = _sites("run_charged", "epsilon", "ε that a run was charged.", "run")
RUN_DELTA = _sites("run_charged", "delta", "δ that a run was charged.", "run")
PAID_RELEASES = _sites("plan_paid", "releases", "Noisy updates that the plan pays for.", "run")
LEFT_RELEASES = _sites("plan_left", "releases", "Of these, the ones not taken yet.", "run")
MULTIPLIER = _sites("plan_noise", "multiplier", "z: noise of a step is z times C.", "run")
SIGNAL = _sites(
    "plan_signal_to_noise",
    "ratio",
    "Longest update that batches of the expected size can give, over the length of its noise.",
    "run",
)
_STATUS = "Releases by kind and status: reserved, sealed, sent, lost."
RELEASES = _sites("run", "releases", _STATUS, "run", "kind", "status")
_REFUSED = "Requests without an update: declined or failed, and the reason."
REFUSED = _sites("refused", "requests", _REFUSED, "answer", "reason", counter=True)
PENDING_REQUESTS = _sites("pending", "requests", "Runs that wait for the operator's decision.")
LAST_REFUSED = _sites("last_refused_timestamp", "seconds", "When the last of them arrived.")

# --- a site: its ledger ---------------------------------------------------------------------------

INTACT = _sites(
    "ledger_intact", "bool", "Whether all entries and the anchor verified at the last check."
)
CHECKED = _sites("ledger_checked_timestamp", "seconds", "When the whole ledger was last checked.")
ENTRIES = _sites("ledger", "entries", "Entries of the hash chain.")
ANCHORED = _sites("ledger_anchored", "bool", "Whether an anchor guards against an older copy.")
LEDGER_FREE = _sites("ledger_free", "bytes", "Free space of the ledger's disk.")
PROFILE = _sites("profile_readable", "bool", "Whether the profile can be read and is valid.")

SERIES: tuple[Series, ...] = tuple(
    series for series in vars().values() if isinstance(series, Series)
)
"""All series, in the order of this file."""


def series_at(place: Place) -> Iterable[Series]:
    """Return the series that the exporter of ``place`` may show."""
    return tuple(series for series in SERIES if series.at == place)

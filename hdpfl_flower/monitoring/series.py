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
    "run",
    "info",
    "Public terms of the run, as they are sent to the sites.",
    "strategy",
    "model",
    "dataset",
)
STARTED = _ours("run_started_timestamp", "seconds", "Time at which the run started.")
LAST_EVENT = _ours(
    "run_last_event_timestamp", "seconds", "Time at which the run's journal was last written."
)
ACTIVE = _ours("run_active", "bool", "Whether the journal says that the run has not ended.")
PLANNED = _ours("run_planned", "rounds", "Number of planned rounds of the run.")
FINISHED = _ours("run_finished", "rounds", "Number of the last round that ended.")
NO_QUORUM = _ours(
    "run_no_quorum",
    "rounds",
    "Rounds with too few updates, which left the model unchanged.",
    counter=True,
)
LEFT_OUT = _ours(
    "run_left_out", "sites", "Number of sites that do not disclose what the strategy needs."
)
UNREADABLE = _ours(
    "run_unreadable", "events", "Number of events of the journal that could not be read."
)

# --- the coordinator: its machine -----------------------------------------------------------------

FILE_SIZE = Series(
    "coordinator", "file_size", "bytes", "Size of a file that --watch names.", ("file",)
)
FILE_FREE = Series(
    "coordinator",
    "file_free",
    "bytes",
    "Free space on the disk of a file that --watch names.",
    ("file",),
)
_CERTIFICATE = "End of the validity of a certificate that --watch names."
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
    f"Time of the last round by phase: {', '.join(PHASES)}; sites train in the phase exchange.",
    "phase",
)
ASKED = _ours("round_asked", "sites", "Number of sites that the last round asked.")
ACCEPTED = _ours("round_accepted", "sites", "Number of sites whose update the last round used.")
QUORUM = _ours("round_quorum", "sites", "Number of updates that the last round needed.")
EFFECTIVE = _ours(
    "round_effective", "sites", "Effective number of clients, (Σ wᵢ)² / Σ wᵢ², of the last round."
)
REJECTED = _ours(
    "run_rejected",
    "updates",
    "Requested updates that were not used, by reason: declined, failed, late, undelivered, "
    "refused by the guard, malformed, not asked.",
    "reason",
    counter=True,
)
RECEIVED = _ours(
    "run_received", "bytes", "Size of the replies of all rounds, used or not.", counter=True
)
SENT = _ours(
    "run_sent", "bytes", "Size of the instructions of all rounds to all sites.", counter=True
)

# --- the coordinator: the model -------------------------------------------------------------------

ACCURACY = _ours(
    "model_accuracy",
    "ratio",
    "Accuracy (for a regression: R²) on the server's public test set, or the mean of what the "
    "sites disclose. group: all, minority (the sites of the smallest groups), or the number of "
    "a group; sites (mean over the sites, each on records like its own) or worst-tenth (mean "
    "over the worst tenth of the sites).",
    "group",
)
LOSS = _ours("model_loss", "mean", "Mean loss on the same records.", "group")
SQUARED = _ours("model_squared_error", "mean", "Mean squared error of a regression.", "group")
ABSOLUTE = _ours("model_absolute_error", "mean", "Mean absolute error of a regression.", "group")
TESTED = _ours("model_tested", "sites", "Number of sites in the mean over the sites.")
MEASURED = _ours(
    "model_measure",
    "value",
    "Measure of the final model. event: measures (on the public test set) or "
    "federated-measures (on held-out records, by scores that the sites send with noise).",
    "event",
    "measure",
)
UNTESTED = _ours(
    "model_untested",
    "sites",
    "Number of sites without a test, which the mean over the sites leaves out.",
)

# --- the coordinator: a site, as far as its updates show it ---------------------------------------

SHARE = _ours(
    "site_model_share",
    "ratio",
    "Site's share of what moved the model over all rounds so far; one value for each model if "
    "there are several.",
    "model",
    "site",
)
WEIGHT = _ours("site_weight", "ratio", "Share of the site's update in the last aggregate.", "site")
NOISE = _ours(
    "site_noise",
    "std",
    "Noise in a coordinate of the site's update, estimated by the server only from updates.",
    "site",
)
NORM = _ours("site_update", "norm", "l2 norm of the site's last noisy update.", "site")
CLUSTER = _ours("site_cluster", "index", "Cluster of the site's last update.", "site")
CONFIDENCE = _ours(
    "site_cluster_confidence", "ratio", "Probability that the site belongs to its cluster.", "site"
)
SITE_ASKED = _ours(
    "site_asked", "rounds", "Number of rounds that asked the site.", "site", counter=True
)
SITE_ACCEPTED = _ours(
    "site_accepted", "rounds", "Number of rounds that used the site's update.", "site", counter=True
)
SITE_ONLINE = _ours(
    "site_online",
    "bool",
    "Whether the SuperLink hears the site's node. 0 means that it was online earlier in the run.",
    "site",
)
_ABSENT = "Number of rounds that ended while the site was offline, after it had been online."
SITE_ABSENT = _ours("site_absent", "rounds", _ABSENT, "site", counter=True)
PENDING_SITES = _ours(
    "run_pending", "sites", "Number of online sites whose operators have not decided yet."
)
ENDED = _ours(
    "run_ended", "bool", "How the run's last attempt ended: 1 for the way that applies.", "how"
)
SITE_LATE = _ours(
    "site_late",
    "rounds",
    "Number of rounds that ended before the site replied.",
    "site",
    counter=True,
)
_BAD = "Number of the site's updates that were malformed or that the guard refused."
SITE_BAD = _ours("site_bad", "updates", _BAD, "site", counter=True)
CLUSTERS = _ours("clustering", "clusters", "Number of models, one for each cluster.")
MSS = _ours("clustering_mss", "score", "Least separation between two clusters.")
LAST_SOFT = _ours(
    "clustering_last_soft", "round", "Last round that assigns sites to clusters by probability."
)

# --- a site: its budget ---------------------------------------------------------------------------

FULL = _sites("budget_taken", "ratio", "Share of the lifetime promise that is used.")
SPENT_EPSILON = _sites(
    "budget_spent",
    "epsilon",
    "Sum of the charged ε, for units of any kind, rounded up. Not shown under a Rényi filter.",
)
LIMIT_EPSILON = _sites("budget_limit", "epsilon", "Lifetime cap on ε that is in force.")
LEFT_EPSILON = _sites(
    "budget_left",
    "epsilon",
    "ε that is left below the cap, rounded down. Not shown under a Rényi filter.",
)
SPENT_DELTA = _sites(
    "budget_spent",
    "delta",
    "Sum of the charged δ, for units of any kind, rounded up. Not shown under a Rényi filter.",
)
LIMIT_DELTA = _sites("budget_limit", "delta", "Lifetime cap on δ that is in force.")
LEFT_DELTA = _sites(
    "budget_left",
    "delta",
    "δ that is left below the cap, rounded down. Not shown under a Rényi filter.",
)
CHARGED_RUNS = _sites("budget_charged", "runs", "Number of runs that were charged.")
LEFT_LIKE_LAST = _sites(
    "budget_left_like_last",
    "runs",
    "Number of runs like the last one that still fit, by the Rényi filter if there is one. "
    "Before any run: runs like the profile's [run].",
)

# --- a site: its runs -----------------------------------------------------------------------------

RUN_EPSILON = _sites("run_charged", "epsilon", "ε that a run was charged.", "run")
RUN_DELTA = _sites("run_charged", "delta", "δ that a run was charged.", "run")
PAID_RELEASES = _sites(
    "plan_paid", "releases", "Number of noisy updates that the plan pays for.", "run"
)
LEFT_RELEASES = _sites(
    "plan_left", "releases", "Number of these updates that are not taken from the plan yet.", "run"
)
MULTIPLIER = _sites(
    "plan_noise", "multiplier", "Noise multiplier z: the noise of a step is z times C.", "run"
)
SIGNAL = _sites(
    "plan_signal_to_noise",
    "ratio",
    "Length of the longest possible update from batches of the expected size, divided by the "
    "length of its noise.",
    "run",
)
_STATUS = "Number of releases by kind and status: reserved, sealed, sent, lost."
RELEASES = _sites("run", "releases", _STATUS, "run", "kind", "status")
_REFUSED = "Number of requests without an update, by answer (declined or failed) and reason."
REFUSED = _sites("refused", "requests", _REFUSED, "answer", "reason", counter=True)
PENDING_REQUESTS = _sites(
    "pending", "requests", "Number of runs that wait for the operator's decision."
)
LAST_REFUSED = _sites(
    "last_refused_timestamp", "seconds", "Time at which the last refused request arrived."
)

# --- a site: its ledger ---------------------------------------------------------------------------

INTACT = _sites(
    "ledger_intact", "bool", "Whether all entries and the anchor were verified at the last check."
)
CHECKED = _sites(
    "ledger_checked_timestamp", "seconds", "Time at which the whole ledger was last checked."
)
ENTRIES = _sites("ledger", "entries", "Number of entries in the hash chain.")
ANCHORED = _sites("ledger_anchored", "bool", "Whether an anchor guards against an older copy.")
LEDGER_FREE = _sites("ledger_free", "bytes", "Free space on the disk of the ledger.")
PROFILE = _sites("profile_readable", "bool", "Whether the profile can be read and is valid.")

SERIES: tuple[Series, ...] = tuple(
    series for series in vars().values() if isinstance(series, Series)
)
"""All series, in the order of this file."""


def series_at(place: Place) -> Iterable[Series]:
    """Return the series that the exporter of ``place`` may show."""
    return tuple(series for series in SERIES if series.at == place)

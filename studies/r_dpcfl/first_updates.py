"""Clusters of first updates: one real round, all maps.

A job runs one round of its own strategy, and its sites' updates are recorded, so that
every map sees the same updates. Each map runs twice: with the number of clusters, and
without it. The findings lie in the run's folder; a job with findings is not run again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Context, Message

from hdpfl_flower import server_wire, wire
from hdpfl_flower.clustering.clusters import cluster_updates
from hdpfl_flower.clustering.noise_mixture import cluster_by_noise
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.errors import TermsError
from hdpfl_flower.models.networks import arrays_of, build_model
from hdpfl_flower.monitoring.journal import Event
from hdpfl_flower.privacy.noise import ReleaseStreams
from hdpfl_flower.system.files import replace_file
from hdpfl_tools.simulation.in_process.comparison import OnRound, RunJob
from hdpfl_tools.simulation.in_process.grid import LocalGrid
from hdpfl_tools.simulation.scenarios.groups import Groups, parse_groups
from server_app.run.rounds import run
from studies.framework.kept_runs import quiet

MAPS = {"mixture": cluster_by_noise, "pca": cluster_updates}
"""Values of ``r-dpcfl.cluster-map``, with their clustering functions."""

FOUND = "first-clusters.json"

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class MapResult:
    """Result of a map on a run's first updates.

    Attributes:
        map: its name in ``r-dpcfl.cluster-map``.
        given: whether it received the number of clusters.
        assignment: each site's cluster, shape ``(n,)``.
        truth: each site's group.
        mss: the least separation.
        separated: whether the map trusts its clusters.
    """

    map: str
    given: bool
    assignment: Ints
    truth: Ints
    mss: float
    separated: bool

    @property
    def all(self) -> bool:
        """Whether the clusters are the true groups, up to numbering.

        >>> rows = np.array([1, 1, 0]), np.array([0, 0, 1])
        >>> MapResult("pca", True, *rows, 3.0, True).all
        True
        """
        same, true = (x[:, None] == x[None, :] for x in (self.assignment, self.truth))
        return bool(np.array_equal(same, true))

    @property
    def minority(self) -> bool:
        """Whether each smallest group is exactly one cluster."""
        sizes = np.bincount(self.truth)
        smallest = np.flatnonzero(sizes == sizes[sizes > 0].min())
        of_groups = [self.truth == group for group in smallest]
        return all(
            np.array_equal(self.assignment == self.assignment[sites][0], sites)
            for sites in of_groups
        )


class FirstGrid(LocalGrid):
    """Local grid that records the updates of each site."""

    def __init__(self, num_sites: int, size: int) -> None:
        """Make the nodes; ``size`` is the model's number of parameters."""
        super().__init__(num_sites)
        self._size = size
        self.updates: dict[int, npt.NDArray[np.float32]] = {}

    def reply(self, message: Message, context: Context) -> Message:
        """Return the node's reply and record its update."""
        reply = super().reply(message, context)
        if message.metadata.message_type == wire.TRAIN and not reply.has_error():
            self.updates[context.node_id - 2] = server_wire.read_update(reply.content, self._size)
        return reply


def first_updates(job: RunJob) -> dict[int, npt.NDArray[np.float32]]:
    """Return site → its update in the first round of ``job``.

    Raises:
        HDPFLError: the job cannot run.
    """
    model = arrays_of(build_model(job.terms.model, task_for(job.terms), job.config.simulation.seed))
    grid = FirstGrid(job.num_sites, sum(array.size for array in model.values()))
    config = job.config.updated(evaluation="none", min_sites=job.num_sites)
    try:
        streams = ReleaseStreams.simulated(config.simulation.seed, "server", 0, "round")
        run(grid, config, stop_after=1, streams=streams)
    finally:
        grid.close()
    return grid.updates


def cluster_first(job: RunJob, on_round: OnRound) -> list[Event]:
    """Run the first round of ``job`` and keep each map's result.

    Returns one event per map.

    Raises:
        HDPFLError: the job cannot run.
    """
    folder = _folder(job)
    shutil.rmtree(folder, ignore_errors=True)
    with quiet():
        updates = first_updates(job)
    shutil.rmtree(folder / "sites", ignore_errors=True)  # the simulated ledgers: no real account
    sites = sorted(updates)
    rows = np.stack([updates[site] for site in sites])
    groups = _groups(job.config)
    events: list[Event] = []
    for name, find in MAPS.items():
        for given in (True, False):
            clusters = find(rows, len(groups.sizes) if given else 0)
            events.append(
                {
                    "map": name,
                    "clusters-given": given,
                    "sites": sites,
                    "assignment": clusters.assignment.tolist(),
                    "mss": clusters.mss,
                    "separated": clusters.separated,
                }
            )
    replace_file(folder / FOUND, json.dumps(events).encode(), mode=0o644)
    on_round()
    return events


def clustered(job: RunJob) -> list[Event] | None:
    """Return the kept results of :func:`cluster_first`, or None."""
    try:
        events = json.loads((_folder(job) / FOUND).read_text())
    except (OSError, ValueError):
        return None
    return events if isinstance(events, list) else None


def read_found(job: RunJob, events: Sequence[Mapping[str, Any]]) -> list[MapResult]:
    """Return the findings of a finished job."""
    groups = _groups(job.config)
    return [
        MapResult(
            event["map"],
            event["clusters-given"],
            np.array(event["assignment"]),
            np.array([groups.of_site(site, job.num_sites) for site in event["sites"]]),
            event["mss"],
            event["separated"],
        )
        for event in events
    ]


def _groups(config: RunConfig) -> Groups:
    groups = parse_groups(config.simulation.groups, task_for(config.terms))
    if groups is None:
        raise TermsError("a study of clusters needs 'groups'")
    return groups


def _folder(job: RunJob) -> Path:
    return Path(job.config.server.runs_dir) / job.terms.run_id

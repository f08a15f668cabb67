"""What rules with clusters do of a claim: one model for all, unless clusters are certain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.estimators.softmax_head import Head
from hdpfl_flower.linalg.types import Updates
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import RoundUpdates
from strategies import make_strategy
from strategies.multi_model.groups import Assignment
from strategies.multi_model.late_clusters import LateClusters
from strategies.multi_model.r_dpcfl import RDPCFL, RDPCFLState
from tests.hdpfl_flower.clustering.headed import (
    CLASSES,
    HEAD,
    class_means,
    noised,
    relabelled,
    two_profiles,
    update_of,
)

NOISE = 0.004
CLIENTS = 12
TRUE = np.repeat([0, 1], CLIENTS // 2)
EVEN = np.full(CLASSES, 1 / CLASSES)


def rows_of(kind: str, seed: int = 0) -> Updates:
    """Return updates of one group, of two profiles of labels, or of two groups relabelled."""
    means = class_means(1)
    rows = {
        "alike": [update_of(EVEN, means)] * CLIENTS,
        "labels": [update_of(shares, means) for shares in two_profiles(CLIENTS)],
        "groups": [update_of(EVEN, one) for one in relabelled(TRUE.tolist(), 1)],
    }
    return noised(rows[kind], NOISE, seed)


def begins(kind: str, head: Head | None = HEAD, **terms: Any) -> tuple[RDPCFLState, Assignment]:
    """Return the groups of R-DPCFL after round 1."""
    rule = make_strategy(RunConfig.parse({"strategy": "r-dpcfl", "rounds": 20, **terms}))
    assert isinstance(rule, RDPCFL)
    sites = tuple(f"site-{i:02}" for i in range(CLIENTS))
    updates = RoundUpdates(1, sites, rows_of(kind), {}, head)
    return rule.initial_groups(rule.initial_state(), updates)


@pytest.mark.parametrize(
    ("kind", "skew", "cluster_map"),
    [("alike", 0, "mixture"), ("labels", 1, "mixture"), ("alike", 0, "pca")],
)
def test_r_dpcfl_has_one_model_where_there_are_no_groups(
    kind: str, skew: float, cluster_map: str, caplog: pytest.LogCaptureFixture
) -> None:
    state, found = begins(kind, **{"r-dpcfl.cluster-map": cluster_map})
    assert found.models == 1
    assert not found.group.any()
    assert found.gauges["clusters_separated"] == 0
    assert found.gauges["clusters_label_skew"] == skew
    assert "all sites share one model, as with 'fedavg'" in caplog.text
    assert "cluster_confidence" not in found.gauges
    assert not state.shares


@pytest.mark.parametrize(("cluster_map", "clusters"), [("mixture", 0), ("mixture", 2), ("pca", 2)])
def test_r_dpcfl_has_a_model_for_each_group(cluster_map: str, clusters: int) -> None:
    _, found = begins(
        "groups", **{"r-dpcfl.cluster-map": cluster_map, "r-dpcfl.clusters": clusters}
    )
    assert found.models == 2
    assert found.gauges["clusters_separated"] == 1
    assert found.gauges["clusters_label_skew"] == 0
    np.testing.assert_array_equal(found.group == found.group[0], TRUE == 0)


def late(kind: str, head: Head | None = HEAD, rounds: int = 9, **terms: Any) -> tuple[int, Any]:
    """Return the number of models of late clusters after so many rounds, and the last look."""
    rule = make_strategy(RunConfig.parse({"strategy": "late-clusters", "rounds": 99, **terms}))
    assert isinstance(rule, LateClusters)
    sites, state, look = tuple(f"site-{i:02}" for i in range(CLIENTS)), rule.initial_state(), {}
    for t in range(1, rounds + 1):
        group = np.zeros(CLIENTS, np.int64)
        updates = RoundUpdates(t, sites, rows_of(kind, t), {}, head, group=group)
        state, outcome = rule.combine(state, updates, RandomStream(bytes(32)))
        if "clusters_mss" in outcome.gauges:
            look = dict(outcome.gauges)
        if state.models > 1:
            break
    return state.models, look


def test_labels_alone_do_not_part_the_sites() -> None:
    models, look = late("labels")
    assert models == 1
    assert (look["clusters_separated"], look["clusters_label_skew"]) == (0, 1)
    assert look["clusters_mss"] > 10

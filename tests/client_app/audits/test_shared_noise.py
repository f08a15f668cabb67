"""Canaries against a shared sum: a server with a colluding member, over all rounds of a run.

The server and the colluder see the sum of all parts and take the colluder's own part off, which has
no noise. Each canary is a record of the first site with a coordinate of its own.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from client_app.site.shared_noise import SumSet
from client_app.training import sum_part
from client_app.training.sum_part import SumPart
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.models.task import Records
from hdpfl_flower.privacy.audit import Evidence, evidence_of
from hdpfl_flower.privacy.noise import ReleaseStreams
from hdpfl_flower.privacy.plan import Plan, make_plan
from hdpfl_flower.shared_noise import ring
from hdpfl_flower.shared_noise.masks import add_masks, pair_secret, public_of
from hdpfl_flower.shared_noise.ring import decode
from hdpfl_tools.site.audit import CLIP_NORM, SURE, canary_engine, canary_records

WIDTH, ROUNDS, SITES, COLLUDERS = 2500, 12, 4, 1
EPSILON, DELTA = 8.0, 1e-5
TERMS = RunTerms.parse(
    {"noise": "shared", "rounds": ROUNDS, "spare-rounds": 0.0, "clip-norm": CLIP_NORM}
)
KEYS = [hashlib.sha256(b"site %d" % number).digest() for number in range(SITES)]


@lru_cache
def plan_of(epsilon: float) -> Plan:
    budget = {"epsilon": epsilon, "delta": DELTA}
    training = {"batch-size": WIDTH, "declared-records": WIDTH}
    return make_plan(Profile.parse({"budget": budget, "run": budget, "training": training}), TERMS)


class Canaries:
    """Sites of a run, the first with canaries, and the view of a server with a colluder.

    Attributes:
        members: canaries that take part.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed, self.members = seed, np.random.default_rng(seed).random(WIDTH) < 0.5
        self.engine = canary_engine("linear", WIDTH, "cpu")
        self.empty = canary_records(np.zeros(WIDTH, bool))

    def part(self, number: int, server_round: int, records: Records, epsilon: float) -> Any:
        """Return a site's masked part of a round, by the code of a site."""
        secrets = {
            other: pair_secret(KEYS[number], public_of(KEYS[other]))
            for other in range(SITES)
            if other != number
        }
        streams = ReleaseStreams.simulated(self.seed, str(number), server_round, "update")
        site = SimpleNamespace(
            streams=lambda *_: streams,
            training_units=lambda: records,
        )
        round_of_site = SumPart.__new__(SumPart)
        round_of_site.__dict__ |= {
            "_site": site,
            "_instructions": SimpleNamespace(
                terms=TERMS, server_round=server_round, digest=f"round {server_round}"
            ),
            "start": np.zeros(WIDTH + 1, np.float32),
            "engine": self.engine,
            "personal": None,
            "_physical": WIDTH,
            "_peers": SimpleNamespace(blur=lambda: KEYS[number]),
            "_members": SumSet(number, SITES - COLLUDERS, secrets),
        }
        payload = round_of_site.run(plan_of(epsilon))
        return np.frombuffer(payload[-8 * (WIDTH + 2) :], "<u8")

    def view(self, server_round: int) -> npt.NDArray[np.float64]:
        """Return the sum without the colluder's own part."""
        records = canary_records(self.members)
        total = self.part(0, server_round, records, EPSILON)
        total = total + self.part(1, server_round, self.empty, 1.0)
        total = total + self.part(2, server_round, self.empty, 30.0)
        mask = np.zeros(WIDTH + 2, np.uint64)
        colluder = SITES - 1
        secrets = {n: pair_secret(KEYS[colluder], public_of(KEYS[n])) for n in range(colluder)}
        add_masks(mask, secrets, colluder, f"round {server_round}")
        return decode(total + mask)

    def scores(self) -> npt.NDArray[np.float64]:
        """Return what all rounds show of each canary."""
        views = [self.view(server_round)[:WIDTH] for server_round in range(1, ROUNDS + 1)]
        return -np.sum(views, axis=0)


def evidence() -> Evidence:
    """Return the evidence of three runs, each with coins and noise of its own."""
    runs = [Canaries(seed) for seed in range(3)]
    scores = np.array([run.scores() for run in runs])
    return evidence_of(scores, np.array([run.members for run in runs]))


def test_a_server_with_a_colluder_learns_no_more_than_epsilon() -> None:
    """The bound is above the true ε in one run of a million; the estimate shows that it sees."""
    found = evidence()
    assert found.epsilon_bound(DELTA, SURE) < EPSILON
    assert found.epsilon(DELTA) > 0.85 * EPSILON, "canaries that see little show little"


def test_a_share_for_all_members_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """1/n in place of 1/(n − t): the colluder's share is missing."""
    share = ring.share_of_noise
    monkeypatch.setattr(
        sum_part,
        "share_of_noise",
        lambda count, honest, stream: share(count, honest + COLLUDERS, stream),
    )
    assert evidence().epsilon_bound(DELTA, SURE) > EPSILON


def test_a_scale_without_the_sites_noise_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 in place of 1/z."""
    scale = ring.scale_of
    monkeypatch.setattr(sum_part, "scale_of", lambda _, clip, size: scale(1.0, clip, size))
    assert evidence().epsilon_bound(DELTA, SURE) > EPSILON


def test_noise_that_comes_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same noise in every round would leave the canaries alone in a difference, and here."""
    streams = ReleaseStreams.simulated
    monkeypatch.setattr(
        ReleaseStreams, "simulated", lambda seed, site, _, kind: streams(seed, site, 1, kind)
    )
    canaries = Canaries()
    first, second = canaries.view(1), canaries.view(2)
    np.testing.assert_array_equal(first, second)
    monkeypatch.undo()
    assert (canaries.view(1)[:WIDTH] != canaries.view(2)[:WIDTH]).all()

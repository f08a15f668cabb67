"""The content guard around a strategy: where it starts, what it hands on, what it takes out."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.data.run_task import task_of
from hdpfl_flower.errors import TermsError
from hdpfl_flower.estimators.softmax_head import Head
from hdpfl_flower.linalg.sums import weighted_sum
from hdpfl_flower.models.features import last_inputs
from hdpfl_flower.models.networks import arrays_of, build_model
from hdpfl_flower.updates import Outcome, RoundUpdates
from hdpfl_tools.simulation.datasets import load_dataset
from strategies.guards.by_content import ByContent
from strategies.guards.content import UNDONE
from strategies.guards.proof import SHARED

CLASSES, INPUTS, N, SIGMA = 10, 64, 8, 0.03
HEAD = Head(0, CLASSES, INPUTS)


def terms_of(**more: Any) -> RunConfig:
    config = {"strategy": "fedavg", "rounds": 6, "guard": "content", "local-steps": 5}
    return RunConfig.parse({**config, **more})


def learnt(seed: int, wrong: bool = False) -> npt.NDArray[np.float64]:
    """Return a step of a new model on some digits, shape ``(650,)``; ``wrong``: reversed."""
    data = load_dataset("digits", "").train
    chosen = np.random.default_rng(seed).choice(len(data), 100, replace=False)
    records = data.take(chosen)
    x = np.concatenate([records.features.reshape(100, -1), np.ones((100, 1))], axis=1)
    rows = (np.eye(CLASSES)[records.targets] - 1 / CLASSES).T @ x / (-100 if wrong else 100)
    return np.concatenate([rows[:, :-1].ravel(), rows[:, -1]])


def updates_of(
    server_round: int, lies: bool, before: int = 0, head: Head = HEAD, **more: Any
) -> RoundUpdates:
    """Return a round in which site 2 may lie; ``before`` the head there is noise."""
    rows = []
    for i in range(N):
        generator = np.random.default_rng([server_round, i])
        update = learnt(server_round * N + i, wrong=lies and i == 2)
        update = np.concatenate([np.zeros(before), update])
        rows.append(update + SIGMA * generator.standard_normal(len(update)))
    sites = tuple(f"site-{i}" for i in range(N))
    return RoundUpdates(server_round, sites, np.array(rows, np.float32), head=head, **more)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"dataset": "site", "schema": 'id = "ward"\n'}, "'dataset' = 'site'"),
        (
            {"dataset": "my:load", "task": {"kind": "regression", "shape": "3"}},
            "'model'.*on 'my:load'",
        ),
        ({"model": "tests.fixtures.nets:build"}, "'model' 'tests.fixtures.nets:build'"),
        ({"work": {"kind": "joint"}, "model": "mlp:10"}, "leave out 'work'"),
        ({"model": "mlp:8"}, "at least 9 inputs .* 'mlp:8' has 8"),
    ],
)
def test_no_public_records_or_head_is_refused(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(TermsError, match=f"'guard' = 'content'.*{why}.*take 'cap' or 'none'"):
        ByContent(terms_of(**wrong), sums=True)


def test_what_is_proven_is_refused_whatever_the_limit_and_stays_so() -> None:
    """Three of eight share their noise, where one may lie; nobody's labels are wrong."""
    guard = ByContent(terms_of(**{"max-liars": 1}), sums=True)
    for server_round in (1, 2):
        updates, colluders = updates_of(server_round, lies=False), ("site-0", "site-4", "site-6")
        if server_round == 1:
            for i in (4, 6):
                jitter = 1e-3 * np.random.default_rng(i).standard_normal(650)
                updates.updates[i] = updates.updates[0] + jitter.astype(np.float32)
        kept = guard.screen(updates)
        assert guard.refused == dict.fromkeys(colluders, SHARED)
        assert kept.sites == tuple(s for s in updates.sites if s not in colluders)
        assert not guard.state.content.refused.any()
        guard.reweigh(Outcome(kept.updates[0], np.full(5, 1 / 5)), kept)
    assert guard.state.content.places.keys() == set(kept.sites)


@pytest.mark.parametrize("before", [0, 30])
def test_what_a_liar_gave_is_taken_out_at_the_rates_of_its_rounds(before: int) -> None:
    """Of the head all of it; before the head what it gave while it was among the suspects.

    The seven who stay have in the head what eight had, of the rounds before the refusal.
    """
    head = Head(before, CLASSES, INPUTS)
    guard = ByContent(terms_of(**{"max-liars": 1}), sums=True)
    guard._public.head = head  # type: ignore[union-attr]
    moved, stays = np.zeros(650 + before), np.zeros(650 + before)
    for server_round, rate in ((1, 1.0), (2, 0.5), (3, 0.25)):
        updates = updates_of(server_round, lies=server_round > 2, before=before, head=head)
        rows = updates.updates.astype(np.float64)
        kept = guard.screen(updates)
        weights = np.full(len(kept.sites), 1 / N)
        plain = Outcome(weighted_sum(3 * weights, kept.updates), weights, scale=3.0)
        moved += rate * guard.reweigh(plain, kept, rate).update
        grown = np.ones(650 + before)
        grown[before:] = 8 / 7 if server_round < 3 else 1
        stays += grown * rate * 3 / N * np.delete(rows, 2, axis=0).sum(axis=0)
    assert guard.refused == {"site-2": UNDONE}
    assert "site-2" not in guard.state.heads
    np.testing.assert_allclose(moved[before:], stays[before:], atol=1e-6)
    in_model = sum(guard.state.heads.values())
    np.testing.assert_allclose(in_model, stays[before:], atol=1e-6)
    # Its coefficients of both rounds, in the head's part of the coordinates at least.
    whole, of_head = (1.0 + 0.5) * 3 / N, 650 / (650 + before)
    taken = guard.taken_back["site-2"]
    assert of_head * whole <= taken * (1 + 1e-12)
    assert taken <= whole * (1 + 1e-12)
    assert guard.taken_back.keys() == {"site-2"}


def test_a_reversed_site_is_refused_in_a_network_by_the_features_of_its_model() -> None:
    """Content in a hidden layer is that of the round's model, not of the records."""
    task, spec = task_of("digits"), "mlp:16"
    model = arrays_of(build_model(spec, task, seed=3))
    records = load_dataset("digits", "").train
    rows = []
    for i in range(N):
        chosen = records.take(np.arange(i, len(records), N))
        x = last_inputs(spec, task, model, chosen.features)
        x = np.concatenate([x, np.ones((len(x), 1))], axis=1)
        step = (np.eye(CLASSES)[chosen.targets] - 1 / CLASSES).T @ x / len(x)
        step = -step if i == 2 else step
        update = np.concatenate([np.zeros(65 * 16), step[:, :-1].ravel(), step[:, -1]])
        rows.append(update + 1e-3 * np.random.default_rng(i).standard_normal(len(update)))
    guard = ByContent(terms_of(model=spec), sums=True)
    head = Head(65 * 16, CLASSES, 16)
    given = RoundUpdates(1, tuple(map(str, range(N))), np.array(rows, np.float32), head=head)
    guard.screen(given, model)
    assert guard.refused == {}  # 17 silent sums of one upload do not tell the noise
    again = np.array(rows, np.float32)
    again += np.float32(1e-3) * np.random.default_rng(9).standard_normal(again.shape)
    guard.screen(RoundUpdates(2, given.sites, again.astype(np.float32), head=head), model)
    assert guard.refused == {"2": UNDONE}

"""The content guard around a strategy: where it starts, what it hands on, what it takes out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.data.datasets import load_dataset, task_of
from hdpfl_flower.errors import DataError, TermsError
from hdpfl_flower.estimators.softmax_head import Head
from hdpfl_flower.linalg.sums import square_sum, weighted_sum
from hdpfl_flower.models.features import last_inputs
from hdpfl_flower.models.networks import Arrays, arrays_of, build_model
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import Outcome, RoundUpdates
from strategies import make_strategy
from strategies.guards.bounds import REPEATS
from strategies.guards.content import QUIETEST, UNDONE
from strategies.guards.proof import QUIET, SHARED
from strategies.guards.public_records import PublicRecords
from strategies.guards.registry import make_guard
from strategies.noise_aware.robust_hdp import RobustHDP, estimate_noise

CLASSES, INPUTS, N, SIGMA = 10, 64, 8, 0.03
HEAD = Head(0, CLASSES, INPUTS)
CLEVELAND = Path(__file__).parents[3] / "deploy" / "demo" / "cleveland" / "data.csv"


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
        ({"dataset": "school", "data-dir": "nowhere"}, "'model'.*on 'school'"),
        ({"model": "tests.fixtures.nets:build"}, "'model' 'tests.fixtures.nets:build'"),
        ({"work": "joint", "model": "mlp:10"}, "leave out 'work'"),
        ({"model": "mlp:8"}, "at least 9 inputs .* 'mlp:8' has 8"),
    ],
)
def test_without_public_records_or_a_head_it_is_refused_with_the_remedy(
    wrong: dict[str, Any], why: str
) -> None:
    with pytest.raises(TermsError, match=f"'guard' = 'content'.*{why}.*take 'cap' or 'none'"):
        make_guard(terms_of(**wrong), sums=True)


def test_a_file_of_public_records_takes_the_place_of_the_test_set(tmp_path: Path) -> None:
    """Sorted by class, and more than the guard uses: all classes are among those taken."""
    data = load_dataset("digits", "").train
    rows = np.argsort(data.targets, kind="stable")
    np.savez(tmp_path / "d.npz", x=data.features[rows], y=data.targets[rows])
    public = PublicRecords(terms_of(**{"public-records": str(tmp_path / "d.npz")}))
    assert 700 < len(public._records) <= 1000
    found = public.means(arrays_of(build_model("logreg", task_of("digits"), seed=0)))
    assert found is not None
    for label in range(CLASSES):
        mean = data.features[data.targets == label].reshape(-1, INPUTS).mean(axis=0)
        np.testing.assert_allclose(found.means[label, :-1], mean, atol=0.1)


def test_hospitals_are_judged_by_a_table_of_the_coordinators() -> None:
    """A built-in schema, two classes: the head is one row, which counts as two."""
    terms = {"dataset": "site", "schema": "heart", "evaluation": "none"}
    guard = make_guard(terms_of(**terms, **{"public-records": str(CLEVELAND)}), sums=True)
    assert guard._public is not None
    inputs = task_of("heart").input_shape[0]
    assert guard._public.head == Head(0, 1, inputs)
    found = guard._public.means(arrays_of(build_model("logreg", task_of("heart"), seed=0)))
    assert found is not None
    assert found.means.shape == (2, inputs + 1)


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("none.npz", None, "there is no file .*none.npz"),
        ("x.pickle", b"", "must end in npz, csv, parquet"),
        ("x.npz", b"PK", "'.*x.npz' is not there or is no .npz file"),
        ("two.npz", (np.zeros((2, 1, 8, 8)), [0, 1]), "2 public records of '.*two.npz' lack 8"),
        ("flat.npz", (np.zeros((2, 64)), [0, 1]), "'x' of shape .n, 1, 8, 8."),
        ("x.csv", b"a,b\n1,2\n", "needs the run's 'schema'"),
    ],
)
def test_a_file_that_cannot_serve_is_named_with_the_remedy(
    tmp_path: Path, name: str, content: Any, why: str
) -> None:
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        np.savez(path, x=content[0], y=content[1])
    with pytest.raises((TermsError, DataError), match=f"run config: .*{why}"):
        make_guard(terms_of(**{"public-records": str(path)}), sums=True)


def test_its_facts_are_asked_for_and_not_handed_on() -> None:
    strategy = make_strategy(terms_of(**{"local-steps": 0}))
    assert strategy.welcomes == {"batch-size", "declared-records"}
    assert make_strategy(terms_of()).welcomes == set()
    facts = {"batch-size": np.full(N, 10.0), "declared-records": np.full(N, np.nan)}
    kept = strategy._screen(updates_of(1, lies=False, disclosed=facts))
    assert kept.disclosed == {}
    assert strategy.combine(strategy.state, kept, RandomStream(bytes(32)))[1].weights[0] == 1 / N


def test_weights_use_the_noise_that_the_guard_believes() -> None:
    """A site that seems far quieter than the others may weigh ``QUIETEST`` times the third."""
    guard, updates = make_guard(terms_of(), sums=True), updates_of(1, lies=False)
    quiet = learnt(77) + 6e-3 * np.random.default_rng(5).standard_normal(650)
    updates.updates[0] = quiet.astype(np.float32)
    kept = guard.screen(updates)
    assert kept.noise is not None
    variances = kept.noise.variances
    assert variances[0] == np.sort(variances[1:])[1] / QUIETEST
    rule = RobustHDP(terms_of(strategy="robust-hdp", guard="none"))
    state, estimate = estimate_noise(rule.initial_state(), kept, rule.settings, rule.terms)
    assert state == rule.initial_state()
    assert estimate is kept.noise
    found = guard.reweigh(Outcome(kept.updates[0], np.full(N, 1 / N)), kept)
    assert np.flatnonzero(np.asarray(found.gauges["precision_bounded"])).tolist() == [0]


def test_what_is_proven_is_refused_whatever_the_limit_and_stays_so() -> None:
    """Three of eight share their noise, where one may lie; nobody's labels are wrong."""
    guard = make_guard(terms_of(**{"max-liars": 1}), sums=True)
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


def test_what_a_colluder_gave_before_the_proof_is_taken_out_of_the_head() -> None:
    guard, moved = make_guard(terms_of(), sums=True), np.zeros(650)
    for server_round in (1, 2):
        updates = updates_of(server_round, lies=False)
        if server_round == 2:
            updates.updates[5] = updates.updates[1] + np.float32(1e-3) * updates.updates[2]
        kept = guard.screen(updates)
        weights = np.full(len(kept.sites), 1 / N)
        moved += guard.reweigh(Outcome(weighted_sum(weights, kept.updates), weights), kept).update
    assert guard.refused == {"site-1": SHARED, "site-5": SHARED}
    stay = [i for i in range(N) if i not in (1, 5)]
    first, second = (updates_of(r, lies=False).updates[stay].sum(axis=0) for r in (1, 2))
    np.testing.assert_allclose(moved, (8 / 6 * first + second) / N, atol=1e-6)


@pytest.mark.parametrize(
    ("floor", "why"), [(0.0, {"site-3": REPEATS}), (0.9 * SIGMA, {"site-3": QUIET})]
)
def test_an_upload_without_new_noise_is_refused(floor: float, why: dict[str, str]) -> None:
    """The same upload but for a jitter; with a floor it is too quiet in the first round already."""
    guard = make_guard(terms_of(**{"noise-floor": floor}), sums=True)
    for server_round in (1, 2):
        updates = updates_of(server_round, lies=False)
        if floor:
            noise = np.random.default_rng(100 + server_round).standard_normal(650)
            updates.updates[3] = learnt(3) + 0.1 * SIGMA * noise
        elif server_round == 2:
            updates.updates[3] = np.float32(1 + 1e-5) * updates_of(1, lies=False).updates[3]
        guard.screen(updates)
        assert guard.refused == (why if floor or server_round == 2 else {})


def test_who_is_refused_is_out_of_the_rows_and_of_their_noise() -> None:
    updates = updates_of(1, lies=True)
    rows, squares = updates.updates.copy(), np.array([square_sum(row) for row in updates.updates])
    guard = make_guard(terms_of(), sums=True)
    kept = guard.screen(RoundUpdates(1, updates.sites, updates.updates, head=HEAD, squares=squares))
    assert guard.refused == {"site-2": UNDONE}
    stay = [i for i in range(N) if i != 2]
    np.testing.assert_array_equal(kept.updates, rows[stay])
    assert kept.noise is not None
    assert len(kept.noise.variances) == len(kept.noise.reasons) == N - 1
    assert len(kept.noise.pairs) == len(kept.noise.identified) == N - 1


def test_a_long_step_is_shortened_in_its_row_and_its_square() -> None:
    updates, guard = updates_of(1, lies=False), make_guard(terms_of(), sums=True)
    updates.updates[4] += np.float32(6) * learnt(4).astype(np.float32)
    squares = np.array([square_sum(row) for row in updates.updates])
    long = float(np.sqrt(squares[4]))
    kept = guard.screen(RoundUpdates(1, updates.sites, updates.updates, head=HEAD, squares=squares))
    left = float(np.linalg.norm(kept.updates[4]))
    assert left < 0.3 * long
    assert kept.squares is not None
    np.testing.assert_allclose(kept.squares[4], left**2, rtol=1e-5)
    found = guard.reweigh(Outcome(kept.updates[0], np.full(N, 1 / N)), kept)
    assert np.flatnonzero(np.asarray(found.gauges["shortened_to"]) < 1).tolist() == [4]


@pytest.mark.parametrize("before", [0, 30])
def test_what_a_liar_gave_is_taken_out_at_the_rates_of_its_rounds(before: int) -> None:
    """Of the head all of it; before the head what it gave while it was among the suspects.

    The seven who stay have in the head what eight had, of the rounds before the refusal.
    """
    head = Head(before, CLASSES, INPUTS)
    guard = make_guard(terms_of(**{"max-liars": 1}), sums=True)
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


def test_who_stays_is_at_most_doubled() -> None:
    """A liar that had 9 of 10 parts of the model leaves little to rebuild it from."""
    guard = make_guard(terms_of(**{"max-liars": 1}), sums=True)
    weights = np.full(N, 0.1 / (N - 1))
    weights[2] = 0.9
    kept = guard.screen(updates_of(1, lies=False))
    first = Outcome(weighted_sum(weights, kept.updates), weights)
    before = guard.reweigh(first, kept).update - np.float32(0.9) * kept.updates[2]
    for server_round in (2, 3, 4):
        kept = guard.screen(updates_of(server_round, lies=True))
        if guard.refused:
            break
    nothing = Outcome(np.zeros(650, np.float32), np.full(N - 1, 1 / (N - 1)), scale=1e-9)
    moved = guard.reweigh(nothing, kept).update
    # What is taken out, and the others' parts once more.
    expected = before - np.float32(0.9) * updates_of(1, lies=False).updates[2]
    np.testing.assert_allclose(moved, expected, atol=1e-5)


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
    guard = make_guard(terms_of(model=spec), sums=True)
    head = Head(65 * 16, CLASSES, 16)
    given = RoundUpdates(1, tuple(map(str, range(N))), np.array(rows, np.float32), head=head)
    guard.screen(given, model)
    assert guard.refused == {}  # 17 silent sums of one upload do not tell the noise
    again = np.array(rows, np.float32)
    again += np.float32(1e-3) * np.random.default_rng(9).standard_normal(again.shape)
    guard.screen(RoundUpdates(2, given.sites, again.astype(np.float32), head=head), model)
    assert guard.refused == {"2": UNDONE}


def test_the_inputs_of_the_last_layer_are_those_of_the_network() -> None:
    task = task_of("digits")
    model: Arrays = arrays_of(build_model("mlp:5", task, seed=1))
    records = load_dataset("digits", "").train.features[:1100]
    first, bias = list(model.values())[:2]
    expected = np.maximum(records.reshape(len(records), -1) @ first.T + bias, 0)
    np.testing.assert_allclose(last_inputs("mlp:5", task, model, records), expected, atol=1e-5)

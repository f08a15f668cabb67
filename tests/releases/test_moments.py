"""The first message: bound and noise of its vector, charge, seal, replay, scales, sums."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from scipy.stats import chi2

from client_app.releases import moments as half
from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.record_moments import (
    EMPTY,
    FLAG,
    Layout,
    held_back,
    layout_of,
    record_sum,
)
from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.errors import DataError, Declined, TermsError
from hdpfl_flower.ledger.hash_chain import Chain
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.ledger.renyi import prices_of
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.monitoring.journal import read_journal
from hdpfl_flower.privacy.accounting import Gaussians, epsilon_of
from hdpfl_flower.privacy.plan import make_plan
from hdpfl_flower.privacy.policy import check_policy
from hdpfl_flower.releases import asked_kind
from hdpfl_flower.releases.moments import SHARE, Moments, why_not
from hdpfl_flower.shared_noise.ring import decode
from hdpfl_tools.simulation.in_process.in_process_run import resume_in_process, run_in_process
from hdpfl_tools.site.commands.requests import disclosed_by
from hdpfl_tools.site.ledger_checks.invariants import check_entries
from server_app.releases.moments import HIDDEN, LEAST_RECORDS, SPREAD_OUT, UNBOUNDED, scales_of
from server_app.run.resume import open_run
from server_app.run.rounds import ready_kernel
from strategies import make_kernel
from tests.client_app.messages import SCHEMA, ask, config_of, make_site, model_of, send, terms_of
from tests.client_app.sharing_sites import make_sites, shared_terms
from tests.client_app.training.test_client_level import kinds

ASKS = {"first": {"moments": {"share": 0.35}}}
TABLE = {"first": {"moments": {"share": 0.35, "content": "table"}}}
CATEGORY = """
[[columns]]
name = "sex"
type = "category"
categories = ["f", "m"]
"""


def asked(profile: Path, terms: RunTerms, sum_of: str = "") -> Message:
    content = server_wire.write_instructions(terms, 1, model_of(terms), of_noise=sum_of)
    return send({"profile": str(profile)}, server_wire.query_of("moments"), content)


def code_of(reply: Message) -> int:
    return reply.error.code if reply.has_error() else 0


def part_in(reply: Message, layout: Layout) -> np.ndarray:
    return server_wire.read_numbers("moments", reply.content, layout.size, "uint64")


def layout_for(terms: RunTerms) -> Layout:
    kind = asked_kind(terms, Moments)
    assert kind is not None
    return kind.layout(terms, task_for(terms))


def vector_in(reply: Message, terms: RunTerms) -> np.ndarray:
    assert reply.has_content(), reply
    return server_wire.read_payload("moments", reply.content, layout_for(terms).size)


def of_features(features: np.ndarray, task: Task, missing: int = 0) -> Records:
    flags = np.ones((len(features), missing), np.uint8) if missing else None
    targets = np.arange(len(features)) % max(task.classes, 1)
    return Records(features.astype(np.float32), targets.astype(np.int64), flags)


# --- the bound and the noise ----------------------------------------------------------------------


@pytest.mark.parametrize("schema", [SCHEMA, SCHEMA + CATEGORY, ""])
@pytest.mark.parametrize("content", ["scales", "table", "by label"])
def test_one_record_moves_the_sum_by_at_most_one(schema: str, content: str) -> None:
    table, by_label = content != "scales", content == "by label"
    terms = terms_of() if schema else RunTerms(dataset="site")
    task = task_for(terms.updated(schema_text=schema)) if schema else Task.classification((5,), 3)
    columns = "age" if table and schema else ""
    layout = layout_of(schema, task, table=table, columns=columns, by_label=by_label)
    draws, width = np.random.default_rng(1), task.input_shape[0]
    worst = [np.full(width, value) for value in (1, -1, 0, 1e30, -1e30, np.nan, np.inf, -np.inf)]
    worst += list(draws.normal(0, 3, (50, width)))
    some = of_features(draws.uniform(-1, 1, (40, width)), task, len(layout.flags))
    before, lengths = record_sum(layout, some), []
    for record in worst:
        features = np.concatenate([some.features, record[None]])
        more = of_features(features, task, len(layout.flags))
        after = record_sum(layout, more)
        lengths.append(np.linalg.norm(after - before))
    assert max(lengths) <= 1
    assert max(lengths) > 0.9  # near the bound, so that a wrong scale would pass it
    blocks = before.reshape(layout.blocks, -1)
    assert np.all(blocks[:, layout.parts["empty"]] == 0) and len(blocks) == layout.blocks


def test_the_noise_is_that_of_the_plan_and_no_half_of_it(tmp_path: Path) -> None:
    """Chi-square of the empty coordinates of 20 messages; a right one fails in 1 of 10⁶ cases."""
    values, z = [], 0.0
    for number in range(20):
        profile, terms = make_site(tmp_path / str(number)), terms_of(**ASKS)
        values.append(vector_in(asked(profile, terms), terms)[-EMPTY:])
        plan = Ledger(profile.parent / "ledger.sqlite").account().plans["run-1"].read()
        z = plan.gaussian("moments").noise_multiplier
    squares, count = float(np.square(values).sum()), 20 * EMPTY

    def is_refuted(noise: float) -> bool:
        low, high = chi2.ppf([5e-7, 1 - 5e-7], count) * noise**2
        return not low <= squares <= high

    assert not is_refuted(z)
    assert is_refuted(z / 2) and is_refuted(2 * z) and is_refuted(z / 1.2)


def test_a_canary_refutes_halved_noise() -> None:
    """A record of length 1 in, or not: its score is N(±½, z²); 4,000 messages, 1 false in 10⁶."""
    layout = layout_of(SCHEMA, task_for(terms_of()))
    draws, z = np.random.default_rng(3), 2.0
    canary = of_features(np.ones((1, 2)), task_for(terms_of()))
    direction = record_sum(layout, canary)
    assert np.linalg.norm(direction) == pytest.approx(1, abs=1e-6)

    def separation(noise: float) -> float:
        present = np.arange(4000) % 2 == 0
        noisy = draws.normal(0, noise, (4000, layout.size)) + present[:, None] * direction
        scores = noisy @ direction / np.linalg.norm(direction)
        return float(scores[present].mean() - scores[~present].mean()) / scores.std()

    error = 4.9 * 2 / math.sqrt(4000)  # of a difference of means in standard deviations
    assert separation(z) < 1 / z + error < separation(z / 2)


# --- a site ---------------------------------------------------------------------------------------


def test_it_is_charged_sealed_sent_and_replayed(tmp_path: Path) -> None:
    profile, terms = make_site(tmp_path), terms_of(**ASKS)
    first = vector_in(asked(profile, terms), terms)
    assert kinds(tmp_path) == {(1, "moments"): "sent"}
    np.testing.assert_array_equal(vector_in(asked(profile, terms), terms), first)
    plan = Ledger(tmp_path / "ledger.sqlite").account().plans["run-1"].read()
    cost = plan.cost_of("moments")
    assert isinstance(cost, Gaussians) and cost in plan.beside and cost.count == 1
    assert [price.count for price in prices_of(plan, 8) if price.kind == "moments"] == [1]
    scaled = terms.updated(scales="-0.4:0.3,0:0.5")  # the same run, the server's scales filled in
    assert ask(profile, scaled).has_content()
    assert kinds(tmp_path) == {(1, "moments"): "sent", (1, "update"): "sent"}
    # A second run is a second price.
    again = terms.updated(run_id="run-2")
    other = vector_in(asked(profile, again), again)
    assert not np.array_equal(other, first)
    assert len(Ledger(tmp_path / "ledger.sqlite").account().plans) == 2
    with Chain(tmp_path / "ledger.sqlite").transaction() as entries:
        checks = list(check_entries(entries))
    assert all(not check.failures for check in checks), checks


def test_it_is_part_of_the_runs_epsilon_by_two_accountants() -> None:
    from dp_accounting.rdp import RdpAccountant

    site = {"budget": {"epsilon": 1.0, "delta": 1e-5}, "run": {"epsilon": 1.0, "delta": 1e-5}}
    training = {"batch-size": 16, "declared-records": 160}
    profile = Profile.parse({**site, "training": training})
    plan = make_plan(profile, terms_of(**ASKS))
    event = plan.event()
    by_pld = epsilon_of(event, 1e-5)
    by_rdp = RdpAccountant().compose(event).get_epsilon(1e-5)
    assert 0.98 < by_pld <= 1.0 and by_pld <= by_rdp < 1.25 * by_pld
    without = make_plan(profile, terms_of())
    assert plan.noise_multiplier > without.noise_multiplier


def test_consent_names_it_and_the_policy_may_refuse_it(tmp_path: Path) -> None:
    site, terms = Profile.load(make_site(tmp_path)), terms_of(**ASKS)
    assert Moments.consent in disclosed_by(site, terms)
    table = {"share": 0.3, "content": "table", "columns": "age", "alone": True}
    (said,) = disclosed_by(site, terms_of(first={"moments": table}))
    assert said.startswith(Moments.consent) and "missing values, and bins of age" in said
    closed = site.model_copy(
        update={"policy": site.policy.model_copy(update={"extra_releases": False})}
    )
    with pytest.raises(Declined, match=r"'first\.moments' asks for more than noisy steps"):
        check_policy(closed, terms)


def test_a_site_refuses_scales_beyond_bounds_or_of_other_columns(tmp_path: Path) -> None:
    profile, terms = make_site(tmp_path), terms_of(**ASKS)
    for wrong in ("0:2,0:1", "1.5:0.5,0:1", "0:0,0:1", "0.1", "nan:1,0:1"):
        with pytest.raises(TermsError, match="'scales'"):
            terms.updated(scales=wrong)
    for other in ("0:1", "0:1,0:1,0:1"):
        given = server_wire.write_instructions(terms.updated(scales=other), 1, model_of(terms))
        assert code_of(send({"profile": str(profile)}, wire.TRAIN, given)) == wire.FAILED
    assert kinds(tmp_path) == {}


def test_a_run_of_its_first_message_alone_trains_nothing(tmp_path: Path) -> None:
    more = {"first": {"moments": {"share": 0.9, "alone": True}}}
    profile, terms = make_site(tmp_path), terms_of(**more)
    assert vector_in(asked(profile, terms), terms).size
    assert code_of(ask(profile, terms)) == wire.DECLINED
    assert ask(profile, terms, 3, wire.FINISH).has_content()
    assert kinds(tmp_path) == {(1, "moments"): "sent"}
    assert not (tmp_path / "state" / "model.safetensors").exists()
    account = Ledger(tmp_path / "ledger.sqlite").account()
    assert "run-1" in account.ended


def test_a_column_that_a_site_lacks_costs_nothing_and_unknown_values_are_missing(
    tmp_path: Path,
) -> None:
    """At ε = ∞ there is no noise: counts are exact."""
    profile, terms = make_site(tmp_path / "a"), terms_of(**ASKS)
    table = profile.parent / "records.csv"
    table.write_text(table.read_text().replace("dose", "other"))
    assert code_of(asked(profile, terms)) == wire.FAILED
    assert kinds(tmp_path / "a") == {}
    terms = terms_of(schema=SCHEMA + CATEGORY, **TABLE)
    profile = make_site(tmp_path / "b")
    table = profile.parent / "records.csv"
    lines = [f"{line},{'fmx'[i % 3]}" for i, line in enumerate(table.read_text().splitlines()[1:])]
    table.write_text("\n".join(["age,dose,sick,sex", *lines]) + "\n")
    profile.write_text(profile.read_text().replace("1.2345678", "inf").replace("2.4691356", "inf"))
    ledger = Ledger(profile.parent / "ledger.sqlite")
    ledger.raise_cap(math.inf, 1e-5)
    ledger.close()
    layout = layout_for(terms)
    counts = vector_in(asked(profile, terms), terms) * layout.bound
    missing = counts[layout.parts["missing"]] / FLAG
    np.testing.assert_allclose(missing, [0, 0, 20], atol=1e-3)
    sexes = counts[layout.parts["categories sex"]] / layout.weight
    np.testing.assert_allclose(sexes, [21, 20], atol=1e-3)


def test_counts_below_min_count_are_held_back(tmp_path: Path) -> None:
    terms = terms_of(**TABLE)
    layout = layout_for(terms)
    noisy = np.full(layout.size, 30 * layout.weight / layout.bound)
    noisy[layout.parts["labels"]] = np.array([3, 40]) * layout.weight / layout.bound
    noisy[layout.parts["missing"]] = np.array([2, 20]) * FLAG / layout.bound
    shown = held_back(layout, noisy, 10)
    assert (shown[layout.parts["labels"]] == [0, noisy[layout.parts["labels"]][1]]).all()
    assert (shown[layout.parts["missing"]] > 0).tolist() == [False, True]
    assert (shown[layout.parts["sums"]] == noisy[layout.parts["sums"]]).all()
    assert not held_back(layout, noisy, 31).any()
    both = held_back(replace(layout, blocks=2), np.concatenate([noisy, noisy / 2]), 16)
    assert (
        not both[layout.size :].any()
        and (both[: layout.size] == held_back(layout, noisy, 16)).all()
    )
    profile = make_site(tmp_path, more="[policy]\nmin-count = 100000\n")
    assert not vector_in(asked(profile, terms), terms).any()


# --- shared noise ---------------------------------------------------------------------------------


def test_the_same_vectors_travel_through_the_secure_sum(tmp_path: Path) -> None:
    profiles = make_sites(tmp_path)
    terms = shared_terms(profiles, **TABLE)
    layout = layout_for(terms)
    replies = {name: asked(path, terms, "0,1,2,3") for name, path in profiles.items()}
    parts = [part_in(reply, layout) for reply in replies.values()]
    total, expected = decode(np.sum(parts, axis=0, dtype=np.uint64)), 0.0
    for path in profiles.values():
        plan = Ledger(path.parent / "ledger.sqlite").account().plans["run-1"].read()
        expected += 61 / plan.gaussian("moments").noise_multiplier
    count = total[0] * layout.bound / layout.weight
    noise = math.sqrt(4 / 3) * layout.bound / layout.weight
    assert abs(count - expected) < 5 * noise + 0.01 * expected
    # The noise of all is that of 4 sites of whom 3 are honest: chi-square, 1 false in 10⁶.
    squares = float(np.square(total[-EMPTY:]).sum())
    low, high = chi2.ppf([5e-7, 1 - 5e-7], EMPTY) * 4 / 3
    assert low <= squares <= high and not low <= squares / 9 <= high
    # A part alone is uniform, and another set is another release.
    assert np.abs(decode(parts[0])).max() > 2**20
    first = next(iter(profiles.values()))
    assert code_of(asked(first, terms, "0,1,2")) == wire.DECLINED
    assert code_of(asked(first, terms, "0,1")) == wire.DECLINED
    again = part_in(asked(first, terms, "0,1,2,3"), layout)
    assert (again == parts[0]).all()


def test_no_sum_is_computed_for_a_request_that_is_not_reserved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server's other sets, or the same one again, take no time of the records."""
    first = next(iter((profiles := make_sites(tmp_path)).values()))
    terms = shared_terms(profiles, **ASKS)
    assert asked(first, terms, "0,1,2,3").has_content()
    computed = []
    monkeypatch.setattr(half, "record_sum", lambda *given: computed.append(given))
    assert code_of(asked(first, terms, "0,1,2")) == wire.DECLINED
    assert asked(first, terms, "0,1,2,3").has_content()
    assert computed == []


def test_a_sum_cannot_hold_counts_back(tmp_path: Path) -> None:
    profiles = make_sites(tmp_path, more="[policy]\nshared-noise = true\nmin-count = 5\n")
    terms = shared_terms(profiles, **ASKS)
    assert code_of(asked(next(iter(profiles.values())), terms, "0,1,2,3")) == wire.DECLINED


# --- scales ---------------------------------------------------------------------------------------


def rows_of(features: np.ndarray, layout: Layout, task: Task, z: float, sites: int) -> np.ndarray:
    draws = np.random.default_rng(5)
    parts = np.array_split(features, sites)
    sums = [record_sum(layout, of_features(part, task)) for part in parts]
    return np.array(sums) + z * draws.normal(size=(sites, layout.size))


def test_scales_are_near_the_columns_moments_and_within_bounds() -> None:
    task, draws = Task.classification((4,), 2), np.random.default_rng(2)
    layout = layout_of("", task)
    means, deviations = np.array([-0.6, -0.3, -0.5, 0.1]), np.array([0.2, 0.15, 0.3, 0.25])
    features = np.clip(draws.normal(means, deviations, (4000, 4)), -1, 1)
    scales, why = scales_of(rows_of(features, layout, task, 3.0, 4), layout)
    assert not why
    for (mean, deviation), true_mean, true in zip(scales, means, deviations, strict=True):
        assert abs(mean - true_mean) < 0.5 * true
        assert true / 2 < deviation < 2 * true
    # However wrong the sums are, the scales are such that terms may hold them.
    wild = rows_of(features, layout, task, 3.0, 4)
    wild[:, layout.parts["sums"]] *= [1e3, 1e3, 0, -1]
    wild[:, layout.parts["squares"]] *= [-1e3, 1e3, 0, 1]
    text = ",".join(f"{mean:.4f}:{scale:.4f}" for mean, scale in scales_of(wild, layout)[0])
    assert text
    assert RunTerms().updated(scales=text).scales == text


def test_no_scales_where_noise_hides_the_records_or_arrays_have_no_bounds() -> None:
    task, draws = Task.classification((4,), 2), np.random.default_rng(2)
    layout = layout_of("", task)
    features = draws.uniform(-1, 1, (40, 4))
    rows = rows_of(features, layout, task, 1000.0, 4)
    rows[:, 0] = -1.0  # a noisy count below 0
    assert scales_of(rows, layout) == ([], HIDDEN) and LEAST_RECORDS > 0
    wide = rows_of(draws.normal(0, 50, (4000, 4)), layout, task, 1.0, 4)
    assert scales_of(wide, layout) == ([], UNBOUNDED)
    even = rows_of(draws.uniform(-1, 1, (4000, 4)), layout, task, 1.0, 4)
    assert scales_of(even, layout) == ([], SPREAD_OUT)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({}, ""),
        ({"noise": "client"}, "'noise' leaves no share"),
        ({"participations": 2}, "'participations' leaves no share"),
        ({"dataset": "heart", "schema": ""}, "named data set"),
        ({"schema": SCHEMA.replace("[0, 10]", "[0, 10]\ntypical = [5, 2]")}, "2 to"),
        ({"dataset": "digits", "schema": ""}, "named data set"),
        ({"schema": SCHEMA + CATEGORY}, ""),  # two numbers of four features
        ({"schema": SCHEMA + CATEGORY + CATEGORY.replace("sex", "ward")}, "most features are"),
        ({"schema": "heart"}, "most features are categories"),
    ],
)  # fmt: skip
def test_auto_is_decided_by_public_terms_alone(more: dict[str, Any], why: str) -> None:
    config = config_of(**more)
    said = why_not(config.terms)
    assert (why in said) if why else not said
    kind = asked_kind(make_kernel(config).terms, Moments)
    assert (kind.share if kind else 0) == (0 if why else SHARE)
    off = make_kernel(config_of(**{**more, "first": {"moments": {"share": 0}}}))
    assert asked_kind(off.terms, Moments) is None


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"columns": "age"}, "'columns' are only for a table"),
        ({"content": "table", "columns": "sex"}, "'sex' is not a number column"),
        ({"content": "table", "columns": "age", "bins": "20,120"}, "do not divide"),
        ({"content": "table", "columns": "age,age"}, "twice"),
        ({"content": "table", "columns": "age", "bins": "30,20"}, "rising inner edges"),
    ],
)
def test_wrong_tables_are_refused_before_any_site_is_asked(
    settings: dict[str, Any], fault: str
) -> None:
    with pytest.raises((TermsError, DataError), match=fault):
        ready_kernel(config_of(first={"moments": {"share": 0.3, **settings}}))


# --- a run ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", ["records", "shared"])
def test_a_run_scales_its_columns_and_gains(tmp_path: Path, noise: str) -> None:
    """Two columns in a corner of their bounds: without scales most of C is their common offset."""
    draws = np.random.default_rng(7)
    y = draws.integers(0, 2, 1600)
    x = np.stack([-0.8 + 0.05 * (2 * y - 1), -0.7 + 0 * y], 1) + draws.normal(0, 0.05, (1600, 2))
    owner = np.arange(1600) % 4
    np.savez(tmp_path / "corner.npz", x=x.astype(np.float32), y=y, owner=owner)
    accuracy = {}
    for share in (0.0, 0.35):
        config = RunConfig.parse(
            {
                "dataset": f"file:{tmp_path}/corner.npz", "task.kind": "classification",
                "task.shape": "2", "task.classes": 2, "partition": "natural", "epsilons": "1",
                "rounds": 8, "noise": noise, "runs-dir": str(tmp_path), "seed": 1,
                "run-id": f"r{share}", "first.moments.share": share, "strategy": "fedavg",
            }
        )  # fmt: skip
        result = run_in_process(config, 4)
        accuracy[share] = result.rounds[-1]["metrics"]["accuracy"]
        assert bool(result.sent and result.sent.scales) == bool(share)
    assert accuracy[0.35] > accuracy[0.0] + 0.05


class Killed(BaseException):
    """An end at some event of the journal."""


@pytest.mark.parametrize("at", ["first-message", "privacy", "round"])
def test_a_run_that_resumes_keeps_its_scales_and_asks_no_site_twice(
    tmp_path: Path, at: str
) -> None:
    draws = np.random.default_rng(7)
    x, y = draws.normal(-0.7, 0.05, (400, 3)), draws.integers(0, 2, 400)
    np.savez(tmp_path / "rows.npz", x=x.astype(np.float32), y=y, owner=np.arange(400) % 4)

    def config(name: str) -> RunConfig:
        return RunConfig.parse(
            {
                "dataset": f"file:{tmp_path}/rows.npz", "task.kind": "classification",
                "task.shape": "3", "task.classes": 2, "partition": "natural", "epsilons": "4",
                "rounds": 2, "runs-dir": str(tmp_path), "seed": 1, "run-id": name,
                "strategy": "fedavg",
            }
        )  # fmt: skip

    def kill(event: dict[str, Any]) -> None:
        if event["event"] == at:
            raise Killed

    whole = run_in_process(config("whole"), 4, resumable=True)
    with pytest.raises(Killed):
        run_in_process(config("cut"), 4, kill, resumable=True)
    checkpoint = open_run(tmp_path / "cut", config("cut"))
    result = resume_in_process(checkpoint)
    assert result.sent and whole.sent and result.sent.scales == whole.sent.scales != ""
    for name, array in whole.arrays.items():
        np.testing.assert_array_equal(result.arrays[name], array)
    events = read_journal(tmp_path / "cut" / "journal.jsonl")
    assert len([event for event in events if event["event"] == "first-message"]) == 1
    assert json.loads((tmp_path / "cut" / "result.json").read_text())["first-message"]["scales"]

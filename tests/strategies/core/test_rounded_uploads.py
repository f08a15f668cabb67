"""Rounded uploads at the server: bad ones are dropped, and guards and estimators hold."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, RecordDict

from hdpfl_flower import wire
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import StrategyError, TermsError
from hdpfl_flower.estimators.noise_level import ESTIMATORS, measure_noise
from hdpfl_flower.estimators.softmax_head import silent_squares, silent_sums
from hdpfl_flower.monitoring.journal import read_journal
from hdpfl_flower.monitoring.rejection import Rejection, rejections_in
from hdpfl_flower.quantize import LARGEST_ERROR, Form, read_rounded, round_vector
from hdpfl_flower.updates import RoundUpdates
from server_app.run.rounds import RunResult, finalize_terms, run
from strategies import make_strategy
from strategies.guards.bounds import COPY, REPEATS, refuse_copies
from strategies.guards.proof import SHARED, Floor, ProofState, refuse_proven
from strategies.guards.registry import make_guard
from tests.federation import ScriptedGrid, Site
from tests.strategies.guards.test_proof import HEAD, ROUNDS, D, Federation, N

SIZE = 650
FORMS: tuple[Form, ...] = ("bfloat16", "int8")
NAMES = [str(i) for i in range(N)]


def rounded(rows: np.ndarray, form: Form, seed: int = 0) -> np.ndarray:
    """Return the rows as the server reads them, each site's rounding its own."""
    return np.array(
        [
            read_rounded(
                round_vector(row, form, np.random.default_rng([seed, i]).bytes), len(row), form
            )
            for i, row in enumerate(rows)
        ]
    )


# --- bad replies --------------------------------------------------------------------------------


def terms_of(folder: Path, form: str, **more: Any) -> RunConfig:
    config = {"strategy": "fedavg", "rounds": 2, "runs-dir": str(folder), "run-id": "r",
              "min-sites": 1, "upload": form, **more}  # fmt: skip
    return RunConfig.parse(config)


def update_of(seed: int, server_round: int) -> np.ndarray:
    drawn = np.random.default_rng([seed, server_round]).standard_normal(SIZE)
    return (0.01 + 0.01 * drawn).astype(np.float32)


def honest(seed: int, form: Form) -> Site:
    def site(server_round: int) -> RecordDict:
        chance = np.random.default_rng([seed, server_round, 1]).bytes
        payload = round_vector(update_of(seed, server_round), form, chance)
        return wire.write_update(payload, SIZE, form=form)

    return site


def changed(form: Form, change: Callable[[bytes], bytes], **fields: Any) -> Site:
    def site(server_round: int) -> RecordDict:
        array = honest(99, form)(server_round)["update"]["update"]  # type: ignore[index]
        own = {"dtype": array.dtype, "shape": array.shape, "stype": array.stype, **fields}
        sent = Array(**own, data=change(array.data))
        return RecordDict({"update": ArrayRecord({"update": sent})})

    return site


def same(data: bytes) -> bytes:
    return data


BAD: dict[str, Callable[[Form], Site]] = {
    "a byte less": lambda form: changed(form, lambda data: data[:-1]),
    "a byte more": lambda form: changed(form, lambda data: data + b"\0"),
    "nothing": lambda form: changed(form, lambda _: b""),
    "the first number or scale infinite": lambda form: changed(form, lambda d: b"\x80\x7f" + d[2:]),
    "the first number or scale NaN": lambda form: changed(form, lambda d: b"\xc0\x7f" + d[2:]),
    "a norm out of range": lambda form: changed(form, lambda d: b"\x00\x7e" + d[2:]),
    "another kind": lambda form: changed(form, same, dtype="uint8"),
    "NumPy's serialisation": lambda form: changed(form, same, stype="numpy.ndarray"),
    "another shape": lambda form: changed(form, same, shape=(SIZE + 1,)),
    "a matrix": lambda form: changed(form, same, shape=(SIZE // 2, 2)),
    "one number": lambda form: changed(form, same, shape=(1,)),
    "float32": lambda _: lambda r: wire.write_update(wire.encode_update(update_of(9, r)), SIZE),
    "the other form": lambda form: honest(9, "int8" if form == "bfloat16" else "bfloat16"),
}


def beside_five(folder: Path, form: Form, **more: Site) -> RunResult:
    good = {f"site-{i}": honest(i, form) for i in range(5)}
    return run(ScriptedGrid({**good, **more}), terms_of(folder, form))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Form], RunResult]:
    """Form → the run of the honest sites alone, once for all cases."""
    return cache(lambda form: beside_five(tmp_path_factory.mktemp(form), form))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", BAD)
def test_a_bad_rounded_reply_is_dropped_and_changes_nothing(
    tmp_path: Path, case: str, form: Form, alone: Callable[[Form], RunResult]
) -> None:
    beside = beside_five(tmp_path, form, odd=BAD[case](form))
    for name, array in alone(form).arrays.items():
        np.testing.assert_array_equal(beside.arrays[name], array)
    events = read_journal(tmp_path / "r" / "journal.jsonl")
    rounds = [event for event in events if event["event"] == "round"]
    for event in rounds:
        assert event["accepted"] == [f"site-{i}" for i in range(5)]
        assert rejections_in(event) == {"odd": Rejection.MALFORMED}


@pytest.mark.parametrize("form", FORMS)
def test_what_a_good_site_rounds_is_accepted(tmp_path: Path, form: Form) -> None:
    """The cases above fail for what they change, not for how they are built."""
    grid = ScriptedGrid({"a": honest(1, form), "odd": changed(form, same)})
    result = run(grid, terms_of(tmp_path, form))
    assert [event["accepted"] for event in result.rounds] == [["a", "odd"]] * 2


def test_a_rounded_reply_to_terms_of_float32_is_dropped(tmp_path: Path) -> None:
    grid = ScriptedGrid({"a": honest(1, "int8"), "b": honest(2, "int8")})
    with pytest.raises(StrategyError, match="without a quorum"):
        run(grid, terms_of(tmp_path, "float32"))


@pytest.mark.parametrize(
    ("strategy", "key", "words"),
    [
        ("pfa-plus", "upload", "the same to the bit"),
        ("pfa-plus", "download", "the same to the bit"),
        ("scaffold", "download", "'upload' may be rounded"),
        ("robust-hdp+scaffold", "download", "'upload' may be rounded"),
    ],
)
def test_what_needs_the_same_bits_at_both_ends_is_refused(
    strategy: str, key: str, words: str
) -> None:
    config = {"strategy": strategy, key: "int8", "run-id": "r"}
    with pytest.raises(TermsError, match=f"'{key}' = 'int8'.*'float32'") as error:
        make_strategy(finalize_terms(RunConfig.parse(config)))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_scaffold_takes_rounded_updates() -> None:
    make_strategy(finalize_terms(RunConfig.parse({"strategy": "scaffold", "upload": "int8"})))


# --- the model ----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_a_model_is_sent_rounded_for_training_alone_and_the_same_each_time(form: Form) -> None:
    config = RunConfig.parse({"strategy": "fedavg", "run-id": "r", "download": form})
    strategy = make_strategy(config)
    generator = np.random.default_rng(0)
    arrays = {"w": generator.standard_normal((10, 64)).astype(np.float32),
              "b": generator.standard_normal(10).astype(np.float32)}  # fmt: skip
    record = wire.write_model(arrays)
    strategy._record.begin_round(record, packed=False)

    def sent(kind: str) -> ArrayRecord:
        request = strategy.request(strategy.state, 1, "a", kind)
        content = strategy._record.message(strategy.terms, 1, request, kind)
        return wire.read_instructions(content).model

    first, again = sent(wire.TRAIN), sent(wire.TRAIN)
    assert wire.model_digest(first) == wire.model_digest(again)
    read = wire.read_model(first, arrays, form)
    for name, array in arrays.items():
        assert 0 < np.abs(read[name] - array).max() < 2**-6 * np.abs(array).max()
    for kind in (wire.EVALUATE, wire.FINISH):
        assert wire.model_digest(sent(kind)) == wire.model_digest(record)


# --- guards -------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_a_copied_or_repeated_payload_is_refused(form: Form) -> None:
    rows = rounded(np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32), form)
    rows[2] = rows[1]
    digests, refused = refuse_copies({}, NAMES[:4], rows, 36)
    assert refused == {"1": COPY, "2": COPY}
    later = rounded(np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32), form, 1)
    later[0], later[3] = rows[0], rows[1]
    assert refuse_copies(digests, NAMES[:4], later, 36)[1] == {"0": REPEATS, "3": COPY}


@pytest.mark.parametrize(("upload", "alarms"), [("float32", True), ("int8", False)])
def test_few_rounded_numbers_are_equal_by_chance_and_nobody_is_refused_for_it(
    upload: str, alarms: bool
) -> None:
    """Four of them, of noise of one step: of 80 sent over the run, some are equal."""
    guard = make_guard(RunConfig.parse({"upload": upload}), sums=True)
    generator, found = np.random.default_rng(0), 0
    for _ in range(40):
        rows = np.round(generator.standard_normal((2, 4))).astype(np.float32) + np.float32(40)
        if (rows[0] == rows[1]).all():
            continue  # of one round: refused in any case
        guard.screen(RoundUpdates(1, ("a", "b"), rows))
        found += COPY in guard.refused.values()
    assert (found > 0) == alarms


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("count", [2, 12])
def test_noise_that_two_sites_share_is_proven_through_their_rounding(
    form: Form, count: int
) -> None:
    generator = np.random.default_rng(3)
    clean, rows = next(Federation(20).rounds())
    jitter = generator.standard_normal((count, D)).astype(np.float32)
    rows[:count] = clean[:count] + (rows[0] - clean[0]) * (1 + np.float32(1e-3) * jitter)
    floor = Floor(ROUNDS, 0.0, LARGEST_ERROR[form])
    _, refused = refuse_proven(ProofState(), NAMES, rounded(rows, form), floor, HEAD)
    assert {site for site, why in refused.items() if why == SHARED} == set(NAMES[:count])


@pytest.mark.parametrize("form", FORMS)
def test_rounding_of_sites_without_noise_is_no_shared_noise(form: Form) -> None:
    """Their silent sums are rounding, in few coordinates where few have a signal: 20 of 200 inputs.

    Taken for noise it would be drawn in so few directions that two are alike by chance.
    """
    alarms = dict.fromkeys((0.0, LARGEST_ERROR[form]), 0)
    for seed in range(10):
        clean, rows = next(Federation(seed).rounds())
        weights = clean[:, : 10 * 199].reshape(N, 10, 199)
        weights[:, :, 20:] = 0
        rows[:10] = clean[:10]
        read = rounded(rows, form, seed)
        lengths = np.linalg.norm(read[:10].astype(np.float64), axis=1)
        silent = silent_sums(read[:10], HEAD).astype(np.float64)
        share = np.linalg.norm(silent, axis=1) / lengths
        assert (share < LARGEST_ERROR[form]).all() and (share > 1e-4).all()
        for hush in alarms:
            found = refuse_proven(ProofState(), NAMES, read, Floor(ROUNDS, 0.0, hush), HEAD)[1]
            alarms[hush] += SHARED in found.values()
    assert alarms[LARGEST_ERROR[form]] == 0
    assert alarms[0.0] > 0  # the bound is what holds them off


# --- estimators ---------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("method", [name for name in ESTIMATORS if name != "temporal"])
def test_every_estimator_finds_the_noise_that_it_finds_without_rounding(
    method: str, form: Form
) -> None:
    """2 % of a variance; rounding adds 7e-5 of an update's power, all of it to the noise."""
    for seed in (1, 2):
        rows = next(Federation(seed, signal=1.0).rounds())[1]
        exact = measure_noise(rows, method).variances
        found = measure_noise(rounded(rows, form, seed), method).variances
        np.testing.assert_allclose(found, exact, rtol=0.02)
        np.testing.assert_allclose(
            silent_squares(rounded(rows, form, seed), HEAD), silent_squares(rows, HEAD), rtol=0.02
        )


@pytest.mark.parametrize("form", FORMS)
def test_the_rounding_counts_as_noise_where_there_is_little(form: Form) -> None:
    """A precise site's noise is what it added and its rounding: what the weights must divide by.

    A mean of 200 squares lies within 40 % but for 1e-4; without the rounding it would be 0.
    """
    clean, rows = next(Federation(5, signal=3.0).rounds())
    rows[0] = clean[0] + np.float32(1e-7) * np.random.default_rng(1).standard_normal(D)
    read = rounded(rows, form)
    added = float(np.mean((read[0].astype(np.float64) - clean[0]) ** 2))
    assert added > 10 * 1e-14
    assert silent_squares(read, HEAD)[0] == pytest.approx(added, rel=0.4)
    assert silent_squares(rows, HEAD)[0] < 0.1 * added

"""Splittings in whole runs: sites with exact proximal maps, absent ones, refusals, terms."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Error, Message, RecordDict

from hdpfl_flower import wire
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import HDPFLError, StrategyError, TermsError
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.models.networks import flatten
from server_app.in_process.in_process_run import run_in_process
from server_app.run.rounds import RunResult, ready_strategy, run
from strategies import SPLITTINGS, STRATEGIES, check_strategy, make_strategy
from strategies.splitting.own_starts import OwnStarts
from strategies.splitting.scheme import Scheme
from tests.client_app.messages import CLIENT_NOISE, ask, make_site, terms_of
from tests.federation import ScriptedGrid

SIZE, N, ETA = 650, 6, 2.0
NAMES = [str(i) for i in range(N)]
GENERATOR = np.random.default_rng(4)
CURVES = GENERATOR.uniform(0.2, 1.5, (N, SIZE))
CENTRES = GENERATOR.standard_normal((N, SIZE))
JITTER = 1e-6
"""Noise of an update: one that repeats an earlier upload to the bit is refused."""
ABSENT = ["stale", "follow"]
Prox = Callable[[int, np.ndarray], np.ndarray]
Fault = Callable[[str, int], Error | RecordDict | None]


def least_squares(i: int, u: np.ndarray) -> np.ndarray:
    """The proximal map of ½Σ aᵢ(x − cᵢ)²."""
    return np.asarray((u + ETA * CURVES[i] * CENTRES[i]) / (1 + ETA * CURVES[i]))


def minimum_of(eta: float, sites: list[int] | None = None) -> np.ndarray:
    """The minimum of the sum of the Moreau envelopes at η; at 0 of the functions themselves."""
    curves = CURVES if sites is None else CURVES[sites]
    weights = curves / (1 + eta * curves)
    return np.asarray(
        (weights * (CENTRES if sites is None else CENTRES[sites])).sum(0) / weights.sum(0)
    )


class ProxGrid(ScriptedGrid):
    """Sites that answer with P(u) − u of the model that they are sent.

    Attributes:
        sent: message type, site, round → model.
    """

    def __init__(self, prox: Prox = least_squares, fault: Fault | None = None, n: int = N) -> None:
        self.sent: dict[tuple[str, str, int], np.ndarray] = {}
        self.pulls: dict[int, float] = {}

        def site(i: int) -> Callable[[int], Any]:
            def answer(server_round: int) -> Any:
                if fault is not None:
                    found = fault(str(i), server_round)
                    if not (isinstance(found, RecordDict) and not found):
                        return found
                u = self.sent[wire.TRAIN, str(i), server_round].astype(np.float64)
                noise = np.random.default_rng([i, server_round]).standard_normal(SIZE)
                update = (prox(i, u) - u + JITTER * noise).astype(np.float32)
                return wire.write_update(wire.encode_update(update), SIZE)

            return answer

        facts = {str(i): {"epsilon": 1.0 + i, "declared-records": 100.0} for i in range(n)}
        super().__init__({str(i): site(i) for i in range(n)}, facts)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        messages = list(messages)
        for message in messages:
            kind, name = message.metadata.message_type, self.names[message.metadata.dst_node_id]
            if kind != wire.JOIN:
                asked = wire.read_instructions(message.content)
                model = flatten(wire.read_own(asked.model)).copy()
                self.sent[kind, name, asked.server_round] = model
                self.pulls[asked.server_round] = asked.terms.pull
        return super().send_and_receive(messages, timeout=timeout)


def config_of(folder: Path | None = None, **keys: Any) -> RunConfig:
    more = {} if folder is None else {"runs-dir": str(folder)}
    return RunConfig.parse({
        "strategy": "fedpi", "rounds": 40, "run-id": "r", "evaluation": "none",
        "work": f"auto pull={1 / ETA!r}", "learning-rate": 0.1, **more, **keys,
    })  # fmt: skip


def go(folder: Path, grid: ProxGrid, **keys: Any) -> RunResult:
    return run(grid, config_of(folder, **keys))


def broadcasts(grid: ProxGrid, site: str = "0") -> np.ndarray:
    rounds = sorted(r for kind, name, r in grid.sent if kind == wire.TRAIN and name == site)
    return np.array([grid.sent[wire.TRAIN, site, r] for r in rounds])


# --- fixed points ---------------------------------------------------------------------------------

OWN = {"splitting.alpha": 1.2, "splitting.beta": 1.5, "splitting.gamma": 0.7}


@pytest.mark.parametrize(
    ("name", "keys", "scheme"),
    [
        ("fedprox", {}, Scheme(1, 1, 1)),
        ("fedrp", {}, Scheme(2, 1, 1)),
        ("fedsplit", {}, Scheme(2, 2, 1)),
        ("fedpi", {"fedpi.absent": "follow"}, Scheme(2, 2, 0.5)),
        ("fedpi", {}, Scheme(2, 2, 0.5)),
        ("splitting", OWN, Scheme(1.2, 1.5, 0.7)),
        ("splitting", {**OWN, "splitting.beta": 1}, Scheme(1.2, 1, 0.7)),
    ],
    ids=str,
)
def test_a_run_ends_at_the_schemes_fixed_point(
    tmp_path: Path, name: str, keys: dict[str, Any], scheme: Scheme
) -> None:
    strategy = make_strategy(config_of(strategy=name, **keys))
    assert strategy.scheme == scheme  # type: ignore[attr-defined]
    result = go(tmp_path, ProxGrid(), strategy=name, **keys)
    expected = minimum_of(scheme.effective_step(ETA))
    np.testing.assert_allclose(flatten(result.arrays), expected, rtol=0, atol=2e-5)
    solved = scheme.effective_step(ETA)
    others = [eta for eta in (0.0, ETA / 2, ETA) if abs(eta - solved) > 1e-9]
    assert min(np.abs(minimum_of(eta) - expected).max() for eta in others) > 1e-2


def test_the_weights_before_the_plus_weigh(tmp_path: Path) -> None:
    result = go(tmp_path, ProxGrid(), strategy="weiavg+fedpi")
    weights = np.arange(1.0, N + 1)[:, None] * CURVES
    expected = (weights * CENTRES).sum(0) / weights.sum(0)
    np.testing.assert_allclose(flatten(result.arrays), expected, rtol=0, atol=2e-5)


def test_fedrp_is_fedprox_at_twice_the_servers_rate(tmp_path: Path) -> None:
    one = go(tmp_path / "a", ProxGrid(), strategy="fedrp", rounds=5)
    two = go(tmp_path / "b", ProxGrid(), strategy="fedprox", rounds=5,
             **{"server-learning-rate": 2.0})  # fmt: skip
    np.testing.assert_array_equal(flatten(one.arrays), flatten(two.arrays))


def test_the_servers_rate_multiplies_gamma(tmp_path: Path) -> None:
    """FedSplit at half the rate is FedPi, in its starts and in what it reports."""
    grids = ProxGrid(), ProxGrid()
    one = go(tmp_path / "a", grids[0], strategy="fedpi", rounds=6)
    two = go(tmp_path / "b", grids[1], strategy="fedsplit", rounds=6,
             **{"server-learning-rate": 0.5})  # fmt: skip
    np.testing.assert_allclose(broadcasts(grids[0]), broadcasts(grids[1]), rtol=0, atol=1e-6)
    np.testing.assert_allclose(flatten(one.arrays), flatten(two.arrays), rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("name", "cycles"), [("fedprox", False), ("fedrp", True), ("fedsplit", True), ("fedpi", False)]
)
def test_on_two_identical_lines_reflections_alone_cycle(
    tmp_path: Path, name: str, cycles: bool
) -> None:
    line = np.ones(SIZE) / np.sqrt(SIZE)

    def project(_: int, u: np.ndarray) -> np.ndarray:
        return np.asarray((u @ line) * line)

    grid = ProxGrid(project, n=2)
    result = go(tmp_path, grid, strategy=name, rounds=9)
    models = [*broadcasts(grid), flatten(result.arrays)]
    away = [np.linalg.norm(model - project(0, model)) for model in models]
    if cycles:  # reflected to the other side and back
        np.testing.assert_allclose(away, away[0], rtol=1e-3)
        np.testing.assert_allclose(models[2], models[0], atol=1e-4)
    else:
        assert max(away[1:]) < 1e-3 * away[0]


# --- what sites are sent --------------------------------------------------------------------------


def test_each_site_trains_from_its_own_start_and_all_get_the_same_end(tmp_path: Path) -> None:
    """The starts are the scheme's u; at the end and in the file is P_H z."""
    grid = ProxGrid()
    result = go(tmp_path, grid, rounds=4)
    u = np.tile(grid.sent[wire.TRAIN, "0", 1].astype(np.float64), (N, 1))
    for server_round in range(1, 5):
        sent = np.array([grid.sent[wire.TRAIN, name, server_round] for name in NAMES])
        np.testing.assert_allclose(sent, u, rtol=0, atol=2e-5)
        prox = np.array([least_squares(i, u[i]) for i in range(N)])
        u, agreed = Scheme(2, 2, 0.5).step(u, prox, np.full(N, 1 / N))
    assert np.abs(u - u.mean(0)).max() > 0.1
    for name in NAMES:
        np.testing.assert_array_equal(grid.sent[wire.FINISH, name, 4], flatten(result.arrays))
    np.testing.assert_allclose(flatten(result.arrays), agreed, rtol=0, atol=2e-5)
    assert np.abs(agreed - u.mean(0)).max() > 1e-2  # the broadcast model is another one


# --- absent sites ---------------------------------------------------------------------------------


def faults(site: str, server_round: int) -> Error | RecordDict | None:
    """A late site, one that sends NaN, rounds without a quorum, one that joins at round 6."""
    if site == "1" and server_round in (3, 4):
        return None
    if site == "2" and server_round % 5 == 2:
        nothing = np.full(SIZE, np.nan, np.float32)
        return wire.write_update(wire.encode_update(nothing), SIZE)
    if server_round in (7, 8) and site != "0":
        return Error(wire.FAILED, "failed")
    if site == "4" and server_round < 6:
        return Error(wire.DECLINED, "declined")
    return RecordDict()


@pytest.mark.parametrize("absent", ABSENT)
def test_a_run_survives_absent_sites_and_ends_at_the_solution(tmp_path: Path, absent: str) -> None:
    grid = ProxGrid(fault=faults)
    result = go(tmp_path, grid, rounds=60, quorum=2, **{"fedpi.absent": absent})
    np.testing.assert_allclose(flatten(result.arrays), minimum_of(0), rtol=0, atol=1e-4)
    gauges = {event["round"]: event.get("gauges") for event in result.rounds}
    assert gauges[7] is None  # without a quorum: nothing moves
    for name in NAMES:
        first, second = (grid.sent[wire.TRAIN, name, t] for t in (7, 8))
        np.testing.assert_array_equal(first, second)
    assert [gauges[t]["absent"] for t in (1, 2, 3, 4, 5, 6)] == [0, 1, 1, 1, 0, 0]
    assert [len(gauges[t]["dual_norm"]) for t in (1, 2, 3, 6)] == [5, 4, 4, 6]


@pytest.mark.parametrize("absent", ABSENT)
def test_who_leaves_for_good_does_not_move_the_solution_that_it_helped_to_find(
    tmp_path: Path, absent: str
) -> None:
    grid = ProxGrid(fault=lambda site, t: None if site == "0" and t > 30 else RecordDict())
    result = go(tmp_path, grid, rounds=45, **{"fedpi.absent": absent})
    np.testing.assert_allclose(flatten(result.arrays), minimum_of(0), rtol=0, atol=1e-3)
    assert np.abs(minimum_of(0, [1, 2, 3, 4, 5]) - minimum_of(0)).max() > 0.1


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"strategy": "splitting", "splitting.alpha": 0}, r"'splitting\.alpha'"),
        ({"strategy": "splitting", "splitting.beta": 0}, r"'splitting\.beta'"),
        ({"strategy": "splitting", "splitting.gamma": -1.0}, r"'splitting\.gamma'"),
        ({"strategy": "fedpi", "fedpi.alpha": 1.0}, r"'fedpi\.alpha' is not a known key"),
        ({"strategy": "fedprox", "fedprox.absent": "stale"}, r"'fedprox\.absent'"),
        ({"strategy": "fedpi", "fedpi.absent": "gone"}, r"'fedpi\.absent'"),
        ({"strategy": "fedpi", "memory-mb": 0}, r"'memory-mb'"),
        ({"strategy": "fedpi", "noise": "server"}, "'noise' = 'server': 'fedpi' adds no noise"),
        ({"strategy": "fedpi", "guard": "cap"}, "'guard' compares or bounds"),
        ({"strategy": "fedpi", "model": "mlp:8", "work": "joint"}, "beside one global"),
        ({"strategy": "ppsgd+fedpi"}, "beside one global"),
        ({"strategy": "fedsplit", "second": "kept pull=0.1"}, "beside one global"),
        ({"strategy": "fedprox", "fedprox.prox-schedule": "cosine"}, r"'fedprox\.prox-schedule'"),
        (
            {"strategy": "fedprox", "fedprox.prox-schedule": "sqrt", "work": "auto pull=0"},
            "the 'pull' of 'work' is 0: there is none",
        ),
        (
            {"strategy": "fedpi", "fedpi.prox-schedule": "inverse", "work": "auto pull=3"},
            "the 'pull' 12 in round 4, and with 'learning-rate' 0.1 a step would go beyond",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_by_name_before_any_site_is_asked(
    keys: dict[str, Any], words: str
) -> None:
    with pytest.raises(HDPFLError, match=words):
        ready_strategy(config_of(**keys))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("robust-hdp+fedpi", "'robust-hdp' weighs by the updates"),
        ("mmse+fedsplit", "weighs by the updates"),
        ("trimmed-mean+splitting", "weighs by the updates"),
        ("fedpi+momentum", "keeps a start for each site"),
        ("fedavg+fedsplit+adam", "keeps a start for each site"),
        ("fedprox+pfa", "'fedprox' splits by itself: write the weights"),
        ("fedavg+fedpi+pfa", "takes one projection, clustering or splitting"),
        ("ifca+fedprox", "'ifca' has several models by itself"),
    ],
)
def test_what_does_not_compose_is_refused(name: str, words: str) -> None:
    with pytest.raises(StrategyError, match=words):
        check_strategy(name)


@pytest.mark.parametrize(
    "name",
    ["mmse+fedprox", "robust-hdp+fedrp", "fedprox+adam", "oracle+fedpi", "minimum+fedsplit"],
)
def test_what_composes_is_made(name: str) -> None:
    strategy = make_strategy(config_of(strategy=name))
    assert strategy.name == name
    assert strategy.terms.pull == 1 / ETA


def test_an_open_pull_is_a_tenth_and_an_explicit_0_none() -> None:
    for name in SPLITTINGS:
        assert make_strategy(RunConfig.parse({"strategy": name})).terms.pull == 0.1
        assert make_strategy(config_of(strategy=name, work="auto pull=0")).terms.pull == 0


@pytest.mark.parametrize(("absent", "each"), [("stale", 8 + 4), ("follow", 8)])
def test_memory_is_refused_before_round_1_and_to_sites_that_join_later(
    tmp_path: Path, absent: str, each: int
) -> None:
    """Of the last state and the next one: u − ū in float64, z − ū in float32."""
    need = 2 * each * SIZE * 1e-6
    keys = {"rounds": 3, "fedpi.absent": absent, "min-sites": 2}
    with pytest.raises(TermsError, match=r"'memory-mb' is .* starts of 6 sites take 0 MB"):
        go(tmp_path, ProxGrid(), **{**keys, "memory-mb": 5.9 * need})
    go(tmp_path / "all", ProxGrid(), **{**keys, "memory-mb": 6.01 * need})
    grid = ProxGrid()
    late = {node: name for node, name in grid.names.items() if name in ("3", "4", "5")}
    for node in late:
        del grid.names[node]
    send = grid.send_and_receive

    def joining(messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        replies = send(messages, timeout=timeout)
        if (wire.TRAIN, "0", 1) in grid.sent:
            grid.names.update(late)
        return replies

    grid.send_and_receive = joining  # type: ignore[method-assign]
    result = go(tmp_path / "late", grid, **{**keys, "memory-mb": 4.5 * need})
    last = result.rounds[-1]
    assert last["accepted"] == ["0", "1", "2", "3"]
    for site in ("4", "5"):
        assert "no memory for its start: 'memory-mb'" in last["rejected"][site]


# --- the pull over the rounds ---------------------------------------------------------------------


def test_a_schedule_of_eta_is_sent_as_terms_of_the_round(tmp_path: Path) -> None:
    grid = ProxGrid()
    go(tmp_path, grid, strategy="fedprox", rounds=5, **{"fedprox.prox-schedule": "halved:2"})
    expected = {t: 2 ** ((t - 1) // 2) / ETA for t in range(1, 6)}
    assert {t: grid.pulls[t] for t in expected} == expected


def test_a_deployed_site_takes_a_pull_that_changes_between_rounds(tmp_path: Path) -> None:
    site = make_site(tmp_path)
    for server_round, pull in ((1, 0.1), (2, 0.2)):
        terms = terms_of(**{"strategy": "fedprox", "work": f"plain pull={pull!r}"})
        reply = ask(site, terms, server_round=server_round)
        assert reply.has_content(), reply.error
    terms = terms_of(**{"strategy": "fedprox", "work": "plain pull=0.2", "learning-rate": 0.07})
    assert ask(site, terms, server_round=3).has_error()


@pytest.mark.parametrize("noise", ["records", "client"])
def test_the_pull_shortens_the_updates_of_every_unit(tmp_path: Path, noise: str) -> None:
    moved = {}
    for pull in (0, 10.0):
        config = config_of(
            tmp_path, strategy="fedprox", noise=noise, rounds=1,
            **{"work": f"auto pull={pull!r}",
               "run-id": f"r{pull:g}", "local-steps": 20, "epsilons": "inf",
               "clip-norm": 100.0},
        )  # fmt: skip
        moved[pull] = run_in_process(config, 3).rounds[0]["norms"]
    # With η·λ = 1 each step begins at the anchor again.
    assert max(moved[10.0]) < 0.3 * min(moved[0])


def test_a_pull_that_is_too_long_costs_a_site_no_release(tmp_path: Path) -> None:
    for noise in ("records", "client"):
        site = make_site(tmp_path / noise, more=CLIENT_NOISE)
        terms = terms_of(**{"noise": noise, "work": "plain pull=20", "learning-rate": 0.1})
        assert ask(site, terms).has_error()
        assert not Ledger(tmp_path / noise / "ledger.sqlite").account().releases


def test_every_row_of_the_splittings_is_a_strategy() -> None:
    assert {name: STRATEGIES[name] for name in SPLITTINGS} == SPLITTINGS
    own = {name for name, rule in SPLITTINGS.items() if issubclass(rule, OwnStarts)}
    assert own == {"fedsplit", "fedpi", "splitting"}

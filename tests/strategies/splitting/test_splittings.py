"""Splittings in whole runs: sites with exact proximal maps, absent ones, refusals, terms."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Error, Message, RecordDict

from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import HDPFLError
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.models.networks import flatten
from hdpfl_tools.simulation.in_process.in_process_run import run_in_process
from server_app.run.rounds import RunResult, ready_kernel, run
from strategies import make_strategy
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
                model = flatten(server_wire.read_own(asked.model)).copy()
                self.sent[kind, name, asked.server_round] = model
                self.pulls[asked.server_round] = asked.terms.work.pull_factor
        return super().send_and_receive(messages, timeout=timeout)


def config_of(folder: Path | None = None, **keys: Any) -> RunConfig:
    more = {} if folder is None else {"runs-dir": str(folder)}
    return RunConfig.parse({
        "strategy": "fedpi", "rounds": 40, "run-id": "r", "evaluation": "none",
        "work": {"pull": 1 / ETA}, "learning-rate": 0.1, **more, **keys,
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


def test_the_servers_rate_multiplies_gamma(tmp_path: Path) -> None:
    """FedSplit at half the rate is FedPi, in its starts and in what it reports."""
    grids = ProxGrid(), ProxGrid()
    one = go(tmp_path / "a", grids[0], strategy="fedpi", rounds=6)
    two = go(tmp_path / "b", grids[1], strategy="fedsplit", rounds=6,
             **{"server-learning-rate": 0.5})  # fmt: skip
    np.testing.assert_allclose(broadcasts(grids[0]), broadcasts(grids[1]), rtol=0, atol=1e-6)
    np.testing.assert_allclose(flatten(one.arrays), flatten(two.arrays), rtol=0, atol=2e-6)


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


def test_a_run_survives_absent_sites_and_ends_at_the_solution(tmp_path: Path) -> None:
    grid = ProxGrid(fault=faults)
    result = go(tmp_path, grid, rounds=60, quorum=2)
    np.testing.assert_allclose(flatten(result.arrays), minimum_of(0), rtol=0, atol=1e-4)
    gauges = {event["round"]: event.get("gauges") for event in result.rounds}
    assert gauges[7] is None  # without a quorum: nothing moves
    for name in NAMES:
        first, second = (grid.sent[wire.TRAIN, name, t] for t in (7, 8))
        np.testing.assert_array_equal(first, second)
    assert [gauges[t]["absent"] for t in (1, 2, 3, 4, 5, 6)] == [0, 1, 1, 1, 0, 0]
    assert [len(gauges[t]["dual_norm"]) for t in (1, 2, 3, 6)] == [5, 4, 4, 6]


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"strategy": "splitting", "splitting.alpha": 0}, r"'splitting\.alpha'"),
        ({"strategy": "splitting", "splitting.beta": 0}, r"'splitting\.beta'"),
        ({"strategy": "splitting", "splitting.gamma": -1.0}, r"'splitting\.gamma'"),
        ({"strategy": "fedpi", "fedpi.alpha": 1.0}, r"'fedpi\.alpha' is not a known key"),
        ({"strategy": "fedpi", "fedpi.prox-schedule": "sqrt"}, r"'fedpi\.prox-schedule'"),
        ({"strategy": "fedpi", "memory-mb": 0}, r"'memory-mb'"),
        (
            {"strategy": "fedpi", "model": "mlp:8", "work": {"kind": "joint"}},
            "needs one common start",
        ),
        ({"strategy": "ppsgd+fedpi"}, "needs one common start"),
        ({"strategy": "fedprox", "fedprox.prox-schedule": "cosine"}, r"'fedprox\.prox-schedule'"),
        (
            {"strategy": "fedprox", "fedprox.prox-schedule": "sqrt", "work": {"pull": 0}},
            "'work.pull' is 0, so there is no pull",
        ),
        (
            {"strategy": "fedprox", "fedprox.prox-schedule": "inverse", "work": {"pull": 3}},
            "'work.pull' 12 in round 4, and with 'learning-rate' 0.1 a step would go beyond",
        ),
    ],
    ids=str,
)
def test_impossible_terms_are_refused_by_name(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(HDPFLError, match=words):
        ready_kernel(config_of(**keys))


# --- the pull over the rounds ---------------------------------------------------------------------


def test_a_schedule_of_eta_is_sent_as_terms_of_the_round(tmp_path: Path) -> None:
    grid = ProxGrid()
    go(tmp_path, grid, strategy="fedprox", rounds=5, **{"fedprox.prox-schedule": "halved:2"})
    expected = {t: 2 ** ((t - 1) // 2) / ETA for t in range(1, 6)}
    assert {t: grid.pulls[t] for t in expected} == expected


def test_a_deployed_site_takes_a_pull_that_changes_between_rounds(tmp_path: Path) -> None:
    site = make_site(tmp_path)
    for server_round, pull in ((1, 0.1), (2, 0.2)):
        terms = terms_of(**{"strategy": "fedprox", "work": {"kind": "plain", "pull": pull}})
        reply = ask(site, terms, server_round=server_round)
        assert reply.has_content(), reply.error
    terms = terms_of(
        **{"strategy": "fedprox", "work": {"kind": "plain", "pull": 0.2}, "learning-rate": 0.07}
    )
    assert ask(site, terms, server_round=3).has_error()


@pytest.mark.parametrize("noise", ["records", "client"])
def test_the_pull_shortens_the_updates_of_every_unit(tmp_path: Path, noise: str) -> None:
    moved = {}
    for pull in (0, 10.0):
        config = config_of(
            tmp_path, strategy="fedprox", noise=noise, rounds=1,
            **{"work": {"pull": pull},
               "run-id": f"r{pull:g}", "local-steps": 20, "epsilons": "inf",
               "clip-norm": 100.0},
        )  # fmt: skip
        moved[pull] = run_in_process(config, 3).rounds[0]["norms"]
    # With η·λ = 1 each step begins at the anchor again.
    assert max(moved[10.0]) < 0.3 * min(moved[0])


def test_a_pull_that_is_too_long_costs_a_site_no_release(tmp_path: Path) -> None:
    for noise in ("records", "client"):
        site = make_site(tmp_path / noise, more=CLIENT_NOISE)
        terms = terms_of(
            **{"noise": noise, "work": {"kind": "plain", "pull": 20}, "learning-rate": 0.1}
        )
        assert ask(site, terms).has_error()
        assert not Ledger(tmp_path / noise / "ledger.sqlite").account().releases

"""FedHDP over its levels: weights, noise at the server, and what a round may tell."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import StrategyError, TermsError
from hdpfl_flower.privacy.noise import RandomStream, ReleaseStreams
from hdpfl_flower.updates import Outcome, RoundUpdates
from strategies import check_strategy, make_kernel, make_strategy
from strategies.core.base import table_of
from strategies.core.checks import check_outcome
from strategies.core.interface import RoundStart
from strategies.core.kernel import Kernel
from strategies.fedhdp import level_averaging
from tests.oracles.point_estimation import Federation, best_ratio, variance

EPSILONS = [math.inf] * 4 + [2.0] * 16
D = 500


def kernel_of(epsilons: list[float] = EPSILONS, **more: Any) -> Kernel:
    """Return a kernel after its sites joined; settings are written without the strategy's name."""
    config = {
        "strategy": "fedhdp", "noise": "server", "rounds": 20, "fraction": 0.5, "delta": 1e-3,
        "clip-norm": 1.0, **more,
    }  # fmt: skip
    kind = check_strategy(str(config["strategy"])).weights
    own = kind.settings_type.names()
    kernel = make_kernel(
        RunConfig.parse({f"{table_of(kind)}.{k}" if k in own else k: v for k, v in config.items()})
    )
    kernel.settle({str(i): {"epsilon": epsilon} for i, epsilon in enumerate(epsilons)})
    return kernel


def begin(kernel: Kernel, server_round: int) -> tuple[list[str], dict[str, str]]:
    """Return the sites that are asked in a round, and why others are not."""
    sites, disclosed = tuple(kernel.roster.eligible()), kernel.roster.disclosed
    start = RoundStart(server_round, ArrayRecord(), sites, (), disclosed)
    plan = kernel.strategy.begin_round(kernel.state, start)
    kernel.state = plan.state
    return kernel._draw(server_round, plan.refused), dict(plan.refused)


def updates_of(
    rows: np.ndarray, sites: list[int] | None = None, epsilons: list[float] = EPSILONS
) -> RoundUpdates:
    sites = list(range(len(rows))) if sites is None else sites
    return RoundUpdates(
        1,
        tuple(map(str, sites)),
        rows.astype(np.float32),
        {"epsilon": np.array([epsilons[i] for i in sites], dtype=np.float64)},
    )


def combine(kernel: Kernel, updates: RoundUpdates, key: int = 0, state: Any = None) -> Outcome:
    _, outcome = kernel.strategy.combine(
        state or kernel.state, updates, RandomStream(bytes([key]) * 32)
    )
    check_outcome(outcome, updates)
    return outcome


def small_rows(sites: int) -> np.ndarray:
    return np.random.default_rng(sites).normal(0, 0.01, (sites, D))


@pytest.mark.parametrize("ratio", [0.0, 0.1, 1.0])
def test_the_weights_across_levels_are_the_papers(ratio: float) -> None:
    kernel = kernel_of(**{"level-ratio": str(ratio)})
    gauges = combine(kernel, updates_of(small_rows(20))).gauges
    assert gauges["level-1-weight"] == pytest.approx(4 / (4 + ratio * 16))
    assert gauges["level-2-weight"] == pytest.approx(ratio * 16 / (4 + ratio * 16))


def test_an_opted_out_level_that_did_not_come_counts_nothing() -> None:
    outcome = combine(
        kernel_of(**{"level-ratio": "0.1"}), updates_of(small_rows(16), [*range(4, 20)])
    )
    assert (outcome.gauges["level-1-weight"], outcome.gauges["level-2-weight"]) == (0.0, 1.0)


def test_a_private_level_that_did_not_come_releases_its_noise() -> None:
    kernel = kernel_of(**{"level-ratio": "0.5"})
    opted_out = updates_of(np.zeros((4, D)), [0, 1, 2, 3])
    one, other = (combine(kernel, opted_out, key) for key in (1, 2))
    assert one.gauges["level-2-weight"] == pytest.approx(8 / 12)
    assert one.update.std() > 0
    assert not np.array_equal(one.update, other.update)


def test_a_round_without_anybody_is_released_like_any_other() -> None:
    kernel = kernel_of()
    outcome = combine(kernel, updates_of(np.zeros((0, D)), []))
    assert outcome.update.std() > 0
    assert len(outcome.weights) == 0


def test_the_noise_does_not_depend_on_who_came() -> None:
    """The same stream, one client more: the releases differ by that client alone, over q·N."""
    kernel = kernel_of(**{"level-ratio": "1", "clip-lr": 0})
    row = np.zeros((1, D))
    row[0, 0] = 5.0
    rest = small_rows(12)
    without = combine(kernel, updates_of(rest, [*range(4, 16)]))
    with_it = combine(kernel, updates_of(np.vstack([rest, row]), [*range(4, 17)]))
    difference = (with_it.update - without.update).astype(np.float64)
    assert difference[0] == pytest.approx(1.0 / (0.5 * 16), rel=1e-4)  # clipped to S = 1
    assert np.abs(difference[1:]).max() < 1e-6


def test_the_clip_norm_moves_to_the_quantile(monkeypatch: pytest.MonkeyPatch) -> None:
    epsilons = [2.0] * 2000
    for scale, sign in ((1e-4, -1), (1e4, 1)):
        rows = np.random.default_rng(1).normal(0, scale, (1000, 20))
        updates = updates_of(rows, None, epsilons)
        for rate, bounds in ((0.2, (0.01, 100.0)), (50.0, (0.25, 4.0))):
            monkeypatch.setattr(level_averaging, "CLIP_BOUNDS", bounds)
            kernel = kernel_of(epsilons, **{"clip-lr": rate})
            state, _ = kernel.strategy.combine(kernel.state, updates, RandomStream(bytes(32)))
            expected = min(max(math.exp(sign * rate * 0.5), bounds[0]), bounds[1])
            assert state.clip_norm == pytest.approx(expected, rel=0.02)


def test_auto_shares_with_unlike_opted_out_sites(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(level_averaging, "CLIP_BOUNDS", (1e-3, 1.0))

    def weight(gap: float, **more: Any) -> float:
        kernel = kernel_of([math.inf] * 40 + [2.0] * 360, **{"delta": 1e-3, **more})
        generator = np.random.default_rng(5)
        state: Any = kernel.state
        found = 0.0
        for t in range(12):
            rows = generator.normal(0, 0.2 / math.sqrt(D), (200, D))
            rows[:20, 0] += gap
            sites = [*range(20), *range(40, 220)]
            updates = updates_of(rows, sites, [math.inf] * 40 + [2.0] * 360)
            state, outcome = kernel.strategy.combine(state, updates, RandomStream(bytes([t]) * 32))
            found = float(outcome.gauges["level-1-weight"])
        return found

    assert weight(0.0) > 0.5  # the private level is all noise, and nothing speaks against it
    assert weight(0.8, rounds=20) < 0.2  # their share is 0.1
    assert weight(0.8, rounds=200) < 0.2


def test_auto_reads_nothing_of_private_clients_but_their_noisy_sum() -> None:
    rows = small_rows(20)
    same_sum = rows.copy()
    same_sum[4:10] = rows[4:10].mean(0)

    def last(rows: np.ndarray) -> np.ndarray:
        kernel = kernel_of(**{"level-ratio": "auto", "clip-lr": 0.0})
        state = kernel.state
        for t in range(3):
            state, outcome = kernel.strategy.combine(
                state, updates_of(rows), RandomStream(bytes([t]) * 32)
            )
        return np.asarray(outcome.update)

    np.testing.assert_allclose(last(rows), last(same_sum), atol=1e-8)


@pytest.mark.parametrize("ratio", ["auto", "precision"])
def test_a_spread_over_the_rounds_needs_noise_that_stays(ratio: str) -> None:
    """Refused before any site is asked; ratios that are given do not look at noise."""
    late = {"strategy": "fedhdp", "spend": {"kind": "late"}}
    with pytest.raises(TermsError, match=r"'fedhdp.level-ratio', or leave out 'spend.kind'"):
        make_strategy(RunConfig.parse({**late, "fedhdp.level-ratio": ratio}))
    make_strategy(RunConfig.parse({**late, "fedhdp.level-ratio": "0.5"}))
    make_strategy(RunConfig.parse({**late, "spend": {"kind": "even"}, "fedhdp.level-ratio": ratio}))


@pytest.mark.parametrize(
    ("key", "value"),
    [("quorum", 3), ("participations", 2), ("require-public", True), ("guard", "content")],
)
def test_whom_the_server_hears_depends_on_its_tosses_alone(key: str, value: object) -> None:
    """A quorum would tell who came; a refusal would depend on what others send."""
    with pytest.raises(TermsError, match=f"'{key}' needs a free choice of sites"):
        kernel_of(**{key: value})


@pytest.mark.parametrize("name", ["fedavg", "robust-hdp", "fedhdp+pfa", "pfa-plus"])
def test_a_trusted_server_adds_noise_or_the_rule_is_refused(name: str) -> None:
    with pytest.raises(TermsError, match=f"'{re.escape(name)}' adds no noise"):
        make_strategy(RunConfig.parse({"strategy": name, "noise": "server"}))


def test_a_trusted_server_counts_copies_too() -> None:
    """Or one client's part would depend on another's; elsewhere copies are refused."""
    rows = np.ones((2, 4), np.float32)
    came = RoundUpdates(1, ("0", "1"), rows, {"epsilon": np.array([math.inf, 1.0])})
    assert kernel_of()._screen(came).sites == ("0", "1")
    assert kernel_of(noise="records")._screen(came).sites == ()


def test_sites_stricter_than_every_level_stay_out() -> None:
    kernel = kernel_of([math.inf, 2.0, 0.5], levels="1,inf")
    assert kernel.state.levels.level_of == {"0": 0, "1": 1}
    with pytest.raises(StrategyError, match="every site asks for more privacy"):
        kernel_of([0.5, 0.4], levels="1,inf")


def test_a_site_that_comes_back_with_another_level_is_not_asked() -> None:
    kernel = kernel_of()
    kernel.roster.nodes = {"0": 1, "1": 2}
    kernel.roster.disclosed = {"0": {"epsilon": math.inf}, "1": {"epsilon": 2.0}}
    kernel.server = kernel.server.updated(fraction=1.0)
    asked, refused = begin(kernel, 1)
    assert asked == ["0"]  # site 1 had opted out when it joined
    assert refused == {"1": "claims another level than at its join"}


def test_a_newcomer_joins_a_level_that_has_noise_and_no_other() -> None:
    kernel = kernel_of([2.0, 2.0], levels="2,inf")
    kernel.roster.disclosed = {"new": {"epsilon": 3.0}, "out": {"epsilon": math.inf}}
    kernel.roster.disclosed["strict"] = {"epsilon": 0.1}
    kernel.roster.nodes = {"new": 1, "out": 2, "strict": 3}
    kernel.server = kernel.server.updated(fraction=1.0)
    asked, refused = begin(kernel, 2)
    assert asked == ["new"]
    assert "had no site when the run began" in refused["out"]
    assert refused["strict"] == "asks for more privacy than any level offers"
    assert kernel.privacy()["levels"][1]["sites"] == 3


def test_who_is_asked_is_a_secret_toss_and_no_number_of_the_terms() -> None:
    kernel = kernel_of([2.0] * 2000)
    kernel.roster.nodes = {str(i): i + 1 for i in range(2000)}
    kernel.roster.disclosed = {str(i): {"epsilon": 2.0} for i in range(2000)}
    one = begin(kernel, 1)[0]
    assert 850 < len(one) < 1150  # 6.7 standard deviations: q = ½, each on its own
    assert begin(kernel, 1)[0] != one
    kernel.streams = ReleaseStreams.simulated(1, "server", 0, "round")
    again = begin(kernel, 1)[0]
    kernel.streams = ReleaseStreams.simulated(1, "server", 0, "round")
    assert begin(kernel, 1)[0] == again


def test_what_is_promised_names_every_level_and_the_unit() -> None:
    facts = kernel_of().privacy()
    assert (facts["noise"], facts["unit"]) == ("server", "one client with all of its records")
    loose, strict = facts["levels"]
    assert (loose["promise"], loose["sites"]) == ("no privacy", 4)
    assert (strict["epsilon"], strict["delta"], strict["sites"]) == (2.0, 1e-3, 16)
    assert strict["noise-multiplier"] > 0
    records = kernel_of(noise="records").privacy()
    assert records["unit"] == "one record of one client"
    assert "noise-multiplier" not in records["levels"][1]


def test_where_sites_account_a_level_has_the_largest_epsilon_that_one_of_them_spends() -> None:
    """What holds for all of them: FedHDP leaves each site its own."""
    epsilons = [math.inf, 6.0, 3.0, 1.5]
    facts = kernel_of(epsilons, noise="records").privacy()
    loose, strict = facts["levels"]
    assert (loose["epsilon"], loose["promise"], loose["sites"]) == (math.inf, "no privacy", 1)
    assert (strict["epsilon"], strict["promise"], strict["sites"]) == (
        6.0, "differential privacy", 3,
    )  # fmt: skip
    assert facts["no privacy"] == ["0"]
    capped = kernel_of(epsilons, noise="client", **{"epsilon-cap": 2.0}).privacy()
    assert [level["epsilon"] for level in capped["levels"]] == [2.0, 2.0]
    assert (capped["no privacy"], capped["epsilon-cap"]) == ([], 2.0)


def test_who_opted_out_has_no_privacy_in_whatever_level_it_is() -> None:
    """Its own account promises nothing, unless the server adds the noise of its level."""
    facts = kernel_of([math.inf, 4.0, 1.0], noise="records", levels="4,1").privacy()
    loose = facts["levels"][0]
    assert (loose["epsilon"], loose["sites"], loose["opted-out"]) == (4.0, 2, 1)
    assert facts["no privacy"] == ["0"]
    trusted = kernel_of([math.inf, 4.0, 1.0], levels="4,1").privacy()
    assert trusted["no privacy"] == []
    assert "opted-out" not in trusted["levels"][0]


def test_dp_fedavg_holds_everyone_to_the_strictest() -> None:
    kernel = kernel_of([math.inf, 8.0, 2.0], strategy="dp-fedavg")
    assert [level["epsilon"] for level in kernel.privacy()["levels"]] == [2.0]
    own = kernel_of([math.inf, 8.0, 2.0], strategy="dp-fedavg", noise="records")
    assert own.terms.epsilon_cap == 2.0
    assert [level["epsilon"] for level in own.privacy()["levels"]] == [2.0]
    assert own.privacy()["no privacy"] == []


def test_non_private_runs_on_simulated_sites_alone() -> None:
    kernel = kernel_of([8.0, 2.0], strategy="non-private")
    assert kernel.terms.simulated_epsilon == "inf"
    assert kernel.privacy()["levels"][0]["promise"] == "no privacy"
    assert kernel.privacy()["no privacy"] == ["0", "1"]
    with pytest.raises(TermsError, match="only on simulated sites"):
        kernel_of([8.0], strategy="non-private", dataset="site")


@pytest.mark.parametrize("ratio", ["best", 1.0])
def test_a_point_federation_has_the_predicted_variance(ratio: str | float) -> None:
    """FedHDP's Section 3 through the real rule: each of 20,000 coordinates is a draw of its own.

    The mean square lies within 6 standard errors, √(2/20,000) of it, of the prediction: two in 10⁹
    healthy builds fail, and 10 % more variance does not pass.
    """
    f = Federation(clients=20, private=16, alpha2=1.0, tau2=0.5, gamma2=0.2)
    r = best_ratio(f) if ratio == "best" else float(ratio)
    size, generator = 20_000, np.random.default_rng(7)
    own = generator.normal(0, math.sqrt(f.spread), (20, size))
    own[4:] += generator.normal(0, math.sqrt(f.noise), (16, size))
    kernel = kernel_of(noise="records", **{"level-ratio": str(r)})
    found = float(np.mean(combine(kernel, updates_of(own)).update.astype(np.float64) ** 2))
    predicted = variance(f, r)
    assert abs(found / predicted - 1) < 6 * math.sqrt(2 / size)
    assert abs(found / (1.1 * predicted) - 1) > 6 * math.sqrt(2 / size)

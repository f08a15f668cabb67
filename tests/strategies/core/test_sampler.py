"""Who is asked: as the seed says, never beyond a site's participations, with a public site."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import StrategyError
from strategies.core.sampler import Sampler

SITES = [str(i) for i in range(10)]
EPSILONS = {site: 10.0 if site == "3" else 0.1 + 0.01 * int(site) for site in SITES}


def sampler(**terms: Any) -> Sampler:
    return Sampler(RunConfig.parse({k.replace("_", "-"): v for k, v in terms.items()}))


def draws(rule: Sampler, rounds: int, sites: list[str] = SITES) -> list[list[str]]:
    return [rule.draw(r, sites, EPSILONS) for r in range(1, rounds + 1)]


def as_before(seed: int, server_round: int, count: int) -> list[str]:
    """The draw as it was before there were participations, from NumPy alone."""
    generator = np.random.default_rng([seed, server_round])
    return [SITES[i] for i in sorted(generator.choice(len(SITES), count, replace=False))]


def test_a_draw_follows_the_seed_and_the_round_alone() -> None:
    drawn = draws(sampler(fraction=0.3, seed=4), 9)
    assert drawn == [as_before(4, r, 3) for r in range(1, 10)]
    assert len(set(map(tuple, drawn))) > 1
    assert draws(sampler(), 3) == [SITES] * 3


@pytest.mark.parametrize(("fraction", "most"), [(0.3, 2), (0.5, 3), (1.0, 2), (0.01, 1)])
def test_no_site_is_asked_more_often_than_it_takes_part(fraction: float, most: int) -> None:
    """Until nobody is left: every participation is used, and the run is at its end."""
    rule, size = sampler(fraction=fraction, participations=most), max(1, round(10 * fraction))
    asked: Counter[str] = Counter()
    for server_round in range(1, 100):
        drawn = rule.draw(server_round, SITES, EPSILONS)
        left = [site for site in SITES if asked[site] < most]
        assert len(drawn) == min(size, len(left))
        assert set(drawn) <= set(left)
        assert drawn == sorted(drawn, key=int)
        asked.update(drawn)
        if not drawn:
            break
    assert set(asked.values()) == {most}
    assert rule.used_up == "the sites' budgets are used up"


def test_a_site_that_declines_a_common_noise_has_left() -> None:
    rule = sampler(noise_multiplier=1.0)
    rule.note_declined(["2", "5"])
    assert rule.draw(1, SITES, EPSILONS) == [s for s in SITES if s not in "25"]
    rule.note_declined(SITES)
    assert rule.draw(2, SITES, EPSILONS) == []
    assert rule.used_up == "the sites' budgets are used up"
    own = sampler()
    own.note_declined(["2"])
    assert own.draw(1, SITES, EPSILONS) == SITES, "its own noise lasts for all rounds"


def test_a_round_without_a_public_site_is_drawn_again() -> None:
    """Site 3 alone is public; where the first draw holds it, it is the draw of any run."""
    plain = draws(sampler(fraction=0.3, seed=1), 40)
    public = draws(sampler(fraction=0.3, seed=1, require_public=True), 40)
    assert all("3" in drawn and len(drawn) == 3 for drawn in public)
    assert not all("3" in drawn for drawn in plain)
    for one, other in zip(plain, public, strict=True):
        assert (one == other) == ("3" in one)
    others = Counter(site for drawn in public for site in drawn if site != "3")
    assert set(others) == set(SITES) - {"3"}, "the others come as they come"
    assert public == draws(sampler(fraction=0.3, seed=1, require_public=True), 40)


def test_who_is_public_is_decided_among_all_and_not_among_those_drawn() -> None:
    for drawn in draws(sampler(fraction=0.2, require_public=True, public_split="top:0.1"), 20):
        assert "3" in drawn


def test_no_public_site_at_all_is_one_clear_line() -> None:
    rule = sampler(require_public=True, public_split="threshold:50")
    with pytest.raises(StrategyError, match="'threshold:50' calls no site public; loosen it"):
        rule.draw(1, SITES, EPSILONS)
    assert sampler(public_split="threshold:50").draw(1, SITES, EPSILONS) == SITES

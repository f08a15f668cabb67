"""Hostile histories of shared sums: what a site computes is never more than its ledger charges.

A server asks for any round, set and model, again and after the end; work dies at any place. What a
site draws is counted where it is drawn, and priced by dp-accounting alone.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest

from client_app.training import sum_part
from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.privacy.accounting import epsilon_of
from hdpfl_flower.shared_noise.members import PART, write_set
from hdpfl_flower.shared_noise.ring import decode
from tests.client_app.messages import ask, model_in, send
from tests.client_app.sharing_sites import ask_part, make_sites, shared_terms

SETS = ([0, 1, 2, 3], [0, 1, 2], [0, 1, 3], [0, 2, 3], [1, 2, 3], [0, 1], [0, 1, 2, 3, 4])
COLLUDERS = 1
"""Of four members, by default."""
TOLERANCE = 1e-3
"""Of the grid on which prices are computed."""


@dataclass
class Drawn:
    """What a site draws, noted where it happens.

    Attributes:
        work: sampling probability of each clipped sum.
        scales: by which the sums were multiplied, times C.
        stds: standard deviation of the honest shares together, of each sum.
        masks: request and set of each mask.
        sent: round → different payloads.
    """

    work: list[float] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    stds: list[float] = field(default_factory=list)
    masks: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    sent: dict[int, set[bytes]] = field(default_factory=lambda: defaultdict(set))

    def epsilon(self, delta: float) -> float:
        """Return the price of the work: noise over what a record moves, of each sum."""
        events: list[dp_accounting.DpEvent] = []
        for probability, scale, std in zip(self.work, self.scales, self.stds, strict=True):
            event: dp_accounting.DpEvent = dp_accounting.GaussianDpEvent(std / scale)
            if probability < 1:
                event = dp_accounting.PoissonSampledDpEvent(probability, event)
            events.append(event)
        return epsilon_of(dp_accounting.ComposedDpEvent(events), delta, TOLERANCE)


def watch(patch: pytest.MonkeyPatch, dice: random.Random, deadly: float) -> Drawn:
    """Note what sites draw from now on; some of their work dies."""
    drawn = Drawn()
    clipped_sum, scale_of = sum_part.clipped_sum, sum_part.scale_of
    share_of_noise, add_masks = sum_part.share_of_noise, sum_part.add_masks

    def noted_sum(*given: Any) -> Any:
        if dice.random() < deadly:
            raise SystemExit
        drawn.work.append(given[3].steps.sampling_prob)
        assert given[3].steps.count == 1
        return clipped_sum(*given)

    def noted_scale(noise: float, clip_norm: float, size: int) -> float:
        found = scale_of(noise, clip_norm, size)
        if len(drawn.scales) < len(drawn.work):  # of a sum; a check before it has none
            drawn.scales.append(found * clip_norm)
        return found

    def noted_share(count: int, honest: int, stream: Any) -> Any:
        drawn.stds.append(1 / math.sqrt(honest))
        return share_of_noise(count, honest, stream)

    def noted_masks(part: Any, secrets: dict[int, bytes], own: int, request: str) -> None:
        # All sites of the set but one colluder add such a share.
        drawn.stds[-1] *= math.sqrt(len(secrets) + 1 - COLLUDERS)
        drawn.masks.append((request, tuple(sorted(secrets))))
        add_masks(part, secrets, own, request)
        if dice.random() < deadly:
            raise MemoryError

    patch.setattr(sum_part, "clipped_sum", noted_sum)
    patch.setattr(sum_part, "scale_of", noted_scale)
    patch.setattr(sum_part, "share_of_noise", noted_share)
    patch.setattr(sum_part, "add_masks", noted_masks)
    return drawn


def play(profile: Path, terms: RunTerms, drawn: Drawn, dice: random.Random, moves: int) -> None:
    """Let a server ask for whatever it likes."""
    for _ in range(moves):
        move = dice.random()
        if move < 0.03:
            ask(profile, terms, terms.rounds, kind=wire.FINISH)
            continue
        server_round = dice.randint(1, terms.last_round + 2)
        numbers = dice.choice(SETS) if dice.random() < 0.4 else SETS[0]
        model = model_in(terms, dice.choice((server_round, server_round, 1, 2)))
        reply = ask_part(profile, terms, numbers, server_round, model)
        if reply.has_content():
            drawn.sent[server_round].add(reply.content[PART][PART].data)


@pytest.mark.parametrize("batch", ["61", "7"])
@pytest.mark.parametrize("seed", range(5))
def test_no_history_draws_more_than_is_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, batch: str
) -> None:
    dice = random.Random(seed)
    sites = make_sites(tmp_path, batch=batch)
    terms = shared_terms(sites, **{"rounds": 4, "spare-rounds": 0.5})
    drawn = watch(monkeypatch, dice, deadly=0.15)
    play(sites["a"], terms, drawn, dice, 60)
    ledger = Ledger(sites["a"].parent / "ledger.sqlite")
    account = ledger.account()
    ledger.close()
    epsilon, delta = account.spent()
    assert drawn.sent, "nothing left the site"
    assert len(drawn.scales) == len(drawn.work) == len(drawn.stds)
    assert len(drawn.work) <= terms.last_round
    assert drawn.epsilon(delta) <= epsilon * (1 + TOLERANCE)
    assert all(len(payloads) == 1 for payloads in drawn.sent.values()), "two answers to a round"
    assert len({request for request, _ in drawn.masks}) == len(drawn.masks), "a mask came twice"
    assert {key[1] for key in account.releases} <= set(range(1, terms.last_round + 1))


def test_the_price_is_used_up_by_all_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a death the work of all rounds, spare ones too, costs what is charged."""
    sites = make_sites(tmp_path)
    terms = shared_terms(sites, **{"rounds": 4, "spare-rounds": 0.5})
    drawn = watch(monkeypatch, random.Random(1), deadly=0.0)
    for server_round in range(1, terms.last_round + 3):
        ask_part(sites["a"], terms, server_round=server_round)
    ledger = Ledger(sites["a"].parent / "ledger.sqlite")
    epsilon, delta = ledger.account().spent()
    ledger.close()
    assert len(drawn.work) == terms.last_round == 6
    assert 0.99 * epsilon < drawn.epsilon(delta) <= epsilon * (1 + TOLERANCE)


@pytest.mark.parametrize("other", [{}, {"colluders": 1}, {"rounds": 4}], ids=str)
def test_a_first_message_is_summed_over_sites_under_the_same_terms(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    """A server that grants one site fewer colluders would get a sum with too little noise."""
    sites = make_sites(tmp_path)
    first = {"first": {"moments": {"share": 0.2}}, "dataset": "site", "colluders": 2}
    parts = []
    for name, profile in sites.items():
        terms = shared_terms(sites, **{**first, **(other if name == "a" else {})})
        content = server_wire.write_instructions(
            terms, 1, model_in(terms, 1), of_noise=write_set([0, 1, 2, 3])
        )
        reply = send({"profile": str(profile)}, server_wire.query_of("moments"), content)
        assert reply.has_content(), reply
        size = (len(reply.content["moments"]["moments"].data) - 128) // 8
        parts.append(server_wire.read_numbers("moments", reply.content, size, "uint64"))
    total = decode(np.sum(parts, axis=0, dtype=np.uint64))
    # Without a mask: a few records over z, and noise of about 1. With one: ±2³³, uniformly.
    assert (np.abs(total).max() < 1e4) == (not other)

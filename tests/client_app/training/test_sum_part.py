"""A site's part of a shared sum: what the server reads of all parts, and what it cannot have."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Message
from scipy import stats

from client_app.site.personal_state import load_state, personal_state_path
from client_app.site.site import Site
from client_app.training.sum_part import _blur
from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.models.networks import arrays_of, build_model, flatten
from hdpfl_flower.models.parts import parts_of
from hdpfl_flower.privacy.plan import make_plan
from hdpfl_flower.shared_noise.members import PART
from hdpfl_flower.shared_noise.ring import GRID, LEAST_NOISE, decode, scale_of
from tests.client_app.messages import ask, model_in
from tests.client_app.sharing_sites import (
    ALLOWED,
    EPSILONS,
    ask_part,
    encoded_parts,
    exchange,
    make_sites,
    part_in,
    peers_of,
    shared_terms,
    total_of,
    without_noise,
)
from tests.hdpfl_flower.engines.oracle import clipped_sum, gradients_of

Sites = dict[str, Path]


def noise_of(profile: Path, terms: RunTerms) -> tuple[float, float]:
    """Return z and the divisor of a site's plan, made anew from its profile."""
    plan = make_plan(Profile.load(profile), terms)
    return plan.noise_multiplier, plan.divisor


def scaled_sum(profile: Path, terms: RunTerms, z: float, server_round: int = 1) -> np.ndarray:
    """Return the site's scaled sum over all records, by Opacus' gradients in float64."""
    site = Site(Profile.load(profile), terms)
    records = site.training_records()
    model = build_model(terms.model, site.task, 1)
    arrays = model_in(terms, server_round)
    for name, parameter in model.named_parameters():
        parameter.data.copy_(_tensor(arrays[name].numpy()))
    x, y = _tensor(records.features), _tensor(records.targets)
    total = clipped_sum(gradients_of(model, site.task, x, y), terms.clip_norm).numpy()
    scaled: np.ndarray = total * scale_of(z, terms.clip_norm, len(total))
    return scaled


def _tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array.copy())


def declined(reply: Message) -> bool:
    return reply.has_error() and reply.error.code == wire.DECLINED


def releases(profile: Path) -> dict[tuple[int, str], str]:
    ledger = Ledger(profile.parent / "ledger.sqlite")
    account = ledger.account()
    ledger.close()
    return {(key[1], key[2]): release.status for key, release in account.releases.items()}


def spent(profile: Path) -> tuple[float, float]:
    ledger = Ledger(profile.parent / "ledger.sqlite")
    found = ledger.account().spent()
    ledger.close()
    return found


@pytest.fixture
def sites(tmp_path: Path) -> Sites:
    return make_sites(tmp_path)


def test_the_sum_is_that_of_the_scaled_clipped_sums(sites: Sites) -> None:
    """But for the rounding of float32; the weights come as Σ b/z times each site's blur."""
    terms = shared_terms(sites, **{"clip-norm": 0.3})
    with without_noise(), encoded_parts() as parts:
        total = total_of(sites, terms)
    np.testing.assert_array_equal(total, sum(parts))  # to the bit, as integers in the clear
    zs = [noise_of(profile, terms)[0] for profile in sites.values()]
    expected = [scaled_sum(p, terms, z) for p, z in zip(sites.values(), zs, strict=True)]
    assert len({*zs}) == 3
    np.testing.assert_allclose(decode(total)[:-1], sum(expected), rtol=1e-5, atol=1e-5)
    weight = sum(
        61 / z * _blur(peers_of(profile).own())
        for profile, z in zip(sites.values(), zs, strict=True)
    )
    assert decode(total)[-1] == pytest.approx(weight, abs=4 * GRID)


def test_the_noise_of_the_sum_is_that_of_the_honest_ones(sites: Sites) -> None:
    """χ² of 4,001 numbers with a false alarm of 1e-6: n/(n − t) = 4/3, and neither 1 nor 4."""
    terms = shared_terms(sites, model="mlp:1000")
    with encoded_parts() as parts:
        total = total_of(sites, terms)
    noise = decode(total - sum(parts))
    assert noise[-1] == 0, "the weight has no noise, for it depends on no record"
    found, count = float((noise[:-1] ** 2).sum()), len(noise) - 1
    low, high = (float(stats.chi2.ppf(p, count)) for p in (5e-7, 1 - 5e-7))
    assert low < found / (4 / 3) < high
    for wrong in (1.0, 4.0, 4 / 2):
        assert not low < found / wrong < high


def test_fewer_sites_add_more_noise_each(sites: Sites) -> None:
    """A round of three: the others' two shares have the variance 1, so all of them 3/2."""
    terms = shared_terms(sites, model="mlp:1000")
    with encoded_parts() as parts:
        total = total_of(sites, terms, [0, 1, 3])
    noise = decode(total - sum(parts))[:-1]
    low, high = (float(stats.chi2.ppf(p, len(noise))) for p in (5e-7, 1 - 5e-7))
    assert low < float((noise**2).sum()) / 1.5 < high


def test_a_part_alone_and_without_one_site_shows_no_sum(sites: Sites) -> None:
    terms = shared_terms(sites, model="mlp:1000")
    with without_noise(), encoded_parts() as clear:
        parts = [part_in(ask_part(profile, terms)) for profile in sites.values()]
    for some in ([0], [0, 1, 2], [1, 3]):
        moved = sum(parts[each] for each in some) - sum(clear[each] for each in some)
        counts = np.bincount(moved.view(np.uint8), minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-6, "a mask that is not uniform"


def test_each_round_has_masks_of_its_own(sites: Sites) -> None:
    """The same vector in two rounds: the parts differ by more than their noise."""
    terms = shared_terms(sites)
    with without_noise(), encoded_parts() as clear:
        first, second = (part_in(ask_part(sites["a"], terms, server_round=r)) for r in (1, 2))
    masks = first - clear[0], second - clear[1]
    assert (masks[0] != masks[1]).all()


# What nothing of the site may show.


def test_a_sites_noise_is_in_no_message_log_or_error(
    sites: Sites, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither z nor 1/z, b/z and the weight, as text, as a float or in fixed point."""
    terms, sent = shared_terms(sites), b""
    with caplog.at_level(logging.DEBUG), without_noise():
        for profile in sites.values():
            for reply in (
                ask_part(profile, terms),
                ask_part(profile, terms, [0, 1, 2]),
                ask_part(profile, terms, [0]),
                ask_part(profile, terms, server_round=9),
            ):
                if reply.has_content():
                    sent += reply.content[PART][PART].data
                else:
                    sent += f"{reply.error}".encode()
    total = decode(total_of(sites, terms))
    printed = capfd.readouterr()
    told = caplog.text + printed.out + printed.err + sent.decode(errors="replace")
    for profile in sites.values():
        z, divisor = noise_of(profile, terms)
        weight = divisor / z * _blur(peers_of(profile).own())
        for secret in (z, 1 / z, divisor / z, weight):
            assert f"{secret:.5g}" not in told
            for kind in (np.float32, np.float64):
                assert np.array(secret, kind).tobytes() not in sent
            unit = round(secret / GRID)
            near = {np.uint64(unit + step).tobytes() for step in (-1, 0, 1)}
            assert not any(word in sent for word in near)
            assert np.abs(total - secret).min() > 1e-6


def test_the_weight_of_a_site_is_blurred_by_its_key(tmp_path: Path) -> None:
    """Sums of two sets show one site's weight exactly: it is b/z times a secret constant."""
    sites = make_sites(tmp_path, EPSILONS[:1] * 4)
    terms = shared_terms(sites)
    with encoded_parts() as parts:
        for profile in sites.values():
            part_in(ask_part(profile, terms))
            part_in(ask_part(profile, terms, server_round=2))
    z, divisor = noise_of(sites["a"], terms)
    ratios = [float(decode(part)[-1]) * z / divisor for part in parts]
    assert ratios[::2] == pytest.approx(ratios[1::2]), "two rounds would average the constant out"
    assert len({*ratios[::2]}) == 4
    assert all(0.5 <= ratio <= 2 for ratio in ratios)
    assert all(abs(ratio - 1) > 1e-6 for ratio in ratios)


def test_the_blur_is_a_constant_between_a_half_and_two() -> None:
    """Its logarithm is uniform: mean and spread of 4,000 keys, with a false alarm of 1e-6."""
    values = np.log2([_blur(b"%d" % key) for key in range(4000)])
    assert -1 <= values.min() < -0.99
    assert 0.99 < values.max() <= 1
    assert abs(values.mean()) < float(stats.norm.isf(5e-7)) * math.sqrt(1 / 3 / 4000)


def test_a_site_that_opted_out_is_scaled_by_the_least_noise(tmp_path: Path) -> None:
    sites = make_sites(tmp_path, (*EPSILONS[:3], "inf"))
    terms = shared_terms(sites)
    with without_noise(), encoded_parts() as parts:
        part_in(ask_part(sites["d"], terms))
    assert noise_of(sites["d"], terms)[0] == 0
    found = decode(parts[0])
    expected = scaled_sum(sites["d"], terms, LEAST_NOISE)
    np.testing.assert_allclose(found[:-1], expected, rtol=1e-5, atol=4 * GRID)
    blur = _blur(peers_of(sites["d"]).own())
    assert found[-1] == pytest.approx(61 / LEAST_NOISE * blur)


def test_a_site_without_records_answers_with_noise_and_the_same_weight(tmp_path: Path) -> None:
    sites = make_sites(tmp_path, rows=(0, 61, 61, 61))
    terms = shared_terms(sites)
    with encoded_parts() as parts:
        total = total_of(sites, terms)
    assert not parts[0][:-1].any()
    assert decode(parts[0])[-1] > 0
    assert (decode(total) != 0).all()


def test_a_frozen_head_keeps_its_public_values(tmp_path: Path) -> None:
    """FedBABU: the noise of the own part is for a part that is trained."""
    sites = make_sites(tmp_path)
    terms = shared_terms(sites, **{"work.kind": "frozen", "model": "mlp:8"})
    site = Site(Profile.load(sites["a"]), terms)
    head = parts_of(terms.model, site.task).head
    public = flatten(arrays_of(build_model(terms.model, site.task, 0)))[head]
    shared = {name: np.zeros(a.shape, np.float32) for name, a in site.layout.items()}
    part_in(ask_part(sites["a"], terms, model=server_wire.write_model(shared)))
    state = load_state(personal_state_path(Site(Profile.load(sites["a"]), terms)))
    assert state is not None
    np.testing.assert_array_equal(state.part, public)


# One answer a round.


def test_the_same_request_gets_the_same_bytes(sites: Sites) -> None:
    terms = shared_terms(sites)
    first = part_in(ask_part(sites["a"], terms))
    np.testing.assert_array_equal(first, part_in(ask_part(sites["a"], terms)))
    assert releases(sites["a"]) == {(1, "update"): "sent"}


def test_a_round_is_answered_for_one_set(sites: Sites) -> None:
    """Sums with and without a site would show it alone, with a share of the noise."""
    terms = shared_terms(sites)
    first = part_in(ask_part(sites["a"], terms))
    for numbers in ([0, 1, 2], [0, 1, 3], [0, 2, 3]):
        assert declined(ask_part(sites["a"], terms, numbers))
    np.testing.assert_array_equal(first, part_in(ask_part(sites["a"], terms)))


def test_a_round_is_answered_for_one_model(sites: Sites) -> None:
    terms = shared_terms(sites)
    part_in(ask_part(sites["a"], terms))
    assert declined(ask_part(sites["a"], terms, model=model_in(terms, 3)))


def test_a_lost_round_stays_charged_and_spare_ones_are_used_up(sites: Sites) -> None:
    """Three rounds with a tenth to spare are four; none of them comes back."""
    terms = shared_terms(sites)
    assert terms.last_round == 4
    for server_round in range(1, 5):
        part_in(ask_part(sites["a"], terms, server_round=server_round))  # the others are away
        assert spent(sites["a"]) == (1.2345678, 1e-6)
    assert len(releases(sites["a"])) == 4
    for server_round in (5, 6, 100):
        assert declined(ask_part(sites["a"], terms, server_round=server_round))
    plan = make_plan(Profile.load(sites["a"]), terms)
    assert plan.rounds == 4
    assert spent(sites["a"]) == (1.2345678, 1e-6)


# Runs and rounds that a site takes no part in; each leaves its ledger without a release.


@pytest.mark.parametrize(
    "numbers", ["", "0,1", "0", "1,2,3", "0,1,9", "0,1,2046", "0,1,1", "2,1,0", "0, 1, 2", "0,1,²"]
)
def test_other_sets_are_refused(sites: Sites, numbers: str) -> None:
    reply = ask_part(sites["a"], shared_terms(sites), numbers)
    assert reply.has_error()
    assert releases(sites["a"]) == {}
    assert spent(sites["a"]) == (0, 0)


@pytest.mark.parametrize(
    ("policy", "more"),
    [
        ("", {}),
        (f"{ALLOWED}least-colluders = 2\n", {}),
        (f"{ALLOWED}least-colluders = 2\n", {"colluders": 1}),
        (f"{ALLOWED}least-members = 5\n", {}),
        (ALLOWED, {"least-members": 5}),
        (ALLOWED, {"colluders": 3}),
        (ALLOWED, {"local-steps": 2}),
    ],
)
def test_runs_below_the_profiles_least_are_declined(
    tmp_path: Path, policy: str, more: dict[str, int]
) -> None:
    sites = make_sites(tmp_path, more=policy)
    assert declined(ask_part(sites["a"], shared_terms(sites, **more)))
    assert releases(sites["a"]) == {}
    assert spent(sites["a"]) == (0, 0)


def test_two_colluders_are_granted_where_there_are_four_sites(tmp_path: Path) -> None:
    sites = make_sites(tmp_path, more=f"{ALLOWED}least-colluders = 2\n")
    terms = shared_terms(sites, colluders=2)
    total_of(sites, terms)
    assert declined(ask_part(sites["a"], terms, [0, 1, 2], 2)), "three sites are not t + 2"


def test_a_member_that_the_operator_does_not_know_stops_the_run(tmp_path: Path) -> None:
    sites = make_sites(tmp_path)
    terms = shared_terms(sites)
    peers_of(sites["a"]).remove("d")
    assert declined(ask_part(sites["a"], terms))
    assert declined(ask_part(sites["a"], terms, [0, 1, 2])), "the members count, not the set"
    assert declined(ask(sites["a"], terms, kind=wire.JOIN))
    assert releases(sites["a"]) == {}


def test_a_key_of_another_ledger_releases_nothing(tmp_path: Path) -> None:
    sites = make_sites(tmp_path)
    terms = shared_terms(sites)
    ledger = sites["a"].parent / "ledger.sqlite"
    part_in(ask_part(sites["a"], terms))
    ledger.unlink()
    Ledger.create(ledger, 9.4691356, 1e-5).close()
    reply = ask_part(sites["a"], terms)
    assert reply.has_error()
    assert releases(sites["a"]) == {}
    (sites["a"].parent / "ledger.sqlite.peers" / "own.key").unlink()
    peers_of(sites["a"]).own(make=True)
    assert declined(ask_part(sites["a"], terms)), "a new key is no member's"
    for name in "bcd":
        peers_of(sites[name]).remove("a")
    exchange(sites)
    part_in(ask_part(sites["a"], shared_terms(sites)))


def test_a_sum_of_more_records_than_the_ring_holds_is_declined(tmp_path: Path) -> None:
    sites = make_sites(tmp_path, ("inf", *EPSILONS[1:]), batch="600000")
    text = sites["a"].read_text().replace("declared-records = 61", "declared-records = 600000")
    sites["a"].write_text(text.replace("1e-5", "1e-6"))
    assert declined(ask_part(sites["a"], shared_terms(sites)))
    assert releases(sites["a"]) == {}


@pytest.mark.parametrize("at_once", [1, 256])
def test_a_batch_whose_rounding_is_not_charged_is_declined(tmp_path: Path, at_once: int) -> None:
    """Its sum in float64 moves by more than the scale has room for; the remedy is the default."""
    sites = make_sites(tmp_path, batch=f"600000\nphysical-batch = {at_once}")
    for site in sites.values():
        text = site.read_text().replace("declared-records = 61", "declared-records = 600000")
        site.write_text(text.replace("1e-5", "1e-6"))
    reply = ask_part(sites["a"], shared_terms(sites))
    assert reply.has_error() == (at_once == 1)
    if at_once == 1:
        assert declined(reply)
        assert releases(sites["a"]) == {}


def test_a_model_too_large_for_the_grid_is_declined_before_a_charge(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A grid so coarse that 2γ√3 is above 1/z."""
    z, _ = noise_of(sites["a"], shared_terms(sites))
    monkeypatch.setattr("hdpfl_flower.shared_noise.ring.GRID", 1 / z)
    assert declined(ask_part(sites["a"], shared_terms(sites)))
    assert releases(sites["a"]) == {}
    assert spent(sites["a"]) == (0, 0)

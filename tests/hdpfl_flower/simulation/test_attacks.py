"""What liars send: each attack and disguise, by hand."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from hdpfl_flower.errors import TermsError
from hdpfl_flower.simulation.attacks import ATTACKS, Attack, AttackerView

Vector = npt.NDArray[np.float32]
D = 5000


def sight(seed: int = 1, before: Vector | None = None) -> AttackerView:
    generator = np.random.default_rng(seed)
    clean = generator.standard_normal(D).astype(np.float32)
    noise = 3 * generator.standard_normal(D).astype(np.float32)
    return AttackerView(clean, clean + noise, before, generator)


def forge(name: str, seen: AttackerView, leader: Vector | None = None) -> Vector:
    return Attack(name, sites=(3, 7)).forge(seen, leader)


def test_each_attack_sends_what_its_name_says() -> None:
    seen = sight()
    assert not forge("zero", seen).any()
    np.testing.assert_allclose(forge("tiny", seen), 1e-3 * seen.honest, rtol=1e-6)
    assert len(np.unique(forge("constant", seen))) == 1
    size = np.sqrt(np.mean(seen.honest**2))
    np.testing.assert_allclose(forge("constant", seen)[0], size, rtol=1e-5)
    for factor in (1, 5, 50):
        found = forge(f"minus-{factor}", seen)
        np.testing.assert_allclose(found, -factor * seen.clean, rtol=1e-6)
    assert forge("overstated-epsilon", seen) is seen.honest


def test_who_repeats_begins_honestly_and_stays_with_it() -> None:
    first = sight()
    assert forge("repeated", first) is first.honest
    assert forge("repeated", sight(2, before=first.honest)) is first.honest


def test_colluders_send_what_the_leader_sends() -> None:
    leader, seen = -5 * sight(1).clean, sight(2)
    assert forge("minus-5+same", seen, leader) is leader
    np.testing.assert_allclose(forge("minus-5+same", seen), -5 * seen.clean, rtol=1e-6)


def test_a_jitter_is_a_thousandth_of_each_coordinate() -> None:
    """The standard error of 5,000 normal numbers' spread is 1 %; 5 of them."""
    leader = -5 * sight(1).clean
    found = forge("minus-5+jitter", sight(2), leader)
    assert abs(np.std(found / leader - 1) / 1e-3 - 1) < 0.05
    other = forge("minus-5+jitter", sight(3), leader)
    assert not np.array_equal(found, other)


def test_a_hidden_attack_carries_the_honest_noise() -> None:
    seen = sight()
    noise = forge("minus-5+hidden", seen) + 5 * seen.clean
    np.testing.assert_allclose(noise, seen.honest - seen.clean, atol=1e-4)


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_leaves_what_it_sees_as_it_was(name: str) -> None:
    seen = sight(4, before=sight(5).honest)
    clean, honest = seen.clean.copy(), seen.honest.copy()
    update = forge(name, seen)
    assert update.dtype == np.float32
    assert update.shape == (D,)
    np.testing.assert_array_equal(seen.clean, clean)
    np.testing.assert_array_equal(seen.honest, honest)


@pytest.mark.parametrize("name", ["minus-6", "minus-5+loud", "minus-5+", ""])
def test_an_unknown_attack_is_refused_by_name(name: str) -> None:
    with pytest.raises(TermsError, match="choose one of zero, tiny"):
        Attack(name, (1,))


def test_an_attack_needs_a_liar() -> None:
    with pytest.raises(TermsError, match="sites that lie"):
        Attack("zero", ())

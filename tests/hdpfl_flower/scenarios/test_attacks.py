"""What liars send: each attack and disguise, by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from hdpfl_flower.errors import TermsError
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.scenarios.attacks import (
    ATTACKS,
    Attack,
    AttackerView,
    Colluders,
    alie_z,
    flip_labels,
    seven_to_one,
)

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


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_leaves_what_it_sees_as_it_was(name: str) -> None:
    seen = sight(4, before=sight(5).honest)
    clean, honest = seen.clean.copy(), seen.honest.copy()
    update = forge(name, seen)
    assert update.dtype == np.float32
    assert update.shape == (D,)
    np.testing.assert_array_equal(seen.clean, clean)
    np.testing.assert_array_equal(seen.honest, honest)


def colluding(m: int = 3, noise: float = 3.0) -> tuple[Colluders, AttackerView]:
    generator = np.random.default_rng(6)
    clean = (1 + generator.standard_normal((m, D))).astype(np.float32)
    honest = clean + noise * generator.standard_normal((m, D)).astype(np.float32)
    together = Colluders(clean, honest, 20)
    return together, AttackerView(clean[0], honest[0], None, generator, together)


SIGNALS: dict[str, Callable[[Colluders], Vector]] = {
    "label-flip": lambda all_of: all_of.clean[0],
    "7-to-1": lambda all_of: all_of.clean[0],
    "inflated": lambda all_of: 5 * all_of.clean[0],
    "slow-drift": lambda all_of: all_of.clean[0] - all_of.clean.mean(0) / 2,
    "minus-mean": lambda all_of: -all_of.clean.mean(0) / 5,
    "alie": lambda all_of: all_of.clean.mean(0) - alie_z(20, 3) * all_of.honest.std(0),
    "sign-flip": lambda all_of: -all_of.clean[0],
    "hidden-noise": lambda all_of: -5 * all_of.clean.mean(0),
}
"""Attack → what it sends beside the noise of an honest site."""


@pytest.mark.parametrize("name", SIGNALS)
def test_an_attack_by_content_is_a_signal_under_its_own_noise(name: str) -> None:
    together, seen = colluding()
    noise = together.honest[0] - together.clean[0]
    np.testing.assert_allclose(forge(name, seen), SIGNALS[name](together) + noise, atol=1e-4)


@pytest.mark.parametrize("name", ["inflated", "slow-drift", "minus-mean", "sign-flip"])
def test_a_quiet_liar_adds_a_fifth_of_the_noise(name: str) -> None:
    together, seen = colluding()
    noise = (together.honest[0] - together.clean[0]) / 5
    found = forge(f"{name}+quiet", seen)
    np.testing.assert_allclose(found, SIGNALS[name](together) + noise, atol=1e-4)


def test_min_max_stays_among_the_colluders_and_no_further() -> None:
    """At γ the farthest update is as far as the two farthest of each other; at 1.01·γ farther."""
    together, seen = colluding()
    rows = together.honest.astype(np.float64)
    sent = forge("min-max", seen) - seen.noise - seen.mean
    size = np.linalg.norm(sent)
    assert sent @ seen.mean == pytest.approx(-size * np.linalg.norm(seen.mean), rel=1e-4)
    widest = max(np.linalg.norm(a - b) for a in rows for b in rows)
    for factor, within in ((1.0, True), (1.01, False)):
        farthest = max(np.linalg.norm(rows.mean(0) + factor * sent - row) for row in rows)
        assert bool(farthest <= widest * (1 + 1e-6)) is within


def test_a_poison_changes_labels_and_nothing_else() -> None:
    ten, two = Task.classification((4,), 10), Task.classification((4,), 2)
    records = Records(np.ones((4, 4), np.float32), np.array([0, 7, 1, 9]))
    for name, labels in (("label-flip", [9, 2, 8, 0]), ("7-to-1", [0, 1, 1, 9])):
        poison = Attack(name, (1,)).poison
        assert poison is not None
        found = poison(records, ten)
        assert found.targets.tolist() == labels
        assert found.targets.dtype == records.targets.dtype
        assert found.features is records.features
    assert records.targets.tolist() == [0, 7, 1, 9]
    with pytest.raises(TermsError, match="needs a class 7"):
        seven_to_one(records, two)
    with pytest.raises(TermsError, match="needs classes"):
        flip_labels(records, Task.regression((4,)))
    assert Attack("minus-5", (1,)).poison is None

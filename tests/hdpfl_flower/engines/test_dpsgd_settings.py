"""Training leaves torch as it was: products in full float32 meanwhile, and its generator untouched.

Each check also runs on ``train`` with a bug put back, which must fail.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hdpfl_flower.engines import dpsgd
from hdpfl_flower.engines.engines import VmapEngine
from hdpfl_flower.errors import TermsError
from hdpfl_flower.models import row_batches as exact
from hdpfl_flower.models.task import Records, Task
from tests.hdpfl_flower.engines.oracle import CPU, make_engine, mutant, one_thread  # noqa: F401
from tests.hdpfl_flower.engines.updates import (
    RATE,
    TABLE,
    Train,
    plan_of,
    records_of,
    start_of,
    streams,
    update_of,
    with_bug,
)


class Watched(VmapEngine):
    """An engine that writes down torch's settings while it runs."""

    seen: list[tuple[Any, ...]]

    def add_clipped_sum(self, *args: Any) -> None:
        self.seen.append(settings())
        super().add_clipped_sum(*args)


def settings() -> tuple[Any, ...]:
    """Return whether torch may round float32 products, on the CPU and on the GPU."""
    return (
        torch.get_float32_matmul_precision(),
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cudnn.allow_tf32,
        torch.backends.mkldnn.matmul.fp32_precision,  # type: ignore[attr-defined]
        torch.is_autocast_enabled("cuda"),
        torch.is_autocast_enabled("cpu"),
    )


@pytest.fixture
def careless_torch() -> Iterator[None]:
    """Every shortcut that torch knows, switched on by somebody else."""
    cudnn = torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("medium")
    torch.backends.cudnn.allow_tf32 = True
    torch.set_autocast_enabled("cuda", True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        yield
    torch.set_autocast_enabled("cuda", False)
    torch.backends.cudnn.allow_tf32 = cudnn
    torch.set_float32_matmul_precision("highest")


def check_exact_arithmetic(train: Train = dpsgd.train) -> None:
    before = settings()
    engine = Watched(nn.Linear(5, 4), TABLE, CPU)
    engine.seen = []
    update_of(records_of(TABLE, 30), plan_of(q=0.9), engine=engine, train=train)
    assert set(engine.seen) == {("highest", False, False, "ieee", False, False)}
    assert settings() == before


@pytest.mark.usefixtures("careless_torch")
def test_products_are_not_rounded_and_the_settings_come_back() -> None:
    check_exact_arithmetic()
    with pytest.raises(AssertionError):
        check_exact_arithmetic(
            with_bug(("with _exact_arithmetic(", "with contextlib.nullcontext("))
        )
    autocast = ', torch.autocast("cpu", enabled=False)', ""
    back = "        torch.set_float32_matmul_precision(before[0])\n", ""
    for bug in (autocast, back):
        careless = mutant(dpsgd)
        careless.exact_arithmetic = mutant(exact, bug).exact_arithmetic
        with pytest.raises(AssertionError):
            check_exact_arithmetic(careless.train)
    torch.set_float32_matmul_precision("medium")


@pytest.mark.usefixtures("careless_torch")
def test_the_settings_come_back_after_an_error() -> None:
    class Failing(VmapEngine):
        def add_clipped_sum(self, *args: Any) -> None:
            raise MemoryError

    engine = Failing(nn.Linear(5, 4), TABLE, CPU)
    before, state = settings(), torch.get_rng_state()
    with pytest.raises(MemoryError):
        update_of(records_of(TABLE, 30), plan_of(q=1.0), engine=engine)
    assert settings() == before
    assert torch.equal(torch.get_rng_state(), state)


def dropout_update(seed: int, train: Train = dpsgd.train) -> np.ndarray:
    """Return an update of a network with dropout; torch's own generator stands at ``seed``."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 24), nn.Dropout(0.5), nn.Linear(24, 4))
    engine = VmapEngine(model, TABLE, CPU)
    start = engine.theta.numpy().copy()
    torch.manual_seed(seed)
    return train(engine, start, records_of(TABLE, 30), plan_of(q=0.9), RATE, streams(), 100)


def check_generator(train: Train = dpsgd.train) -> None:
    """Dropout follows the release's stream alone, and torch's own generator stays where it was."""
    one = dropout_update(1, train)
    assert torch.equal(torch.get_rng_state(), torch.Generator().manual_seed(1).get_state())
    np.testing.assert_array_equal(one, dropout_update(2, train))


def test_torchs_own_generator_is_neither_used_nor_moved() -> None:
    with torch.random.fork_rng(devices=[]):
        check_generator()
        for bug in ((", torch.random.fork_rng()", ""), ("        torch.manual_seed(seed)\n", "")):
            with pytest.raises(AssertionError):
                check_generator(with_bug(bug))


@pytest.mark.parametrize("careful", [False, True])
def test_a_gpus_kernels_repeat_their_bits(careful: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is such a kernel; the settings of others come back, and the CPU has none."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    torch.set_deterministic_debug_mode("error" if careful else "default")
    before = torch.get_deterministic_debug_mode()
    try:
        with exact.exact_arithmetic():
            assert torch.get_deterministic_debug_mode() == 1
        assert torch.get_deterministic_debug_mode() == before
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
        with exact.exact_arithmetic():
            assert torch.get_deterministic_debug_mode() == before
    finally:
        torch.set_deterministic_debug_mode("default")


# --- local training that is pulled towards another model: exact, outside of the clipping and free


LINE = Task.regression((5,))
STEPS = 8


def pulled(
    strength: float | None,
    anchor: np.ndarray,
    train: Train = dpsgd.train,
    task: Task = TABLE,
    **plan: Any,
) -> np.ndarray:
    """Return the model at the end, shape ``(d,)``."""
    start = start_of("logreg", task)
    engine = make_engine("linear", "logreg", task)
    pull = None if strength is None else (strength, anchor)
    steps = plan_of(steps=STEPS, **plan)
    return start + train(
        engine, start, records_of(task, 50), steps, RATE, streams(), 1000, pull=pull
    )


def check_quadratic(strength: float, train: Train = dpsgd.train) -> None:
    """Full batches of ½‖Xθ − y‖²/n + λ/2·‖θ − θ*‖²: θₖ − θ̂ = (I − η·(XᵀX/n + λI))ᵏ·(θ₀ − θ̂)."""
    records, anchor = records_of(LINE, 50), np.linspace(-200, 300, 6, dtype=np.float32)
    design = np.hstack([records.features, np.ones((50, 1))]).astype(np.float64)
    curvature = design.T @ design / 50 + strength * np.eye(6)
    best = np.linalg.solve(
        curvature, design.T @ records.targets / 50 + strength * anchor.astype(np.float64)
    )
    away = np.linalg.matrix_power(np.eye(6) - RATE * curvature, STEPS)
    expected: np.ndarray = best + away @ (start_of("logreg", LINE) - best)
    found = pulled(strength, anchor, train, LINE, q=1.0, divisor=50.0, clip_norm=1e6)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * float(np.linalg.norm(best)))


@pytest.mark.parametrize("strength", [0.0, 0.3, 5.0])
def test_the_steps_are_those_of_the_pulled_quadratic(strength: float) -> None:
    check_quadratic(strength)


@pytest.mark.parametrize(
    "bug",
    [
        ("lerp_(anchor, share)", "lerp_(anchor, share / plan.divisor)"),
        ("lerp_(anchor, share)", "lerp_(begin, share)"),
        ("lerp_(anchor, share)", "lerp_(anchor, -share)"),
        ("return pull[0] * learning_rate", "return pull[0]"),
    ],
)
def test_the_quadratic_finds_a_bug_put_back(bug: tuple[str, str]) -> None:
    with pytest.raises(AssertionError):
        check_quadratic(0.3, with_bug(bug))


def test_clipping_and_noise_do_not_touch_the_pull() -> None:
    """With no record in any batch, noise and pull remain: θ* + (1 − ηλ)ᵏ·(θ₀ − θ*), and noise."""
    start, anchor = start_of("logreg", TABLE), np.full(24, 1e3, np.float32)
    found = pulled(5.0, anchor, q=1e-9, clip_norm=1e-3)
    left = (1 - 5 * RATE) ** STEPS
    np.testing.assert_allclose(found, anchor + left * (start - anchor), rtol=0, atol=2e-3)
    noise = pulled(5.0, anchor, q=1e-9, noise_std=10.0, clip_norm=1e-3) - found
    assert 0.01 < np.abs(noise).max() < 1


def test_no_pull_and_one_of_zero_are_the_same_bits() -> None:
    anchor = np.full(24, 7, np.float32)
    for noise_std in (0.0, 0.5):
        free = pulled(None, anchor, noise_std=noise_std)
        assert free.tobytes() == pulled(0.0, anchor, noise_std=noise_std).tobytes()


def test_a_strong_pull_ends_nearer_to_the_anchor() -> None:
    anchor = np.full(24, 7, np.float32)
    distances = [np.linalg.norm(pulled(s, anchor, noise_std=0.5) - anchor) for s in (0, 1, 5, 10)]
    assert (np.diff(distances) < -0.1).all()
    assert np.isfinite(distances).all()


def test_what_is_given_stays_as_it_is() -> None:
    anchor = np.linspace(0, 1, 24, dtype=np.float32)
    pulled(5.0, anchor)
    np.testing.assert_array_equal(anchor, np.linspace(0, 1, 24, dtype=np.float32))


@pytest.mark.parametrize("strength", [-1.0, 10.1, float("nan"), float("inf")])
def test_a_pull_that_goes_beyond_its_aim_is_refused(strength: float) -> None:
    with pytest.raises(TermsError, match="product with 'learning-rate' at most 1"):
        pulled(strength, np.zeros(24, np.float32))
    with pytest.raises(TermsError, match="another size"):
        pulled(1.0, np.zeros(23, np.float32))


def test_a_pull_without_records_still_leads_home() -> None:
    start, anchor = start_of("logreg", TABLE), np.ones(24, np.float32)
    none = Records(np.zeros((0, 5), np.float32), np.zeros(0, np.int64))
    engine = make_engine("linear", "logreg", TABLE)
    update = dpsgd.train(engine, start, none, plan_of(), RATE, streams(), 1000, pull=(10.0, anchor))
    np.testing.assert_allclose(start + update, anchor, atol=1e-6)

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

from client_app.training import dpsgd
from client_app.training.engines import VmapEngine
from hdpfl_flower.models import exact_arithmetic as exact
from tests.client_app.training.oracle import CPU, mutant, one_thread  # noqa: F401
from tests.client_app.training.updates import (
    RATE,
    TABLE,
    Train,
    plan_of,
    records_of,
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

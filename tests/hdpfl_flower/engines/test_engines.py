"""The engines: one clipped sum for all of them, and no record that moves it by more than C.

The oracle is Opacus' hooks in float64 with the clipping written out. Every check also runs on
engines with a bug put back, which must fail.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hdpfl_flower.engines import engines
from hdpfl_flower.engines.engines import Engine, outer_squared_norms, squared_norms
from hdpfl_flower.models.networks import build_model
from hdpfl_flower.models.task import Task
from tests.hdpfl_flower.engines.oracle import (
    ENGINES_OF,
    EVERY_ENGINE,
    TASKS,
    TOLERANCE,
    broken_engine,
    clipped_sum,
    draw,
    gradients_of,
    make_engine,
    mutant,
    one_thread,  # noqa: F401
    reference,
    sum_of,
)

# Agreement.


def check_agreement(engine: Engine, spec: str, batches: tuple[int, ...] = (1, 2, 17)) -> None:
    """Sums of each batch agree with the oracle's, where no, some and all records are clipped."""
    for count in batches:
        x, y, gradients = reference(spec, engine.task, count)
        norms = gradients.norm(dim=1)
        for clip_norm in (2 * norms.max(), norms.median() * 1.001, 0.5 * norms.min()):
            expected = clipped_sum(gradients, float(clip_norm))
            error = (sum_of(engine, x, y, float(clip_norm)) - expected).norm()
            assert error <= TOLERANCE * expected.norm()


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(("spec", "name"), EVERY_ENGINE)
def test_engines_agree_with_opacus_hooks(spec: str, name: str, task: str) -> None:
    check_agreement(make_engine(name, spec, TASKS[task]), spec)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bookkeeping", "vmap"])
def test_engines_agree_with_opacus_hooks_on_resnet18(name: str) -> None:
    """Eleven million parameters: float32 sums of squares in one go are 1e-5 off."""
    check_agreement(make_engine(name, "resnet18", TASKS["classes"]), "resnet18", (2,))


@pytest.mark.parametrize(("spec", "name"), EVERY_ENGINE)
def test_rows_after_the_count_add_nothing(spec: str, name: str) -> None:
    task = TASKS["classes"]
    check_filling(make_engine(name, spec, task))


def check_filling(engine: Engine) -> None:
    x, y = draw(engine.task, 8)
    x[6], x[7] = math.nan, math.inf
    expected = sum_of(engine, x[:5], y[:5], 1.0)
    assert (sum_of(engine, x, y, 1.0, count=5) - expected).norm() <= TOLERANCE * 5


@pytest.mark.parametrize(("spec", "name"), EVERY_ENGINE)
def test_a_sum_is_added_to_what_is_there(spec: str, name: str) -> None:
    engine = make_engine(name, spec, TASKS["classes"])
    x, y = draw(engine.task, 4)
    total = torch.ones_like(engine.theta)
    engine.add_clipped_sum(total, x, y, 4, 1.0)
    added = total.double() - 1
    rounding = 2**-23 * math.sqrt(len(total))  # of a float32 between 1/2 and 4, twice
    assert (added - sum_of(engine, x, y, 1.0)).norm() <= TOLERANCE * 4 + rounding


@pytest.mark.parametrize(("spec", "name"), EVERY_ENGINE)
def test_theta_sets_the_parameters(spec: str, name: str) -> None:
    """What is written to theta is what the next sum is taken at."""
    task = TASKS["classes"]
    engine = make_engine(name, spec, task)
    other = build_model(spec, task, seed=4)
    engine.theta.copy_(torch.cat([p.detach().reshape(-1) for p in other.parameters()]))
    x, y = draw(task, 5)
    expected = clipped_sum(gradients_of(other, task, x, y), 0.1)
    assert (sum_of(engine, x, y, 0.1) - expected).norm() <= TOLERANCE * expected.norm()


# Sensitivity.

KINDS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "plain": lambda r: r,
    "huge": lambda r: 1e30 * r,
    "large": lambda r: 1e12 * r,
    "tiny": lambda r: 1e-30 * r,
    "zero": lambda r: 0 * r,
    "constant": lambda r: 0 * r + 3,
    "large constant": lambda r: 0 * r - 1e8,
    "stripes": lambda r: 0 * r + 100 * (torch.arange(r.shape[-1]) % 2 * 2 - 1),
    "every scale": lambda r: r * torch.logspace(-30, 15, r.numel()).view(r.shape),
    "one huge": lambda r: r.index_fill(-1, torch.tensor(5), 1e30),
    "one NaN": lambda r: r.index_fill(-1, torch.tensor(5), math.nan),
    "NaN": lambda r: r * math.nan,
    "Inf": lambda r: 0 * r + math.inf,
    "-Inf": lambda r: 0 * r - math.inf,
}
NOT_FINITE = ("one NaN", "NaN", "Inf", "-Inf")
TARGETS = (0.0, 1.0, -1e5, 1e15, 1e30, 1e-30, math.nan, math.inf)
"""What a regression may be told to predict."""
EXAMPLES = {"cnn": 12, "tests.hdpfl_flower.engines.oracle:group_norm_net": 12}
"""Fewer batches where one takes ten times as long."""


def records_of(task: Task, kinds: list[str], seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = draw(task, len(kinds), seed)
    if task.loss == "squared":
        y = torch.tensor([TARGETS[(seed + i) % len(TARGETS)] for i in range(len(kinds))])
    return torch.stack([KINDS[kind](r) for kind, r in zip(kinds, x, strict=True)]), y


def check_sensitivity(engine: Engine, kinds: list[str], seed: int, clip_norm: float) -> None:
    """Leaving out the first record, whatever it is, moves the sum by at most C·(1 + 1e-5)."""
    x, y = records_of(engine.task, kinds, seed)
    moved = sum_of(engine, x, y, clip_norm) - sum_of(engine, x[1:], y[1:], clip_norm)
    assert moved.norm() <= clip_norm * (1 + TOLERANCE)


def check_not_finite_adds_nothing(engine: Engine, kinds: list[str], seed: int) -> None:
    """Records that are not finite add nothing, alone or among others, and change no other's."""
    x, y = records_of(engine.task, kinds, seed)
    y = y.nan_to_num(1.0, 1.0) if engine.task.loss == "squared" else y
    good = torch.tensor([kind not in NOT_FINITE for kind in kinds])
    everything, finite = sum_of(engine, x, y, 1.0), sum_of(engine, x[good], y[good], 1.0)
    assert (everything - finite).norm() <= 2 * TOLERANCE * len(kinds)
    assert not sum_of(engine, x[~good], y[~good], 1.0).any()


@pytest.mark.parametrize("thorough", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("spec", ENGINES_OF)
def test_one_record_moves_the_sum_by_c_at_most(spec: str, task: str, thorough: bool) -> None:
    """The quick half has the batches with a record of every kind, which take the most time."""
    examples = EXAMPLES.get(spec, 40) if thorough else 3
    made = [make_engine(name, spec, TASKS[task]) for name in ENGINES_OF[spec]]

    @settings(max_examples=examples)
    @given(
        st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=5),
        st.integers(0, 99),
        st.sampled_from([1e-3, 1.0, 100.0]),
    )
    def check(kinds: list[str], seed: int, clip_norm: float) -> None:
        for engine in made:
            check_sensitivity(engine, kinds, seed, clip_norm)
            check_not_finite_adds_nothing(engine, kinds, seed)

    if not thorough:
        check = example([*KINDS], 0, 1.0)(example([*reversed(KINDS)], 1, 1.0)(check))
    check()


@pytest.mark.parametrize("size", [0, 1, 1023, 1024, 1025, 31_360, 10**7])
def test_squared_norms_are_right_at_any_length(size: int) -> None:
    """Equal squares are the worst: every addition is rounded the same way."""
    for rows in (torch.full((2, size), 1.1), torch.rand(2, size)):
        check_squared_norms(squared_norms, rows)


def check_squared_norms(norms: Callable[[torch.Tensor], torch.Tensor], rows: torch.Tensor) -> None:
    expected = rows.double().square().sum(1)
    assert norms(rows).shape == (len(rows),)
    assert ((norms(rows) - expected).abs() <= TOLERANCE * expected).all()


def test_squared_norms_in_one_go_are_too_small() -> None:
    """The mutant: a gradient of 31,360 equal numbers passed with C·(1 + 1.2e-5)."""
    with pytest.raises(AssertionError):
        check_squared_norms(
            lambda rows: torch.linalg.vector_norm(rows, dim=1).square(), torch.full((2, 10**7), 1.1)
        )


def check_rounded_up(norms: Callable[..., torch.Tensor], exponents: tuple[int, int]) -> None:
    """The closed form is never below the norm itself where that is finite and matters."""
    delta, a = (torch.full((1, 7), 10.0**e, dtype=torch.float32) for e in exponents)
    for bias in (True, False):
        exact = delta.double().square().sum() * (a.double().square().sum() + bias)
        if 1e-12 <= exact < 1e37:
            assert float(norms(delta, a, bias)) >= exact * (1 - TOLERANCE)


@given(st.tuples(st.integers(-37, 18), st.integers(-37, 18)))
@example((-22, 18))
def test_closed_form_norms_are_rounded_up(exponents: tuple[int, int]) -> None:
    check_rounded_up(outer_squared_norms, exponents)


def test_closed_form_norms_without_the_rounding_lose_tiny_squares() -> None:
    careless = mutant(engines, (".add_(1e-34), squared_norms(a)", ", squared_norms(a)"))
    with pytest.raises(AssertionError):
        check_rounded_up(careless.outer_squared_norms, (-22, 18))


# Mutants: a bug put back, and the check that must see it.

ALL, HOOKS, CLOSED = tuple(ENGINES_OF["logreg"]), ("vmap", "opacus"), ("linear", "bookkeeping")
BOOKKEEPING = ("bookkeeping",)


def check_finite(engine: Engine, _: str) -> None:
    check_not_finite_adds_nothing(engine, ["plain", "NaN"], 0)


def check_clipped(engine: Engine, _: str) -> None:
    check_sensitivity(engine, ["plain", "plain"], 0, 1e-3)


def check_filled(engine: Engine, _: str) -> None:
    check_filling(engine)


BUGS: dict[str, tuple[tuple[str, ...], Callable[[Engine, str], None], str, str]] = {
    "0 · NaN is NaN (linear)": (
        ("linear",), check_finite,
        "if not all_known(finite):\n            residual", "if False:\n            residual"),
    "0 · NaN is NaN (gradients)": (
        HOOKS, check_finite, "if not all_known(finite):  #", "if False:  #"),
    "0 · NaN is NaN (bookkeeping)": (
        BOOKKEEPING, check_finite, "if not everything:", "if False:"),
    "no clipping": (
        ALL, check_clipped,
        "(clip_norm * squared_norm.rsqrt()).clamp(max=1.0)", "torch.ones_like(squared_norm)"),
    "each parameter clipped by itself": (
        HOOKS, check_clipped, "addmv_(g.t(), factor)",
        "addmv_(g.t(), clip_factor(squared_norms(g), count, clip_norm)[1])"),
    "each layer clipped by itself": (
        BOOKKEEPING, check_clipped, "layer.weighted_sums(a, delta, factor)",
        "layer.weighted_sums("
        "a, delta, clip_factor(layer.squared_norms(a, delta), count, clip_norm)[1])"),
    "the bias is not in the norm": (
        CLOSED, check_agreement,
        "torch.addcmul(deltas, deltas, inputs) if bias", "deltas * inputs if bias"),
    "gradients shorter than C are stretched to it": (ALL, check_agreement, ".clamp(max=1.0)", ""),
    "the batch is clipped, not the record": (
        ALL, check_agreement, "finite = torch.isfinite(squared_norm)",
        "finite = torch.isfinite(squared_norm)\n"
        "    squared_norm = squared_norm.sum().expand(len(squared_norm))"),
    "rows that fill up are counted": (ALL, check_filled, "factor[count:] = 0", "pass"),
}  # fmt: skip
"""Bug → the engines that may have it, what finds it, the right code and the wrong one."""


@pytest.mark.parametrize(("bug", "name"), [(bug, name) for bug in BUGS for name in BUGS[bug][0]])
def test_a_bug_put_back_is_found(bug: str, name: str) -> None:
    spec = "logreg" if name == "linear" else "mlp:32"
    _, check, right, wrong = BUGS[bug]
    check(make_engine(name, spec, TASKS["classes"]), spec)
    with pytest.raises(AssertionError):
        check(broken_engine(name, spec, TASKS["classes"], (right, wrong)), spec)


@pytest.mark.gpu
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(("spec", "name"), EVERY_ENGINE)
def test_engines_agree_on_the_gpu(
    spec: str, name: str, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert torch.cuda.is_available(), "this test needs a GPU that torch can use"
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # as dpsgd.train does
    check_agreement(make_engine(name, spec, TASKS[task], "cuda"), spec)
    check_not_finite_adds_nothing(make_engine(name, spec, TASKS[task], "cuda"), [*KINDS], 0)

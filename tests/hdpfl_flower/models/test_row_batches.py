"""The proof that rows are apart: it finds every kind of kernel that lets them meet."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from hdpfl_flower.models import row_batches as rows
from hdpfl_flower.models.evaluation import count_correct
from hdpfl_flower.models.networks import arrays_of, build_model
from hdpfl_flower.models.row_batches import POOL, RowProof, align
from hdpfl_flower.models.task import Records, Task

TERMS = torch.randn(POOL, 9, generator=torch.Generator().manual_seed(3))
"""Sums of nine numbers, which two orders of addition round to other bits now and then."""


def forwards(x: torch.Tensor) -> torch.Tensor:
    first, *others = x.unbind(1)
    for column in others:
        first = first + column
    return first


def backwards(x: torch.Tensor) -> torch.Tensor:
    return forwards(x.flip(1))


def tail(x: torch.Tensor) -> torch.Tensor:
    """As a product with one column: the last rows of an odd number in another order."""
    whole = len(x) // 8 * 8
    return torch.cat([forwards(x[:whole]), backwards(x[whole:])]) if whole < len(x) else forwards(x)


def places(x: torch.Tensor) -> torch.Tensor:
    """As rows at addresses of several alignments."""
    odd = torch.arange(len(x)) % 2 == 1
    return torch.where(odd, backwards(x), forwards(x))


def last_place(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([forwards(x[:-1]), backwards(x[-1:])])


def many(x: torch.Tensor) -> torch.Tensor:
    return forwards(x) if len(x) <= 16 else backwards(x)


def few(x: torch.Tensor) -> torch.Tensor:
    return forwards(x) if len(x) <= 16 else last_place(x)


def mixed(x: torch.Tensor) -> torch.Tensor:
    return forwards(x) + x.mean() * 2**-20


def random(x: torch.Tensor) -> torch.Tensor:
    return forwards(x) + torch.rand(len(x))


def proof_of(kernel: Callable[[torch.Tensor], torch.Tensor]) -> RowProof:
    return RowProof(lambda _, place: [kernel(TERMS[place % POOL]).unsqueeze(1)])


@pytest.mark.parametrize(
    ("kernel", "granule"),
    [(forwards, 4), (tail, 8), (places, 1), (last_place, 1), (many, 4), (mixed, 1), (random, 1)],
)
def test_kernels_row_counts(kernel: Callable[[torch.Tensor], torch.Tensor], granule: int) -> None:
    assert proof_of(kernel).granule(4, 64) == granule


def test_a_size_whose_order_differs_is_taken_in_blocks() -> None:
    proof = proof_of(many)
    assert proof.granule(4, 64) == 4
    assert [size for size in range(1, 65) if proof.holds(4, size)] == [4, 8, 12, 16]


@pytest.mark.parametrize(("wanted", "granule"), [(152, 9), (32, 16), (20, 10), (8, 8)])
def test_where_many_rows_meet_half_as_many_are_tried(wanted: int, granule: int) -> None:
    assert proof_of(few).granule(wanted, wanted) == granule


def test_one_by_one_needs_no_proof() -> None:
    proof = proof_of(mixed)
    assert proof.granule(1, 1) == 1
    assert proof.holds(1, 1)
    assert not proof.holds(1, 2)


def test_no_block_is_larger_than_memory_allows() -> None:
    assert proof_of(tail).granule(4, 4) == 4
    assert proof_of(tail).granule(2, 256) == 8


def test_a_proof_leaves_torchs_generator_where_it_was() -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    proof_of(random).granule(4, 16)
    assert torch.equal(torch.get_rng_state(), before)


def test_what_is_proven_is_proven_for_the_present_threads() -> None:
    calls, before = [], torch.get_num_threads()

    def trial(kind: int, place: torch.Tensor) -> list[torch.Tensor]:
        calls.append((torch.get_num_threads(), kind))
        return [forwards(TERMS[place]).unsqueeze(1)]

    proof = RowProof(trial)
    try:
        for count in (1, 2, 1, 2):
            torch.set_num_threads(count)
            assert proof.block((8,)) == 8
    finally:
        torch.set_num_threads(before)
    half = len(calls) // 2
    assert {count for count, _ in calls[:half]} == {1}
    assert {count for count, _ in calls[half:]} == {2}


def test_a_digest_sees_every_bit() -> None:
    x = torch.randn(4, 300, generator=torch.Generator().manual_seed(0))
    x[1, 7] = torch.nan
    same = rows._digest(x.clone())
    assert torch.equal(rows._digest(x), same)
    for place in (0, 7, 299):
        other = x.clone()
        other[2, place] = torch.nextafter(other[2, place], torch.tensor(torch.inf))
        assert (rows._digest(other) != same).tolist() == [False, False, True, False]
    swapped = x[:, torch.tensor([1, 0, *range(2, 300)])]
    assert (rows._digest(swapped) != same).all()


def test_alignment_changes_nothing_but_rounding() -> None:
    model = nn.Sequential(
        nn.Linear(13, 7), nn.Tanh(), nn.Linear(7, 16, bias=False), nn.Linear(16, 3)
    )
    x = torch.randn(5, 13)
    expected = model(x)
    assert torch.allclose(align(model)(x), expected, atol=1e-6)
    assert type(model[0]) is nn.Linear


# Counting.

TASK = Task.classification((5,), 2)
_seen: list[int] = []


class Watched(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _seen.append(len(x))
        return super().forward(x)


class Centred(nn.Linear):
    """Mixes the records of a batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x - x.mean(0) + 1)


def watched(task: Task) -> nn.Module:
    return Watched(*task.input_shape, task.outputs)


def centred(task: Task) -> nn.Module:
    return Centred(*task.input_shape, task.outputs)


def records(count: int) -> Records:
    generator = np.random.default_rng(2)
    return Records(
        generator.normal(size=(count, 5)).astype(np.float32), generator.integers(0, 2, count)
    )


def test_records_are_counted_in_blocks_of_one_size() -> None:
    spec, drawn = f"{__name__}:watched", records(150)
    arrays = arrays_of(build_model(spec, TASK, 0))
    count_correct(spec, TASK, arrays, drawn)
    sizes = set()
    for count in (1, 15, 63, 64, 65, 150):
        _seen.clear()
        some = drawn.take(np.arange(count))
        expected = drawn.features[:count] @ arrays["weight"][0] + arrays["bias"] > 0
        assert count_correct(spec, TASK, arrays, some) == (expected == some.targets).sum()
        sizes |= set(_seen)
    assert len(sizes) == 1


def test_of_a_model_that_mixes_records_each_is_counted_alone() -> None:
    spec = f"{__name__}:centred"
    arrays = arrays_of(build_model(spec, TASK, 0))
    drawn = records(40)
    everything = count_correct(spec, TASK, arrays, drawn)
    alone = [count_correct(spec, TASK, arrays, drawn.take(np.array([row]))) for row in range(40)]
    assert everything == sum(alone)
    drawn.features[0] = 1e4
    assert count_correct(spec, TASK, arrays, drawn) - everything in (-1, 0, 1)

"""Engines that train a part of the model: its gradients, norms and sums, and nothing of the rest.

The oracle is Opacus' hooks in float64 with the clipping of the part written out.
"""

from __future__ import annotations

import pytest
import torch

from hdpfl_flower.engines import engines
from hdpfl_flower.engines.engines import Engine
from hdpfl_flower.errors import ModelError
from hdpfl_flower.models.task import Task
from tests.hdpfl_flower.engines.oracle import (
    ENGINES_OF,
    TASKS,
    TOLERANCE,
    broken_engine,
    clipped_sum,
    make_engine,
    one_thread,  # noqa: F401
    reference,
    sum_of,
)

PARTED = [(spec, name) for spec, names in ENGINES_OF.items() for name in names if spec != "logreg"]


def places_of(engine: Engine) -> dict[str, slice]:
    """Return the last layer, all else, and the layers between the first and the last."""
    bounds, start = [0], 0
    names = list(engine.parameters)
    for name, after in zip(names, [*names[1:], "."], strict=True):
        start += engine.parameters[name].numel()
        if name.rpartition(".")[0] != after.rpartition(".")[0]:
            bounds.append(start)
    found = {"head": slice(bounds[-2], start), "body": slice(0, bounds[-2])}
    if len(bounds) > 3:
        found["middle"] = slice(bounds[1], bounds[-2])
    return found


def check_part(engine: Engine, spec: str, place: slice, count: int = 5) -> None:
    """The clipped sum of a part, where none, some and all records are clipped."""
    x, y, gradients = reference(spec, engine.task, count)
    own = torch.zeros_like(gradients)
    own[:, place] = gradients[:, place]
    norms = own.norm(dim=1)
    for clip_norm in (2 * norms.max(), norms.median() * 1.001, 0.5 * norms.min()):
        with engine.only(place):
            found = sum_of(engine, x, y, float(clip_norm))
        expected = clipped_sum(own, float(clip_norm))
        assert (found - expected).norm() <= TOLERANCE * expected.norm()
        outside = found.clone()
        outside[place] = 0
        assert not outside.any(), "a coordinate outside the part has a sum"


@pytest.mark.parametrize("task", ["classes", "regression"])
@pytest.mark.parametrize(("spec", "name"), PARTED)
def test_a_part_has_the_sum_of_its_own_clipped_gradients(spec: str, name: str, task: str) -> None:
    engine = make_engine(name, spec, TASKS[task])
    for place in places_of(engine).values():
        check_part(engine, spec, place)
    # And the whole again, whatever was trained before.
    check_part(engine, spec, slice(0, len(engine.theta)))


@pytest.mark.parametrize(("spec", "name"), PARTED)
def test_one_record_moves_a_parts_sum_by_the_clip_norm_at_most(spec: str, name: str) -> None:
    engine = make_engine(name, spec, TASKS["classes"])
    x, y, _ = reference(spec, engine.task, 5)
    for place in places_of(engine).values():
        with engine.only(place):
            moved = sum_of(engine, 1e3 * x, y, 0.3) - sum_of(engine, 1e3 * x[1:], y[1:], 0.3)
        assert moved.norm() <= 0.3 * (1 + TOLERANCE)


@pytest.mark.parametrize(
    ("name", "bug"),
    [
        ("vmap", ("_norm_of(flat)\n    finite", "_norm_of([g.flatten(1) for g in gradients])\n"
                  "    finite")),
        ("vmap", ("if place.start < end <= place.stop", "if True")),
        ("vmap", ("        start += g.shape[1]\n", "")),
    ],
)  # fmt: skip
def test_a_wrong_part_is_found(name: str, bug: tuple[str, str]) -> None:
    engine = broken_engine(name, "mlp:32", TASKS["classes"], bug)
    with pytest.raises((AssertionError, RuntimeError)):
        for place in places_of(engine).values():
            check_part(engine, "mlp:32", place)


@pytest.mark.parametrize("name", ["bookkeeping", "vmap", "opacus"])
@pytest.mark.parametrize("place", [slice(0, 5), slice(3, 330), slice(7, 7), slice(330, 0)])
def test_a_part_is_of_whole_parameters(name: str, place: slice) -> None:
    engine = make_engine(name, "mlp:32", TASKS["classes"])
    before = engine.place
    with pytest.raises(ModelError, match="whole parameters"), engine.only(place):
        pass
    assert engine.place == before


def test_one_layer_has_no_parts() -> None:
    engine = make_engine("linear", "logreg", Task.classification((5,), 4))
    assert isinstance(engine, engines.LinearEngine)
    with engine.only(slice(0, 24)):
        pass
    with pytest.raises(ModelError, match="has no parts"), engine.only(slice(0, 20)):
        pass


def test_the_whole_is_trained_again_after_an_error_in_a_part() -> None:
    engine = make_engine("vmap", "mlp:32", TASKS["classes"])
    with pytest.raises(ZeroDivisionError), engine.only(places_of(engine)["head"]):
        raise ZeroDivisionError
    assert engine.place == slice(0, len(engine.theta))

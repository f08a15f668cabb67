"""Several views of an image in one clipped gradient: what they are, what they cost, what they move.

A site's account is that of records without views (De et al. 2022, section 4.1).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from client_app.audit import default_training, engine_of
from client_app.training.dpsgd import train
from client_app.training.engine_choice import engine_for
from client_app.training.engines import Engine
from client_app.training.unit_engines import ViewEngine, drawn_views
from hdpfl_flower.config.feasibility import check_up_front
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.datasets import task_for
from hdpfl_flower.errors import DataError, TermsError
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.privacy.accounting import Steps
from hdpfl_flower.privacy.noise import ReleaseStreams
from hdpfl_flower.privacy.plan import RoundPlan, make_plan
from hdpfl_flower.work.views import Views
from server_app.in_process.in_process_run import run_in_process
from tests.client_app.training.oracle import (
    TOLERANCE,
    clipped_sum,
    draw,
    gradients_of,
    model_of,
    one_thread,  # noqa: F401
    sum_of,
)
from tests.hdpfl_flower.ledger.plans import profile

HOW = Views(views=3, shift=2, flip="sides")
PLAIN = Task.classification((2, 6, 5), 3)
SEEN = replace(PLAIN, views=HOW)
SPECS = ("logreg", "mlp:8")


def engine_of_views(spec: str) -> Engine:
    engine = engine_for(spec, SEEN, "auto", "cpu")
    assert isinstance(engine, ViewEngine)
    engine.theta.copy_(
        torch.cat([p.detach().reshape(-1) for p in model_of(spec, SEEN).parameters()])
    )
    return engine


def shifted(image: np.ndarray, down: int, right: int) -> np.ndarray:
    """Return ``image`` moved by so many pixels, written out."""
    found = np.zeros_like(image)
    _, height, width = image.shape
    for y in range(height):
        for x in range(width):
            if 0 <= y - down < height and 0 <= x - right < width:
                found[:, y, x] = image[:, y - down, x - right]
    return found


@pytest.mark.parametrize("flip", ["none", "sides"])
@pytest.mark.parametrize("shift", [1, 2])
def test_a_view_is_a_shifted_image_and_each_occurs_as_often(flip: str, shift: int) -> None:
    how = Views.model_validate({"shift": shift, "flip": flip})
    image, count = torch.arange(1.0, 61.0).view(1, 2, 6, 5), 5000
    torch.manual_seed(0)
    views = drawn_views(how, image.repeat(count, 1, 1, 1))
    found = Counter(view.numpy().tobytes() for view in views)
    moves = [*product(range(-shift, shift + 1), repeat=2)]
    one = image[0].numpy()
    sides = [one] if flip == "none" else [one, one[:, :, ::-1]]
    expected = {shifted(side, *move).tobytes() for side in sides for move in moves}
    assert found.keys() == expected
    # A false alarm in 1e-6 of all draws; twice or half as often would be 7 deviations off.
    assert stats.chisquare([*found.values()]).pvalue > 1e-6


@pytest.mark.parametrize("spec", SPECS)
def test_the_mean_gradient_of_the_views_is_clipped(spec: str) -> None:
    engine, (x, y) = engine_of_views(spec), draw(PLAIN, 9)
    for clip_norm in (1e-2, 1.0, 1e3):
        torch.manual_seed(4)
        found = sum_of(engine, x, y, clip_norm)
        torch.manual_seed(4)
        seen = drawn_views(HOW, x.repeat_interleave(3, dim=0))
        each = gradients_of(model_of(spec, PLAIN), PLAIN, seen, y.repeat_interleave(3))
        expected = clipped_sum(each.view(9, 3, -1).mean(1), clip_norm)
        assert (found - expected).norm() <= TOLERANCE * expected.norm()


@pytest.mark.parametrize("spec", SPECS)
def test_one_record_more_or_less_moves_the_sum_by_one_clip_norm(spec: str) -> None:
    engine, (x, y) = engine_of_views(spec), draw(PLAIN, 8)
    for scale in (1e-3, 1.0, 1e6, 1e30, float("nan")):
        x[-1] *= scale
        for clip_norm in (1e-3, 1.0):
            sums = []
            for count in (8, 7):  # the views of the first seven are the same
                torch.manual_seed(1)
                sums.append(sum_of(engine, x[:count], y[:count], clip_norm))
            assert (sums[0] - sums[1]).norm() <= clip_norm * (1 + TOLERANCE)


def updates(task: Task, seed: int = 3) -> tuple[np.ndarray, int]:
    """Return a round's update, and how much of the noise's key it used."""
    x, y = draw(PLAIN, 20)
    engine, streams = engine_for("logreg", task, "auto", "cpu"), ReleaseStreams.simulated(
        seed, "a", 1, "update"
    )  # fmt: skip
    plan = RoundPlan(Steps(0.5, 4), 1.0, 0.7, 10.0)
    start = np.zeros(len(engine.theta), np.float32)
    found = train(engine, start, Records(x.numpy(), y.numpy()), plan, 0.1, streams, 64)
    return found, streams.noise.position


def test_views_are_drawn_from_the_key_of_the_batches() -> None:
    """The same key, the same update; the noise is that of a round without views."""
    torch.manual_seed(0)
    (seen, used), (plain, plainly) = updates(SEEN), updates(PLAIN)
    torch.manual_seed(1)  # whatever else draws from torch's generator
    np.testing.assert_array_equal(updates(SEEN)[0], seen)
    assert used == plainly
    assert np.abs(seen - plain).max() > 1e-3
    assert np.linalg.norm(seen - plain) < 0.1 / 10 * 4 * 20  # of clipped sums, not of the noise


def test_a_plan_is_that_of_records_without_views() -> None:
    terms = RunTerms(rounds=3)
    seen = terms.updated(augmentation="images views=8")
    assert make_plan(profile(), seen) == make_plan(profile(), terms)


def test_a_run_trains_with_views(tmp_path: Path) -> None:
    config = RunConfig.parse({
        "dataset": "digits", "augmentation": "images views=2 shift=1", "rounds": 1,
        "evaluation": "none", "strategy": "fedavg", "learning-rate": 0.3, "runs-dir": str(tmp_path),
    })  # fmt: skip
    found, plain = (
        run_in_process(each, 3).arrays for each in (config, config.updated(augmentation=None))
    )
    assert any(np.any(found[name] != plain[name]) for name in found)


def test_what_trains_views_is_audited_as_what_clips_units() -> None:
    terms = RunTerms.parse({"dataset": "digits", "augmentation": "images"})
    assert engine_of(terms, default_training()) == "vmap"


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"dataset": "heart"}, "changes images"),
        ({"backbone": "own function=a:b width=3"}, "that the model itself reads"),
        ({"noise": "client"}, "'augmentation' is for DP-SGD, and 'noise' is 'client'"),
        ({"augmentation": "images views=1"}, "'views' must be"),
        ({"augmentation": "images views=33"}, "'views' must be"),
        ({"augmentation": "images shift=65"}, "'shift' must be"),
        ({"augmentation": "images flip=yes"}, "'flip' must be"),
        ({"augmentation": "video"}, "names no kind of augmentation"),
    ],
)
def test_views_that_cannot_be_are_refused(keys: dict[str, object], words: str) -> None:
    with pytest.raises((DataError, TermsError), match=words):
        terms = RunTerms.parse({"augmentation": "images", **keys})
        check_up_front(terms)
        task_for(terms)

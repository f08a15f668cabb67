"""Which numbers of the final model a site tunes, and what becomes of the tuned update."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from client_app.after_run.end_of_run import personal_arrays, tune_at_home, tuned_place
from client_app.site.site import Site
from hdpfl_flower import wire
from hdpfl_flower.models.networks import arrays_of, build_model, flatten
from hdpfl_flower.models.parts import parts_of
from hdpfl_flower.models.task import Task
from tests.client_app.messages import terms_of

TASK = Task.classification((3,), 2)


@pytest.mark.parametrize(
    ("part", "place"), [("all", slice(0, 22)), ("head", parts_of("mlp:4", TASK).head)]
)
def test_the_tuned_numbers_are_those_that_the_terms_name(part: str, place: slice) -> None:
    terms = terms_of(**{"model": "mlp:4", "after": f"tuning steps=2 part={part}"})
    assert tuned_place(terms, TASK, 22) == place
    assert (place == slice(0, 22)) == (part == "all")


def test_the_tuned_update_moves_the_final_model() -> None:
    arrays = arrays_of(build_model("mlp:4", TASK, 1))
    update = np.arange(len(flatten(arrays)), dtype=np.float32)
    site = cast(Site, SimpleNamespace(terms=terms_of()))
    tuned: Any = personal_arrays(site, arrays, wire.encode_update(update))
    np.testing.assert_allclose(flatten(tuned) - flatten(arrays), update, atol=1e-5)
    assert personal_arrays(site, arrays, None) is arrays


def test_without_tuning_steps_nothing_is_tuned_at_home() -> None:
    """None, not an update of zeros, which would take the place of Ditto's model."""
    site = SimpleNamespace(
        terms=terms_of(model="mlp:4"),
        task=TASK,
        profile=SimpleNamespace(training=SimpleNamespace(batch_size=2, device="cpu")),
        training_records=lambda: range(4),
        streams=lambda *_: SimpleNamespace(sampling=None),
    )
    assert tune_at_home(cast(Site, site), arrays_of(build_model("mlp:4", TASK, 1))) is None

"""Each simulated site is tested on public records that are distributed as its own."""

from __future__ import annotations

import numpy as np
import pytest

from hdpfl_flower.models.task import Records, Task
from hdpfl_tools.simulation.datasets import Dataset, load_dataset
from hdpfl_tools.simulation.scenarios.partitions import rows_of_sites, split
from hdpfl_tools.simulation.scenarios.site_tests import own_tests

LINE = Task.regression((1,))


def dataset(task: Task, targets: np.ndarray, owners: np.ndarray | None = None) -> Dataset:
    """Return a data set whose test records are its training records."""
    features = np.arange(len(targets) * task.input_shape[0], dtype=np.float32)
    records = Records(features.reshape(len(targets), -1), targets)
    return Dataset(task, records, records, owners, owners)


def test_a_site_of_one_owner_is_tested_on_that_owners_records_alone() -> None:
    """Its own model is perfect there, and wrong for everybody else."""
    targets, owners = np.array([0, 1, 0, 1, 1, 0]), np.array([0, 0, 1, 1, 1, 1])
    data = dataset(Task.classification((2,), 2), targets, owners)
    own = own_tests(data, [np.array([0, 1]), np.array([2, 3, 4, 5])], "natural")
    right_there_alone = np.where(owners == 0, targets, 1 - targets)[:, None] * 2.0 - 1
    measured = own.measures(right_there_alone.astype(np.float32), targets)
    assert own.of_site(0, measured)["accuracy"] == 1.0
    assert own.of_site(1, measured)["accuracy"] == 0.0


@pytest.mark.parametrize("spec", ["dirichlet:0.3", "pathological:2", "shards:2"])
def test_a_drawn_sites_test_has_the_sites_shares_of_the_classes(spec: str) -> None:
    data = load_dataset("digits", "")
    rows = split(data.train.targets, data.owners, 5, spec, seed=3)
    own = own_tests(data, rows, spec)
    right = np.random.default_rng(0).random(len(data.test)) < data.test.targets / 9
    outputs = np.zeros((len(data.test), 10), np.float32)
    said = np.where(right, data.test.targets, (data.test.targets + 1) % 10)
    outputs[range(len(data.test)), said] = 1
    measured = own.measures(outputs, data.test.targets)
    off = []
    for site, part in enumerate(rows):
        found = own.of_site(site, measured)["accuracy"]
        wanted = data.train.targets[part]
        exact = np.mean([right[data.test.targets == label].mean() for label in wanted])
        assert found == pytest.approx(float(exact))
        off.append(abs(found - right.mean()))
    assert max(off) > 0.1, "the pooled test set is another one"


def test_a_regression_has_its_errors_and_r2_may_be_negative() -> None:
    targets, owners = np.array([0, 1, 5, 5], np.float32), np.array([0, 0, 1, 1])
    own = own_tests(dataset(LINE, targets, owners), [np.array([0, 1]), np.array([2, 3])], "natural")
    measured = own.measures(np.full((4, 1), 2, np.float32), targets)
    assert own.of_site(0, measured) == {
        "loss": 1.25, "mse": 2.5, "mae": 1.5, "accuracy": pytest.approx(1 - 2.5 / 0.25),
    }  # fmt: skip
    assert own.of_site(1, measured) == {"loss": 4.5, "mse": 9.0, "mae": 3.0}, "nothing varies"
    assert own.of_constant(0)["mse"] == pytest.approx(0.25)


def test_no_record_of_a_test_is_trained_on() -> None:
    data = load_dataset("digits", "")
    rows = np.concatenate(rows_of_sites("digits", "", "dirichlet:0.3", 1, 4))
    trained = {data.train.features[row].tobytes() for row in rows}
    assert len(trained & {record.tobytes() for record in data.test.features}) <= 1

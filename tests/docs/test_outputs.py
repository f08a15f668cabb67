"""Outputs on pages are those of a fresh run; where there is none, the code has their words."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.docs.blocks import BLOCKS, Block, lines_of, of_language, pattern_of, plain
from tests.docs.runs import NO_OUTPUT, RUNS, TUTORIAL, Place, is_run, output_of
from tests.test_docs import DOCS, ROOT

PICTURES = {
    ("docs/start/install.md", "Install"): "demo.png",
    ("docs/start/before-the-first-model.md", "Try it"): "table-one.svg",
}
"""Place → the picture of its output."""


@pytest.mark.long
@pytest.mark.parametrize("place", RUNS, ids=": ".join)
def test_a_page_shows_what_its_commands_print(place: Place, tmp_path: Path) -> None:
    """Numbers exactly, as each run has a seed; tables at any width."""
    blocks = [block for block in BLOCKS if block.place == place and is_run(block)]
    assert blocks
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    for block in BLOCKS:
        named = re.match(r"# (\S+\.toml)\n", block.text)
        if block.page == place[0] and (block.title or named):
            (tmp_path / (block.title or named[1])).write_text(block.text)  # type: ignore[index]
    script = ["set -e", RUNS[place]]
    for number, block in enumerate(blocks):
        lines = [line for line in lines_of(block) if not line.startswith("git clone")]
        script += [
            "{",
            *(line.replace("make demo", "hdpfl demo") for line in lines),
            f"}} > ~/{number}",
        ]
    env = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "HDPFL_HOME": str(tmp_path / "home"),
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "120",
        "NO_COLOR": "1",
    }
    done = subprocess.run(["bash", "-c", "\n".join(script)], cwd=tmp_path, env=env,
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    printed = [plain((tmp_path / str(number)).read_text()) for number in range(len(blocks))]
    for block, text in zip(blocks, printed, strict=True):
        if (shown := output_of(block)) is not None:
            assert pattern_of(shown.text).search(text), text
    if place in PICTURES:
        check_picture(DOCS / "images" / PICTURES[place], tmp_path, printed[0])


def check_picture(picture: Path, folder: Path, printed: str) -> None:
    """Compare a picture with a new one, or with the text that it shows."""
    if picture.suffix == ".svg":
        words = re.findall(r"<text[^>]*>(.*?)</text>", picture.read_text(), re.S)
        rows = "".join(plain(word.replace("&#160;", " ")) for word in words).splitlines()
        lines = [line.split() for line in printed.splitlines()]
        assert len(rows) > 20
        assert [row for row in rows[1:] if row.split() not in lines] == []  # the first: the command
        return
    (drawn,) = folder.glob(f"home/runs/*/{picture.name}")
    old, new = (np.asarray(Image.open(path).convert("RGB")) for path in (picture, drawn))
    assert old.shape == new.shape
    assert (old != new).any(axis=-1).mean() < 1e-5, f"copy {drawn.name} into docs/images"


# --- outputs without a run -----------------------------------------------------------------------

ROOMS = ("hdpfl_flower", "client_app", "server_app", "strategies", "hdpfl_tools", "deploy")
MOST_MISSING = 1 / 3
"""Share of an output's pairs of words that the code may not have: those around its values."""


def pairs_of(text: str) -> Iterator[tuple[str, str]]:
    """Yield words that stand side by side, without values between them."""
    for piece in re.split(r"\n|[^A-Za-z ,;:()-]| {2,}", re.sub(r"'[^'\n]*'", "'", text)):
        words = re.findall(r"[A-Za-z]{2,}", piece)
        yield from pairwise(words)


@cache
def said() -> set[tuple[str, str]]:
    """Return the pairs of words in the texts of the code."""
    texts = []
    for path in (path for room in ROOMS for path in (ROOT / room).rglob("*")):
        if path.suffix == ".j2":
            texts.append(re.sub(r"\{[%{].*?[%}]\}", "0", path.read_text()))
        elif path.suffix == ".py":
            texts += [
                node.value
                for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, ast.Constant) and isinstance(node.value, str)
            ]
    return {pair for text in texts for pair in pairs_of(text)}


COMPARED = {output_of(block) for block in BLOCKS if is_run(block)}
OTHERS = [b for b in of_language("text") if b not in COMPARED and b.page != TUTORIAL]


@pytest.mark.slow
@pytest.mark.parametrize("block", OTHERS, ids=str)
def test_the_code_has_the_words_of_an_output(block: Block) -> None:
    """Of a site's own run, whose ids, times and noise differ each time."""
    pairs = [*pairs_of(re.sub(r"^(?:INFO|WARNING): ", "", block.text, flags=re.M))]
    missing = [pair for pair in pairs if pair not in said()]
    if len(missing) > MOST_MISSING * len(pairs):
        assert block.place in NO_OUTPUT, missing


def test_another_number_or_order_is_noticed() -> None:
    shown = pattern_of("│ mmse │ 0.85 │\n…\nend")
    assert shown.search("mmse 0.85 and more\nend")
    assert not shown.search("mmse 0.86 and more\nend")
    assert not shown.search("end\nmmse 0.85")


def test_every_place_without_an_output_has_a_block_of_text() -> None:
    assert {block.place for block in of_language("text")} >= NO_OUTPUT.keys()

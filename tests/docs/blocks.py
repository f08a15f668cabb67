"""Fenced blocks of README and of the pages that are written by hand."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.test_docs import ALL, ROOT

_BLOCK = re.compile(
    r'^ *```(?P<language>\w*)(?: title="(?P<title>.*?)")?\n(?P<text>.*?)^ *```$'
    r"|^#+ (?P<heading>[^\n]*)$|^(?P<line>[^\n]*)$",
    re.M | re.S,
)


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        page: path from the root.
        heading: the nearest one above.
        before: the words between this block and the last one, or the heading.
        language: of the fence.
        title: of the fence, a file's name; empty: none.
        text: without the indentation of a list.
        number: place in the page.
    """

    page: str
    heading: str
    before: str
    language: str
    title: str
    text: str
    number: int

    @property
    def place(self) -> tuple[str, str]:
        return self.page, self.heading

    def __str__(self) -> str:
        name = f"{self.page}#{self.heading}: {self.text.partition(chr(10))[0]}"
        return name.encode("ascii", "replace").decode()[:120]


def blocks_of(path: Path) -> Iterator[Block]:
    """Yield the blocks of a page in their order."""
    heading, before, number = "", list[str](), 0
    for part in _BLOCK.finditer(path.read_text()):
        if part["heading"] is not None:
            heading, before = part["heading"], []
        elif part["line"] is not None:
            before.append(part["line"])
        else:
            yield Block(
                path.relative_to(ROOT).as_posix(),
                heading,
                " ".join(before),
                part["language"],
                part["title"] or "",
                textwrap.dedent(part["text"]),
                number,
            )
            before, number = [], number + 1


BLOCKS = [block for path in ALL for block in blocks_of(path)]


def of_language(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language]


def pattern_of(shown: str) -> re.Pattern[str]:
    """Return the pattern of an output: its words in their order; ``…`` stands for any text."""
    words = [re.escape(word).replace("…", ".*?") for word in plain(shown).split()]
    return re.compile(r"\s+".join(words), re.S)


def plain(text: str) -> str:
    """Return a text without the lines of tables, whose widths differ."""
    return re.sub("[━┏┳┓┡╇┩─└┴┘├┼┤┃│]+", " ", text.replace("\xa0", " "))


def lines_of(block: Block) -> list[str]:
    """Return the commands of a console block, continued lines joined; of output nothing."""
    text = block.text.replace("\\\n", " ")
    return [line[2:] for line in text.splitlines() if line[:2] in ("$ ", "# ")]


def commands_of(block: Block) -> Iterator[list[str]]:
    """Yield the words of each program that a console block calls, without its variables."""
    for line in lines_of(block):
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        redirected = False
        for word in [*lexer, ";"]:
            if set(word) <= set("|&;"):
                if words := words[_program_at(words) :]:
                    yield [words[0].rpartition("/")[2], *words[1:]]
                words = []
            elif not set(word) <= set("<>") and not redirected:
                words.append(word)
            redirected = set(word) <= set("<>")


def _program_at(words: list[str]) -> int:
    """Return the place of the program: after ``NAME=VALUE``, ``export`` and ``setpriv``."""
    at = 0
    while at < len(words) and (
        re.match(r"[A-Z_]+=", words[at]) or words[at] in ("export", ".") or words[at] == "setpriv"
        or (at and words[0] == "setpriv" and words[at].startswith("--"))
    ):  # fmt: skip
        at += 1
    return at

"""The page of a report: text from others is shown and never runs."""

from __future__ import annotations

import pytest

from hdpfl_tools.coordinator.reports.page import MOST_ROWS, Block, render, table

EVIL = "<script>document.title='broken'</script>"
SAFE = "&lt;script&gt;document.title=&#39;broken&#39;&lt;/script&gt;"


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("text", EVIL),
        ("command", EVIL),
        ("warnings", [EVIL]),
        ("table", [(EVIL,)]),
        ("fold", [(EVIL,)]),
        ("picture", EVIL),
    ],
)
def test_every_text_is_escaped_wherever_it_stands(kind: str, content: object) -> None:
    page = render(EVIL, [EVIL, EVIL], {EVIL: [Block(kind, content, EVIL, (EVIL,))]})
    assert "<script" not in page
    with_head = kind in ("table", "fold")
    assert page.count(SAFE) == 2 + 2 + 3 + with_head
    assert "default-src 'none'" in page


def test_a_section_without_content_is_left_out_and_a_long_table_ends() -> None:
    rows = [(f"site {number}",) for number in range(MOST_ROWS + 3)]
    page = render("Run", [], {"Empty": [table([], ("site",), "about")], "Sites": [table(rows)]})
    assert "Empty" not in page and "about" not in page
    assert f"site {MOST_ROWS - 1}<" in page and f"site {MOST_ROWS}<" not in page
    assert "and 3 more, which the journal holds" in page

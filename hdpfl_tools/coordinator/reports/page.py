"""HTML page of a run or a comparison, from its sections.

Names of sites and the reasons of their replies come from others: everything that is filled in is
escaped, and the page forbids scripts and anything from elsewhere.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined

from server_app.run.resume import defaults

Cell = str | float | int
Row = tuple[Cell, ...]
MOST_ROWS = 200
"""Most rows of a table; the journal has all."""


class Block(NamedTuple):
    """Part of a section, left out where it has no content.

    Attributes:
        kind: ``text``, ``warnings``, ``table``, ``fold`` (a table that opens at a click),
            ``picture`` or ``command``.
        content: a text, lines, rows, or the picture's bytes in base 64.
        about: the sentence above it, a fold's title, or the picture's description.
        head: titles of a table's columns.
    """

    kind: str
    content: Any
    about: str = ""
    head: Sequence[str] = ()


_PAGE = Environment(
    autoescape=True, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True
).from_string("""\
<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width,initial-scale=1">
<title>{{ title }}</title><style>
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:62rem;padding:0 1rem}
body{color:#1b1f24}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}
table{border-collapse:collapse;margin:.6rem 0}
th,td{border-bottom:1px solid #d8dee4;padding:.25rem .8rem .25rem 0}
th,td{text-align:left;vertical-align:top}
td.n{text-align:right;font-variant-numeric:tabular-nums}
details td{white-space:pre-wrap}details{margin:.4rem 0}summary{cursor:pointer}
img{max-width:100%;height:auto}pre{font:13px/1.5 ui-monospace,monospace}
pre{background:#f6f8fa;padding:.8rem;overflow-x:auto;white-space:pre-wrap}
.warning{font-weight:600}
@media(prefers-color-scheme:dark){body{background:#0d1117;color:#e6edf3}pre{background:#161b22}
th,td{border-color:#30363d}img{background:#fff}}
</style></head>
<body>
<h1>{{ title }}</h1>
<p>{{ lines | join("<br>" | safe) }}</p>
{% for name, blocks in sections %}
<h2>{{ name }}</h2>
{% for block in blocks %}
{% if block.kind == "picture" %}
<img alt="{{ block.about }}" src="data:image/png;base64,{{ block.content }}">
{% else %}
{% if block.kind == "fold" %}
<details{% if loop.first %} open{% endif %}><summary>{{ block.about }}</summary>
{% elif block.about %}<p>{{ block.about }}</p>
{% endif %}
{% if block.kind == "text" %}<p>{{ block.content }}</p>
{% elif block.kind == "command" %}<pre>{{ block.content }}</pre>
{% elif block.kind == "warnings" %}
{% for line in block.content %}<p class="warning">{{ line }}.</p>
{% endfor %}
{% else %}
<table>
{%- if block.head %}<tr>{% for word in block.head %}<th>{{ word }}</th>{% endfor %}</tr>{% endif %}
{%- for row in block.content %}<tr>
{%- for cell in row %}
{%- if cell is string %}<td>{{ cell }}</td>
{%- elif cell is float %}<td class="n">{{ "%.4f" | format(cell) }}</td>
{%- else %}<td class="n">{{ cell }}</td>{% endif %}
{%- endfor %}</tr>{% endfor %}</table>
{% if block.kind == "fold" %}</details>{% endif %}
{% endif %}
{% endif %}
{% endfor %}
{% endfor %}
</body></html>
""")


def render(title: str, lines: Sequence[str], sections: Mapping[str, Sequence[Block]]) -> str:
    """Return the page; blocks without content, and sections without blocks, are left out."""
    shown = {name: [block for block in sections[name] if block.content] for name in sections}
    filled = [(name, blocks) for name, blocks in shown.items() if blocks]
    return _PAGE.render(title=title, lines=lines, sections=filled)


def table(rows: Iterable[Row], head: Sequence[str] = (), about: str = "") -> Block:
    """Return a table of the first ``MOST_ROWS`` rows and the number of others."""
    shown = list(rows)
    if (left := len(shown) - MOST_ROWS) > 0:
        shown = [*shown[:MOST_ROWS], (f"and {left:,} more, which the journal holds",)]
    return Block("table", shown, about, head)


def picture(path: Path, about: str) -> Block:
    """Return the PNG at ``path``; empty where there is none."""
    content = base64.b64encode(path.read_bytes()).decode() if path.is_file() else ""
    return Block("picture", content, about)


def configuration(terms: Mapping[str, Any]) -> list[Block]:
    """Return the run config keys in two folds: changed ones, and defaults."""
    default = defaults()
    changed: list[Row] = []
    usual: list[Row] = []
    for key, value in terms.items():
        has_lines = isinstance(value, str) and "\n" in value
        text = value.strip() if has_lines else json.dumps(value, ensure_ascii=False)
        (usual if value == default.get(key) else changed).append((key, text))
    return [Block("fold", changed, "Not the default"), Block("fold", usual, "Defaults")]

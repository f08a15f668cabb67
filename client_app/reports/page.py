"""A site's report for its board: plain words, then the whole report.

Names of runs are the server's texts: everything that is filled in is escaped, and the page forbids
scripts and anything from elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from jinja2 import Environment, StrictUndefined

from client_app.reports.board import MOST_RUNS, runs_asked
from client_app.reports.formatting import ceil_digits, floor_digits
from client_app.reports.lifetime import per_cent
from client_app.reports.short import TITLE, alarms, head, in_short
from client_app.reports.wording import Part, sections
from hdpfl_flower.system.printable import printable

_PAGE = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width,initial-scale=1">
<title>{{ title }}</title><style>
@page{size:A4;margin:14mm}
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:52rem;padding:0 1rem}
body{color:#1b1f24}h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:1.8rem}
dl{margin:1rem 0}dt{font-weight:600;margin-top:.7rem}dd{margin:0}
table{border-collapse:collapse;margin:.6rem 0;font-size:.85rem}
th,td{border-bottom:1px solid #d8dee4;padding:.2rem .7rem .2rem 0;text-align:right}
th:first-child,td:first-child{text-align:left}
td{font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
.alarm{border:2px solid #b3261e;padding:.5rem .8rem;font-weight:600}
svg{width:100%;height:auto;display:block}
.key i{display:inline-block;width:.8em;height:.8em;margin:0 .4em 0 0;vertical-align:-1px}
.rest{margin-top:2.5rem;border-top:1px solid #d8dee4;font-size:.9rem}
.asked td,.asked th,.words td,.words th{text-align:left;vertical-align:top}
.head{margin:.2rem 0;font-weight:600}
@media print{body{margin:0;max-width:none;font-size:9pt;line-height:1.3;padding:0}
h1{font-size:14pt;margin:0}h2{font-size:10pt;margin:2mm 0 1mm}dl{margin:2mm 0}dt{margin-top:1.5mm}
table{font-size:7.5pt;margin:1mm 0}.alarm{padding:1mm 2mm;margin:1mm 0}p{margin:1mm 0}
h2,dt{break-after:avoid}tr,dd{break-inside:avoid}.key span{white-space:nowrap}
.rest{break-before:page;border:0;margin:0;font-size:9pt}}
</style></head><body>
<h1>{{ title }}</h1>
<p class="head">{{ head }}</p>
{% for line in alarms %}<p class="alarm">{{ line }}</p>{% endfor %}
<dl>{% for question, answers in short %}
<dt>{{ question }}</dt>{% for answer in answers %}<dd>{{ answer }}</dd>{% endfor %}{% endfor %}
</dl>
{% if asked %}<h2>{{ asked_title }}</h2>
<table class="asked"><tr>{% for word in asked[0] %}<th>{{ word }}</th>{% endfor %}</tr>
{% for row in asked[1:] %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table>{% endif %}
{% if bars %}
<h2>The budget</h2>
<svg viewBox="0 0 1000 44" role="img" aria-label="{{ caption }}">
<rect width="1000" height="30" y="7" fill="#e4e8ec"/>
{% for bar in bars %}
<rect x="{{ bar.x }}" y="7" width="{{ bar.width }}" height="30" fill="{{ bar.colour }}">
<title>{{ bar.name }}: {{ bar.amount }}</title></rect>{% endfor %}
<rect x="{{ edge }}" width="3" height="44" fill="#1b1f24"/></svg>
<p>{{ caption }}</p>
{% if bars|length <= 12 %}<p class="key">{% for bar in bars %}
<span><i style="background:{{ bar.colour }}"></i>{{ bar.name }}
({{ bar.amount }})</span> &ensp; {% endfor %}</p>{% endif %}
{% endif %}
<div class="rest"><h1>The whole report</h1>
{% for title, parts in sections %}
{% if title %}<h2>{{ title }}</h2>{% endif %}
{% for kind, group in parts %}
{% if kind == "point" %}<ul>{% for point in group %}<li>{{ point }}</li>{% endfor %}</ul>
{% else %}{% for part in group %}
{% if kind == "text" %}<p>{{ part }}</p>
{% else %}<table{% if part[0]|length in (2, 5) %} class="words"{% endif %}><tr>
{% for word in part[0] %}<th>{{ word }}</th>{% endfor %}</tr>
{% for row in part[1:] %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table>{% endif %}{% endfor %}{% endif %}
{% endfor %}{% endfor %}</div></body></html>
"""
_TEMPLATE = Environment(
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    keep_trailing_newline=True,
    finalize=lambda value: printable(str(value)),
).from_string(_PAGE)
_COLOURS = ("#1f6feb", "#8250df", "#bf3989", "#bc4c00", "#4d7c0f", "#0e7490")
_WIDTH = 1000.0
ASKED = "Who asked, for what, and who decided"


def as_html(facts: dict[str, Any]) -> str:
    """Return the page of the facts of :func:`client_app.reports.facts.gather`."""
    bars, edge = _bars(facts)
    asked = runs_asked(facts, whole=False)
    return _TEMPLATE.render(
        title=TITLE,
        head=head(facts),
        alarms=list(alarms(facts)),
        asked=asked if len(asked) > 1 else [],
        asked_title=ASKED + (f" (the last {MOST_RUNS} runs)" if len(asked) > MOST_RUNS else ""),
        short=list(in_short(facts)),
        bars=bars,
        edge=edge,
        caption=_caption(facts),
        sections=[(title, _grouped(parts)) for title, parts in sections(facts)],
    )


def _bars(facts: dict[str, Any]) -> tuple[list[dict[str, Any]], str]:
    """Return a bar a charged run, and where the cap is; none where an ε is infinite or no run."""
    of = "share" if facts["order"] else "epsilon"
    charged = [run for run in facts["runs"] if run[of]]
    cap = 1.0 if facts["order"] else facts["cap"]["epsilon"]
    whole = max(cap, math.fsum(run[of] for run in charged))
    if not charged or not 0 < whole < math.inf:
        return [], ""
    bars, place = [], 0.0
    for number, run in enumerate(charged):
        width = _WIDTH * run[of] / whole
        bars.append(
            {
                "x": f"{place:.2f}",
                "width": f"{max(width - 1, 0.5):.2f}",
                "colour": _COLOURS[number % len(_COLOURS)],
                "name": run["run-id"],
                "amount": per_cent(run[of]) if facts["order"] else f"ε {ceil_digits(run[of])}",
            }
        )
        place += width
    return bars, f"{min(_WIDTH * cap / whole, _WIDTH - 3):.2f}"


def _caption(facts: dict[str, Any]) -> str:
    if facts["order"]:
        return f"{per_cent(facts['full'])} of the promise is taken; the line is all of it"
    return (
        f"ε {ceil_digits(facts['spent']['epsilon'])} spent; the line is the cap, "
        f"ε {floor_digits(facts['cap']['epsilon'])}"
    )


def _grouped(parts: Sequence[Part]) -> list[tuple[str, list[Any]]]:
    """Return neighbours of one kind together."""
    return [
        (kind, [content for _, content in group])
        for kind, group in groupby(parts, key=lambda part: part[0])
    ]

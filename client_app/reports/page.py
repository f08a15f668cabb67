"""A site's report as one page for its board: what matters in plain words, then the whole report.

Names of runs are the server's texts: everything that is filled in is escaped, and the page forbids
scripts and anything from elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from jinja2 import Environment, StrictUndefined

from client_app.reports.attack import in_words
from client_app.reports.formatting import ceil_digits, floor_digits
from client_app.reports.layout import Bullet, Section, Table
from client_app.reports.wording import failed
from hdpfl_flower.system.printable import printable

_PAGE = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width,initial-scale=1">
<title>{{ title }}</title><style>
@page{size:A4;margin:18mm}
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
@media print{body{margin:0;max-width:none;font-size:10.5pt;padding:0}
h2,dt{break-after:avoid}tr,dd{break-inside:avoid}.rest{break-before:page;border:0}}
</style></head><body>
<h1>{{ title }}</h1>
{% for line in alarms %}<p class="alarm">{{ line }}</p>{% endfor %}
<dl>{% for question, answers in short %}
<dt>{{ question }}</dt>{% for answer in answers %}<dd>{{ answer }}</dd>{% endfor %}{% endfor %}
</dl>
{% if bars %}
<h2>The budget</h2>
<svg viewBox="0 0 1000 44" role="img" aria-label="{{ caption }}">
<rect width="1000" height="30" y="7" fill="#e4e8ec"/>
{% for bar in bars %}
<rect x="{{ bar.x }}" y="7" width="{{ bar.width }}" height="30" fill="{{ bar.colour }}">
<title>{{ bar.name }}: ε {{ bar.amount }}</title></rect>{% endfor %}
<rect x="{{ edge }}" width="3" height="44" fill="#1b1f24"/></svg>
<p>{{ caption }}</p>
<p class="key">{% for bar in bars %}<span><i style="background:{{ bar.colour }}"></i>{{ bar.name }}
(ε {{ bar.amount }})</span> &ensp; {% endfor %}</p>
{% endif %}
{% if runs|length > 1 %}
<h2>The runs</h2>
<table><tr>{% for word in runs[0] %}<th>{{ word }}</th>{% endfor %}</tr>
{% for row in runs[1:] %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table>
{% endif %}
<div class="rest"><h1>The whole report</h1>
{% for section in sections %}
{% if section.title %}<h2>{{ section.title }}</h2>{% endif %}
{% for kind, content in section.parts %}
{% if kind == "text" %}<p>{{ content }}</p>
{% elif kind == "list" %}<ul>{% for point in content %}<li>{{ point }}</li>{% endfor %}</ul>
{% else %}<table><tr>{% for word in content[0] %}<th>{{ word }}</th>{% endfor %}</tr>
{% for row in content[1:] %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table>{% endif %}
{% endfor %}{% endfor %}</div></body></html>
"""
_TEMPLATE = Environment(
    autoescape=True, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True
).from_string(_PAGE)
_COLOURS = ("#1f6feb", "#8250df", "#bf3989", "#bc4c00", "#4d7c0f", "#0e7490")
_WIDTH = 1000.0


def as_html(title: str, facts: dict[str, Any], sections: Sequence[Section]) -> str:
    """Return the page.

    Args:
        title: its heading.
        facts: of :func:`client_app.reports.facts.gather`.
        sections: the whole report, which follows what is said in short.
    """
    bars, edge = _bars(facts)
    return _TEMPLATE.render(
        title=title,
        alarms=list(_alarms(facts)),
        short=[(question, list(answers)) for question, answers in _in_short(facts)],
        bars=bars,
        edge=edge,
        caption=_caption(facts),
        runs=[[printable(cell) for cell in row] for row in _runs(facts)],
        sections=[{"title": section.title, "parts": list(_parts(section))} for section in sections],
    )


def _alarms(facts: dict[str, Any]) -> Iterator[str]:
    for claim in failed(facts):
        yield f"The ledger contradicts what is promised: not '{claim}'. Rely on no number here."
    if facts["simulation"]:
        yield "This is a simulation: it protects nobody."
    elif facts["no-privacy"]:
        yield "No privacy: at least one run added no noise, or asked a trusted server for none."


def _in_short(facts: dict[str, Any]) -> Iterator[tuple[str, Iterator[str]]]:
    """Yield a question of a board's, and its answers."""
    yield "What leaves?", _leaves(facts)
    yield (
        "What cannot be undone?",
        iter(
            [
                "What has left stays with whoever received it. Ending a run stops further updates; "
                "it recalls none and restores no budget."
            ]
        ),
    )
    yield "What was spent, and what is left?", _spent(facts)
    yield "What does somebody gain who sees all of it?", _gain(facts)


def _leaves(facts: dict[str, Any]) -> Iterator[str]:
    left = facts["updates"]["sealed"] + facts["updates"]["sent"]
    yield (
        f"{_count(left, 'model update')} of {_count(len(facts['runs']), 'run')}, each with noise "
        "added at this site before it left. No record leaves."
        if not facts["no-privacy"]
        else f"{_count(left, 'model update')} of {_count(len(facts['runs']), 'run')}, not all of "
        "them with noise. No record leaves as such."
    )
    if facts["scores-released"]:
        found = _count(facts["scores-released"], "histogram")
        yield f"{found} of a model's scores on records held out, with noise in each count."
    if facts["metrics-released"]:
        yield f"{_count(facts['metrics-released'], 'test result')} without noise."
    if facts["clipped-updates-released"]:
        clipped = _count(facts["clipped-updates-released"], "update")
        yield f"{clipped} without noise, to a server that this site trusts to add it."


def _spent(facts: dict[str, Any]) -> Iterator[str]:
    yield (
        f"ε {ceil_digits(facts['spent']['epsilon'])} of {floor_digits(facts['cap']['epsilon'])}; "
        f"{floor_digits(facts['left']['epsilon'])} is left. ε is the privacy budget: the smaller, "
        "the less can be learned. A run that does not fit into what is left is declined."
    )
    yield f"Protected is {facts['promise']['unit']}."


def _gain(facts: dict[str, Any]) -> Iterator[str]:
    rows = [each for each in facts["sums"] if each["attacker-finds"]]
    if not rows:
        yield "Nothing so far: no run was charged." if not facts["runs"] else "It is not known."
        return
    for each in rows:
        names = f" (runs {', '.join(each['runs'])})" if len(rows) > 1 else ""
        yield printable(
            f"An attack that asks of each {_member(each['unit'])} whether it was among the data"
            f"{names} {in_words(each['attacker-finds'])}. Without seeing anything it would find as "
            "many members as it accuses others."
        )


def _member(unit: str) -> str:
    return unit.removeprefix("one ").removeprefix("all that lies under one ")


def _bars(facts: dict[str, Any]) -> tuple[list[dict[str, Any]], str]:
    """Return a bar a charged run, and where the cap is; none where an ε is infinite or no run."""
    charged = [run for run in facts["runs"] if run["epsilon"]]
    cap = facts["cap"]["epsilon"]
    whole = max(cap, math.fsum(run["epsilon"] for run in charged))
    if not charged or not 0 < whole < math.inf:
        return [], ""
    bars, place = [], 0.0
    for number, run in enumerate(charged):
        width = _WIDTH * run["epsilon"] / whole
        bars.append(
            {
                "x": f"{place:.2f}",
                "width": f"{max(width - 1, 0.5):.2f}",
                "colour": _COLOURS[number % len(_COLOURS)],
                "name": printable(run["run-id"]),
                "amount": ceil_digits(run["epsilon"]),
            }
        )
        place += width
    return bars, f"{min(_WIDTH * cap / whole, _WIDTH - 3):.2f}"


def _caption(facts: dict[str, Any]) -> str:
    return (
        f"ε {ceil_digits(facts['spent']['epsilon'])} spent; the line is the cap, "
        f"ε {floor_digits(facts['cap']['epsilon'])}"
    )


def _runs(facts: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    yield ("run", "charged on", "strategy", "rounds", "ε", "δ", "updates that left")
    for run in facts["runs"]:
        left = run["updates"]["sealed"] + run["updates"]["sent"]
        numbers = [
            "–" if value is None else ceil_digits(value) for value in (run["epsilon"], run["delta"])
        ]
        yield (
            run["run-id"],
            (run["charged"] or "–")[:10],
            run["strategy"] or "–",
            str(run["rounds"]),
            *numbers,
            str(left),
        )


def _parts(section: Section) -> Iterator[tuple[str, Any]]:
    """Yield text, tables, and bullets gathered into lists."""
    points: list[str] = []
    for part in section.parts:
        if isinstance(part, Bullet):
            points.append(printable(part.text))
            continue
        if points:
            yield "list", points
            points = []
        if isinstance(part, Table):
            yield "table", [[printable(cell) for cell in row] for row in part.rows]
        else:
            yield "text", printable(part.text)
    if points:
        yield "list", points


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"

"""Comparison report: one HTML page from the folder of ``hdpfl compare``."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined

from hdpfl_flower.errors import DataError
from hdpfl_flower.measures.clinical import SPECIFICITY, WORDS
from server_app.reports.run_page import folded, metric_words
from server_app.reports.run_template import STYLE
from server_app.reports.spread import mean_and_sd
from server_app.run.federated_measures import FEDERATED
from server_app.run.final_measures import EVENT, folder_name, read_final_measures

COMPARISON, PICTURE = "comparison.json", "comparison.png"
_FINAL = (
    "Of one seed each measure has its interval of 95 %, of several it is the mean ± standard "
    "deviation."
)
_NO_METRICS = ("seeds", "tested")

_TEMPLATE = Environment(
    autoescape=True, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True
).from_string("""\
<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width,initial-scale=1">
<title>{{ title }}</title><style>
{{ style }}</style></head>
<body>
<h1>{{ title }}</h1>
<p>{{ about }}</p>
<h2>Result</h2>
<p>After the last round, mean ± standard deviation over the seeds.</p>
<table><tr>{% for word in head %}<th>{{ word }}</th>{% endfor %}</tr>
{% for row in rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table>
{% if final %}
<h2>Final models</h2>
<p>{{ final_about }}</p>
<table>{% for row in final %}<tr>{% for cell in row %}
<{{ "th" if loop.first or row is sameas final[0] else "td" }}>{{ cell }}\
</{{ "th" if loop.first or row is sameas final[0] else "td" }}>
{% endfor %}</tr>{% endfor %}</table>{% endif %}
{% if picture %}
<h2>By round</h2>
<img alt="Each strategy's measures by round" src="data:image/png;base64,{{ picture }}">
{% endif %}
<h2>Configuration</h2>
{% for title, keys in settings %}
{% if keys %}<details{% if loop.first %} open{% endif %}><summary>{{ title }}</summary><table>
{% for key, value in keys %}<tr><td><code>{{ key }}</code></td><td>{{ value }}</td></tr>
{% endfor %}</table></details>{% endif %}
{% endfor %}
</body></html>
""")


def is_comparison(folder: Path) -> bool:
    """Return whether ``hdpfl compare`` wrote its results into ``folder``."""
    return (folder / COMPARISON).is_file()


def make_comparison_report(folder: Path) -> str:
    """Return the page.

    Raises:
        DataError: the folder's ``comparison.json`` is damaged, or no run of it is finished.
    """
    path = folder / COMPARISON
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        terms, results = dict(content["terms"]), dict(content["results"])
        metrics = list(dict.fromkeys(_metrics(results)))
        rows = [
            (name, *(_last(found.get(metric)) for metric in metrics), str(len(found["seeds"])))
            for name, found in results.items()
        ]
        about = f"{content['clients']} clients, {terms['rounds']} rounds, {terms['dataset']}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise DataError(
            f"{path} is damaged: 'hdpfl compare' did not write it so; run the comparison again, "
            "finished runs are kept"
        ) from None
    if not rows:
        raise DataError(
            f"the comparison in {folder} has finished no run; there is nothing to report: give the "
            "same command again, with the same --out"
        )
    final = list(_final(folder, results))
    picture = folder / PICTURE
    return _TEMPLATE.render(
        title=f"Comparison of {len(rows)} strategies" if len(rows) != 1 else "Comparison",
        style=STYLE,
        about=about,
        head=("strategy", *map(metric_words, metrics), "seeds"),
        final=final if len(final) > 1 else [],
        final_about=_FINAL,
        rows=rows,
        picture=base64.b64encode(picture.read_bytes()).decode() if picture.is_file() else "",
        settings=folded(terms),
    )


def _final(folder: Path, results: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    """Yield a header, then a row a measure of the final models, a column a strategy."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for name, result in results.items():
        for seed in result["seeds"]:
            run = folder / folder_name(name, seed)
            for event, where in ((EVENT, ""), (FEDERATED, ", from noisy histograms")):
                for measure, one in read_final_measures(run, event).get("measures", {}).items():
                    at = f" at {100 * SPECIFICITY:g} % specificity"
                    at = at if measure == "sensitivity" else ""
                    row = found.setdefault(f"{WORDS.get(measure, measure)}{at}{where}", {})
                    row.setdefault(name, []).append(one)
    yield ("measure", *results)
    for measure, by_strategy in found.items():
        yield (measure, *(_cell(by_strategy.get(name, [])) for name in results))


def _cell(seeds: Sequence[Mapping[str, Any]]) -> str:
    if len(seeds) == 1 and None not in seeds[0].values():
        return "{value:.3f} [{low:.3f}, {high:.3f}]".format(**seeds[0])
    return mean_and_sd(np.array([one["value"] for one in seeds])) if seeds else "–"


def _metrics(results: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the metrics that any strategy has a value of."""
    for found in results.values():
        for name, values in found.items():
            if name not in _NO_METRICS and any(v is not None for row in values for v in row):
                yield name


def _last(values: Sequence[Sequence[float | None]] | None) -> str:
    """Return mean and spread over seeds of the runs' last values."""
    known = [[v for v in row if v is not None] for row in values or ()]
    last = [row[-1] for row in known if row]
    return mean_and_sd(np.array(last)) if last else "–"

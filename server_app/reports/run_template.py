"""The page of a run's report, as a Jinja template.

Names of sites and the reasons of their replies come from others: everything that is filled in is
escaped, and the page forbids scripts and anything from elsewhere.
"""

from __future__ import annotations

from jinja2 import Environment, StrictUndefined

STYLE = """\
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:62rem;padding:0 1rem}
body{color:#1b1f24}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}
table{border-collapse:collapse;margin:.6rem 0}
th,td{border-bottom:1px solid #d8dee4;padding:.25rem .8rem .25rem 0}
th,td{text-align:left;vertical-align:top}
td.n{text-align:right;font-variant-numeric:tabular-nums}
details td{white-space:pre-wrap}details{margin:.4rem 0}summary{cursor:pointer}
img{max-width:100%;height:auto}code,pre{font:13px/1.5 ui-monospace,monospace}
pre{background:#f6f8fa;padding:.8rem;overflow-x:auto;white-space:pre-wrap}.set td{font-weight:600}
.warning{font-weight:600}
@media(prefers-color-scheme:dark){body{background:#0d1117;color:#e6edf3}pre{background:#161b22}
th,td{border-color:#30363d}img{background:#fff}}
"""
"""Style sheet of every page."""

_PAGE = """\
{% macro table(head, rows) -%}
<table>
{%- if head %}<tr>{% for word in head %}<th>{{ word }}</th>{% endfor %}</tr>{% endif %}
{%- for row in rows %}<tr>
{%- for cell in row %}
{%- if cell is string %}<td>{{ cell }}</td>
{%- elif cell is float %}<td class="n">{{ "%.4f" | format(cell) }}</td>
{%- else %}<td class="n">{{ cell }}</td>{% endif %}
{%- endfor %}</tr>{% endfor %}</table>
{%- endmacro -%}
<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width,initial-scale=1">
<title>Run {{ name }}</title><style>
{{ style }}</style></head>
<body>
<h1>Run {{ name }}</h1>
<p>{{ status }}<br>{{ rates }}</p>
{% if unmeasured %}
<h2>No measures</h2>
<p class="warning">{{ unmeasured }}.</p>
{% endif %}
{% if measures %}
<h2>Measures of the final model</h2>
<p>On the public test set, each with an interval of 95 % that resamples its records. Of several
classes: the mean of each class against the rest.</p>
{{ table(("measure", "value", "interval"), measures) }}
{% endif %}
{% if federated %}
<h2>Measures of the final model on records that sites hold out</h2>
<p>Estimated from the sum of the sites' noisy histograms of scores{% if federated_facts %}
({{ federated_facts }}){% endif %}; the intervals of 95 % hold that noise. No record left its
site.</p>
{{ table(("measure", "value", "interval"), federated) }}
{% endif %}
<h2>Result</h2>
{{ table(("", "last round", "best round", "sites counted"), results) }}
{% if missing %}
<p>Sites whose test the means of the last round do not count:</p>
{{ table(("site", "why"), missing) }}
{% endif %}
<h2>Figures</h2>
{% if picture %}
<img alt="Tests of the models by round, and each site's weight by round"
 src="data:image/png;base64,{{ picture }}">
{% else %}
<p>No picture: {{ no_picture }}</p>
{% endif %}
<h2>Privacy</h2>
{{ table((), privacy) }}
<h2>Sites</h2>
{{ table(("site", "asked", "used", "mean weight", "last weight", "why not used"), sites) }}
<h2>Shares of the model</h2>
<p>How much of what moved the model is each site's, over all rounds: weight times the rates of the
rounds, less what a guard took out again.</p>
{% for line in warnings %}
<p class="warning">Warning: {{ line }}.</p>
{% endfor %}
{{ table(("site", "model", "share of the model", "of the last step", "rounds used",
  "estimated noise", "local steps", "length, of the median's", "what bounded it"), shares) }}
{% if clusters %}
<h2>Clusters</h2>
{{ table(("", "in the first round"), clusters) }}
{{ table(("site", "its clusters in turn", "confidence", "rounds in which it chose"),
  cluster_sites) }}
{% endif %}
<h2>Configuration</h2>
{% for name, keys in configuration %}
{% if keys %}
<details{% if loop.first %} open{% endif %}><summary>{{ name }}</summary>
{{ table((), keys) }}</details>
{% endif %}
{% endfor %}
<h2>Versions</h2>
{{ table((), versions) }}
<h2>To run it again</h2>
<pre>{{ command }}</pre>
<p>Seeded simulations compute the same arrays again; sites with budgets of their own draw fresh
noise, and charge a new run.</p>
</body></html>
"""

_ENVIRONMENT = Environment(
    autoescape=True, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True
)
_ENVIRONMENT.globals["style"] = STYLE
PAGE = _ENVIRONMENT.from_string(_PAGE)
"""Template filled by :func:`server_app.reports.run_page.make_report`."""

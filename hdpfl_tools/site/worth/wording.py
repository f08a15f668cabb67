"""Words and tables of ``worth`` and ``evaluate`` on a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from hdpfl_flower.measures.bootstrap import Estimate
from hdpfl_flower.measures.words import WORDS
from hdpfl_tools.measures.clinical import Measured
from hdpfl_tools.site.reports.templates import templates
from hdpfl_tools.site.worth.comparison import REFERENCES, ModelComparison
from hdpfl_tools.site.worth.own_measures import EVERY, HELD_OUT, SMALLEST_GROUP, OwnMeasures

_TEXT = """\
{% if page == "held out" %}
run '{{ run }}', on this site's {{ models | size }} held out of training (gains in \
{{ models.measure }}, {{ models.confidence | percent }} for all of them at once):
{% for line in models | rows | columns %}
{{ line }}
{% endfor %}

should we join? {{ models.verdict }}

{% if plot %}
wrote {{ plot }}

{% endif %}
{% elif page == "at home" %}
{% if models %}
home training, {{ folds }}-fold cross-validated over all of this site's {{ models | size }}
(the run's models are not in this table, because they were trained on most of these records; the \
gain has an interval of {{ models.confidence | percent }}):
{% for line in models | rows | columns %}
{{ line }}
{% endfor %}

{% endif %}
How to read it: a gain says how much better a model is than another on the same records. Its
interval is for other records of this site (the units were resampled 10,000 times). "Worth it":
better than both the home model and the constant. "Not worth it": worse than one of them. Otherwise
the interval holds 0, and so few records cannot tell. With the confidence named above, all gains of
the first table lie in their intervals at once, so you may choose the best model by them. A narrow
interval around 0 says that joining changes little. These figures come from this site's records
without noise: no ε covers them if you disclose them.
{% elif page == "expected" %}
what to expect, {{ folds }}-fold cross-validated over this site's {{ models | size }} for training \
(gains {{ models.confidence | percent }}, all at once):
{% for line in models | rows(false) | columns %}
{{ line }}
{% endfor %}
{{ conclusion }} (means of {{ seeds }} simulations, {{ models.measure }} ± {{ spread }} from one \
to another)
How to read it: each figure comes from records on which the model was not trained. The home model
has no noise and is never sent: joining must beat it. The last row is what this site's records reach
with the plan's noise and without other sites; what other sites add comes on top.
Nothing was charged or written. These figures come from this site's records: no ε covers them if
you disclose them.
{% elif page == "measured" %}
run '{{ run }}', on this site's {{ models.whole | size }} {{ which }}, with \
{{ models.whole.level | percent }} intervals:
{% for line in models.whole | measures | columns %}
{{ line }}
{% endfor %}
{% for column, groups in models.groups.items() %}

by {{ column }}{% if models.small[column] %}; {{ models.small[column] }} with fewer than \
{{ smallest }} units are not shown{% endif %}:
{% if groups %}
{% for line in groups | groups | columns %}
{{ line }}
{% endfor %}
{% endif %}
{% endfor %}
{% for name, why in models.whole.missing.items() %}
no {{ name | word(models.whole) }}: {{ why }}
{% endfor %}

These figures come from this site's records without noise: no ε covers them if you disclose them.
{% endif %}
"""


def words(page: str, models: ModelComparison | OwnMeasures | None, **facts: object) -> str:
    """Return a page as lines of text; texts of a server's cannot end a line.

    Args:
        page: ``held out``, ``at home``, ``expected`` or ``measured``.
        models: the figures; None: home training was not asked for.
        facts: the other texts and numbers of the page.
    """
    pages = templates()
    pages.filters |= {
        "size": size_of,
        "percent": lambda level: f"{100 * level:g} %",
        "rows": comparison_rows,
        "measures": _measure_rows,
        "groups": _group_rows,
        "word": _word,
    }
    facts |= {"page": page, "models": models, "smallest": SMALLEST_GROUP}
    return pages.from_string(_TEXT).render(facts).removesuffix("\n")


def comparison_rows(
    comparison: ModelComparison, verdicts: bool = True
) -> Iterator[tuple[str, ...]]:
    """Yield a header, then a row for each model; its verdict last, where there are ``verdicts``."""
    models = comparison.models
    against = [name for name in REFERENCES if any(name in model.gains for model in models)]
    is_judged = verdicts and any(model.verdict for model in models)
    verdict = ("verdict",) if is_judged else ()
    yield "model", "kind", *models[0].measures, *(f"gain over {name}" for name in against), *verdict
    for model in models:
        yield (
            model.name,
            "-" if model.kind == "none" else model.kind,
            *(_number(estimate.value) for estimate in model.measures.values()),
            *(_gain(model.gains.get(name)) for name in against),
            *([model.verdict or "-"] if is_judged else []),
        )


def size_of(measured: Measured | ModelComparison) -> str:
    """Return the number of records and, where it differs, of units.

    >>> size_of(ModelComparison("accuracy", 0.95, 40, 12, []))
    '40 records of 12 units'
    """
    of_units = f" of {measured.units} units" if measured.units != measured.records else ""
    return f"{measured.records} records{of_units}"


def which_records(measures: OwnMeasures) -> str:
    """Return the choice of records in words."""
    where = {HELD_OUT: "held out of training", EVERY: "(also those of training)"}
    return where.get(measures.which, "of another table")


def _measure_rows(measured: Measured) -> Iterator[tuple[str, ...]]:
    yield "measure", "value", "interval"
    for name, estimate in measured.estimates.items():
        yield _word(name, measured), f"{estimate.value:.3f}", _ends(estimate, ".3f")


def _group_rows(groups: Mapping[str, Measured]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each measure, a column for each group."""
    yield "measure", *(f"{group} ({size_of(measured)})" for group, measured in groups.items())
    columns = [measured.estimates for measured in groups.values()]
    for name in dict.fromkeys(name for estimates in columns for name in estimates):
        cells = (estimates.get(name) for estimates in columns)
        yield (
            _word(name, next(iter(groups.values()))),
            *(
                f"{estimate.value:.3f} {_ends(estimate, '.3f')}" if estimate else "–"
                for estimate in cells
            ),
        )


def _word(name: str, measured: Measured) -> str:
    is_threshold = name == "sensitivity"
    return WORDS[name] + (
        f" at {100 * measured.specificity:g} % specificity" if is_threshold else ""
    )


def _number(value: float) -> str:
    return f"{value:.4f}" if math.isfinite(value) else "-"


def _gain(estimate: Estimate | None) -> str:
    return "-" if estimate is None else f"{estimate.value:+.3f} {_ends(estimate, '+.3f')}"


def _ends(estimate: Estimate, form: str) -> str:
    ends = (estimate.low, estimate.high)
    return f"[{', '.join(f'{end:{form}}' if math.isfinite(end) else '?' for end in ends)}]"

"""A comparison as JSON and as a table's rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from client_app.worth.comparison import REFERENCES, Judged, ModelComparison
from hdpfl_flower.measures.bootstrap import Estimate

READING = """\
How to read it: a gain is by how much a model is better than another on the same records, with an
interval for other records of this site (the units resampled 10,000 times). "Worth it": better
than both the home model and the constant; "not worth it": worse than one of them; else the
interval holds 0, and so few records cannot tell. All gains of the first table lie in their
intervals at once with the confidence named, so that the best model may be chosen by them. An
interval that is narrow around 0 says that joining changes little. These figures are of this
site's records without noise: no ε covers them where they are disclosed."""


def facts(found: ModelComparison) -> dict[str, Any]:
    """Return a comparison for JSON, null for no limit or value."""
    return {
        "records": found.records,
        "units": found.units,
        "measure": found.measure,
        "confidence": found.confidence,
        "models": [_model(one) for one in found.models],
    }


def rows(found: ModelComparison, *, verdicts: bool = True) -> Iterator[tuple[str, ...]]:
    """Yield a header, then a row a model; its verdict last, where there are ``verdicts``."""
    names = [*found.models[0].measures]
    against = [each for each in REFERENCES if any(each in one.gains for one in found.models)]
    judged = verdicts and any(one.verdict for one in found.models)
    header = ("model", "kind", *names, *(f"gain over {each}" for each in against))
    yield (*header, "verdict") if judged else header
    for one in found.models:
        row = (
            one.name,
            "-" if one.kind == "none" else one.kind,
            *(_number(one.measures[name].value) for name in names),
            *(_interval(one.gains.get(each)) for each in against),
        )
        yield (*row, one.verdict or "-") if judged else row


def on_which(found: ModelComparison) -> str:
    """Return the number of records and, where it differs, of units.

    >>> on_which(ModelComparison("accuracy", 0.95, 40, 12, []))
    '40 records of 12 units'
    """
    of_units = f" of {found.units} units" if found.units != found.records else ""
    return f"{found.records} records{of_units}"


def _model(one: Judged) -> dict[str, Any]:
    return {
        "name": one.name,
        "kind": one.kind,
        "measures": {name: _estimate(each) for name, each in one.measures.items()},
        "gains": {name: _estimate(each) for name, each in one.gains.items()},
        **({"verdict": one.verdict} if one.verdict else {}),
    }


def _estimate(one: Estimate) -> dict[str, float | None]:
    ends = {"value": one.value, "low": one.low, "high": one.high}
    return {name: value if math.isfinite(value) else None for name, value in ends.items()}


def _number(value: float) -> str:
    return f"{value:.4f}" if math.isfinite(value) else "-"


def _interval(one: Estimate | None) -> str:
    if one is None:
        return "-"
    ends = (f"{end:+.3f}" if math.isfinite(end) else "?" for end in (one.low, one.high))
    return f"{one.value:+.3f} [{', '.join(ends)}]"

"""``hdpfl report`` of a comparison's folder: every strategy, the picture, the configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hdpfl_tools.coordinator.reports.comparison_page import make_comparison_report
from server_app.run.final_measures import folder_name
from server_app.run.resume import defaults


def written(folder: Path, **changes: Any) -> Path:
    """Write what ``hdpfl compare`` leaves: two strategies, one of them with a round less."""
    terms = {**defaults(), "rounds": 3, "dataset": "digits"}
    results = {
        "fedavg": {"seeds": [0, 1], "accuracy": [[0.1, 0.2, 0.5], [0.1, 0.2, 0.7]],
                   "loss": [[None] * 3, [None] * 3], "tested": []},
        "my <b>rule</b>": {"seeds": [0], "accuracy": [[0.1, 0.25, None]], "loss": [[None] * 3],
                           "tested": []},
    }  # fmt: skip
    content = {"terms": terms, "clients": 7, "results": results, **changes}
    (folder / "comparison.json").write_text(json.dumps(content))
    return folder


def test_each_strategy_has_its_last_values_and_no_column_is_empty(tmp_path: Path) -> None:
    page = make_comparison_report(written(tmp_path))
    assert "Comparison of 2 strategies" in page
    assert "7 clients, 3 rounds, digits" in page
    assert "<td>fedavg</td><td>0.6000 ± 0.1414</td><td>2</td>" in page
    assert "<td>my &lt;b&gt;rule&lt;/b&gt;</td><td>0.2500</td><td>1</td>" in page
    assert "<th>loss</th>" not in page


def test_the_final_measures_are_in_the_page(tmp_path: Path) -> None:
    folder = written(tmp_path)
    assert "Final models" not in make_comparison_report(folder)
    for name, seed, value in (("fedavg", 0, 0.7), ("fedavg", 1, 0.9), ("my <b>rule</b>", 0, 0.8)):
        run = folder / folder_name(name, seed)
        run.mkdir(parents=True)
        one = {"value": value, "low": value - 0.1, "high": value + 0.1}
        found = {"measures": {"measures": {"auroc": one, "sensitivity": one}}}
        (run / "result.json").write_text(json.dumps(found))
    page = " ".join(make_comparison_report(folder).split())
    assert "AUROC" in page and "sensitivity at 90 % specificity" in page
    assert "0.8000 ± 0.1414" in page
    assert "0.800 [0.700, 0.900]" in page

"""Pictures: what tells their lines apart, and what they say of themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from server_app import plots
from server_app.plots import plot_panels, plot_run
from studies.framework import plots as study_plots


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the figures that are drawn."""
    figures: list[Any] = []
    for module in (plots, study_plots):
        monkeypatch.setattr(module, "save_figure", lambda figure, _path: figures.append(figure))
    return figures


def test_no_two_lines_look_alike(drawn: list[Any], tmp_path: Path) -> None:
    curves = {f"rule {number}": np.ones((2, 3)) for number in range(20)}
    plot_panels({"many": curves}, tmp_path / "x.png", "many")
    lines = drawn[0].axes[0].get_lines()
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 20


def test_panels_share_rounds_and_have_a_scale_a_unit(drawn: list[Any], tmp_path: Path) -> None:
    """Weights began at round 0, metrics at 1; accuracy and loss had one axis."""
    facts = {"event": "round", "asked": ["a", "b"], "accepted": ["a"], "rejections": {}}
    metrics = {"accuracy": 0.5, "site-accuracy": 0.25, "loss": 9.0}
    rounds = [
        {**facts, "round": number, "weights": [1.0], "metrics": metrics} for number in (1, 2, 3)
    ]
    plot_run(rounds, tmp_path / "run.png")
    accuracy, loss, weights = drawn[0].axes[:3]
    shown = [{line.get_label() for line in axes.get_lines()} for axes in (accuracy, loss)]
    assert shown == [{"accuracy", "site-accuracy"}, {"loss"}]
    assert accuracy.get_xlim() == loss.get_xlim() == weights.get_xlim() == (0.5, 3.5)
    assert weights.get_images()[0].get_extent()[:2] == [0.5, 3.5]
    for line in (*accuracy.get_lines(), *loss.get_lines()):
        assert line.get_xdata().tolist() == [1, 2, 3]

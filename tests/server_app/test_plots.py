"""Pictures: what tells their lines apart, and what they say of themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from server_app import plots
from server_app.plots import plot_curves, plot_panels, plot_run
from studies.framework import plots as study_plots
from studies.framework.plots import plot_columns, plot_differences


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the figures that are drawn."""
    figures: list[Any] = []
    for module in (plots, study_plots):
        monkeypatch.setattr(module, "save_figure", lambda figure, _path: figures.append(figure))
    return figures


def test_no_two_lines_look_alike(drawn: list[Any], tmp_path: Path) -> None:
    plot_curves({f"rule {n}": np.ones((2, 3)) for n in range(20)}, tmp_path / "x.png", "many")
    lines = drawn[0].axes[0].get_lines()
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 20


def test_rounds_are_whole_and_many_names_stand_beside_the_lines(
    drawn: list[Any], tmp_path: Path
) -> None:
    for lines in (2, 7):
        curves = {f"rule {n}": np.full((1, 3), n / 10) for n in range(lines)}
        plot_curves(curves, tmp_path / "x.png", "some")
    assert all(float(tick).is_integer() for tick in drawn[0].axes[0].get_xticks())
    for figure, beside in ((drawn[0], False), (drawn[1], True)):
        figure.draw_without_rendering()
        axes = figure.axes[0]
        edge = axes.get_legend().get_window_extent().x0
        assert (edge >= axes.get_window_extent().x1) == beside


@pytest.mark.parametrize(("seeds", "said"), [(1, "one seed"), (2, "mean ± sd, 2 seeds")])
def test_a_deviation_is_spoken_of_where_there_is_one(
    seeds: int, said: str, drawn: list[Any], tmp_path: Path
) -> None:
    plot_curves({"fedavg": np.ones((seeds, 3))}, tmp_path / "x.png", "few")
    assert drawn[0].axes[0].get_ylabel() == f"accuracy ({said})"


def test_a_studys_picture_says_which_study(drawn: list[Any], tmp_path: Path) -> None:
    plot_panels({"Dist6": {"fedavg": np.ones((1, 3))}}, tmp_path / "x.png", "Accuracy by round")
    one = {"fedavg": {"Dist1": (1.0, float("nan"))}}
    plot_columns({"ours": one}, tmp_path / "x.png", "accuracy", "Accuracy by Dist")
    assert [figure.get_suptitle() for figure in drawn] == ["Accuracy by round", "Accuracy by Dist"]
    assert [figure.axes[0].get_title() for figure in drawn] == ["Dist6", "ours"]


def test_panels_have_one_scale(drawn: list[Any], tmp_path: Path) -> None:
    lines = {"ours": 1.0, "the paper's": 50.0}
    curves = {name: {"fedavg": np.full((1, 3), value)} for name, value in lines.items()}
    plot_panels(curves, tmp_path / "x.png", "title")
    columns = {name: {"fedavg": {"Dist1": (value, 0.1)}} for name, value in lines.items()}
    plot_columns(columns, tmp_path / "x.png", "accuracy", "title")
    for figure in drawn:
        left, right = figure.axes
        assert left.get_ylim() == right.get_ylim()
        assert left.get_ylim()[1] > 50


@pytest.mark.parametrize(("spread", "caps"), [(float("nan"), 0), (0.5, 2)])
def test_columns_have_bars_where_a_deviation_is_known(
    spread: float, caps: int, drawn: list[Any], tmp_path: Path
) -> None:
    panels = {"ours": {"fedavg": {"Dist1": (1.0, spread), "Dist2": (2.0, spread)}}}
    plot_columns(panels, tmp_path / "x.png", "accuracy", "title")
    _, bars, _ = drawn[0].axes[0].containers[0]
    assert len(bars) == caps


def test_differences_of_all_panels_stand_in_the_rows_of_their_places(
    drawn: list[Any], tmp_path: Path
) -> None:
    one = {"fedavg": {"iid": (1.0, 0.5), "skewed": (-40.0, float("nan"))}}
    other = {"fedavg": {"skewed": (-0.5, 0.1)}}
    plot_differences({"fixed": one, "best": other}, tmp_path / "x.png", "points", "title")
    left, right = drawn[0].axes
    assert [tick.get_text() for tick in left.get_yticklabels()] == ["iid", "skewed"]
    points, _, (bars,) = right.containers[0]
    assert points.get_xydata().tolist() == [[-0.5, 1.0]]
    assert np.ravel(bars.get_segments()[0]) == pytest.approx([-0.6, 1, -0.4, 1])
    plot_differences({"a": {"x": one["fedavg"], "y": one["fedavg"]}}, tmp_path / "x.png", "", "")
    first, second = (c[0].get_ydata() for c in drawn[1].axes[0].containers)
    assert (first < second).all() and (np.rint(first) == np.rint(second)).all()
    assert left.get_xlim() == right.get_xlim() and left.get_xlim()[0] < -40
    assert left.get_ylim()[0] > left.get_ylim()[1]  # the first place is at the top


@pytest.mark.filterwarnings("error")
def test_a_picture_without_differences_says_so(drawn: list[Any], tmp_path: Path) -> None:
    """``--strategies`` may leave out the row that others are compared with."""
    for panels in ({}, {"": {}}):
        plot_differences(panels, tmp_path / "x.png", "points", "title")
        assert [text.get_text().split(":")[0] for text in drawn[-1].axes[0].texts] == [
            "no difference"
        ]


def test_the_panels_of_a_run_have_the_same_rounds_and_a_scale_a_unit(
    drawn: list[Any], tmp_path: Path
) -> None:
    """Weights began at round 0, metrics at 1; accuracy and loss had one axis."""
    rounds = [
        {
            "event": "round", "round": number, "asked": ["a", "b"], "accepted": ["a"],
            "rejections": {},
            "weights": [1.0], "metrics": {"accuracy": 0.5, "site-accuracy": 0.25, "loss": 9.0},
        }
        for number in (1, 2, 3)
    ]  # fmt: skip
    plot_run(rounds, tmp_path / "run.png")
    accuracy, loss, weights = drawn[0].axes[:3]
    shown = [{line.get_label() for line in axes.get_lines()} for axes in (accuracy, loss)]
    assert shown == [{"accuracy", "site-accuracy"}, {"loss"}]
    assert accuracy.get_xlim() == loss.get_xlim() == weights.get_xlim() == (0.5, 3.5)
    assert weights.get_images()[0].get_extent()[:2] == [0.5, 3.5]
    for line in (*accuracy.get_lines(), *loss.get_lines()):
        assert line.get_xdata().tolist() == [1, 2, 3]

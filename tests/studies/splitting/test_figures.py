"""The figures: their claims in the quick form, their tables, and what an interruption leaves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from studies.framework.study import Options
from studies.splitting import study as frame
from studies.splitting.figures import FIGURES, GRAND_SCHEME
from studies.splitting.problems import Data
from studies.splitting.study import Panel, ProblemSetting, SplittingStudy

QUICK = ProblemSetting(Data(4, 40, 3, noise=1.0), 1e-3, 60)
SMALL = replace(
    GRAND_SCHEME,
    panels=(Panel("std 0.25", QUICK, QUICK), Panel("other", QUICK, replace(QUICK, eta=2e-3))),
    methods=GRAND_SCHEME.methods[:3],
)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "plot_gaps", lambda *_: None)


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
def test_quick_claims_are_the_results_pages(figure: SplittingStudy, tmp_path: Path) -> None:
    # The other panels take longer and are on the results page.
    found = figure.conduct(Options(columns=("std 0.25",)), tmp_path)
    expected = [{"claim": c.text, "holds": c.expected} for c in figure.claims]
    assert found.numbers["claims"] == expected


def test_every_expected_number_has_a_cell() -> None:
    for figure in FIGURES:
        cells = {(m.label, p.label) for m in figure.methods for p in figure.panels}
        assert set(figure.expected) <= cells
        labels = [one.label for one in (*figure.methods, *figure.panels)]
        assert len(set(labels)) == len(labels)
        assert not [label for label in labels if "," in label]  # --strategies, --columns


@pytest.mark.usefixtures("undrawn")
def test_interruptions_keep_finished_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, ran = frame.gaps, []

    def interrupted(method, *rest):  # type: ignore[no-untyped-def]
        if len(ran) == 4:
            raise KeyboardInterrupt
        ran.append(method.label)
        return real(method, *rest)

    monkeypatch.setattr(frame, "gaps", interrupted)
    with pytest.raises(KeyboardInterrupt):
        SMALL.conduct(Options(), tmp_path)
    assert len(list((tmp_path / "runs").iterdir())) == 4
    monkeypatch.setattr(frame, "gaps", lambda m, *rest: (ran.append(m.label), real(m, *rest))[1])
    found = SMALL.conduct(Options(), tmp_path)
    assert ran == [method.label for method in SMALL.methods] * 2  # none of them twice
    assert SMALL.conduct(Options(), tmp_path) == found
    assert len(ran) == 6
    SMALL.conduct(Options(seeds=2), tmp_path)
    assert len(ran) == 12

"""The study of falling noise: each row is a strategy against itself, seed by seed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.data.datasets import load_dataset
from studies.framework.study import Options
from studies.natural import federation
from studies.natural.scores import Score
from studies.natural.spend import LATE, SPEND
from studies.natural.tables import Cell, NaturalPlace


def cell(*runs: tuple[float, float]) -> Cell:
    return Cell(0.1, tuple(Score(loss, accuracy) for loss, accuracy in runs), ())


def test_a_row_is_late_less_even() -> None:
    cells = {
        NaturalPlace("heart", "1", "mmse"): cell((0.5, 0.7), (0.6, 0.8)),
        NaturalPlace("heart", "1", f"mmse{LATE}"): cell((0.4, 0.75), (0.52, 0.83)),
        NaturalPlace("heart", "1", f"fedavg{LATE}"): cell((0.4, 0.75)),  # even has not run
    }
    (table,) = SPEND.tables(cells, {})
    assert table.rows == (
        ("heart ε 1", "mmse", "550", "460", "-90.0 ± 10.0", "+4.0 ± 1.0"),
    )  # fmt: skip


def test_late_and_even_differ_by_spend_alone() -> None:
    for name in ("mmse", "fedavg"):
        even, late = (
            RunConfig.parse(dict(SPEND.config_of(rule))) for rule in (name, f"{name}{LATE}")
        )
        assert late.terms.spend.to_text() == "late ratio=1.5"
        assert late.terms.updated(spend="even") == even.terms
    places = SPEND.places(Options())
    assert len(places) == 3 * 3 * 4


def test_a_data_set_without_sites_is_dealt_to_twenty(monkeypatch: pytest.MonkeyPatch) -> None:
    digits = load_dataset("digits", "")

    def load(*_: Any) -> Any:
        return replace(digits, owners=None)

    monkeypatch.setattr(federation, "load_dataset", load)
    monkeypatch.setattr(federation, "EACH", 50)
    split = federation.outer_split("mnist", "")
    assert np.bincount(split.owners).tolist() == [50] * 20
    assert len(split.test) == len(split.test_owners)
    assert set(split.test_owners.tolist()) == set(range(20))

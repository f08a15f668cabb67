"""``hdpfl-site model predict``: predictions in the site's words, by every kind of task and file."""

from __future__ import annotations

import csv
import io
from typing import Any

import numpy as np

from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.models.evaluation import predict
from hdpfl_flower.models.networks import arrays_of, build_model
from hdpfl_tools.site.commands.model import probabilities
from tests.hdpfl_tools.site.commands.test_model import keep, write


def test_predict_names_the_class_and_its_probability(site) -> None:
    keep(site, (2, 0, 1), -0.5)
    table = site.folder / "new.csv"
    # Columns in another order, no label, a blank line, a row that cannot be cut, a text for 'a'.
    table.write_text("c,a\nx,10\n\nz,0\nx,1,2\nx,PATIENT-123\n")
    result = site("model", "predict", table)
    assert result.code == 0
    logits = [2 - 0.5, -2 + 1 - 0.5, -0.5]  # [0, 10] becomes [-1, 1], a missing number 0
    yes = [1 / (1 + np.exp(-logit)) for logit in logits]
    expected = [
        ["row", "prediction", "probability-yes", "cells"],
        ["1", "yes", f"{yes[0]:.4f}", ""],
        ["2", "no", f"{yes[1]:.4f}", ""],
        ["4", "no", f"{yes[2]:.4f}", "a unknown"],
    ]
    assert list(csv.reader(io.StringIO(result.out))) == expected
    assert result.err.startswith("warning: no prediction for 1 of 4 records: they cannot be cut")
    out = site.folder / "predictions.csv"
    assert site("model", "predict", table, "--out", out).code == 0
    assert out.read_text() == result.out
    assert out.stat().st_mode & 0o077 == 0
    assert "--force" in site("model", "predict", table, "--out", out).error()
    assert site("model", "predict", table, "--out", out, "--force").code == 0


def test_no_class_that_is_predicted_is_a_formula(site) -> None:
    site.write_terms(schema=site.schema.replace('"yes"', '"=cmd(1,2)"'))
    keep(site, (2, 0, 0), 0)
    (site.folder / "new.csv").write_text("c,a\nx,10\n")
    _, row = csv.reader(io.StringIO(site("model", "predict", site.folder / "new.csv").out))
    assert row[:2] == ["1", "'=cmd(1,2)"]


def test_predict_gives_a_number_in_the_units_of_the_label(site) -> None:
    site.write_terms(schema=site.regression)
    keep(site, (0.25,), 0.5)
    (site.folder / "new.csv").write_text("a\n10\n0\n5\n")
    result = site("model", "predict", site.folder / "new.csv")
    assert result.out.split() == ["row,prediction,cells", "1,52.5,", "2,17.5,", "3,35,"]
    unit = "\n[data.columns.y]\nfactor = 0.5\noffset = 1\n[ledger]"  # y = 0.5 own + 1
    site.write_profile(("\n[ledger]", unit))
    result = site("model", "predict", site.folder / "new.csv")
    assert result.out.split() == ["row,prediction,cells", "1,103,", "2,33,", "3,68,"]


def test_predict_gives_the_probability_to_survive_each_edge(site) -> None:
    label = '[label]\ncolumn = "months"\nedges = [6, 12.5]\n[label.event]\ncolumn = "died"\n'
    label += 'occurred = ["1"]\ncensored = ["0"]\n'
    site.write_terms(schema=label + site.regression[site.regression.index("[[columns]]") :])
    terms = site.terms
    arrays = arrays_of(build_model(terms.model, task_for(terms), seed=0))
    for array in arrays.values():
        array[...] = 0  # a hazard of one half in both intervals
    write(site, terms, arrays)
    (site.folder / "new.csv").write_text("a\n10\n")
    result = site("model", "predict", site.folder / "new.csv")
    assert result.out.split() == ["row,survives-6,survives-12.5,cells", "1,0.5000,0.2500,"]
    (site.folder / "new.csv").write_text("a\n11\n")
    site.write_profile(("\n[ledger]", "\n[data.columns.months]\nfactor = 0.5\n[ledger]"))
    lines = site("model", "predict", site.folder / "new.csv").out.splitlines()
    assert lines == ["row,survives-12,survives-25,cells", "1,0.5000,0.2500,a clipped"]
    assert "in 'a'" in site("model", "predict", "--strict", site.folder / "new.csv").error()


OWN_WORDS = """
[data.columns.y]
values = { krank = "1", sick = "yes", gesund = "no" }
[data.columns.c]
values = { ix = "x" }
[ledger]"""


def test_predict_speaks_the_sites_words_and_names_the_cells_it_changed(site) -> None:
    site.write_profile(("\n[ledger]", OWN_WORDS))
    keep(site, (2, 0, 0), 0)
    table = site.folder / "new.csv"
    table.write_text("a,c\n10,ix\n,z\n11,w\n<3,\n-0.1,x\n0,x\n")
    rows = list(csv.reader(io.StringIO(site("model", "predict", table).out)))
    assert rows[0] == ["row", "prediction", "probability-krank", "cells"]
    assert [row[1] for row in rows[1:]] == ["krank", "gesund", "krank", "gesund"] + ["gesund"] * 2
    changed = ["", "a filled", "a clipped; c unknown", "a unknown; c filled", "a clipped", ""]
    assert [row[3] for row in rows[1:]] == changed


def test_strict_refuses_a_table_with_a_changed_cell_or_a_lost_row(site) -> None:
    keep(site, (2, 0, 0), 0)
    table, out = site.folder / "new.csv", site.folder / "out.csv"
    strict = ("model", "predict", table, "--strict", "--out", out)
    for text, words in (
        ("a,c\n1,x\n,x\n11,x\nPATIENT-123,x\n", "3 of 4 rows have cells that are missing"),
        ("a,c\n1,x\n1,w\n", "in 'c'; correct"),
        ("a,c\n,x\n1,w\n", "in 'a', 'c'"),
        ("a,c\n1,x\n1,x,PATIENT-123\n", "error: no prediction for 1 of 2 records: they cannot"),
        ("a,c\n,x\n1\n", "in 'a'; no prediction for 1 of 2 records"),
    ):
        table.write_text(text)
        assert words in site(*strict).error()
        assert not site("model", "predict", table, "--strict").out
        assert not out.exists()
    table.write_text("a,c\n0,x\n10,z\n")  # the bounds themselves
    assert site(*strict).code == 0
    assert out.read_text() == site("model", "predict", table).out


def without_schema(site, **terms: Any) -> Any:
    """Let the site keep the first model of a run without a schema; returns (task, arrays)."""
    site.write_terms(schema_text="", **terms)
    kept, task = site.terms, task_for(site.terms)
    arrays = arrays_of(build_model(kept.model, task, seed=0))
    write(site, kept, arrays)
    return task, arrays


def test_a_run_without_a_schema_predicts_an_npz(site) -> None:
    task, arrays = without_schema(
        site, task={"kind": "classification", "shape": "1,4,4", "classes": 3}
    )
    x = np.random.default_rng(1).normal(size=(4, 1, 4, 4)).astype(np.float32)
    path = site.folder / "new.npz"
    np.savez(path, x=np.insert(x, 2, np.nan, axis=0))
    outputs = predict(site.terms.model, task, arrays, x)
    expected = [
        [row, str(of.argmax()), *(f"{p:.4f}" for p in of)]
        for row, of in zip("1245", probabilities(task, outputs), strict=True)
    ]
    result = site("model", "predict", path)
    header = ["row", "prediction", "probability-0", "probability-1", "probability-2"]
    assert list(csv.reader(io.StringIO(result.out))) == [header, *expected]
    assert "warning: no prediction for 1 of 5 records: they are not finite" in result.err
    assert (
        "1 of 5 records: they are not finite" in site("model", "predict", path, "--strict").error()
    )
    np.savez(path, x=x[:, :, :3])
    assert "must have the shape (n, 1, 4, 4)" in site("model", "predict", path).error()
    np.savez(path, y=x)
    assert "not an .npz file with an array 'x'" in site("model", "predict", path).error()
    path.write_text("PATIENT-123")
    assert "not an .npz file" in site("model", "predict", path).error()

"""One unit more or less moves a site's clipped sum by C, whatever schema the server sends."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from client_app.site.site import Site
from client_app.training.trainer import engine_at
from hdpfl_flower import wire
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.schema import Schema
from hdpfl_flower.engines.engine_choice import engine_for
from hdpfl_flower.engines.engines import Engine
from hdpfl_flower.errors import Declined, HDPFLError
from hdpfl_flower.models.task import Records
from hdpfl_flower.privacy.policy import check_policy
from hdpfl_tools.tables.table_records import read_table
from tests.client_app.messages import SCHEMA, ask, check_table_again, make_site, terms_of
from tests.client_app.site.test_guards_by_noise import change, code_of, kinds

CLIP_NORM = 1e-3
HEADER = "ward,patient,age,dose,sick"
ROWS = [("a", "p", "yes"), ("a", "q", "no"), ("a", "p", "no"), ("b", "r", "yes"), ("c", "s", "no")]
"""Two patients of ward 'a' whose gradients are opposite: one in the place of the other is 2 C."""
NUMBERS = itertools.count()
ONE_UNIT = 1 + 1e-5
"""What an engine guarantees, in C (``hdpfl_flower/engines/engines.py``)."""


def write_rows(folder: Path, rows: list[tuple[str, str, str]]) -> Path:
    lines = [f"{ward},{patient},50,5,{sick}" for ward, patient, sick in rows]
    path = folder / "records.csv"
    path.write_text("\n".join([HEADER, *lines, ""]))
    return path


def with_id(column: str) -> str:
    return f'id = "{column}"\n{SCHEMA}' if column else SCHEMA


def site_with(folder: Path, own: str, holdout: float = 0.0) -> Path:
    profile = make_site(folder, holdout=holdout)
    if own:
        change(profile, 'path = "records.csv"', f'path = "records.csv"\nid = "{own}"')
    write_rows(folder, ROWS)
    return profile


def site_of(profile: Profile, run: RunTerms) -> Site:
    """Return the site of a new run, which reads the table as it is now."""
    check_table_again(profile)
    return Site(profile, run.updated(run_id=f"run-{next(NUMBERS)}"))


def clipped_sum(records: Records, engine: Engine | None = None) -> np.ndarray:
    """Return the clipped sum of a full batch at the model 0, in units of C."""
    engine = engine or engine_for("logreg", Schema.parse(SCHEMA).task, "linear", "cpu")
    engine.theta.zero_()
    total = torch.zeros_like(engine.theta)
    x, y = torch.from_numpy(records.features), torch.from_numpy(records.targets)
    if len(records):
        engine.add_clipped_sum(total, x, y, len(records), CLIP_NORM)
    return total.numpy().astype(np.float64) / CLIP_NORM


def units(rows: list[tuple[str, str, str]], own: str) -> list[list[int]]:
    """Return the rows of each unit of the profile: a row, or those of one id."""
    if not own:
        return [[row] for row in range(len(rows))]
    column = {"ward": 0, "patient": 1}[own]
    names = [row[column] for row in rows]
    return [[i for i, n in enumerate(names) if n == name] for name in dict.fromkeys(names)]


def largest_move(folder: Path, own: str, schema: str, holdout: float = 0.0) -> float | None:
    """Return how far one unit more or less moves the sum at most; None where the site declines."""
    profile = Profile.load(site_with(folder, own, holdout))
    run = terms_of(schema=schema)
    try:
        check_policy(profile, run)
        whole = clipped_sum(site_of(profile, run).training_records())
    except HDPFLError:
        return None
    moves = []
    for unit in units(ROWS, own):
        write_rows(folder, [row for i, row in enumerate(ROWS) if i not in unit])
        without = clipped_sum(site_of(profile, run).training_records())
        moves.append(float(np.linalg.norm(whole - without)))
    return max(moves)


@pytest.mark.parametrize(
    ("own", "named"), [*itertools.product(["", "ward", "patient"], repeat=2)], ids=str
)
@pytest.mark.parametrize("holdout", [0.0, 0.4])
def test_a_unit_moves_the_sum_by_c(tmp_path: Path, own: str, named: str, holdout: float) -> None:
    moved = largest_move(tmp_path, own, with_id(named), holdout)
    assert (moved is not None) == (own == named)
    assert moved is None or moved <= ONE_UNIT


def test_the_id_that_a_site_does_not_name_would_move_it_by_two(tmp_path: Path) -> None:
    """What the refusal is for: a row goes, another one of the ward comes in its place."""
    schema = Schema.parse(with_id("ward"))
    sums = [
        clipped_sum(read_table(write_rows(tmp_path, rows), "csv", schema).records)
        for rows in (ROWS, ROWS[1:])
    ]
    assert np.linalg.norm(sums[0] - sums[1]) == pytest.approx(2.0, abs=1e-3)


@pytest.mark.parametrize("order", ["first", "last by age"])
@pytest.mark.parametrize("most", [2, 3])
def test_a_patients_rows_move_the_sum_by_c(tmp_path: Path, most: int, order: str) -> None:
    """From the table to the sum: rows that pull one way, and cells that cannot be read."""
    path = site_with(tmp_path, "patient", holdout=0.2)
    change(path, 'id = "patient"', f'id = "patient"\nrecords-per-unit = {most}\nrow = "{order}"')
    profile, run = Profile.load(path), terms_of(schema=with_id("patient"))
    draws = random.Random(most)
    names = [f"p{i}" for i in range(9) for _ in range(draws.randrange(1, 6))]
    draws.shuffle(names)
    rows = [
        ("a", name, "yes" if int(name[1:]) % 2 else draws.choice(("no", "?"))) for name in names
    ]

    def sums(some: list[tuple[str, str, str]]) -> list[np.ndarray]:
        write_rows(tmp_path, some)
        site = site_of(profile, run)
        engine, _ = engine_at(profile, "logreg", site.task, "cpu")
        return [clipped_sum(site.training_units(), engine), clipped_sum(site.training_records())]

    whole, moves = sums(rows), []
    for patient in dict.fromkeys(names):
        less = sums([row for row in rows if row[1] != patient])
        moves += [float(np.linalg.norm(a - b)) for a, b in zip(whole, less, strict=True)]
    assert 0.9 < max(moves) <= ONE_UNIT
    assert ask(path, run).has_content()


@pytest.mark.parametrize("own", ["", "patient"], ids=["none", "patient"])
def test_a_server_that_names_an_id_gets_nothing(tmp_path: Path, own: str) -> None:
    profile = site_with(tmp_path, own)
    reply = ask(profile, terms_of(schema=with_id("ward")))
    assert code_of(reply) == wire.DECLINED
    assert kinds(tmp_path) == {}
    assert ask(profile, terms_of(schema=with_id(own))).has_content()


def test_the_refusal_comes_before_any_record_is_read(tmp_path: Path) -> None:
    profile = site_with(tmp_path, "")
    (tmp_path / "records.csv").unlink()
    with pytest.raises(Declined, match=r"'data\.id'"):
        check_policy(Profile.load(profile), terms_of(schema=with_id("ward")))
    assert code_of(ask(profile, terms_of(schema=with_id("ward")))) == wire.DECLINED


@pytest.mark.parametrize("own", ["", "patient"], ids=["none", "patient"])
def test_which_side_of_the_holdout_is_a_units_own_affair(tmp_path: Path, own: str) -> None:
    """Whatever other units do, a unit stays where it is; with an id its content says nothing."""
    profile = Profile.load(site_with(tmp_path, own, holdout=0.4))
    run, draws = terms_of(schema=with_id(own)), random.Random(5)
    rows = [(f"w{i % 3}", f"p{i}", draws.choice(["yes", "no"]), str(i % 90)) for i in range(60)]

    def held_out(some: list[tuple[str, str, str, str]]) -> set[float]:
        lines = [f"{ward},{patient},{age},5,{sick}" for ward, patient, sick, age in some]
        (tmp_path / "records.csv").write_text("\n".join([HEADER, *lines, ""]))
        test = site_of(profile, run).test_records()
        assert test is not None
        return set(test.features[:, 0].tolist())

    everybody = held_out(rows)
    assert 0 < len(everybody) < 60
    for _ in range(10):
        some = draws.sample(rows, 30)
        ages = {2 * int(row[3]) / 100 - 1 for row in some}
        expected = {age for age in everybody if min(abs(age - other) for other in ages) < 1e-6}
        assert held_out(some) == expected
    if own:
        flipped = [(w, p, "no" if s == "yes" else "yes", a) for w, p, s, a in rows]
        assert held_out(flipped) == everybody

"""Held-out records are tested on and never trained on; where there are none, nothing is tested.

A site that opted out of noise, takes all its records in one batch and makes one step sends a
function of its training records alone, so it can be seen which they were: in every mode of noise,
and in the personal models, too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_app.training.ditto import kept_personal_path, load_personal_model
from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_tools.tables.site_data import SiteData, read_site_data
from tests.client_app.messages import CLIENT_NOISE, ask, make_site, terms_of, terms_with_test

ROWS = [f"{20 + i},{i % 10},{'yes' if i % 3 else 'no'}" for i in range(61)]
ROUND = {"learning-rate": 0.5, "local-steps": 1, "clip-norm": 1.0}
NOISES: dict[str, dict[str, Any]] = {
    "records": {},
    "records, a private personal model": {"second": {"kind": "private", "pull": 0.1}},
    "records, a personal model": {"second": {"kind": "kept", "pull": 0.1}},
    "client": {"noise": "client", "second": {"kind": "kept", "pull": 0.1}},
    "server": {
        "noise": "server",
        "strategy": "fedhdp",
        "delta": 1e-6,
        "second": {"kind": "kept", "pull": 0.1},
    },
}


def site_of(
    folder: Path, rows: Sequence[str], holdout: float = 0.5, disclose: str = '["metrics"]'
) -> Path:
    """Return the profile of a site that holds ``rows``, all in one batch, and adds no noise."""
    folder.mkdir(parents=True)
    Ledger.create(folder / "ledger.sqlite", np.inf, 1e-5).close()
    profile = make_site(folder, holdout=holdout, disclose=disclose, more=CLIENT_NOISE)
    text = profile.read_text().replace("1.2345678", "inf").replace("2.4691356", "inf")
    text = text.replace("batch-size = 7", "batch-size = 61")
    profile.write_text("trust-server = true\n" + text)
    (folder / "records.csv").write_text("\n".join(["age,dose,sick", *rows]) + "\n")
    return profile


def data_of(folder: Path, rows: Sequence[str]) -> SiteData:
    source = Profile.load(site_of(folder, rows)).data
    assert source is not None
    return read_site_data(source, task_for(terms_of()), terms_of().schema_text)


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], list[str]]:
    """The rows that are trained on and those held out, each asked about alone."""
    folder, trained, held = tmp_path_factory.mktemp("sides"), [], []
    for number, row in enumerate(ROWS):
        data = data_of(folder / str(number), [row])
        assert data.test is not None
        (held if len(data.test) else trained).append(row)
    assert min(len(trained), len(held)) > 15
    return trained, held


def sent(folder: Path, rows: Sequence[str], terms: RunTerms) -> np.ndarray:
    """Return the update of a site, and its personal model where the terms ask for one."""
    reply = ask(site_of(folder, rows), terms)
    assert reply.has_content(), reply.error
    numbers = [server_wire.read_update(reply.content, 3)]
    if terms.second:
        own = load_personal_model(kept_personal_path(folder / "state", terms), 3)
        assert own is not None
        numbers.append(own)
    return np.concatenate(numbers).astype(np.float64)


@pytest.mark.parametrize("noise", NOISES)
def test_what_is_trained_is_a_function_of_the_records_that_are_not_held_out(
    tmp_path: Path, sides: tuple[list[str], list[str]], noise: str
) -> None:
    trained, held = sides
    terms = terms_of(**{**ROUND, **NOISES[noise]})
    whole = sent(tmp_path / "whole", ROWS, terms)
    np.testing.assert_allclose(sent(tmp_path / "trained", trained, terms), whole, atol=1e-6)
    np.testing.assert_allclose(
        sent(tmp_path / "more", [*trained, *held[:5]], terms), whole, atol=1e-6
    )
    without_one = sent(tmp_path / "one", [*trained[1:], *held], terms)
    for part in (slice(0, 3), slice(3, len(whole))):  # the update, and the personal model
        if whole[part].size:
            assert np.abs(without_one - whole)[part].max() > 1e-4, "a record of training counts"


def metrics(folder: Path, rows: Sequence[str]) -> dict[str, float]:
    profile = site_of(folder, rows)
    assert ask(profile, terms_with_test()).has_content()
    reply = ask(profile, terms_with_test(), kind=wire.EVALUATE)
    assert reply.has_content(), reply.error
    return server_wire.read_metrics(reply.content)


def test_tests_depend_on_held_out_rows(tmp_path: Path, sides: tuple[list[str], list[str]]) -> None:
    trained, held = sides
    whole = metrics(tmp_path / "whole", ROWS)
    assert metrics(tmp_path / "held", [*trained[:5], *held]) == pytest.approx(whole)
    assert metrics(tmp_path / "one", [*trained, *held[1:]])["loss"] != pytest.approx(whole["loss"])


@pytest.mark.parametrize("noise", NOISES)
def test_without_a_holdout_nothing_is_tested_and_nothing_leaves(tmp_path: Path, noise: str) -> None:
    disclosed = json.dumps(["metrics", "personal-metrics"])
    profile = site_of(tmp_path / "s", ROWS, holdout=0.0, disclose=disclosed)
    terms = terms_with_test(**{**ROUND, **NOISES[noise]})
    assert ask(profile, terms).has_content()
    refused = ask(profile, terms, kind=wire.EVALUATE)
    assert refused.has_error()
    assert refused.error.code == wire.DECLINED
    releases = Ledger(tmp_path / "s" / "ledger.sqlite").account().releases
    left = {key[2] for key, release in releases.items() if release.status in ("sealed", "sent")}
    assert left == {"clipped-update" if terms.noise == "server" else "update"}

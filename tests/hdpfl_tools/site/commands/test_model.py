"""``hdpfl-site model``: the model that the client kept, used at the site."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save

import client_app
from client_app.after_run.final_model import FinalModel, load_final_model, write_final_model
from client_app.after_run.personal_model import (
    PersonalModel,
    personal_model_file,
    read_personal_model,
    save_personal_model,
    untuned_model,
)
from client_app.site.site import Site
from client_app.training.ditto import kept_personal_path
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.models.networks import Arrays, arrays_of, build_model
from hdpfl_tools.site.commands.model import LABELS
from hdpfl_tools.site.home_tuning import home_tuned_path
from hdpfl_tools.site.stored_models import checked_final_model
from hdpfl_tools.site.worth.candidates import candidates
from hdpfl_tools.tables.site_data import read_site_data

TRAINING = {"training": '{"round": 3, "kind": "kept"}'}
"""Metadata of a personal model that Ditto trained without noise."""


def keep(site, weight: tuple[float, ...], bias: float) -> None:
    """Let the client keep a linear model, as the end of a run does."""
    terms = site.terms
    arrays = arrays_of(build_model(terms.model, task_for(terms), seed=0))
    (weights, biases) = arrays
    arrays[weights] = np.array([weight], np.float32)
    arrays[biases] = np.array([bias], np.float32)
    write(site, terms, arrays)


def write(site, terms: RunTerms, arrays: Arrays) -> None:
    """Let the client keep ``arrays`` as the final model of ``terms``."""
    folder = site.profile.state.path
    folder.mkdir(exist_ok=True)
    write_final_model(folder, FinalModel(terms, arrays))


def test_show_tests_on_the_held_out_records_alone(site) -> None:
    keep(site, (1, 0, 0), 0)
    shown = site("model", "show")
    assert shown.code == 0
    assert "final model of run 'run-1': logreg, 4 parameters" in shown.out
    assert "rounds = 3" in shown.out
    assert "keeps no record out" in shown.out
    site.write_profile(('path = "records.csv"', 'path = "records.csv"\nholdout = 0.5'))
    site.write_records(row="{label},{i}e-1,x")
    keep(site, (1, 0, 0), 0.6)
    held_out = read_site_data(site.profile.data, task_for(site.terms), site.schema).test
    right = (held_out.features[:, 0] + 0.6 > 0) == held_out.targets
    assert 0 < len(held_out) < 40
    expected = f"on this site's {len(held_out)} records held out of training: accuracy "
    assert f"{expected}{right.mean():.3f}, log loss" in site("model", "show").out


def test_export_is_the_model_with_its_terms(site) -> None:
    keep(site, (1, 2, 3), 4)
    target = site.folder / "out.safetensors"
    assert site("model", "show", "--to", target).code == 0
    with safe_open(target, framework="numpy") as file:
        assert '"run-id":"run-1"' in file.metadata()["terms"]
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    assert sorted(array.ravel().tolist() for array in arrays.values()) == [[1, 2, 3], [4]]
    before = target.read_bytes()
    keep(site, (0, 0, 0), 0)
    assert "--force" in site("model", "show", "--to", target).error()
    assert target.read_bytes() == before
    assert site("model", "show", "--to", target, "--force").code == 0
    assert target.read_bytes() != before


def test_the_sites_own_model_is_shown_exported_and_used(site) -> None:
    keep(site, (1, 2, 3), 4)
    for command in (("show",), ("show", "--to", site.folder / "m"), ("predict", "x.csv")):
        assert "no personal model of run 'run-1'" in site("model", *command, "--personal").error()
    path = kept_personal_path(site.profile.state.path, site.terms)
    path.write_bytes(save({"personal": np.array([5, 6, 7, 8], np.float32)}, TRAINING))
    assert "personal model of run 'run-1'" in site("model", "show", "--personal").out
    assert "final model of run 'run-1'" in site("model", "show").out
    target = site.folder / "own.safetensors"
    assert site("model", "show", "--to", target, "--personal").code == 0
    arrays = load_file(target)
    assert sorted(array.ravel().tolist() for array in arrays.values()) == [[5, 6, 7], [8]]
    path.write_bytes(save({"personal": np.zeros(5, np.float32)}, TRAINING))
    assert "does not fit the run's model" in site("model", "show", "--personal").error()


@pytest.mark.parametrize(
    ("second", "terms", "kind"),
    [("private", {}, "private"), ("kept", {}, "kept"), ("kept", {"noise": "client"}, "kept")],
)
def test_a_ditto_model_without_noise_is_never_called_private(
    site, second: str, terms: dict[str, Any], kind: str
) -> None:
    """The tool's word, the comparison's, and that of a file with a prior beside it."""
    site.write_terms(**{"second": {"kind": second}, **terms})
    keep(site, (1, 2, 3), 4)
    path = kept_personal_path(site.profile.state.path, site.terms)
    path.write_bytes(save({"personal": np.array([5, 6, 7, 8], np.float32)}, TRAINING))
    assert LABELS[kind] in site("model", "show", "--personal").out
    final, task = checked_final_model(site.profile)
    found = {each.name: each.kind for each in candidates(site.profile, final, task)}
    assert found["personal model (Ditto)"] == kind
    untuned = untuned_model(Site(site.profile, site.terms), final.arrays)
    save_personal_model(personal_model_file(site.profile.state.path, "run-1"), untuned)
    own = read_personal_model(personal_model_file(site.profile.state.path, "run-1"))
    assert own.kind == kind
    found = {each.name: each.kind for each in candidates(site.profile, final, task)}
    assert found["personal model"] == kind


@pytest.mark.parametrize("word", ["kept", "", "Private", "unknown"])
def test_a_file_that_does_not_say_private_is_not(site, word: str) -> None:
    model = replace(own_model(site), kind=word)
    path = personal_model_file(site.profile.state.path, "run-1")
    save_personal_model(path, model)
    found = read_personal_model(path)
    assert found.kind == "kept"


def own_model(site, added: float = 0.5) -> PersonalModel:
    """Keep a personal model beside the final one."""
    keep(site, (1, 2, 3), 4)
    arrays = load_final_model(site.profile.state.path).arrays
    model = PersonalModel(site.terms, arrays, np.array([added], np.float32), "private")
    save_personal_model(personal_model_file(site.profile.state.path, "run-1"), model)
    return model


def test_tuning_closes_the_run_and_keeps_the_model_apart(opened) -> None:
    site = opened
    site.charge()
    own_model(site)
    own = personal_model_file(site.profile.state.path, "run-1").read_bytes()
    assert "no tuned model" in site("model", "show", "--tuned").error()
    assert site("model", "tune", answer="n").code == 1
    assert not Ledger(site.ledger_path).account().closed
    tuned = site("model", "tune", "--epochs", "3", "--yes")
    assert tuned.code == 0
    assert LABELS["kept"] in tuned.out
    assert LABELS["kept"] in site("model", "show", "--tuned").out
    kept = read_personal_model(home_tuned_path(site.profile.state.path, "run-1"))
    assert kept.kind == "kept"
    assert personal_model_file(site.profile.state.path, "run-1").read_bytes() == own
    assert Ledger(site.ledger_path).account().closed == {"run-1"}
    assert site("model", "tune", "--yes").code == 0  # again, from the same start


def test_a_run_that_the_ledger_does_not_know_is_not_tuned(opened) -> None:
    own_model(opened)
    assert "no such run" in opened("model", "tune", "--yes").error()
    assert not home_tuned_path(opened.profile.state.path, "run-1").exists()
    assert "'--part'" in opened("model", "tune", "--part", "body", "--yes").error()


def test_only_the_sites_commands_read_what_was_tuned_at_home() -> None:
    """No handler of a message does: what no release reads, no release can show."""
    root = Path(client_app.__file__).parents[1]
    users = {
        path.relative_to(root).as_posix()
        for package in (
            "client_app",
            "server_app",
            "strategies",
            "hdpfl_flower",
            "hdpfl_tools",
            "studies",
        )
        for path in (root / package).rglob("*.py")
        if re.search("home_tun", path.read_text())
    }
    assert users <= {
        "hdpfl_tools/site/commands/model.py",
        "hdpfl_tools/site/home_tuning.py",
        "hdpfl_tools/site/worth/candidates.py",
    }

"""The files of a site's own part: where they lie, what they hold, and who can read them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from client_app.site.personal_state import (
    PersonalState,
    kept_state_path,
    load_state,
    personal_state_path,
    save_state,
)
from client_app.site.site import Site
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import DataError, Declined
from hdpfl_tools.simulation.sites import Place, SimulatedSite
from tests.client_app.messages import make_site, simulated_state_path, terms_of

VECTORS = {
    "part": np.arange(3, dtype=np.float32),
    "summed": np.arange(5, dtype=np.float32) / 7,
    "first": -np.arange(5, dtype=np.float32),
}
STATE = PersonalState(4, 3, 2, **VECTORS, variance=0.1)


def same(one: PersonalState, other: PersonalState) -> None:
    for name in ("server_round", "rounds", "first_round", "variance"):
        assert getattr(one, name) == getattr(other, name), name
    for name in VECTORS:
        a, b = getattr(one, name), getattr(other, name)
        assert (a is None) == (b is None), name
        if a is not None:
            assert a.dtype == b.dtype == np.float32
            np.testing.assert_array_equal(a, b)


def test_before_the_first_round_there_is_nothing(tmp_path: Path) -> None:
    found = load_state(tmp_path / "part.safetensors")
    assert (found.server_round, found.rounds, found.first_round, found.variance) == (0, 0, 0, 0.0)
    assert found.part is found.summed is found.first is None


@pytest.mark.parametrize("left_out", [(), ("part",), ("summed", "first"), tuple(VECTORS)])
def test_a_state_comes_back_as_it_was(tmp_path: Path, left_out: tuple[str, ...]) -> None:
    state = replace(STATE, **dict.fromkeys(left_out))
    path = tmp_path / "new" / "folder" / "part.safetensors"
    save_state(path, state)
    same(load_state(path), state)
    save_state(path, STATE)
    same(load_state(path), STATE)
    assert [p.name for p in path.parent.iterdir()] == [path.name], "no half of a file is left"


def test_nobody_else_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "state" / "part.safetensors"
    save_state(path, STATE)
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_state_does_not_print_its_vectors() -> None:
    assert "0.1" not in repr(STATE)
    assert "array" not in repr(STATE)


@pytest.mark.parametrize("new", [b"server_sound", b'"erver_round'])
def test_facts_of_another_kind_are_damage(tmp_path: Path, new: bytes) -> None:
    path = tmp_path / "part.safetensors"
    save_state(path, STATE)
    content = path.read_bytes()
    assert content.count(b"server_round") == 1
    path.write_bytes(content.replace(b"server_round", new))
    with pytest.raises(DataError, match="is damaged; restore it, or remove it to start again"):
        load_state(path)


def test_a_folder_in_the_place_of_the_file_is_no_state(tmp_path: Path) -> None:
    (tmp_path / "part.safetensors").mkdir()
    assert load_state(tmp_path / "part.safetensors").rounds == 0


def test_every_run_has_a_file_of_its_own(tmp_path: Path) -> None:
    paths = {kept_state_path(tmp_path, terms_of(**{"run-id": name})) for name in ("run-1", "run-2")}
    assert len(paths) == 2
    for path in paths:
        assert path.parent == tmp_path
        assert path.name.startswith("part-")
        assert "run" not in path.name, "no word of the server's"


def test_a_site_with_a_state_folder_keeps_it_there(tmp_path: Path) -> None:
    profile, terms = Profile.load(make_site(tmp_path)), terms_of()
    expected = kept_state_path(tmp_path / "state", terms)
    assert personal_state_path(Site(profile, terms)) == expected
    config = RunConfig(terms)
    assert personal_state_path(SimulatedSite(profile, terms, config=config)) == expected


def test_a_simulated_site_keeps_it_in_the_runs_folder(tmp_path: Path) -> None:
    path = make_site(tmp_path)
    path.write_text(path.read_text().replace('[state]\npath = "state"\n', ""))
    profile, config = Profile.load(path), RunConfig.parse({"runs-dir": str(tmp_path / "runs")})
    site = SimulatedSite(profile, config.terms, place=Place(3, 5), config=config)
    found = personal_state_path(site)
    assert found == simulated_state_path(config, 3)
    assert found.is_relative_to(tmp_path / "runs")
    assert found != personal_state_path(replace(site, place=Place(4, 5)))
    with pytest.raises(Declined, match=r"set 'state.path'"):
        personal_state_path(Site(profile, config.terms))

"""A personal model belongs to one run and to one kind of noise; a private one starts from no other.

A model that was trained without noise is as private as the records; whatever starts from it and is
called private would show them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save

from client_app.training.ditto import kept_personal_path, load_personal_model
from hdpfl_flower import wire
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import DataError
from tests.client_app.messages import ask, make_site, terms_of
from tests.client_app.training.test_client_level import SERVER, trusting

PLAIN, PRIVATE = {"second": {"kind": "kept"}}, {"second": {"kind": "private"}}
FAR = 1e6
"""No step of a round leads so far from the global model."""


def terms_with(run_id: str, noise: dict[str, str], **more: Any) -> RunTerms:
    """Return terms of a run of any name: the path of its model does not rest on their limits."""
    config = {"learning-rate": 0.5, **noise, **more}
    return terms_of(**config).model_copy(update={"run_id": run_id})


names = st.text(st.sampled_from("xy./\\- é"), max_size=5)


@given(names, names, st.booleans(), st.booleans())
@example(one="x/y", other="x.y", private=False, private_other=False)
def test_runs_share_no_randomness(one: str, other: str, private: bool, private_other: bool) -> None:
    noises = PLAIN, PRIVATE
    same = (one, private) == (other, private_other)
    first = kept_personal_path(Path("/s"), terms_with(one, noises[private]))
    second = kept_personal_path(Path("/s"), terms_with(other, noises[private_other]))
    assert (first == second) == same
    assert first.parent == second.parent == Path("/s")
    assert len(first.name) < 100


def plant(path: Path, **said: str) -> None:
    """Put a model far from everything where a run's own model lies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    training = {"training": json.dumps({"round": 1, **said})}
    path.write_bytes(save({"personal": np.full(3, FAR, np.float32)}, training))


def private_model(folder: Path, terms: RunTerms) -> np.ndarray | None:
    return load_personal_model(kept_personal_path(folder / "state", terms), 3)


def test_a_private_model_of_a_like_run_starts_at_the_global_one(tmp_path: Path) -> None:
    """Both were personal-x.y once."""
    plain, private = terms_with("x/y", PLAIN), terms_with("x.y", PRIVATE)
    profile = make_site(tmp_path)
    plant(kept_personal_path(tmp_path / "state", plain))
    assert ask(profile, private).has_content()
    found = private_model(tmp_path, private)
    assert found is not None
    assert np.abs(found).max() < FAR / 2


def test_a_private_model_of_a_run_that_was_an_unnoised_one_before(tmp_path: Path) -> None:
    """Without a plan, for a trusted server, nothing froze its terms; then it asks for noise."""
    profile = trusting(tmp_path)
    plain = terms_of(**{**SERVER, "second": {"kind": "kept", "pull": 0.1}})
    private = terms_with("run-1", PRIVATE)
    assert ask(profile, plain).has_content()
    plant(kept_personal_path(tmp_path / "state", plain), kind="kept")
    assert ask(profile, private).has_content()
    found = private_model(tmp_path, private)
    assert found is not None
    assert np.abs(found).max() < FAR / 2


@pytest.mark.parametrize(
    ("said", "words"),
    [({}, "is damaged"), ({"kind": "kept"}, "was trained with other noise than 'second' says")],
)
def test_an_unnoised_model_in_the_place_of_a_private_one_is_not_gone_on_with(
    tmp_path: Path, said: dict[str, str], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Restored from a backup, or renamed: the file says what it was trained with."""
    terms, profile = terms_with("run-1", PRIVATE), make_site(tmp_path)
    path = kept_personal_path(tmp_path / "state", terms)
    plant(path, **said)
    before = path.read_bytes()
    assert ask(profile, terms).has_content(), "the round is none the worse"
    assert path.read_bytes() == before, "its owner may have no other copy"
    assert words in caplog.text


def test_a_private_model_goes_on_from_its_own_round(tmp_path: Path) -> None:
    """The other side: what says that it was trained with noise is started from."""
    terms, profile = terms_with("run-1", PRIVATE), make_site(tmp_path)
    path = kept_personal_path(tmp_path / "state", terms)
    assert ask(profile, terms, 1).has_content()
    with safe_open(path, framework="numpy") as file:
        assert json.loads(file.metadata()["training"]) == {"round": 1, "kind": "private"}
    plant(path, kind="private")
    assert ask(profile, terms, 2).has_content()
    found = private_model(tmp_path, terms)
    assert found is not None
    assert np.abs(found).max() > FAR / 2


def test_a_plain_model_does_not_start_from_a_private_one_either(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    plant(path, kind="private")
    assert load_personal_model(path, 3) is not None
    assert load_personal_model(path, 3, "private") is not None
    with pytest.raises(DataError, match="other noise"):
        load_personal_model(path, 3, "kept")


def test_the_place_holds_no_word_of_the_servers(tmp_path: Path) -> None:
    """Not a name that leads out of the folder, nor one that is too long for a file."""
    for run_id in ("../../out", "r" * 64, "/etc/passwd"):
        path = kept_personal_path(tmp_path, terms_with(run_id, PLAIN))
        assert path.parent == tmp_path
        assert path.name.startswith("personal-")
        assert len(path.name) == len("personal-.safetensors") + 32


def test_a_run_with_a_long_name_keeps_its_model(tmp_path: Path) -> None:
    terms = terms_with("/" * 64, PLAIN)
    assert ask(make_site(tmp_path), terms, kind=wire.TRAIN).has_content()
    assert private_model(tmp_path, terms) is not None

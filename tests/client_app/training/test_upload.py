"""What a site sends rounded, and what it accepts rounded: after the noise, sealed, and strictly."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message

from client_app.training import client_level, trainer
from client_app.training.trainer import ROUNDING
from hdpfl_flower import wire
from hdpfl_flower.config.feasibility import check_up_front
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.datasets import task_for
from hdpfl_flower.errors import TermsError
from hdpfl_flower.models.networks import arrays_of, build_model, flatten
from hdpfl_flower.models.parts import select
from hdpfl_flower.privacy.noise import ReleaseStreams
from hdpfl_flower.privacy.plan import RoundPlan
from hdpfl_flower.quantize import Form, read_rounded, round_vector, rounded_bytes
from tests.client_app.messages import CLIENT_NOISE, ask, make_site, model_in, model_of, send
from tests.client_app.messages import terms_of as plain_terms

SIZE = 3
FORMS: tuple[Form, ...] = ("bfloat16", "int8")


def terms_of(**more: Any) -> RunTerms:
    return plain_terms(**{"upload": "int8", **more})


def sent(reply: Message) -> bytes:
    assert reply.has_content(), reply.error
    return bytes(reply.content["update"]["update"].data)


def sealed(profile: Path) -> list[bytes]:
    """Return the updates in the ledger, without our own code in between."""
    with closing(sqlite3.connect(profile.with_name("ledger.sqlite"))) as db:
        tables = [
            name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type='table'")
        ]
        found = []
        for table in tables:
            for row in db.execute(f"SELECT * FROM {table}"):
                found += [bytes(value) for value in row if isinstance(value, bytes)]
    return found


@pytest.fixture(name="noisy")
def updates_after_the_noise(monkeypatch: pytest.MonkeyPatch) -> list[tuple[np.ndarray, float]]:
    """What the training of a round returns, and the noise that it was asked for."""
    seen: list[tuple[np.ndarray, float]] = []
    train, add = trainer.train, client_level.add_noise

    def noting(*given: Any, **more: Any) -> Any:
        update = train(*given, **more)
        (plan,) = [each for each in given if isinstance(each, RoundPlan)]
        seen.append((update.copy(), plan.noise_std))
        return update

    def adding(total: Any, std: float, stream: Any) -> Any:
        noisy = add(total, std, stream)
        seen.append((noisy.numpy().astype(np.float32), std))
        return noisy

    monkeypatch.setattr(trainer, "train", noting)
    monkeypatch.setattr(client_level, "add_noise", adding)
    return seen


@pytest.mark.parametrize("noise", ["records", "client"])
@pytest.mark.parametrize("form", FORMS)
def test_what_is_rounded_is_the_noisy_update_alone(
    tmp_path: Path,
    form: Form,
    noise: str,
    noisy: list[tuple[np.ndarray, float]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To the byte: the scale and every number are those of the update after its noise."""
    monkeypatch.setattr(
        trainer,
        "round_vector",
        lambda update, form, draw: round_vector(update, form, np.random.default_rng(1).bytes),
    )
    profile = make_site(tmp_path, more=CLIENT_NOISE)
    payload = sent(ask(profile, terms_of(upload=form, noise=noise, model="mlp:40")))
    update, std = noisy[0]
    assert std > 0
    assert payload == round_vector(update, form, np.random.default_rng(1).bytes)
    assert len(payload) == rounded_bytes(len(update), form)


@pytest.mark.parametrize("form", FORMS)
def test_the_same_request_returns_the_sealed_bytes(tmp_path: Path, form: Form) -> None:
    """Two roundings of one update would average its rounding out, and two noises its noise."""
    profile, terms = make_site(tmp_path), terms_of(upload=form, model="mlp:40")
    first, again = sent(ask(profile, terms)), sent(ask(profile, terms))
    assert again == first
    assert first in sealed(profile)
    assert sent(ask(profile, terms, 2)) != first


def test_chance_is_drawn_apart_from_batches_and_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream of its own for each release: no key is used twice."""
    keys: list[ReleaseStreams] = []
    fresh = ReleaseStreams.fresh

    def noting() -> ReleaseStreams:
        keys.append(fresh())
        return keys[-1]

    monkeypatch.setattr(ReleaseStreams, "fresh", noting)
    profile = make_site(tmp_path)
    sent(ask(profile, terms_of(model="mlp:40")))
    training, chance = keys
    assert chance.sampling.position == 2 * 161  # two bytes a number, and nothing but these
    assert chance.noise.position == 0
    assert training.noise.position > 0
    assert ROUNDING not in ("update", "choice", "mask")


def test_terms_without_the_key_send_float32(tmp_path: Path) -> None:
    reply = ask(make_site(tmp_path), plain_terms())
    assert wire.read_update(reply.content, SIZE).shape == (SIZE,)


@pytest.mark.parametrize("form", FORMS)
def test_another_form_than_the_terms_is_no_update(tmp_path: Path, form: Form) -> None:
    reply = ask(make_site(tmp_path), terms_of(upload=form))
    assert wire.read_update(reply.content, SIZE, form=form).shape == (SIZE,)
    for other in {"float32", *FORMS} - {form}:
        with pytest.raises(wire.WireError, match="type or shape"):
            wire.read_update(reply.content, SIZE, form=other)
    array = reply.content["update"]["update"]
    for change in ({"stype": "numpy.ndarray"}, {"shape": (SIZE + 1,)}, {"dtype": "uint8"}):
        fields = {"dtype": array.dtype, "shape": array.shape, "stype": array.stype}
        changed = type(array)(**{**fields, **change}, data=array.data)
        reply.content["update"]["update"] = changed
        with pytest.raises(wire.WireError, match="type or shape"):
            wire.read_update(reply.content, SIZE, form=form)


# --- refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_updates_without_noise_are_not_rounded(tmp_path: Path, form: Form) -> None:
    """The server's noise is made for a length that rounding would exceed."""
    terms = terms_of(upload=form, noise="server", delta=1e-6)
    with pytest.raises(TermsError, match=r"'upload'.*'float32', or take 'noise'"):
        check_up_front(terms)
    profile = make_site(tmp_path)
    profile.write_text("trust-server = true\n" + profile.read_text())
    reply = ask(profile, terms)
    assert reply.has_error() and reply.error.code == wire.DECLINED
    assert ask(profile, terms.updated(upload="float32")).has_content()


def test_one_number_of_a_rounded_update_is_declined(tmp_path: Path) -> None:
    terms = terms_of()
    content = wire.write_instructions(terms, 1, model_of(terms), wire.WHOLE)
    reply = send({"profile": str(make_site(tmp_path))}, wire.TRAIN, content)
    assert reply.has_error() and reply.error.code == wire.DECLINED


@pytest.mark.parametrize("key", ["upload", "download"])
def test_the_form_does_not_change_within_a_run(tmp_path: Path, key: str) -> None:
    profile, terms = make_site(tmp_path), plain_terms(model="mlp:40")
    assert ask(profile, terms).has_content()
    changed = terms.updated(**{key: "int8"})
    model = rounded_model(terms, "int8") if key == "download" else model_of(terms)
    content = wire.write_instructions(changed, 2, model)
    reply = send({"profile": str(profile)}, wire.TRAIN, content)
    assert reply.has_error() and reply.error.code == wire.DECLINED


# --- the other direction ------------------------------------------------------------------------


def rounded_model(terms: RunTerms, form: Form) -> ArrayRecord:
    return wire.round_model(model_in(terms, 2), form, np.random.default_rng(3).bytes)


def train_on(profile: Path, terms: RunTerms, model: ArrayRecord) -> Message:
    content = wire.write_instructions(terms, 1, model)
    return send({"profile": str(profile)}, wire.TRAIN, content)


@pytest.mark.parametrize("form", FORMS)
def test_a_site_trains_from_the_model_that_it_reads(
    tmp_path: Path, form: Form, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[np.ndarray] = []
    train = trainer.train

    def noting(engine: Any, start: np.ndarray, *given: Any, **more: Any) -> Any:
        starts.append(start.copy())
        return train(engine, start, *given, **more)

    monkeypatch.setattr(trainer, "train", noting)
    terms = plain_terms(download=form, model="mlp:40")
    model = rounded_model(terms, form)
    assert train_on(make_site(tmp_path), terms, model).has_content()
    parts = [
        read_rounded(bytes(array.data), int(np.prod(array.shape)), form) for array in model.values()
    ]
    np.testing.assert_array_equal(starts[0], np.concatenate(parts))
    exact = flatten(wire.read_own(model_in(terms, 2)))
    assert 0 < np.abs(starts[0] - exact).max() < 2**-6 * np.abs(exact).max()


def longer(array: Any) -> Any:
    return type(array)(array.dtype, array.shape, array.stype, array.data + b"\0")


def of_another_kind(array: Any) -> Any:
    return type(array)("uint8", array.shape, array.stype, array.data)


def turned(array: Any) -> Any:
    return type(array)(array.dtype, tuple(reversed(array.shape)), array.stype, array.data)


def with_a_wild_scale(array: Any) -> Any:
    return type(array)(array.dtype, array.shape, array.stype, b"\xc0\x7f" + array.data[2:])


@pytest.mark.parametrize("change", [longer, of_another_kind, turned, with_a_wild_scale])
@pytest.mark.parametrize("form", FORMS)
def test_a_malformed_rounded_model_costs_nothing(
    tmp_path: Path, form: Form, change: Callable[[Any], Any]
) -> None:
    terms = plain_terms(download=form, model="mlp:40")
    profile, model = make_site(tmp_path), rounded_model(terms, form)
    name = next(iter(model))
    broken = ArrayRecord({**model, name: change(model[name])})
    reply = train_on(profile, terms, broken)
    assert reply.has_error() and reply.error.code == wire.FAILED
    assert not [data for data in sealed(profile) if len(data) > 600]
    for model_of_another_form in (model_in(terms, 2), rounded_model(terms, other_than(form))):
        assert train_on(profile, terms, model_of_another_form).has_error()
    assert train_on(profile, terms, model).has_content()


def other_than(form: Form) -> Form:
    return "int8" if form == "bfloat16" else "bfloat16"


def test_a_rounded_model_may_not_take_more_memory_than_the_policy_allows(tmp_path: Path) -> None:
    """Four times what is sent: of many models each may be small enough."""
    profile = make_site(tmp_path, more="[policy]\nmax-payload-mb = 0.002\n")
    terms = plain_terms(download="int8", model="mlp:40", choice="gaussian times=1", rounds=10)
    model = rounded_model(terms, "int8")
    content = wire.write_instructions(terms, 1, model, others=[model] * 3, use=wire.CHOOSE)
    assert wire.content_bytes(content) - len(terms.to_json()) < 2000
    reply = send({"profile": str(profile)}, wire.TRAIN, content)
    assert reply.has_error() and reply.error.code == wire.DECLINED
    assert train_on(profile, terms, model).has_content()


def test_a_test_and_the_end_of_a_run_take_the_model_itself(tmp_path: Path) -> None:
    profile = make_site(tmp_path, disclose='["metrics"]', holdout=0.25)
    terms = plain_terms(download="int8", model="mlp:40", evaluation="sites")
    assert train_on(profile, terms, rounded_model(terms, "int8")).has_content()
    for kind in (wire.EVALUATE, wire.FINISH):
        for form in ("int8", "float32"):
            model = model_in(terms, 2) if form == "float32" else rounded_model(terms, "int8")
            content = wire.write_instructions(terms, 1, model)
            reply = send({"profile": str(profile)}, kind, content)
            assert reply.has_content() == (form == "float32"), kind


def test_a_mask_leaves_zeros_that_rounding_keeps(tmp_path: Path) -> None:
    terms = terms_of(model="mlp:40", work="joint mask=global-magnitude share=0.25")
    task = task_for(terms)
    arrays = select(arrays_of(build_model(terms.model, task, 1)), terms.model, task, "body")
    content = wire.write_instructions(terms, 1, wire.write_model(arrays))
    reply = send({"profile": str(make_site(tmp_path))}, wire.TRAIN, content)
    update = wire.read_update(reply.content, 120, form="int8")
    largest = np.abs(flatten(arrays)) >= np.sort(np.abs(flatten(arrays)))[-30]
    assert not update[~largest].any()
    assert np.count_nonzero(update) > 20

"""Deployed sites with arrays or images: by the terms alone, and by no path or module of theirs."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch

from client_app.site.site import Site
from client_app.training import plain_sgd, trainer
from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_tools.simulation.own_data import source
from tests.client_app.messages import CLIENT_NOISE, ask, make_site, model_of, send, terms_of

STATED = {"schema": "", "task": {"kind": "classification", "shape": "1,4,4", "classes": 3}}
SECRET = 0.123456789


def npz_site(folder: Path, **arrays: np.ndarray) -> Path:
    """Write the site of :func:`make_site` with arrays in place of its table."""
    profile = make_site(folder)
    text = profile.read_text().replace('"csv"', '"npz"').replace("records.csv", "records.npz")
    profile.write_text(text)
    draws = np.random.default_rng(0)
    x = draws.normal(size=(61, 1, 4, 4))
    x[0, 0, 0, 0] = SECRET
    np.savez(folder / "records.npz", **{"x": x, "y": np.arange(61) % 3, **arrays})  # type: ignore[arg-type]
    return profile


@pytest.mark.parametrize("model", ["logreg", "mlp:8", "cnn"])
def test_a_site_trains_on_its_arrays(tmp_path: Path, model: str) -> None:
    profile = npz_site(tmp_path)
    reply = ask(profile, terms_of(**STATED, model=model))
    assert not reply.has_error()


def test_a_site_trains_on_its_images(tmp_path: Path) -> None:
    from PIL import Image

    profile = make_site(tmp_path)
    text = profile.read_text().replace('"csv"', '"images"').replace("records.csv", "images")
    profile.write_text(text)
    for label in range(3):
        folder = tmp_path / "images" / str(label)
        folder.mkdir(parents=True)
        for number in range(4):
            pixels = np.full((6, 6), 40 * label + number, np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")
    terms = terms_of(**STATED)
    assert len(Site(Profile.load(profile), terms).training_records()) == 12
    assert not ask(profile, terms).has_error()


@pytest.mark.parametrize(
    "arrays",
    [{"x": np.full((61, 3), SECRET)}, {"y": np.full((61, 2), SECRET)}, {"y": np.array(["?"])}],
)
def test_other_shapes_end_in_one_line_without_a_value(
    tmp_path: Path, arrays: dict[str, np.ndarray], caplog: pytest.LogCaptureFixture
) -> None:
    profile = npz_site(tmp_path, **arrays)
    with caplog.at_level(logging.DEBUG):
        reply = ask(profile, terms_of(**STATED))
    assert reply.has_error()
    assert "'x' of shape (n, 1, 4, 4)" in caplog.text
    for private in (str(SECRET)[:6], "?", "61"):
        assert private not in caplog.text + reply.error.reason


@pytest.mark.parametrize("labels", [np.arange(61) + 3, np.full(61, np.nan)])
def test_labels_outside_of_the_classes_stop_no_run(tmp_path: Path, labels: np.ndarray) -> None:
    """A run that stopped there would disclose records: each of them is left out, alone."""
    profile = npz_site(tmp_path, y=labels)
    assert not Site(Profile.load(profile), terms_of(**STATED)).training_records().targets.size
    assert not ask(profile, terms_of(**STATED)).has_error()


@pytest.mark.parametrize("more", ["", "[simulation]\nseed = 1\n"])
@pytest.mark.parametrize("dataset", ["file:{}/own.npz", "module_of_the_server:load"])
def test_a_deployed_site_opens_and_imports_nothing_that_terms_name(
    tmp_path: Path,
    dataset: str,
    more: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    used: list[object] = []
    monkeypatch.setattr(source.np, "load", lambda *args, **_: used.append(args))
    monkeypatch.setattr(source, "load_own", lambda *args: used.append(args))
    profile = make_site(tmp_path, more=more)
    np.savez(tmp_path / "own.npz", x=np.zeros((5, 1, 4, 4)), y=np.arange(5) % 3)
    terms = terms_of(**STATED, dataset=dataset.format(tmp_path), model="logreg")
    content = server_wire.write_instructions(terms, 1, model_of(terms))
    node = {"profile": str(profile), "partition-id": 0, "num-partitions": 1}
    with caplog.at_level(logging.DEBUG):
        reply = send(node, wire.TRAIN, content)
    assert reply.has_error()
    assert reply.error.code == wire.DECLINED
    assert used == []
    assert "a deployed run must set 'dataset' to site" in caplog.text


def test_a_simulated_site_in_process_reads_it(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=np.zeros((50, 1, 4, 4)), y=np.arange(50) % 3)
    config = {**STATED, "dataset": f"file:{tmp_path}/own.npz", "evaluation": "none"}
    terms = terms_of(**config, **{"run-id": "own-records"})
    content = server_wire.write_instructions(terms, 1, model_of(terms))
    reply = send({"partition-id": 0, "num-partitions": 2}, wire.TRAIN, content, in_process=True)
    assert not reply.has_error(), reply.error.reason


# --- lack of memory: the site declines before a release is reserved, and says what to lower


@pytest.mark.parametrize(
    ("noise", "key", "error"),
    [
        ("records", "physical-batch", torch.OutOfMemoryError("CUDA out of memory")),
        ("records", "physical-batch", RuntimeError("[enforce] can't allocate memory: 5 bytes")),
        ("client", "batch-size", torch.OutOfMemoryError("CUDA out of memory")),
    ],
)
def test_a_batch_that_does_not_fit_is_declined_before_it_is_paid_for(
    noise: str, key: str, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    def full(*_: object) -> None:
        raise error

    monkeypatch.setattr(trainer, "rehearse", full)
    monkeypatch.setattr(plain_sgd.Network, "rehearse", full)
    profile = make_site(tmp_path, more=CLIENT_NOISE)
    reply = ask(profile, terms_of(noise=noise, strategy="fedavg"))
    assert reply.has_error() and reply.error.code == wire.DECLINED
    assert f"lower 'training.{key}'" in caplog.text
    assert Ledger(tmp_path / "ledger.sqlite").account().spent() == (0.0, 0.0)

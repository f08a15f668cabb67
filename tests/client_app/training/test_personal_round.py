"""A round of a site that keeps a part of its model: what is sent, what stays, and when it is saved.

Statistical checks reject right code with probability :data:`FALSE_ALARM`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from client_app.site.personal_state import kept_state_path, load_state
from client_app.work import TRAINING
from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.engines import dpsgd
from hdpfl_flower.engines.dpsgd import Phase
from hdpfl_flower.engines.engine_choice import engine_for
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.ledger.site_ledger import SiteLedger
from hdpfl_flower.models.networks import arrays_of, build_model, flatten
from hdpfl_flower.models.parts import select
from hdpfl_flower.models.task import Records
from hdpfl_flower.privacy.noise import ReleaseStreams
from hdpfl_flower.work import KINDS, Alternate, Plain
from hdpfl_tools.simulation import sites as simulated
from hdpfl_tools.simulation.drawn_records import simulated_records
from hdpfl_tools.simulation.sites import close_ledgers
from tests.client_app.dying import dying
from tests.client_app.messages import config_of, make_site, send
from tests.client_app.training.parted_site import PARTED, SITES, PartedSite, parted

FALSE_ALARM = 1e-6
STRICT = {"epsilons": "0.02"}
"""Noise beside which no gradient is seen."""


@pytest.fixture(autouse=True)
def close() -> Iterator[None]:
    yield
    close_ledgers()


def records_of(site: PartedSite) -> Records:
    return simulated_records(site.config, 0, SITES)[0]


# What is sent, and what stays.


@pytest.mark.parametrize("case", ["fedper", "lg-fedavg", "fedrep", "fedbabu"])
def test_a_round_is_that_of_the_whole_model_and_the_part_stays(tmp_path: Path, case: str) -> None:
    """Two rounds, written out by hand with the same noise."""
    site = parted(tmp_path, case)
    terms, parts, task = site.terms, site.parts, task_for(site.terms)
    own, sent = parts.of(terms.work.own_part), parts.of(terms.work.sent_part)
    phases = {
        "fedper": (Phase(4, slice(0, parts.size)),),
        "lg-fedavg": (Phase(4, slice(0, parts.size)),),
        "fedrep": (Phase(1, own), Phase(3, sent)),
        "fedbabu": (Phase(4, sent),),
    }[case]
    part = flatten(arrays_of(build_model(terms.model, task, seed=0)))[own]
    assert not site.path.exists()
    for server_round in (1, 2):
        whole = np.empty(parts.size, np.float32)
        whole[own], whole[sent] = part, site.shared(server_round)
        expected = dpsgd.train(
            engine_for(terms.model, task, "auto", "cpu"), whole, records_of(site),
            site.plan.round(server_round, terms.clip_norm), terms.learning_rate,
            ReleaseStreams.simulated(5, "0", server_round, "update"), 256, phases=phases,
        )  # fmt: skip
        np.testing.assert_array_equal(site.ask(server_round), expected[sent])
        part = part + expected[own]
        np.testing.assert_array_equal(site.state.part, part)
        assert (site.state.server_round, site.state.rounds) == (server_round, server_round)
    assert (case == "fedbabu") == (not expected[own].any())
    assert site.state.first_round == 1


def test_every_kind_of_local_work_has_its_training() -> None:
    assert set(TRAINING) | {Plain} == set(KINDS.values())
    assert all(kind.kind == name for name, kind in KINDS.items())


@pytest.mark.parametrize("case", ["ppsgd", "ppsgd-head"])
def test_an_offset_moves_by_the_update_that_was_sent(tmp_path: Path, case: str) -> None:
    part = {} if case == "ppsgd" else {"of": "head"}
    site = parted(tmp_path, case, work={"rate": 0.5, **part})
    moved, offset = slice(0, site.size), np.zeros(site.size, np.float32)
    if case == "ppsgd-head":
        moved = site.parts.head
    for server_round in (1, 2):
        update = site.ask(server_round)  # first: it sets torch's threads
        expected = dpsgd.train(
            engine_for(site.terms.model, task_for(site.terms), "auto", "cpu"),
            site.shared(server_round) + offset, records_of(site),
            site.plan.round(server_round, 1.0), 0.5,
            ReleaseStreams.simulated(5, "0", server_round, "update"), 256,
        )  # fmt: skip
        np.testing.assert_array_equal(update, expected)
        offset[moved] += np.float32(0.5) * update[moved]
        np.testing.assert_array_equal(site.state.part, offset)


@pytest.mark.parametrize("case", PARTED)
def test_a_record_outside_of_all_batches_shifts_the_shared_update_by_exactly_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """A part that is trained on all records between releases moves every other gradient."""
    first = parted(tmp_path / "first", case)
    records = records_of(first)
    drawn = {number: first.drawn(number, len(records)) for number in (1, 2)}
    outside = set(range(len(records))) - drawn[1] - drawn[2]
    assert len(outside) > 50
    inside = first.drawn(1, len(records), ("update",))
    updates = [first.ask(number) for number in (1, 2)]
    state = first.path.read_bytes()

    def ask_with_another(row: int, folder: Path) -> tuple[list[np.ndarray], bytes]:
        features, targets = records.features.copy(), records.targets.copy()
        features[row], targets[row] = 1.0 - features[row], (targets[row] + 1) % 10
        other = Records(features, targets)
        monkeypatch.setattr(simulated, "simulated_records", lambda *_: (other, None))
        site = parted(folder, case)
        return [site.ask(number) for number in (1, 2)], site.path.read_bytes()

    found, own = ask_with_another(min(outside), tmp_path / "outside")
    for update, other in zip(updates, found, strict=True):
        assert np.abs(update - other).max() == 0.0
    assert own == state
    close_ledgers()
    found, own = ask_with_another(min(inside), tmp_path / "inside")
    assert any(np.any(update != other) for update, other in zip(updates, found, strict=True))


# Noise.


def check_noise(site: PartedSite, update: np.ndarray, steps: int, factor: float = 1.0) -> None:
    """Each coordinate that is sent has the noise of that many steps; masks leave a share out."""
    terms, sent = site.terms, update
    if not terms.work.sends_every_coordinate:
        sent = update[update != 0]
        assert len(sent) == math.ceil(terms.work.share * len(update))
    assert sent.all(), "a coordinate is sent without noise"
    plan = site.plan.round(1, terms.clip_norm)
    std = factor * math.sqrt(steps) * terms.learning_rate * plan.noise_std / plan.divisor
    values, d = sent / std, len(sent)
    low, high = stats.chi2(d).isf([1 - FALSE_ALARM / 2, FALSE_ALARM / 2]) / d
    assert low < np.mean(values**2) < high
    assert stats.kstest(values, "norm").pvalue > FALSE_ALARM


def shared_steps(site: PartedSite) -> int:
    """Return the steps of a round that train what is sent."""
    work = site.terms.work
    return 4 - (work.own_steps or 2) if isinstance(work, Alternate) else 4


@pytest.mark.parametrize("case", PARTED)
def test_every_sent_coordinate_has_the_noise_of_its_steps(tmp_path: Path, case: str) -> None:
    site = parted(tmp_path, case, **STRICT)
    if case == "dsu":
        site.ask(1)
    update = site.ask(2)
    check_noise(site, update, shared_steps(site))
    for factor in (0.5, 2.0):
        with pytest.raises(AssertionError):
            check_noise(site, update, shared_steps(site), factor)


@pytest.mark.parametrize("case", ["fedper", "lg-fedavg", "fedrep"])
def test_every_coordinate_that_stays_has_the_noise_of_its_steps(tmp_path: Path, case: str) -> None:
    """Else the gradients that follow would show the records behind it."""
    site = parted(tmp_path, case, **STRICT)
    task = task_for(site.terms)
    own = site.parts.of(site.terms.work.own_part)
    before = flatten(arrays_of(build_model("mlp:10", task, seed=0)))[own]
    site.ask(1)
    moved = site.state.part - before
    steps = 1 if case == "fedrep" else 4
    check_noise(site, moved, steps)
    with pytest.raises(AssertionError):
        check_noise(site, moved, steps, 2.0)


# Masks.


def overlap_bounds(site: PartedSite) -> tuple[float, float]:
    """Return between what two independent masks agree, as a number of coordinates."""
    d, kept = site.size, math.ceil(site.terms.work.share * site.size)
    low, high = stats.hypergeom(d, kept, kept).isf([1 - FALSE_ALARM / 2, FALSE_ALARM / 2])
    return float(low), float(high)


@pytest.mark.parametrize("case", ["dsu top-k", "dsu random"])
def test_a_mask_has_noise_of_its_own_in_each_round(tmp_path: Path, case: str) -> None:
    """Beside much noise two rounds' masks agree by chance; clean weights' would be the same."""
    site = parted(tmp_path, case, **STRICT)
    model = site.shared(1)
    one, other = (site.ask(number, model) != 0 for number in (1, 2))
    low, high = overlap_bounds(site)
    assert low <= int(np.sum(one & other)) <= high


def test_the_published_mask_is_found_by_the_same_check(tmp_path: Path) -> None:
    """Which coordinates are sent shows the clean weights, whatever the noise on them is."""
    site = PartedSite(tmp_path, strategy="dsu-published", **STRICT)
    model = site.shared(1)
    one, other = (site.ask(number, model) != 0 for number in (1, 2))
    assert int(np.sum(one & other)) > 1.3 * overlap_bounds(site)[1]


def test_the_mask_of_noisy_updates_is_of_what_was_sent_before(tmp_path: Path) -> None:
    site = parted(tmp_path, "dsu", **STRICT)
    first, second = site.ask(1), site.ask(2)
    assert first.all(), "in its first round a site has no noisy update to choose by"
    largest = np.sort(np.argsort(-np.abs(first))[: math.ceil(0.3 * site.size)])
    np.testing.assert_array_equal(np.flatnonzero(second), largest)
    third = site.ask(3)
    largest = np.sort(np.argsort(-np.abs(first + second))[: math.ceil(0.3 * site.size)])
    np.testing.assert_array_equal(np.flatnonzero(third), largest)


def test_the_mask_of_the_global_magnitude_is_of_the_message_alone(tmp_path: Path) -> None:
    site = parted(tmp_path, "dsu global")
    update = site.ask(1)
    largest = np.sort(np.argsort(-np.abs(site.shared(1)))[: math.ceil(0.5 * site.size)])
    np.testing.assert_array_equal(np.flatnonzero(update), largest)


def test_a_mask_beside_joint_steps_leaves_the_own_part_as_it_is(tmp_path: Path) -> None:
    """The head was set to 0 before: the mask is of the shared coordinates."""
    site = parted(tmp_path, "fedper", work={"kind": "joint", "mask": "random"})
    site.ask(1)
    head = site.state.part
    assert head is not None
    first = flatten(arrays_of(build_model("mlp:10", task_for(site.terms), seed=0)))
    assert np.mean(head != first[site.parts.head]) > 0.9, "it is not trained"
    assert np.corrcoef(head, first[site.parts.head])[0, 1] > 0.05


# When it is saved.


@pytest.mark.parametrize("case", PARTED)
def test_a_repeated_answer_leaves_the_part(tmp_path: Path, case: str) -> None:
    site = parted(tmp_path, case)
    _, second = site.ask(1), site.ask(2)
    state = site.path.read_bytes()
    np.testing.assert_array_equal(site.ask(2), second)
    assert site.path.read_bytes() == state


def test_simulations_remake_unstored_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, broken = parted(tmp_path / "a", "fedrep"), parted(tmp_path / "b", "fedrep")
    for number in (1, 2):
        whole.ask(number)
    broken.ask(1)
    with dying(monkeypatch, "client_app.work.base.save_state"):
        broken.message(2)
    assert broken.state.server_round == 1
    broken.ask(2)
    np.testing.assert_array_equal(broken.state.part, whole.state.part)


PARTED_MODEL: dict[str, Any] = {"model": "mlp:4", "work": {"kind": "joint"}, "run-id": "run-1"}


def real(profile: Path, terms: RunTerms, server_round: int = 1) -> Any:
    """Send one round's message to a production site."""
    task = task_for(terms)
    arrays = arrays_of(build_model(terms.model, task, 1))
    model = server_wire.write_model(select(arrays, terms.model, task, terms.work.sent_part))
    return send(
        {"profile": str(profile)},
        wire.TRAIN,
        server_wire.write_instructions(terms, server_round, model),
    )


def test_a_round_is_saved_after_its_seal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The part would hold what no ledger knows of, and the next round would show it."""
    profile, terms = make_site(tmp_path), config_of(**PARTED_MODEL).terms
    path = kept_state_path(tmp_path / "state", terms)
    seen = []

    def seal(*_: object) -> None:
        seen.append(path.exists())
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(SiteLedger, "seal", seal)
        assert real(profile, terms).has_error()
    assert seen == [False]
    assert not path.exists()
    # The round is lost; the next one begins with the public part.
    assert real(profile, terms, 2).has_content()
    state = load_state(path)
    assert (state.server_round, state.rounds, state.first_round) == (2, 1, 2)


def test_a_real_site_answers_again_with_the_same_bytes_and_the_same_part(tmp_path: Path) -> None:
    profile, terms = make_site(tmp_path), config_of(**PARTED_MODEL).terms
    path = kept_state_path(tmp_path / "state", terms)
    replies = []
    for _ in range(2):
        replies.append(real(profile, terms).content["update"]["update"].data)
        part = load_state(path)
        replies.append(path.read_bytes())
    assert replies[:2] == replies[2:]
    assert part.part is not None
    assert oct(path.parent.stat().st_mode)[-3:] == "700"


def test_a_real_site_remakes_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile, terms = make_site(tmp_path), config_of(**PARTED_MODEL).terms
    path = kept_state_path(tmp_path / "state", terms)
    with dying(monkeypatch, "client_app.work.base.save_state"):
        real(profile, terms)
    assert real(profile, terms).has_content()
    assert not path.exists(), "new noise for the same round would be another release"


@pytest.mark.parametrize(
    ("terms", "profile", "words"),
    [
        ({}, '[state]\npath = "state"', "[state] is missing"),
        (
            {"work": {"kind": "joint", "mask": "published"}},
            "",
            "'work.mask' = 'published' releases",
        ),
        ({"work": {"mask": "random"}}, "", "settings of a kind, but no strategy names one"),
        ({"model": "logreg"}, "", "would leave nothing to share"),
    ],
)
def test_what_a_site_cannot_do_is_declined_before_anything_is_charged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, terms: Any, profile: str, words: str
) -> None:
    path = make_site(tmp_path)
    path.write_text(path.read_text().replace(profile, ""))
    asked = config_of(**{**PARTED_MODEL, **terms}).terms
    task = task_for(asked)
    model = server_wire.write_model(arrays_of(build_model(asked.model, task, 1)))
    reply = send(
        {"profile": str(path)}, wire.TRAIN, server_wire.write_instructions(asked, 1, model)
    )
    assert reply.has_error()
    assert words in caplog.text
    account = Ledger(tmp_path / "ledger.sqlite").account()
    assert not account.releases
    assert account.spent() == (0.0, 0.0)


def test_another_models_part_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    site = parted(tmp_path, "fedper")
    site.ask(1)
    site.path.write_bytes(_of_another_size(site.path))
    assert site.message(2).has_error()
    assert f"{site.path} does not fit the run's model; remove it" in caplog.text
    site.path.write_bytes(b"no tensors")
    assert site.message(2).has_error()
    assert "is damaged; restore it, or remove it" in caplog.text


def _of_another_size(path: Path) -> bytes:
    from safetensors import safe_open
    from safetensors.numpy import save

    with safe_open(path, framework="numpy") as file:
        return save({"part": file.get_tensor("part")[:-1]}, file.metadata())

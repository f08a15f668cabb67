"""One number in place of an update: of the noisy update, along the step that the server names."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message, RecordDict

from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.linalg.step_direction import Direction
from hdpfl_flower.models.networks import flatten
from tests.client_app.messages import Projecting, config_of, make_site, model_in, send, terms_of

NODE = {"partition-id": 0, "num-partitions": 4}


def digest(terms: RunTerms, server_round: int) -> str:
    return wire.model_digest(model_in(terms, server_round))


def flat(record: ArrayRecord) -> np.ndarray:
    return flatten({name: array.numpy() for name, array in record.items()})


def payload(reply: Message) -> bytes:
    assert reply.has_content(), reply.error
    return reply.content["update"]["update"].data  # type: ignore[no-any-return,index,union-attr,call-overload]


def numbers(reply: Message, size: int = 3) -> np.ndarray:
    return server_wire.read_update(reply.content, size, may_be_projected=True)


class Simulated:
    """A simulated site on digits: the same round gets the same noise, whatever is sent of it."""

    size = 650

    def __init__(self, folder: Path, run_id: str) -> None:
        config = {"run-id": run_id, "runs-dir": str(folder), "epsilons": "3", "local-steps": 3}
        self.config = config_of(dataset="digits", schema="", **config)
        self.terms, self.memory = self.config.terms, RecordDict()

    def ask(self, server_round: int, project: str | None) -> np.ndarray:
        model = model_in(self.terms, server_round)
        content = server_wire.write_instructions(self.terms, server_round, model, project)
        reply = send(
            NODE, wire.TRAIN, content, in_process=True, memory=self.memory, config=self.config
        )
        return numbers(reply, self.size)


def test_the_number_is_of_the_noisy_update(tmp_path: Path) -> None:
    whole, projected = Simulated(tmp_path, "whole"), Simulated(tmp_path, "projected")
    np.testing.assert_array_equal(projected.ask(1, server_wire.WHOLE), whole.ask(1, None))
    update = whole.ask(2, None)
    number = projected.ask(2, digest(whole.terms, 1))
    models = [flat(model_in(whole.terms, number)) for number in (1, 2)]
    direction = Direction.between(models[0], models[1])
    assert direction is not None
    np.testing.assert_array_equal(number, direction.project(update))
    assert len(whole.memory) == 0, "a model is kept where that is asked for alone"


def test_a_simulated_site_that_is_asked_twice_sends_the_same_bytes(tmp_path: Path) -> None:
    site = Simulated(tmp_path, "twice")
    site.ask(1, server_wire.WHOLE)
    project = digest(site.terms, 1)
    first = site.ask(2, project)
    np.testing.assert_array_equal(site.ask(2, project), first)
    assert len(first) == 1


def test_one_number_is_sealed_and_the_same_request_gets_the_same_bytes(tmp_path: Path) -> None:
    profile, ask = make_site(tmp_path), Projecting()
    assert len(numbers(ask(profile, terms_of(), 1))) == 3
    first = ask(profile, terms_of(), 2)
    assert len(numbers(first)) == 1
    assert payload(ask(profile, terms_of(), 2)) == payload(first)
    ask.memory = RecordDict()  # the node was restarted
    assert payload(ask(profile, terms_of(), 2)) == payload(first)
    account = Ledger(tmp_path / "ledger.sqlite").account()
    release = account.releases[("run-1", 2, "update")]
    assert release.payload_digest == hashlib.sha256(payload(first)).hexdigest()
    assert account.spent() == (1.2345678, 1e-6)


def test_another_direction_for_a_round_that_was_answered_is_declined(tmp_path: Path) -> None:
    profile, ask, terms = make_site(tmp_path), Projecting(), terms_of()
    for number in (1, 2):
        ask(profile, terms, number)
    for project in (None, server_wire.WHOLE, "0" * 64):
        content = server_wire.write_instructions(terms, 2, model_in(terms, 2), project)
        reply = send({"profile": str(profile)}, wire.TRAIN, content, memory=ask.memory)
        assert reply.has_error()
        assert reply.error.code == wire.DECLINED


@pytest.mark.parametrize("named", [1, 3, 4])
def test_a_model_that_is_not_the_last_one_gives_no_direction(tmp_path: Path, named: int) -> None:
    """Round 3 is asked about; the models of rounds 2 and 3 are kept, that of round 1 no more."""
    profile, ask, terms = make_site(tmp_path), Projecting(), terms_of()
    for number in (1, 2):
        ask(profile, terms, number)
    content = server_wire.write_instructions(terms, 3, model_in(terms, 3), digest(terms, named))
    reply = send({"profile": str(profile)}, wire.TRAIN, content, memory=ask.memory)
    assert len(numbers(reply)) == 3
    kept = [record for record in ask.memory.values() if isinstance(record, ArrayRecord)]
    assert {wire.model_digest(record) for record in kept} == {digest(terms, 2), digest(terms, 3)}


def test_a_site_that_missed_a_round_sends_its_update_whole_once(tmp_path: Path) -> None:
    profile, ask, terms = make_site(tmp_path), Projecting(), terms_of(rounds=4)
    lengths = [len(numbers(ask(profile, terms, number))) for number in (1, 3, 4)]
    assert lengths == [3, 3, 1]


def test_a_round_that_changed_nothing_is_not_taken_for_a_step(tmp_path: Path) -> None:
    """The server had no quorum and sends the same model again, and names the same one before."""
    profile, ask, terms = make_site(tmp_path), Projecting(), terms_of()
    for number in (1, 2):
        ask(profile, terms, number)
    content = server_wire.write_instructions(terms, 3, model_in(terms, 2), digest(terms, 1))
    reply = send({"profile": str(profile)}, wire.TRAIN, content, memory=ask.memory)
    assert len(numbers(reply)) == 1


def test_a_restarted_node_sends_its_update_whole(tmp_path: Path) -> None:
    profile, ask = make_site(tmp_path), Projecting()
    ask(profile, terms_of(), 1)
    ask.memory = RecordDict()
    assert len(numbers(ask(profile, terms_of(), 2))) == 3


def wrong_models(terms: RunTerms) -> dict[str, ArrayRecord]:
    good = {name: array.numpy() for name, array in model_in(terms, 1).items()}
    return {
        "NaN": server_wire.write_model({name: array * np.nan for name, array in good.items()}),
        "larger": server_wire.write_model({name: np.zeros(99, np.float32) for name in good}),
    }


@pytest.mark.parametrize("case", ["NaN", "larger"])
def test_a_model_that_is_refused_is_not_kept(tmp_path: Path, case: str) -> None:
    profile, terms, memory = make_site(tmp_path), terms_of(), RecordDict()
    content = server_wire.write_instructions(terms, 1, wrong_models(terms)[case], server_wire.WHOLE)
    reply = send({"profile": str(profile)}, wire.TRAIN, content, memory=memory)
    assert reply.error.code == wire.FAILED
    assert len(memory) == 0


def test_a_kept_model_of_another_layout_is_refused_and_costs_nothing(tmp_path: Path) -> None:
    profile, ask = make_site(tmp_path), Projecting()
    other = terms_of(model="mlp:2", **{"run-id": "run-0"})
    ask(profile, other, 1)
    content = server_wire.write_instructions(
        terms_of(), 2, model_in(terms_of(), 2), digest(other, 1)
    )
    reply = send({"profile": str(profile)}, wire.TRAIN, content, memory=ask.memory)
    assert reply.error.code == wire.FAILED
    assert Ledger(tmp_path / "ledger.sqlite").account().spent() == (1.2345678, 1e-6)


def test_what_lies_in_the_memory_is_not_trusted(tmp_path: Path) -> None:
    """Another app's records under our keys: no model there, so no direction."""
    profile, ask, terms = make_site(tmp_path), Projecting(), terms_of()
    ask(profile, terms, 1)
    foreign: dict[str, Any] = {key: ArrayRecord() for key in ask.memory}
    ask.memory = RecordDict(foreign)
    assert len(numbers(ask(profile, terms, 2))) == 3

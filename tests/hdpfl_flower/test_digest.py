"""The digest by which a site knows a request covers everything that is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord

from hdpfl_flower import wire
from hdpfl_flower.config.terms import RunTerms
from tests.client_app.messages import make_site, model_in, send, terms_of


def model(number: float) -> ArrayRecord:
    return wire.write_model({"w": np.full((2, 3), number, np.float32)})


def digest(terms: RunTerms, server_round: int, first: ArrayRecord, **more: Any) -> str:
    content = wire.write_instructions(terms, server_round, first, **more)
    return wire.read_instructions(content).digest


TERMS = RunTerms()
PLAIN: dict[str, Any] = {
    "terms": TERMS,
    "server_round": 2,
    "first": model(1),
    "project": wire.WHOLE,
}
ONE = {**PLAIN, "others": [model(2)], "use": wire.CHOOSE}
TWO = {**PLAIN, "others": [model(2), model(3)], "use": wire.CHOOSE}
REQUESTS = {
    "as it is": PLAIN,
    "other terms": {**PLAIN, "terms": RunTerms(rounds=3)},
    "another round": {**PLAIN, "server_round": 1},
    "another model": {**PLAIN, "first": model(2)},
    "another projection": {**PLAIN, "project": "0" * 64},
    "no projection": {**PLAIN, "project": None},
    "a choice of two": ONE,
    "a pull towards the second": {**ONE, "use": wire.PULL},
    "an offset by the second": {**ONE, "use": wire.OFFSET},
    "a choice of another second": {**ONE, "others": [model(3)]},
    "a choice of three": TWO,
    "the same three, in another order": {**TWO, "others": [model(3), model(2)]},
}


def test_whatever_is_asked_differently_has_another_digest() -> None:
    digests = {name: digest(**request) for name, request in REQUESTS.items()}
    again = {name: digest(**request) for name, request in REQUESTS.items()}
    assert again == digests
    assert len(set(digests.values())) == len(REQUESTS), digests


@pytest.mark.parametrize("first", [wire.CHOOSE, wire.PULL, wire.OFFSET])
def test_the_same_models_for_another_use_are_another_request(tmp_path: Path, first: str) -> None:
    """A site that answered one does not answer the other: one request, one payload."""
    terms, profile = terms_of(choice="gaussian times=1"), make_site(tmp_path)
    replies = []
    uses = [wire.CHOOSE, wire.PULL, wire.OFFSET]
    for use in (first, first, uses[uses.index(first) - 1]):
        content = wire.write_instructions(
            terms, 1, model_in(terms, 1), others=[model_in(terms, 2)], use=use
        )
        replies.append(send({"profile": str(profile)}, wire.TRAIN, content))
    assert [reply.has_content() for reply in replies] == [True, True, False]
    assert replies[-1].error.code == wire.DECLINED

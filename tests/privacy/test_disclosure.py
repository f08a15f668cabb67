"""What a site says of itself is what its profile lists; what it declines tells of no record."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from flwr.proto.node_pb2 import NodeInfo

from client_app.site.site import Site
from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import Declined, Reason, StrategyError
from hdpfl_flower.models.task import Records
from hdpfl_flower.monitoring.journal import read_journal
from hdpfl_flower.privacy.plan import make_plan
from hdpfl_tools.simulation.in_process.grid import LocalGrid
from server_app.run.rounds import run
from strategies import STRATEGIES
from tests.client_app import messages
from tests.client_app.messages import ask, model_of, send
from tests.federation import NEEDED
from tests.federation import weighing as weights_of
from tests.privacy import sites
from tests.privacy.sites import digits
from tests.privacy.test_wire_proof import form

FACTS = {"declared-records": 61, "epsilon": 1.2345678}
"""Of tests/client_app/messages.py."""
NAMES = [*FACTS, "noise-std", "metrics"]
LISTS = [c for n in range(5) for c in combinations(NAMES, n)]


def check_disclosure(folder: Path, listed: Iterable[str]) -> None:
    """Fail where a site that lists ``listed`` says more or less than that."""
    listed, terms = list(listed), messages.terms_with_test()
    profile = messages.make_site(folder, disclose=json.dumps(listed), holdout=0.5)
    joined = ask(profile, terms, 0, wire.JOIN)
    facts: dict[str, Any] = {fact: FACTS[fact] for fact in listed if fact in FACTS}
    if "noise-std" in listed:
        plan = make_plan(Profile.load(profile), terms)
        std = plan.update_noise_std(1, terms.clip_norm, terms.learning_rate)
        facts["noise-std"] = pytest.approx(std)
    assert server_wire.read_site(joined.content) == facts
    silent = messages.make_site(folder / "silent", holdout=0.5)
    assert form(ask(profile, terms)) == form(ask(silent, terms))
    tested = ask(profile, terms, kind=wire.EVALUATE)
    assert tested.has_content() == ("metrics" in listed)
    if "metrics" in listed:
        assert set(server_wire.read_metrics(tested.content)) == {"accuracy", "loss"}
    else:
        assert tested.error.code == wire.DECLINED
    for kind in (wire.TRAIN, wire.FINISH):
        assert form(ask(profile, terms, kind=kind)) == form(ask(silent, terms, kind=kind))


@pytest.mark.parametrize("listed", LISTS, ids=lambda listed: "+".join(listed) or "nothing")
def test_what_leaves_is_what_the_profile_lists(tmp_path: Path, listed: tuple[str, ...]) -> None:
    check_disclosure(tmp_path, listed)


@pytest.mark.parametrize("always", NAMES)
def test_unasked_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, always: Any) -> None:
    load = Profile.load

    def talkative(path: Path) -> Profile:
        profile = load(path)
        return profile.model_copy(update={"disclose": (*profile.disclose, always)})

    monkeypatch.setattr(Profile, "load", talkative)
    with pytest.raises(AssertionError):
        check_disclosure(tmp_path, [])


# A rule that weighs by what sites disclose has nothing else to weigh by.


SILENT = "0.771234659"
"""ε of a site that keeps it to itself; some fifty numbers are looked at, so 1e-8 by chance."""


class Hospitals(LocalGrid):
    """Production sites by name, each with its own profile."""

    def __init__(self, profiles: dict[str, Path]) -> None:
        super().__init__(0)
        self.names = dict(enumerate(profiles, start=2))
        self._contexts: dict[int, Any] = {
            node: Context(1, node, {"profile": str(profiles[name])}, RecordDict(), {})
            for node, name in self.names.items()
        }

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=node, name=name) for node, name in self.names.items()]


def hospitals(folder: Path, facts: list[str], *open_ones: str) -> Hospitals:
    """Three sites a, b and c, each with its own ε; ``open_ones`` disclose ``facts``."""
    profiles = {}
    for name, epsilon in (("a", "1.11"), ("b", SILENT), ("c", "1.33")):
        disclose = json.dumps(facts if name in open_ones else [])
        profiles[name] = messages.make_site(folder / name, disclose=disclose)
        text = profiles[name].read_text().replace("batch-size = 7", "batch-size = 61")
        profiles[name].write_text(text.replace("1.2345678", epsilon))
    return Hospitals(profiles)


def weighing(folder: Path, strategy: str, weights: str) -> RunConfig:
    more = {"runs-dir": str(folder), "strategy": strategy, "rounds": 1}
    more |= weights_of(strategy, weights)
    more |= NEEDED.get(strategy, {})
    return messages.config_of(**more)


def rules() -> Iterator[tuple[str, str, list[str]]]:
    """Yield every rule that needs something disclosed, how it weighs, and what it needs."""
    for name, rule in STRATEGIES.items():
        # Of groups, which production sites do not have; of named data, refused before any is asked.
        if name in ("oracle-clusters", "dsu-published"):
            continue
        known: list[frozenset[str]] = [frozenset()]
        for weights in ("uniform", "records"):
            needs = rule(RunConfig.parse(weights_of(name, weights))).declare().required_facts
            if needs not in known:
                yield name, weights, sorted(needs)
                known.append(needs)


RULES = list(rules())
SIMULATED = {"maximum", "non-private", "oracle"}
"""Rules that run on simulated sites alone."""


@pytest.mark.parametrize(
    ("strategy", "weights", "needs"), [rule for rule in RULES if rule[0] not in SIMULATED]
)
def test_a_rule_that_weighs_takes_those_who_disclose(
    tmp_path: Path, strategy: str, weights: str, needs: list[str]
) -> None:
    terms = weighing(tmp_path / "runs", strategy, weights)
    result = run(hospitals(tmp_path, needs, "a", "c"), terms)
    assert result.rounds[0]["asked"] == result.rounds[0]["accepted"] == ["a", "c"]
    said = "".join(p.read_text(errors="replace") for p in result.folder.iterdir())
    assert SILENT not in said


@pytest.mark.parametrize(
    ("strategy", "weights", "needs"),
    [rule for rule in RULES if rule[0] not in {"maximum", "non-private"}],  # refused before
)
def test_a_rule_that_weighs_has_nothing_where_nobody_discloses(
    tmp_path: Path, strategy: str, weights: str, needs: list[str]
) -> None:
    terms = weighing(tmp_path / "runs", strategy, weights)
    others = sorted({*FACTS, "metrics"} - {*needs})
    with pytest.raises(StrategyError, match=f"needs {', '.join(needs)}, which no site discloses"):
        run(hospitals(tmp_path, others, "a", "b", "c"), terms)
    events = read_journal(tmp_path / "runs" / "run-1" / "journal.jsonl")
    assert [event["event"] for event in events] == ["run-started", "run-finished"]


# Declining follows policy and budget, and nothing else.


def _like(value: float, target: int = 3) -> Records:
    usual = digits(48)
    return Records(np.full_like(usual.features, value), np.full_like(usual.targets, target))


DATA = {
    "as declared": digits(48),
    "none": digits(0),
    "one": digits(1),
    "ten times as many": digits(480),
    "other values": digits(48, seed=9),
    "not finite": _like(np.nan),
    "as large as can be": _like(3e38),
    "labels that are not known": _like(0.5, target=77),
}
NO, YES = wire.DECLINED, "content"
PROPOSALS: list[tuple[str, int, dict[str, Any], int | str]] = [
    (wire.JOIN, 0, {}, YES),
    (wire.TRAIN, 1, {"rounds": 2000}, NO),
    (wire.TRAIN, 1, {"clip-norm": 1e9}, NO),
    (wire.TRAIN, 1, {"model": "os:getcwd"}, NO),
    (wire.TRAIN, 1, {"local-epochs": 1000}, NO),
    (wire.TRAIN, 3, {}, NO),
    (wire.TRAIN, 1, {}, YES),
    (wire.TRAIN, 1, {}, YES),
    (wire.TRAIN, 2, {"learning-rate": 9.0}, NO),
    (wire.TRAIN, 2, {}, YES),
    (wire.EVALUATE, 1, {}, NO),
    (wire.TRAIN, 1, {"run-id": "second", "strategy": "minimum"}, YES),
    (wire.TRAIN, 1, {"run-id": "third"}, NO),
    (wire.FINISH, 2, {}, YES),
]
"""What is asked of a site, in order, and what one whose budget is that of two runs answers."""
USUAL = [answer for *_, answer in PROPOSALS]
_POLICY = '[policy]\nmodels = ["tests.privacy.nets:layer_norm"]'


def answers(folder: Path, records: Records, *changes: tuple[str, str]) -> list[int | str]:
    """Return a site's answer to each proposal: a code, or ``content``."""
    profile, model = sites.make_site(folder, records), model_of(sites.terms_of())
    text = profile.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    profile.write_text(text)
    found: list[int | str] = []
    for kind, server_round, more, _ in PROPOSALS:
        content = server_wire.write_instructions(sites.terms_of(**more), server_round, model)
        reply = send({"profile": str(profile)}, kind, content)
        found.append(reply.error.code if reply.has_error() else "content")
    return found


def test_policy_and_budget_decide(tmp_path: Path) -> None:
    """The second run is the first that a stricter policy, or a smaller budget, does not allow."""
    strict = (_POLICY, f'{_POLICY}\nstrategies = ["mmse"]')
    single = (_POLICY, f"{_POLICY}\nruns = 1")
    poor = ("epsilon = 6.434782", "epsilon = 3.3")
    second = [more.get("run-id") for _, _, more, _ in PROPOSALS].index("second")
    expected = [*USUAL[:second], NO, *USUAL[second + 1 :]]
    for change in (single, poor):
        assert answers(tmp_path / change[1][-8:], digits(48), change) == expected
    expected[second + 1] = YES  # the budget is still there for another run
    assert answers(tmp_path / "strict", digits(48), strict) == expected


@pytest.mark.parametrize("data", DATA)
def test_records_decide_nothing(tmp_path: Path, data: str) -> None:
    assert answers(tmp_path / "site", DATA[data]) == USUAL


def too_few(records: Records) -> Records:
    if len(records) < 12:
        raise Declined(Reason.OTHER, "fewer records than a batch")
    return records


def not_finite(records: Records) -> Records:
    if not records.features.max() < 1e30:
        raise Declined(Reason.OTHER, "the records overflow")
    return records


@pytest.mark.parametrize(
    ("mutant", "data"),
    [(too_few, "one"), (too_few, "not finite"), (not_finite, "as large as can be")],
)
def test_the_table_shows_a_site_that_looks_at_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutant: Callable[[Records], Records], data: str
) -> None:
    read = Site.training_records
    monkeypatch.setattr(Site, "training_records", lambda self: mutant(read(self)))
    assert answers(tmp_path / "usual", DATA["as declared"]) == USUAL
    assert answers(tmp_path / "site", DATA[data]) != USUAL

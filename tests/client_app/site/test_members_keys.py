"""Sites with keys for shared noise: runs that they answer, and keys on which they decline."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from flwr.app import RecordDict

from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import StrategyError
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.shared_noise.masks import public_of
from hdpfl_flower.shared_noise.peers import Peer, Peers, folder_of
from hdpfl_tools.coordinator.reports.run_page import make_report
from hdpfl_tools.simulation.in_process.grid import LocalGrid
from hdpfl_tools.simulation.sites import InProcessContext
from server_app.run.rounds import RunResult, run
from tests.client_app.messages import config_of, make_site, model_of, send
from tests.hdpfl_tools.site.commands.conftest import page_text

NAMES = ("a", "b", "c", "d")
SHARED = "[policy]\nshared-noise = true\n"


def peers_at(folder: Path) -> Peers:
    ledger = folder / "ledger.sqlite"
    return Peers(ledger, Ledger(ledger).account().begun)


@dataclass
class Members:
    """Four sites in folders, each with the keys of the others; files of peers say 'of-NAME'."""

    folder: Path

    def make(self, more: dict[str, str]) -> None:
        for name in NAMES:
            make_site(self.folder / name, more=SHARED + more.get(name, ""))
        keys = {name: public_of(peers_at(self.folder / name).own(make=True)) for name in NAMES}
        for name in NAMES:
            for other in NAMES:
                if other != name:
                    peers_at(self.folder / name).add(Peer(f"of-{other}", keys[other]))

    def members(self, *names: str) -> str:
        return ",".join(f"{name}={self.print_of(name)}" for name in names or NAMES)

    def print_of(self, name: str) -> str:
        return Peer(name, public_of(peers_at(self.folder / name).own())).fingerprint

    def config(self, **more: Any) -> RunConfig:
        members = more.pop("members") if "members" in more else self.members()
        terms = {"noise": "shared", "members": members, "min-sites": 1, **more}
        return config_of(**terms, **{"runs-dir": str(self.folder / "runs")})

    def run(self, *present: str, engine: str = LocalGrid.engine, **more: Any) -> RunResult:
        """Run the terms with some of the sites, all by default, as nodes of these names.

        Another engine than that of simulations asks every node to join.
        """
        names = present or NAMES
        grid = LocalGrid(len(names))
        grid.engine = engine
        nodes = list(grid._contexts)
        for node, name in zip(nodes, names, strict=True):
            config = {"profile": str(self.folder / name / "profile.toml")}
            grid._contexts[node] = InProcessContext(1, node, config, RecordDict(), {})
        grid.name_nodes(dict(zip(nodes, names, strict=True)))
        return run(grid, self.config(**more))

    def refusal(self, name: str, caplog: pytest.LogCaptureFixture, **more: Any) -> str:
        """Return why a site refuses round 1 of a set, by its own log."""
        sum_of, terms = more.pop("sum_of", "0,1,2,3"), self.config(**more).terms
        content = server_wire.write_instructions(terms, 1, model_of(terms), of_noise=sum_of)
        caplog.clear()
        reply = send({"profile": str(self.profile(name))}, wire.TRAIN, content)
        assert not reply.has_content()
        (line,) = [record.getMessage() for record in caplog.records]
        assert not Ledger(self.folder / name / "ledger.sqlite").account().plans  # nothing charged
        return line

    def profile(self, name: str) -> Path:
        return self.folder / name / "profile.toml"


@pytest.fixture
def four(tmp_path: Path) -> Members:
    members = Members(tmp_path)
    members.make({})
    return members


def test_members_are_matched_by_key_whatever_their_files_are_called(four: Members) -> None:
    result = four.run(rounds=2)
    assert [event["accepted"] for event in result.rounds] == [list(NAMES)] * 2
    assert (result.privacy["members"], result.privacy["colluders"]) == (4, 1)
    page = page_text(make_report(result.folder))
    assert (
        "each site adds a share of the noise to its part of a sum, and only this sum can be read"
        in page
    )
    assert "members 4 colluders 1" in page


def test_a_site_that_asks_for_more_colluders_declines_and_the_run_goes_on(tmp_path: Path) -> None:
    """Each of two refusals costs a round, which a spare one replaces; a third is not asked for."""
    four = Members(tmp_path)
    four.make({"b": "least-colluders = 2\n"})
    result = four.run(rounds=5, **{"spare-rounds": 0.4})
    rejected = [event["rejected"] for event in result.rounds]
    assert rejected == [{"b": "declined"}, *[{}] * 3, {"b": "declined"}, *[{}] * 2]
    used = [event["accepted"] for event in result.rounds if event["accepted"]]
    assert used == [["a", "c", "d"]] * 5
    assert not Ledger(tmp_path / "b" / "ledger.sqlite").account().plans


def test_a_site_that_declines_to_join_costs_no_round(tmp_path: Path) -> None:
    four = Members(tmp_path)
    four.make({"b": "least-colluders = 2\n"})
    result = four.run(rounds=2, engine="deployed")
    assert [event["accepted"] for event in result.rounds] == [["a", "c", "d"]] * 2


def test_a_run_with_fewer_sites_than_colluders_and_two_ends_at_once(four: Members) -> None:
    with pytest.raises(StrategyError, match=r"needs 3 sites in a round, and 2 members are online"):
        four.run("a", "b", rounds=2)


def test_nodes_of_other_names_are_no_members(four: Members) -> None:
    members = four.members().replace("a=", "x=")
    with pytest.raises(StrategyError, match="'members' lists each by the name of its node"):
        four.run("a", "b", "c", rounds=2, members=members)


def test_a_stranger_among_the_members_is_declined_by_name(
    four: Members, caplog: pytest.LogCaptureFixture
) -> None:
    peers_at(four.folder / "a").remove("of-d")
    said = four.refusal("a", caplog)
    assert "'members' has keys that this site does not know, of: d;" in said
    assert "hdpfl-site peers add FILE" in said


def test_a_run_without_this_site_is_declined(
    four: Members, caplog: pytest.LogCaptureFixture
) -> None:
    said = four.refusal("a", caplog, members=four.members("b", "c", "d"))
    assert "'members' does not list this site's key" in said
    assert "'members' is empty" in four.refusal("a", caplog, members="")


def test_an_unknown_number_in_a_rounds_set_is_declined(
    four: Members, caplog: pytest.LogCaptureFixture
) -> None:
    said = four.refusal("a", caplog, sum_of="0,1,2,7")
    assert "the round's set names no member of the run" in said
    assert "fewer sites than 'colluders' + 2" in four.refusal("a", caplog, sum_of="0,1")
    assert "does not hold this site" in four.refusal("a", caplog, sum_of="1,2,3")


def test_a_key_that_others_can_read_is_not_used(
    four: Members, caplog: pytest.LogCaptureFixture
) -> None:
    key = folder_of(four.folder / "a" / "ledger.sqlite") / "own.key"
    members = four.members()
    key.chmod(0o640)
    said = four.refusal("a", caplog, members=members)
    assert f"chmod 600 {key}" in said


def test_a_new_ledger_does_not_take_the_key_of_the_one_before(
    four: Members, caplog: pytest.LogCaptureFixture
) -> None:
    """It would not know for which rounds the key has made masks."""
    members, ledger = four.members(), four.folder / "a" / "ledger.sqlite"
    ledger.unlink()
    Ledger.create(ledger, 2.4691356, 1e-5).close()
    assert "belongs to another ledger" in four.refusal("a", caplog, members=members)
    (folder_of(ledger) / "own.key").unlink()
    assert "has no key for shared noise" in four.refusal("a", caplog, members=members)


def test_a_site_that_approved_no_shared_noise_declines(
    four: Members, caplog: pytest.LogCaptureFixture
) -> None:
    text = four.profile("a").read_text().replace("shared-noise = true", "shared-noise = false")
    four.profile("a").write_text(text)
    assert "set 'policy.shared-noise = true' to allow it" in four.refusal("a", caplog)

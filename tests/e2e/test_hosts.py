"""A coordinator and three sites on hosts of their own.

One is cut off, gets another address, and has a clock that is off; one loses its power; last, the
coordinator's clock is off. Python's clock alone: certificates are checked by the machine's.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hdpfl_flower.monitoring.journal import Event
from tests.e2e.engines import ROOT, Done, processes, to_toml
from tests.e2e.faults import (
    HEART,
    Fact,
    check_books,
    facts_of,
    histories,
    rounds_so_far,
    wait_for_round,
    wait_for_work,
    wait_until,
    write_hospital,
)
from tests.e2e.hosts import Host, Network, network

pytestmark = [pytest.mark.engines, pytest.mark.wards]

COORDINATOR, STEADY, CUT, DEAD = "coordinator", "steady", "cut", "dead"
SITES = {STEADY: "hungarian", CUT: "switzerland", DEAD: "va"}
PORT, RUN, ROUNDS, TIMEOUT = 8000, "hosts", 18, 120.0
HOUR = 3600
TERMS = {
    **HEART, "run-id": RUN, "rounds": ROUNDS, "min-sites": len(SITES), "round-timeout": TIMEOUT,
}  # fmt: skip
SLOWLY = {"[budget]": "reply-after = 10.0\n\n[budget]"}
"""So that no more rounds go by than are needed, while a host comes back."""


@dataclass
class Consortium:
    """Four hosts, and what the test saw on them."""

    net: Network
    folder: Path
    seen: dict[str, list[Fact]] = field(default_factory=dict)
    at: dict[str, int] = field(default_factory=dict)
    said: dict[str, Done] = field(default_factory=dict)
    status: str = ""
    over: threading.Event = field(default_factory=threading.Event)

    def host(self, name: str) -> Host:
        return Host(self.net, name, self.folder / name)

    @property
    def link(self) -> str:
        return f"{self.net.address(COORDINATOR)}:{PORT}"

    @property
    def run_folder(self) -> Path:
        return self.folder / COORDINATOR / "home" / "runs" / RUN

    @property
    def rounds(self) -> list[Event]:
        return rounds_so_far(self.run_folder)

    def profile(self, site: str) -> Path:
        return self.folder / site / "profile.toml"

    def ledger(self, site: str) -> Path:
        return self.folder / site / "ledger" / "ledger.sqlite"

    def accepted(self, site: str) -> set[int]:
        return {event["round"] for event in self.rounds if site in event["accepted"]}

    # --- docs/how-to/deploy.md, without its proxy, its users and its units ----------------------

    def set_up(self) -> None:
        for site, name in SITES.items():
            write_hospital(self.folder / site, name, SLOWLY)
        here = self.host(COORDINATOR)
        here.folder.mkdir()
        keys = [word for site in SITES for word in ("--site", site)]
        made = here.call("hdpfl", "certs", "certs", "--host", self.net.address(COORDINATOR), *keys)
        assert made.returncode == 0, made.stderr
        certs = here.folder / "certs"
        (here.folder / "flwr").mkdir()
        (here.folder / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "hdpfl"\n\n[superlink.hdpfl]\naddress = "{self.link}"\n'
            f'root-certificates = "{certs}/ca.crt"\n'
        )
        here.start(
            "superlink", "flower-superlink", "--host", self.net.address(COORDINATOR),
            "--port", str(PORT), "--ssl-ca-certfile", certs / "ca.crt",
            "--ssl-certfile", certs / "server.crt", "--ssl-keyfile", certs / "server.key",
            "--enable-supernode-auth", "--database", here.folder / "state.db",
            "--disable-runtime-dependency-installation",
        )  # fmt: skip
        for site in SITES:
            self.profile(site).chmod(0o600)
            words = ["ledger", "--init", "--profile", self.profile(site)]
            created = self.host(site).call("hdpfl-site", *words)
            assert created.returncode == 0, created.stderr
        connect = ["health", self.link, "--root-certificates", certs / "ca.crt"]
        wait_until(lambda: self.host(STEADY).call("hdpfl-site", *connect).returncode == 0)
        for site in SITES:
            key = certs / "sites" / f"{site}.pub"
            words = ["supernode", "register", key, "hdpfl", "--name", site, "--format", "json"]
            registered = here.json_of("flwr", *words)
            assert registered["success"], registered
            self.start(site)

    def start(self, site: str) -> None:
        host, certs = self.host(site), self.folder / COORDINATOR / "certs"
        (host.folder / "node.toml").write_text(f"profile = {json.dumps(str(self.profile(site)))}\n")
        host.start(
            "node", "hdpfl-patient", "flower-supernode", "--superlink", self.link,
            "--root-certificates", certs / "ca.crt",
            "--auth-supernode-private-key", certs / "sites" / site,
            "--host", "127.0.0.1", "--port", "9094", "--node-config", host.folder / "node.toml",
        )  # fmt: skip

    def supervise(self) -> None:
        """Start each SuperNode that has ended, as its unit does."""
        while not self.over.wait(5):
            for site in SITES:
                if processes.find("node", self.host(site).folder) is None:
                    self.start(site)

    def wait_until_back(self, site: str) -> None:
        before = self.accepted(site)
        wait_until(lambda: self.accepted(site) - before)

    def tell_story(self) -> None:
        here = self.host(COORDINATOR)
        terms = here.folder / "terms.toml"
        terms.write_text(to_toml(TERMS))
        words = ["run", ROOT, "hdpfl", "--run-config", terms, "--format", "json"]
        number = str(here.json_of("flwr", *words)["run-id"])
        wait_for_round(self.run_folder, 1)

        self.seen[CUT] = facts_of(self.ledger(CUT))
        self.net.cut(CUT)
        wait_for_round(self.run_folder, 2)
        self.net.heal(CUT)
        wait_until(lambda: max(self.accepted(CUT)) > 2)

        self.net.move(CUT)
        self.at["moved"] = len(self.rounds)
        wait_until(lambda: max(self.accepted(CUT)) > self.at["moved"] + 1)

        self.host(CUT).set_clock(HOUR)
        self.at["clock"] = len(self.rounds)
        wait_for_round(self.run_folder, self.at["clock"] + 3)
        ca = self.folder / COORDINATOR / "certs" / "ca.crt"
        words = ["health", self.link, "--root-certificates", ca]
        self.said["clock"] = self.host(CUT).call("hdpfl-site", *words)
        self.host(CUT).set_clock(0)
        self.wait_until_back(CUT)

        wait_for_work(self.ledger(DEAD))
        self.host(DEAD).kill("node")
        self.seen[DEAD] = facts_of(self.ledger(DEAD))
        self.wait_until_back(DEAD)

        def ended() -> bool:
            listed = here.json_of("flwr", "list", "hdpfl", "--run-id", number, "--format", "json")
            self.status = str(listed["runs"][0]["status"])  # type: ignore[index]
            return self.status.startswith("finished")

        here.set_clock(HOUR)
        self.at["coordinator"] = len(self.rounds)
        wait_until(ended)
        here.set_clock(0)
        self.said["resume"] = here.call("hdpfl", "resume", RUN, "hdpfl", "--app", ROOT)


@pytest.fixture(scope="module")
def consortium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Consortium]:
    with network(COORDINATOR, *SITES) as net:
        made = Consortium(net, tmp_path_factory.mktemp("hosts"))
        supervisor = threading.Thread(target=made.supervise)
        try:
            made.set_up()
            supervisor.start()
            made.tell_story()
            yield made
        finally:
            made.over.set()
            if supervisor.is_alive():
                supervisor.join()
            for name in (*SITES, COORDINATOR):
                made.host(name).stop()


def test_the_federation_goes_on_with_the_quorum(consortium: Consortium) -> None:
    assert consortium.said["resume"].returncode == 0, consortium.said["resume"].stderr
    rounds = consortium.rounds
    assert [event["round"] for event in rounds] == list(range(1, ROUNDS + 1))
    assert rounds[0]["accepted"] == sorted(SITES)
    for event in rounds:
        assert STEADY in event["accepted"]
        assert len(event["accepted"]) >= event["quorum"]
        assert set(event["rejected"].values()) <= {"no reply in time"}


def test_who_is_cut_off_is_missing_and_comes_back(consortium: Consortium) -> None:
    assert consortium.rounds[1]["rejected"] == {CUT: "no reply in time"}
    assert 2 not in consortium.accepted(CUT)


def test_who_gets_another_address_is_back_by_itself(consortium: Consortium) -> None:
    """Its node calls anew, from wherever it is: nobody starts anything."""
    assert max(consortium.accepted(CUT)) > consortium.at["moved"] + 1


def test_a_site_with_a_wrong_clock_comes_back_once_it_is_right(consortium: Consortium) -> None:
    """A SuperLink takes what is signed at most 5 s ahead or 300 s behind."""
    wrong = consortium.at["clock"]
    assert {wrong + 2, wrong + 3}.isdisjoint(consortium.accepted(CUT))
    assert "this machine's clock is 36" in consortium.said["clock"].stderr
    assert max(consortium.accepted(CUT)) == ROUNDS


def test_a_coordinators_wrong_clock_ends_the_run_resumably(consortium: Consortium) -> None:
    assert consortium.status == "finished:failed"
    assert f"of {ROUNDS} rounds are done" in consortium.said["resume"].stdout
    assert [e["accepted"] for e in consortium.rounds[-2:]] == [sorted(SITES)] * 2


def test_who_loses_power_at_work_loses_that_round_and_comes_back(consortium: Consortium) -> None:
    killed = max(histories(consortium.seen[DEAD], RUN))
    assert histories(consortium.seen[DEAD], RUN)[killed] == ["reserved"]
    event = consortium.rounds[killed - 1]
    assert event["rejected"] == {DEAD: "no reply in time"}
    assert max(consortium.accepted(DEAD)) > killed


@pytest.mark.parametrize("site", SITES)
def test_budgets_are_as_they_were(consortium: Consortium, site: str) -> None:
    """One charge of one plan, in a chain that goes on from the entries of before."""
    check_books(consortium.profile(site), consortium.ledger(site), RUN, consortium.accepted(site))
    before, after = consortium.seen.get(site, []), facts_of(consortium.ledger(site))
    assert after[: len(before)] == before
    assert len(after) > len(before)
    (plan,) = [fact for fact in after if fact.kind == "plan"]
    assert not before or plan in before

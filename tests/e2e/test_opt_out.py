"""FedHDP over real SuperNodes: one opts out, and starts anew while the run goes on."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from client_app.training.ditto import kept_personal_path
from hdpfl_flower import wire
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.monitoring.journal import Event
from tests.e2e.engines import ROOT, Done, Federation, free_ports, processes, rounds_of, toml_of

pytestmark = pytest.mark.engines

OPT_OUT = ROOT / "deploy" / "opt-out"
LOUD, PRIVATE = "switzerland", "va"
ROUNDS = 2
SIZE = 29
"""Parameters of the model that ``run.toml`` names."""


@dataclass(frozen=True)
class Ended:
    """What a run left, and the personal model of the site that opted out after each round."""

    federation: Federation
    folder: Path
    done: Done
    personal: list[np.ndarray]

    @property
    def rounds(self) -> list[Event]:
        return rounds_of(self.folder)


def wait_for(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 400
    while not what():
        assert time.monotonic() < deadline, "nothing came"
        time.sleep(0.2)


def open_work(federation: Federation) -> int:
    """Return how many requests to train wait for a reply: Flower deletes one once it is listed."""
    database = federation.folder / "superlink" / "state.db"
    with contextlib.closing(sqlite3.connect(database, timeout=30)) as db:
        found = db.execute("SELECT count(*) FROM message_ins WHERE message_type = ?", (wire.TRAIN,))
        return int(found.fetchone()[0])


def start_anew(federation: Federation, sites: Path, kept: Path, hold: Path) -> np.ndarray:
    """Stop and start the SuperNode of LOUD, while PRIVATE's reply, held, keeps round 1 open.

    Its SuperNode may not be stopped to hold it: Flower takes one that it has not heard of for a
    minute for gone, and its reply never comes. Returns what LOUD ``kept`` in between.
    """
    wait_for(lambda: "Receiving: train message" in federation.log(PRIVATE))
    # Flower lists a reply before its arrays come: both must have arrived before the node ends.
    wait_for(lambda: "Sent successfully" in federation.log(LOUD).partition("Sending: train")[2])
    wait_for(lambda: open_work(federation) == 1)
    assert processes.stop([LOUD], federation.folder / "pids") == [LOUD]
    assert "Sending: train" not in federation.log(PRIVATE)
    first: np.ndarray = load_file(kept)["personal"]
    begun = federation.call("up", "--sites", sites)
    assert f"starting the SuperNode of {LOUD}" in begun.stdout
    assert begun.returncode == 0, begun.stderr
    hold.unlink()
    return first


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ended]:
    """Two sites of ``deploy/opt-out``; a SuperNode is stopped and started in round 1."""
    home = tmp_path_factory.mktemp("opt-out")
    sites = home / "sites"
    sites.mkdir()
    for site in (LOUD, PRIVATE):
        (sites / site).symlink_to(OPT_OUT / site)
    federation, folder = Federation(home, free_ports(4)), home / "runs" / "opt-out"
    more = {"rounds": ROUNDS, "min-sites": 2, "run-id": "opt-out"}
    terms = federation.write(toml_of(OPT_OUT / "run.toml") | more)
    state = federation.profile(LOUD).parent / "state"
    kept = kept_personal_path(state, RunConfig.load(terms).terms)
    done: list[Done] = []
    running = threading.Thread(target=lambda: done.append(federation.call("run", terms)))
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", str(Path(__file__).with_name("probe")))
            patch.setenv("REPLY_PROBE", str(home / "probe.jsonl"))
            started = federation.call("up", "--sites", sites)
        assert started.returncode == 0, started.stderr
        (hold := federation.profile(PRIVATE).with_name("hold-train")).touch()
        running.start()
        first = start_anew(federation, sites, kept, hold)
        running.join(600)
        yield Ended(federation, folder, done[0], [first, load_file(kept)["personal"]])
    finally:
        federation.call("down")


def test_the_run_says_who_has_no_privacy_and_what_the_other_is_promised(ended: Ended) -> None:
    assert ended.done.returncode == 0, ended.done.stdout + ended.done.stderr
    assert "no privacy: switzerland (opted out)\n" in ended.done.stdout
    assert "1 site: differential privacy, ε at most 0.7\n" in ended.done.stdout
    promised = json.loads((ended.folder / "result.json").read_text())["privacy"]
    assert promised["no privacy"] == [LOUD]
    promises = [level["promise"] for level in promised["levels"]]
    assert promises == ["no privacy", "differential privacy"]


def test_each_sites_own_report_says_what_it_got(ended: Ended) -> None:
    loud, private = (ended.federation.hdpfl_site(site, "report") for site in (LOUD, PRIVATE))
    assert "NO PRIVACY: ε is infinite." in loud
    assert f"{ROUNDS} model updates of 1 run, not all of them with noise" in " ".join(loud.split())
    assert "NO PRIVACY" not in private
    assert " 0.7 " in private  # the run, in the table


def test_a_restarted_supernode_keeps_its_round_and_personal_model(ended: Ended) -> None:
    assert [event["accepted"] for event in ended.rounds] == [[LOUD, PRIVATE]] * ROUNDS
    first, second = ended.personal
    assert not np.array_equal(first, second)  # trained on in round 2


def test_nothing_but_the_updates_went_up(ended: Ended) -> None:
    """Each reply is one update's header and its floats: there is no room for a second model."""
    for event in ended.rounds:
        assert 2 * 4 * SIZE < event["bytes_up"] < 2 * (4 * SIZE + 200)


def test_the_personal_models_are_at_the_sites_alone_and_of_their_own(ended: Ended) -> None:
    found = sorted(ended.federation.folder.rglob("personal-*"))
    assert [path.parents[1].name for path in found] == [LOUD, PRIVATE]
    assert not [*ended.folder.rglob("personal*")]
    loud, private = (load_file(path)["personal"] for path in found)
    assert loud.shape == private.shape == (SIZE,)
    assert not np.array_equal(loud, private)
    needle = loud.tobytes()
    coordinator = [
        path for path in (ended.federation.folder / "superlink").rglob("*") if path.is_file()
    ]
    assert coordinator
    assert not [path for path in coordinator if needle in path.read_bytes()]

"""What plan, requests and report say of a run with shared noise: whom it holds against."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from client_app.site.inbox import file_request
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.privacy.accounting import calibrate, epsilon_of, event_of
from hdpfl_flower.privacy.plan import make_plan
from hdpfl_flower.shared_noise.members import fingerprint_of
from hdpfl_flower.shared_noise.peers import Peer
from hdpfl_tools.site.reports.shared_noise import honest_noise, promise_of
from tests.hdpfl_tools.site.commands.conftest import SiteFolder
from tests.hdpfl_tools.site.commands.test_peers import KEYS, own_print, peer_file


@pytest.fixture
def shared(opened: SiteFolder) -> SiteFolder:
    """A site that allows shared noise, and the terms of a run of four members."""
    opened.write_profile(("[ledger]", "[policy]\nshared-noise = true\n[ledger]"))
    own = own_print(opened).replace(" ", "")
    others = [f"{name}={fingerprint_of(key)}" for name, key in KEYS.items()]
    members = ",".join([f"a={own}", *others])
    opened.write_terms(noise="shared", strategy="fedavg", members=members, local_steps=0)
    return opened


def test_the_least_noise_is_that_of_the_worst_set() -> None:
    """Held against all sets of a federation: the server chooses them."""
    for members in range(3, 12):
        for colluders in range(1, members - 1):
            for least in range(colluders + 2, members + 1):
                for colluding in range(colluders + 1, members):
                    worst = min(
                        (size - min(colluding, size - 1)) / (size - colluders)
                        for size in range(least, members + 1)
                    )
                    got = honest_noise(colluding, colluders, least)
                    assert got == pytest.approx(math.sqrt(worst), rel=1e-12)


def test_more_colluders_cost_as_much_as_a_plan_of_so_much_less_noise(shared: SiteFolder) -> None:
    plan = make_plan(shared.profile, shared.terms)
    promise = promise_of(plan, shared.terms)
    assert promise is not None
    assert (promise.members, promise.colluders) == (4, 1)
    assert promise.beyond.keys() == {2, 3}
    for colluding, share in ((2, 1 / 2), (3, 1 / 3)):
        event = event_of(plan.steps, plan.noise_multiplier * math.sqrt(share))
        assert promise.beyond[colluding] == pytest.approx(epsilon_of(event, plan.delta), rel=1e-9)
        # The other way round: noise for that ε is what is left.
        needed = calibrate(plan.steps, promise.beyond[colluding], plan.delta)
        assert needed == pytest.approx(plan.noise_multiplier * math.sqrt(share), rel=5e-3)


@pytest.mark.parametrize("first", [{"share": 0.5}, {"share": 0.95, "alone": True}])
def test_the_noise_of_a_first_message_is_shared_too(
    shared: SiteFolder, first: dict[str, object]
) -> None:
    """A third of the variance is left of every sum: ε as of a plan of so much less noise."""
    terms = RunTerms.parse({**shared.terms.as_config(), "first": {"moments": first}})
    plan = make_plan(shared.profile, terms)
    promise = promise_of(plan, terms)
    assert promise is not None
    left = math.sqrt(1 / 3)
    (first_message,) = plan.beside
    weaker = replace(first_message, noise_multiplier=first_message.noise_multiplier * left)
    event = event_of(plan.steps, plan.noise_multiplier * left, (weaker,))
    assert promise.beyond[3] == pytest.approx(epsilon_of(event, plan.delta), rel=1e-9)
    full = event_of(plan.steps, plan.noise_multiplier * left, plan.beside)
    assert promise.beyond[3] > 1.05 * epsilon_of(full, plan.delta)


def test_plan_says_whom_the_promise_is_against(shared: SiteFolder) -> None:
    done = shared("plan", "--terms", shared.terms_path)
    assert done.code == 0, done.err
    (line,) = [line for line in done.out.splitlines() if line.startswith("shared noise: ")]
    facts = json.loads(shared("plan", "--terms", shared.terms_path, "--json").out)["noise-promise"]
    assert line == f"shared noise: {facts['sentence']}"
    assert line.startswith(
        "shared noise: against the server and any 1 of the 3 others: ε 1.235; if 2 collude: ε "
    )
    assert 1.2345678 < facts["if-more-collude"]["2"] < facts["if-more-collude"]["3"]


def test_a_run_of_other_noise_says_nothing_of_it(opened: SiteFolder) -> None:
    done = opened("plan", "--terms", opened.terms_path, "--json")
    assert json.loads(done.out)["noise-promise"] is None
    assert "collude" not in opened("plan", "--terms", opened.terms_path).out


def test_a_request_lists_who_shares_the_noise_and_unknown_keys(shared: SiteFolder) -> None:
    shared("peers", "add", peer_file(shared, "b"), "--yes")
    clinic = shared.folder / "clinic.peer"
    clinic.write_text(Peer("clinic", KEYS["c"]).line())
    shared("peers", "add", clinic, "--yes")
    file_request(shared.ledger_path, shared.terms, "0" * 64)
    said = " ".join(shared("requests").out.replace("...", " ").split())
    assert "'a' (this site), 'b' (b), 'c' (clinic), 'd' (UNKNOWN key)" in said
    assert "add unknown keys with 'hdpfl-site peers add FILE'" in said
    assert "against the server and any 1 of the 3 others: ε 1.235; if 2 collude: ε" in said
    (waiting,) = json.loads(shared("requests", "--json").out)["pending"]
    assert waiting["noise-of"] == {"a": "this site", "b": "b", "c": "clinic", "d": ""}
    assert waiting["price"]["noise-promise"]["colluders"] == 1


def test_the_report_says_it_of_every_run_that_shared(shared: SiteFolder) -> None:
    shared.charge("run-1")
    facts = json.loads(shared("report", "--json").out)
    (run,) = facts["runs"]
    assert run["noise-promise"]["members"] == 4
    text = " ".join(shared("report").out.split())
    assert f"except for those named here: {run['noise-promise']['sentence']}" in text
    assert "with a share of the noise: the server can read only the sum of all sites" in text
    assert run["noise-promise"]["sentence"] in shared.whole_report()

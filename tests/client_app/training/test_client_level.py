"""A round whose unit is the client: what leaves, on whose word, and what the ledger says."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message

from client_app.training.plain_sgd import shuffled_batches
from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import AccountingError
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.privacy.accounting import Steps, calibrate
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.privacy.plan import make_plan
from hdpfl_flower.privacy.policy import noise_refusals
from hdpfl_flower.releases.rounds import ClippedUpdate
from hdpfl_tools.site.reports.client_level import client_level_lines
from tests.client_app.messages import CLIENT_NOISE, ask, make_site, terms_of

SERVER = {"noise": "server", "strategy": "fedhdp", "delta": 1e-6, "learning-rate": 0.5}


def noising(folder: Path) -> Path:
    """Return the profile of a site that noises its own update where terms ask for it."""
    return make_site(folder, more=CLIENT_NOISE)


def trusting(folder: Path) -> Path:
    """Return the profile of a site that adds its noise, or lets a server do it, as terms ask."""
    profile = noising(folder)
    profile.write_text("trust-server = true\n" + profile.read_text())
    return profile


def update_of(reply: Message) -> np.ndarray:
    assert reply.has_content(), reply.error
    return server_wire.read_update(reply.content, 3)


def kinds(folder: Path) -> dict[tuple[int, str], str]:
    account = Ledger(folder / "ledger.sqlite").account()
    return {(key[1], key[2]): release.status for key, release in account.releases.items()}


def test_nothing_leaves_without_noise_unless_the_profile_trusts_the_server(tmp_path: Path) -> None:
    reply = ask(make_site(tmp_path), terms_of(**SERVER))
    assert reply.has_error()
    assert reply.error.code == wire.DECLINED
    assert kinds(tmp_path) == {}


def test_a_looser_delta_than_the_sites_own_is_declined(tmp_path: Path) -> None:
    reply = ask(trusting(tmp_path), terms_of(**{**SERVER, "delta": 1e-5}))
    assert reply.has_error()
    assert reply.error.code == wire.DECLINED


def test_a_trusting_site_sends_a_clipped_update_beyond_its_epsilon(tmp_path: Path) -> None:
    profile = trusting(tmp_path)
    update = update_of(ask(profile, terms_of(**SERVER, **{"clip-norm": 0.01})))
    assert np.linalg.norm(update) == pytest.approx(0.01, rel=1e-5)
    assert np.linalg.norm(update) <= 0.01
    assert kinds(tmp_path) == {(1, ClippedUpdate.release): "sent"}
    assert Ledger(tmp_path / "ledger.sqlite").account().spent() == (0.0, 0.0)
    again = update_of(ask(profile, terms_of(**SERVER, **{"clip-norm": 0.01})))
    np.testing.assert_array_equal(again, update)


def test_a_small_update_is_sent_as_it_is(tmp_path: Path) -> None:
    wide, wider = (
        update_of(ask(trusting(tmp_path / str(c)), terms_of(**SERVER, **{"clip-norm": c})))
        for c in (100.0, 1000.0)
    )
    assert 0 < np.linalg.norm(wide) < 100
    assert np.linalg.norm(wide - wider) < np.linalg.norm(wide)  # batches differ, scale does not


def test_a_client_that_noises_itself_is_charged_whole(tmp_path: Path) -> None:
    profile = noising(tmp_path)
    terms = terms_of(noise="client", strategy="fedhdp", **{"clip-norm": 1.0})
    one = update_of(ask(profile, terms))
    assert kinds(tmp_path) == {(1, "update"): "sent"}
    assert Ledger(tmp_path / "ledger.sqlite").account().spent() == (1.2345678, 1e-6)
    other = update_of(ask(noising(tmp_path / "other"), terms))
    assert not np.array_equal(one, other)


def test_the_plan_of_a_client_that_noises_itself_claims_no_sampling() -> None:
    budget = {"epsilon": 2.0, "delta": 1e-5}
    profile = Profile.parse(
        {"budget": budget, "run": budget, "training": {"batch-size": 5, "declared-records": 100}}
    )
    terms = RunConfig.parse({"noise": "client", "rounds": 7, "fraction": 0.1}).terms
    plan = make_plan(profile, terms)
    assert plan.steps == (Steps(1.0, 1),) * 7
    assert plan.divisor == 1.0
    assert plan.noise_multiplier == calibrate((Steps(1.0, 7),), 2.0, 1e-5)
    assert plan.round(3, 0.5).noise_std == 2 * 0.5 * plan.noise_multiplier  # S to −S
    with pytest.raises(AccountingError, match="the noise of its round"):
        plan.update_noise_std(1, 0.5, 0.1)
    assert list(noise_refusals(profile, RunConfig.parse({"noise": "server"}).terms))
    assert not list(noise_refusals(profile, terms.updated(noise="records")))


def test_the_noise_a_client_adds_is_that_of_its_plan(tmp_path: Path) -> None:
    """The update is clipped to 1e-4, so what comes is noise: 401 numbers.

    The sum of squares lies within its χ² quantiles of 1e-9, and half or twice the noise does not.
    """
    from scipy import stats

    terms = terms_of(
        noise="client", strategy="fedhdp", rounds=1, model="mlp:100", **{"clip-norm": 1e-4}
    )
    reply = ask(noising(tmp_path), terms)
    assert reply.has_content()
    update = server_wire.read_update(reply.content, 401).astype(np.float64)
    std = 2 * 1e-4 * calibrate((Steps(1.0, 1),), 1.2345678, 1e-6)
    low, high = (float(stats.chi2.ppf(p, 401)) for p in (1e-9, 1 - 1e-9))
    found = float((update**2).sum()) / std**2
    assert low < found < high * 1.02  # the update itself adds 1/(2z)² < 1, and as much by chance
    for wrong in (0.5, 2.0):
        assert not low < found / wrong**2 < high


def test_every_record_is_seen_once_an_epoch_in_an_order_of_its_own() -> None:
    stream = RandomStream(bytes(32))
    batches = list(shuffled_batches(10, 4, 2, 0, stream))
    assert [len(b) for b in batches] == [4, 4, 2, 4, 4, 2]
    first, second = np.concatenate(batches[:3]), np.concatenate(batches[3:])
    assert sorted(first) == sorted(second) == list(range(10))
    assert first.tolist() != second.tolist()
    assert [len(b) for b in shuffled_batches(10, 4, 1, 5, stream)] == [4, 4, 2, 4, 4]
    assert list(shuffled_batches(0, 4, 1, 5, stream)) == []


def test_the_report_says_who_promises_what(tmp_path: Path) -> None:
    from hdpfl_tools.site.reports.facts import Source, gather
    from hdpfl_tools.site.reports.ledger_view import read_ledger
    from hdpfl_tools.site.reports.rendering import as_text

    profile = trusting(tmp_path)
    ledger = tmp_path / "ledger.sqlite"

    def report() -> str:
        site = Profile.load(profile)
        source = Source(read_ledger(site), ledger, site)
        return as_text(gather(source))

    assert "TRUSTED SERVER" not in report()
    ask(profile, terms_of(**SERVER))
    text = " ".join(report().split())
    assert "CLIENT-LEVEL DP BY A TRUSTED SERVER" in text
    assert "Against that server there is no privacy" in text
    assert "CONTRADICTED" not in text


def opted_out(folder: Path) -> Path:
    """Return the profile of a trusting site with ε infinite."""
    profile = trusting(folder)
    text = profile.read_text()
    profile.write_text(text.replace("2.4691356", "inf").replace("1.2345678", "inf"))
    Ledger(folder / "ledger.sqlite").raise_cap(math.inf, 1e-5)
    return profile


def test_a_site_that_opted_out_reports_no_privacy_of_a_trusted_servers_runs(tmp_path: Path) -> None:
    """From the ledger alone: the profile may say something else by then."""
    from hdpfl_tools.site.reports.facts import Source, gather
    from hdpfl_tools.site.reports.ledger_view import read_ledger
    from hdpfl_tools.site.reports.rendering import as_text

    profile = opted_out(tmp_path)
    assert ask(profile, terms_of(**SERVER)).has_content()
    source = Source(read_ledger(Profile.load(profile)), tmp_path / "ledger.sqlite", None)
    facts = gather(source)
    text = " ".join(as_text(facts).split())
    assert "NO PRIVACY in the runs of a trusted server" in text
    assert "CLIENT-LEVEL DP BY A TRUSTED SERVER" not in text
    assert facts["no-privacy"]
    assert (facts["clipped-updates-released"], facts["clipped-updates-opted-out"]) == (1, 1)


def test_an_epsilon_changed_in_mid_run_ends_a_run_that_disclosed_it(tmp_path: Path) -> None:
    """It would go into the models without noise; what was sent is sent again, and no more."""
    profile = opted_out(tmp_path)
    first = update_of(ask(profile, terms_of(**SERVER), 1))
    before = profile.read_text()
    profile.write_text(before.replace("[run]\nepsilon = inf", "[run]\nepsilon = 1.0"))
    changed = ask(profile, terms_of(**SERVER), 2)
    assert changed.has_error()
    assert changed.error.code == wire.DECLINED
    assert kinds(tmp_path) == {(1, ClippedUpdate.release): "sent"}
    profile.write_text(before)
    np.testing.assert_array_equal(update_of(ask(profile, terms_of(**SERVER), 1)), first)
    assert ask(profile, terms_of(**SERVER), 2).has_content()


@pytest.mark.parametrize("noise", ["records", "client"])
def test_an_epsilon_changed_in_mid_run_leaves_a_paid_run(tmp_path: Path, noise: str) -> None:
    profile, terms = noising(tmp_path), terms_of(noise=noise, strategy="fedhdp")
    assert ask(profile, terms, 1).has_content()
    for epsilon in ("inf", "0.01"):
        text = profile.read_text().replace("2.4691356", "inf")
        head, tail = text.split("[run]\n")
        rest = tail.split("\n", 1)[1]
        profile.write_text(f"{head}[run]\nepsilon = {epsilon}\n{rest}")
        assert Profile.load(profile).run.epsilon == float(epsilon)
        assert ask(profile, terms, 2 if epsilon == "inf" else 3).has_content()
    ledger = Ledger(tmp_path / "ledger.sqlite")
    assert ledger.account().spent() == (1.2345678, 1e-6)
    assert set(kinds(tmp_path).values()) == {"sent"}


@pytest.mark.parametrize(
    ("noise", "words"), [("server", "WITHOUT noise"), ("client", "no gain from sampling")]
)
def test_plan_shows_the_cost_of_client_level_runs(tmp_path: Path, noise: str, words: str) -> None:
    from typer.testing import CliRunner

    from hdpfl_tools.site.commands import app

    profile = trusting(tmp_path)
    terms = tmp_path / "run.toml"
    terms.write_text(f'noise = "{noise}"\nstrategy = "fedhdp"\ndelta = 1e-6\nrounds = 3\n')
    command = ["plan", "--terms", str(terms), "--profile", str(profile)]
    said = CliRunner().invoke(app, command)
    assert said.exit_code == 0, said.output
    assert words in said.output
    assert "with all of its records" in said.output


@pytest.mark.parametrize("noise", ["server", "client"])
def test_plan_shows_no_privacy_for_an_opted_out_site(tmp_path: Path, noise: str) -> None:
    profile, run = Profile.load(opted_out(tmp_path)), terms_of(**{**SERVER, "noise": noise})
    lines = client_level_lines(profile, run)
    assert "this run has no privacy" in lines[-1]
    assert any("'disclose' in its profile must list" in line for line in lines) == (
        noise == "server"
    )
    private = Profile.load(trusting(tmp_path / "private"))
    assert "no privacy" not in " ".join(client_level_lines(private, run))


def test_a_charged_client_level_run_protects_the_whole_site_in_the_report(tmp_path: Path) -> None:
    from hdpfl_tools.site.reports.facts import Source, gather
    from hdpfl_tools.site.reports.ledger_view import read_ledger
    from hdpfl_tools.site.reports.units import WHOLE_SITE

    profile = noising(tmp_path)
    ask(profile, terms_of(noise="client", strategy="fedhdp"))
    site = Profile.load(profile)
    facts = gather(Source(read_ledger(site), tmp_path / "ledger.sqlite", site))
    assert facts["promise"]["unit"] == WHOLE_SITE


def test_a_run_that_was_charged_does_not_turn_to_updates_without_noise(tmp_path: Path) -> None:
    profile = trusting(tmp_path)
    assert ask(profile, terms_of(delta=1e-6), 1).has_content()
    turned = ask(profile, terms_of(**SERVER), 2)
    assert turned.has_error()
    assert turned.error.code == wire.DECLINED

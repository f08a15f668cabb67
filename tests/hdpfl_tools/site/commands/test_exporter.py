"""``hdpfl-site exporter``: the site's budget, releases, refusals and ledger, for the site alone."""

from __future__ import annotations

import contextlib
import os
import ssl
import stat
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from prometheus_client.parser import text_string_to_metric_families as parse

from client_app.site.inbox import file_request
from client_app.site.refusals import count_refusal, refusals_path
from hdpfl_flower.errors import DeploymentError
from hdpfl_flower.monitoring import series as metrics
from hdpfl_tools.shell.prometheus import Address, Exporter, serve
from hdpfl_tools.site.commands import exporter as command
from hdpfl_tools.site.commands.exporter import check_private, read_token
from hdpfl_tools.site.reports.site_series import SiteSeries
from tests.client_app.messages import ask, make_site, terms_of
from tests.hdpfl_tools.site.commands.conftest import SiteFolder

EPSILON = 1.2345678


def values(site: SiteSeries) -> dict[tuple[str, ...], float]:
    """Return value by name, without ``hdpfl_``, and labels."""
    return {(r.series.name.removeprefix("hdpfl_"), *r.labels): r.value for r in site.readings()}


def test_a_site_after_a_run_shows_every_series(tmp_path: Path) -> None:
    """Messages of a server, a real ledger, and what it says afterwards."""
    profile, terms = make_site(tmp_path), terms_of()
    site = SiteSeries(profile)
    assert values(site)["budget_left_like_last_runs",] == 2
    for server_round in (1, 2):
        assert not ask(profile, terms, server_round).has_error()
    assert ask(profile, terms_of(rounds=5000)).has_error()
    found = values(site)
    shown = {key[0] for key in found}
    assert shown == {s.name.removeprefix("hdpfl_") for s in metrics.series_at("site")}
    expected = {
        ("budget_spent_epsilon",): EPSILON, ("budget_limit_epsilon",): 2 * EPSILON,
        ("budget_left_epsilon",): EPSILON, ("budget_spent_delta",): 1e-6,
        ("budget_charged_runs",): 1, ("budget_left_like_last_runs",): 1,
        ("run_charged_epsilon", "run-1"): EPSILON, ("plan_paid_releases", "run-1"): 3,
        ("plan_left_releases", "run-1"): 1, ("run_releases", "run-1", "update", "sent"): 2,
        ("run_releases", "run-1", "update", "lost"): 0, ("ledger_intact_bool",): 1,
        ("ledger_anchored_bool",): 0, ("profile_readable_bool",): 1,
        ("refused_requests_total", "declined", "policy"): 1,
        ("refused_requests_total", "declined", "budget"): 0,
    }  # fmt: skip
    assert {key: found.get(key) for key in expected} == expected
    assert (
        found["ledger_entries",] == 9
    )  # the cap, records, the plan, two of reserved, sealed and sent


def test_a_ledger_that_does_not_bear_out_is_told_and_its_numbers_are_not(
    opened: SiteFolder,
) -> None:
    opened.charge()
    site = SiteSeries(opened.profile_path)
    assert values(site)["budget_spent_epsilon",] == EPSILON
    whole = opened.ledger_path.read_bytes()
    opened.ledger_path.write_bytes(whole.replace(b'"round": 1', b'"round": 9'))
    found = values(site)
    assert found["ledger_intact_bool",] == 0
    assert not any(key[0].startswith(("budget", "plan", "run")) for key in found)
    opened.ledger_path.unlink()
    assert values(site)["ledger_intact_bool",] == 0
    opened.ledger_path.write_bytes(whole)
    assert values(site)["ledger_intact_bool",] == 1


def test_a_textfile_is_for_the_group_alone(opened: SiteFolder) -> None:
    opened.charge()
    count_refusal(refusals_path(opened.ledger_path), "declined", "budget")
    path = opened.folder / "site.prom"
    done = opened("exporter", "--textfile", path)
    assert (done.code, done.out, done.err) == (0, "", "")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    found = {s.name: s.value for f in parse(path.read_text()) for s in f.samples}
    assert found["hdpfl_budget_spent_epsilon"] == EPSILON


# --- who may ask ----------------------------------------------------------------------------------


def self_signed(path: Path) -> tuple[Path, Path]:
    """Write a certificate for localhost and its key; it is its own authority."""
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, path.name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA384())
    )
    certificate, private = path.with_suffix(".crt"), path.with_suffix(".key")
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return certificate, private


def test_the_site_answers_this_machine_alone_unless_clients_show_who_they_are(
    opened: SiteFolder,
) -> None:
    here = opened.profile_path  # any file
    for address, insecure in (
        (Address("127.0.0.1", 0), False),
        (Address("0.0.0.0", 0, here, here, here), False),
        (Address("0.0.0.0", 0), True),
    ):
        check_private(address, insecure=insecure)
    with pytest.raises(DeploymentError):
        check_private(Address("10.0.0.1", 0), insecure=False)


@pytest.mark.parametrize(
    ("words", "token", "names"),
    [
        ([], True, ()),
        (["--token-file", "own.token", "--name", "a", "--name", "b"], True, ("a", "b")),
        (["--insecure"], False, ()),
        (["--insecure", "--token-file", "own.token"], True, ()),
    ],
)
def test_a_token_is_asked_for_unless_the_operator_says_otherwise(
    opened: SiteFolder, monkeypatch: pytest.MonkeyPatch,
    words: list[str], token: bool, names: tuple[str, ...],
) -> None:  # fmt: skip
    """Every user of a machine reaches its loopback."""
    served: list[Address] = []
    monkeypatch.setattr(command, "serve_until_ended", lambda _, at, report: served.append(at))
    monkeypatch.chdir(opened.folder)
    assert opened("exporter", *words).code == 0
    (address,) = served
    assert address.names == names
    file = opened.folder / "own.token"
    if "--token-file" not in words:
        file = opened.ledger_path.with_name(f"{opened.ledger_path.name}.token")
    assert file.exists() == token == bool(address.token)
    if token:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert len(address.token) > 40 and file.read_text() == address.token
        assert read_token(file) == address.token


def test_a_token_that_others_know_or_set_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("0123456789abcdef\n")
    for mode, fits in {0o600: True, 0o640: True, 0o644: False, 0o660: False, 0o602: False}.items():
        path.chmod(mode)
        if fits:
            assert read_token(path) == "0123456789abcdef"
            continue
        with pytest.raises(DeploymentError, match="other users can"):
            read_token(path)
    path.chmod(0o600)
    if os.getuid():
        other = mock.patch.object(os, "geteuid", lambda: os.getuid() + 1)
    else:
        other = contextlib.nullcontext()
        os.chown(path, 65534, -1)
    with other, pytest.raises(DeploymentError, match="other users can"):
        read_token(path)
    os.chown(path, os.getuid(), -1)
    for text in ("", "short", "with blanks 0123456789", "0" * 1001, "ü" * 20):
        path.write_text(text)
        with pytest.raises(DeploymentError, match="holds no token") as refused:
            read_token(path)
        assert not text or text not in str(refused.value)
    with pytest.raises(DeploymentError, match="--token-file"):
        read_token(tmp_path / "nowhere" / "token")


def test_with_tls_nobody_without_a_certificate_is_answered(
    opened: SiteFolder, tmp_path: Path
) -> None:
    opened.charge()
    server, client = (self_signed(tmp_path / name) for name in ("server", "client"))
    address = Address("localhost", 0, *server, client[0])
    stop, at = serve(Exporter("site", SiteSeries(opened.profile_path).readings), address)
    trusting = ssl.create_default_context(cafile=str(server[0]))
    try:
        with pytest.raises((urllib.error.URLError, OSError)):
            urllib.request.urlopen(f"https://{at}/metrics", timeout=10, context=trusting).read()
        trusting.load_cert_chain(*client)
        with urllib.request.urlopen(f"https://{at}/metrics", timeout=10, context=trusting) as reply:
            assert b"hdpfl_budget_spent_epsilon" in reply.read()
    finally:
        stop()


def test_what_waits_and_whether_a_run_like_the_last_fits_is_shown_and_told(tmp_path: Path) -> None:
    """No ε is in a notice, and each is sent once."""
    profile = make_site(tmp_path)
    site = SiteSeries(profile)
    at_rest = command.state_of(site.readings(), (0, True))
    assert at_rest == (0, True)
    ledger = site.ledger
    assert file_request(ledger, terms_of(**{"run-id": "waits"}), "app")
    assert values(site)["pending_requests",] == 1
    assert values(site)["ledger_free_bytes",] > 0
    assert values(site)["budget_left_like_last_runs",] == 2
    waits = command.state_of(site.readings(), at_rest)
    assert list(command.notices_of(at_rest, waits)) == ["request-pending"]
    assert list(command.notices_of(waits, waits)) == []
    for run in ("run-1", "run-2"):
        assert not ask(profile, terms_of(**{"run-id": run}), 1).has_error()
    assert values(site)["budget_left_like_last_runs",] == 0
    spent = command.state_of(site.readings(), waits)
    assert list(command.notices_of(waits, spent)) == ["budget-low"]

"""``hdpfl certs``: what Flower takes, and nothing overwritten."""

from __future__ import annotations

import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from flwr.supercore.primitives.asymmetric import uses_nist_ec_curve
from typer.testing import CliRunner

from hdpfl_flower.errors import DeploymentError
from hdpfl_tools.coordinator.certificates import hosts_of
from hdpfl_tools.coordinator.commands import app


def certs(*words: str) -> str:
    result = CliRunner().invoke(app, ["certs", *words], catch_exceptions=True)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "certs"
    certs(str(made), "--host", "localhost", "--host", "127.0.0.1", "--site", "a", "--site", "b")
    return made


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_private_files_are_for_their_owner_alone(folder: Path) -> None:
    public = {".crt", ".pub"}
    for path in folder.rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        if path.is_dir():
            assert mode == 0o700, path
        elif path.suffix not in public:
            assert mode == 0o600, path
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_site_keys_are_what_supernodes_and_their_registration_load(folder: Path) -> None:
    """``flower-supernode`` and ``flwr supernode register`` load them by these functions."""
    private = load_ssh_private_key((folder / "sites" / "a").read_bytes(), None)
    public = load_ssh_public_key((folder / "sites" / "a.pub").read_bytes())
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert isinstance(public, ec.EllipticCurvePublicKey)
    assert private.public_key() == public
    assert isinstance(public.curve, ec.SECP384R1)
    assert uses_nist_ec_curve(public)
    assert (folder / "sites" / "a").read_bytes() != (folder / "sites" / "b").read_bytes()


@pytest.mark.parametrize(
    ("host", "refused"), [("127.0.0.1", False), ("localhost", False), ("other.example", True)]
)
def test_a_strict_tls_client_takes_the_named_hosts_alone(
    folder: Path, host: str, refused: bool
) -> None:
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(folder / "server.crt", folder / "server.key")
    client_side = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    client_side.verify_flags |= ssl.VERIFY_X509_STRICT
    left, right = socket.socketpair()

    def serve() -> None:
        try:
            server_side.wrap_socket(left, server_side=True).close()
        except (ssl.SSLError, OSError):
            left.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        if refused:
            with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
                client_side.wrap_socket(right, server_hostname=host)
        else:
            client_side.wrap_socket(right, server_hostname=host).close()
    finally:
        right.close()
        thread.join()


def test_sites_are_added_and_nothing_else_changes(folder: Path) -> None:
    before = content(folder)
    certs(str(folder), "--site", "c")
    after = content(folder)
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) == {"sites/c", "sites/c.pub"}
    assert "is complete" in certs(str(folder), "--host", "localhost")
    assert content(folder) == after


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--site", "a"], "a exists already and is not overwritten"),
        (["--site", "new", "--site", "b"], "b exists already and is not overwritten"),
        (["--site", "new", "--site", "new"], "is given twice"),
        (["--site", "new", "--host", "other.example"], "does not name other.example"),
        (["--site", "../evil"], "may hold only letters"),
        (["--site", "x.pub"], "may hold only letters"),
        (["--site", ""], "may hold only letters"),
        (["--site", "new", "--host", "https://localhost"], "neither a DNS name nor an IP"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_written(
    folder: Path, words: list[str], message: str
) -> None:
    before = content(folder)
    with pytest.raises(DeploymentError, match=message):
        certs(str(folder), *words)
    assert content(folder) == before


def test_a_renewed_certificate_keeps_its_names_gets_another_and_keeps_the_authority(
    folder: Path,
) -> None:
    before = content(folder)
    certs(str(folder), "--renew", "--host", "flower.example.org")
    after = content(folder)
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed == {"server.crt", "server.key", "server.crt.old", "server.key.old"}
    assert after["server.crt.old"] == before["server.crt"]
    assert stat.S_IMODE((folder / "server.key").stat().st_mode) == 0o600
    assert hosts_of(after["server.crt"]) == ["localhost", "127.0.0.1", "flower.example.org"]
    certificate = x509.load_pem_x509_certificate(after["server.crt"])
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(before["ca.crt"]))
    certs(str(folder), "--renew")
    assert hosts_of((folder / "server.crt").read_bytes())[-1] == "flower.example.org"

"""Keys and certificates: TLS for the coordinator.

Everything is ECDSA on P-384. Nothing here touches the disk; ``commands/certs.py`` does.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hdpfl_flower.errors import DeploymentError
from hdpfl_tools.shell.site_keys import Pair

CA_DAYS, SERVER_DAYS = 3650, 825
"""Days of validity of the certificates; TLS clients accept at most 825."""

_DNS_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?:\.(?!-)[A-Za-z0-9_-]{1,63})*")
_CLOCKS_DIFFER = timedelta(hours=1)
_CA_NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hdpfl federation CA")])


@dataclass(frozen=True, repr=False)
class Authority:
    """Certificate authority (CA) and the server's certificate that it signed; PEM."""

    ca: Pair
    server: Pair


def make_authority(hosts: list[str]) -> Authority:
    """Return a new CA, and a server certificate with ``hosts`` as SANs.

    Args:
        hosts: DNS names and IP addresses by which sites will call the server, at least one.

    Raises:
        DeploymentError: a host is neither.
    """
    names = _general_names(hosts)
    ca_key = ec.generate_private_key(ec.SECP384R1())
    denied = ("key_encipherment", "data_encipherment", "key_agreement", "content_commitment")
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
        **dict.fromkeys(denied, False),
    )
    ca = (
        _builder(_CA_NAME, _CA_NAME, ca_key.public_key(), CA_DAYS)
        # A path length of 0: it signs servers, and no other CA.
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False
        )
        .sign(ca_key, hashes.SHA384())
    )
    public = ca.public_bytes(serialization.Encoding.PEM)
    return Authority(Pair(_pem(ca_key), public), _server(ca_key, names))


def renew_server(ca_key: bytes, hosts: list[str]) -> Pair:
    """Return a new server certificate with key, signed by the given CA; PEM.

    Sites that trust the CA take it without a change of theirs.

    Raises:
        DeploymentError: a host is no host, or the key is none.
    """
    try:
        key = serialization.load_pem_private_key(ca_key, None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise DeploymentError("ca.key is damaged; restore it, or make a new folder")
    return _server(key, _general_names(hosts))


def _server(ca_key: ec.EllipticCurvePrivateKey, names: list[x509.GeneralName]) -> Pair:
    key = ec.generate_private_key(ec.SECP384R1())
    ca_id = x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key())
    # The name of the first host may be longer than a common name may be; TLS reads SANs alone.
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hdpfl SuperLink")])
    certificate = (
        _builder(name, _CA_NAME, key.public_key(), SERVER_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(ca_id), critical=False
        )
        .sign(ca_key, hashes.SHA384())
    )
    return Pair(_pem(key), certificate.public_bytes(serialization.Encoding.PEM))


def missing_hosts(certificate: bytes, hosts: list[str]) -> list[str]:
    """Return the ``hosts`` that a PEM server certificate does not name.

    Raises:
        DeploymentError: it is no certificate with names, or a host is no host.
    """
    names = _names_in(certificate)
    return [host for host in hosts if _general_name(host) not in names]


def hosts_of(certificate: bytes) -> list[str]:
    """Return the names and addresses in a server certificate, PEM.

    Raises:
        DeploymentError: it is no certificate with names.
    """
    return [str(name.value) for name in _names_in(certificate)]


def _names_in(certificate: bytes) -> list[x509.GeneralName]:
    try:
        names = x509.load_pem_x509_certificate(certificate).extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        )
    except (ValueError, x509.ExtensionNotFound):
        raise DeploymentError("the server's certificate is damaged; make a new folder") from None
    return list(names.value)


def valid_until(certificate: bytes) -> datetime:
    """Return when a certificate, in PEM, ends (UTC)."""
    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc


def _general_names(hosts: list[str]) -> list[x509.GeneralName]:
    return [_general_name(host) for host in dict.fromkeys(hosts)]


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    # A DNS name has at most 253 characters.
    if len(host) > 253 or not _DNS_NAME.fullmatch(host):
        raise DeploymentError(
            f"'--host {host}' is neither a DNS name nor an IP address; leave out the scheme and "
            "the port"
        )
    return x509.DNSName(host)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    # Begun in the past: a site with a clock a little behind accepts it at once.
    begin = datetime.now(UTC) - _CLOCKS_DIFFER
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + timedelta(days=days))
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )

"""The proxy that the environment names: for which hosts, with which credentials, never shown."""

from __future__ import annotations

import pytest

from hdpfl_flower.errors import DeploymentError
from hdpfl_tools.shell.proxies import proxy_for


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("http://proxy.hospital.example:3128", "proxy.hospital.example:3128"),
        ("proxy.hospital.example:3128", "proxy.hospital.example:3128"),
        ("http://10.0.0.1", "10.0.0.1:80"),
    ],
)
def test_the_proxy_is_that_of_https(monkeypatch: pytest.MonkeyPatch, url: str, where: str) -> None:
    assert proxy_for("flower.example.org") is None
    monkeypatch.setenv("HTTP_PROXY", "http://other:1")
    assert proxy_for("flower.example.org") is None
    monkeypatch.setenv("HTTPS_PROXY", url)
    found = proxy_for("flower.example.org")
    assert (str(found), found.headers) == (where, {})


def test_hosts_in_no_proxy_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,.example.org")
    assert proxy_for("127.0.0.1") is proxy_for("flower.example.org") is None
    assert proxy_for("flower.example.com") is not None


def test_credentials_are_decoded_and_in_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://site:p%40ss%3Aword@proxy:3128")
    found = proxy_for("flower.example.org")
    # printf 'site:p@ss:word' | base64
    assert found.headers == {"Proxy-Authorization": "Basic c2l0ZTpwQHNzOndvcmQ="}
    assert "c2l0" not in repr(found) and "ss" not in str(found)


@pytest.mark.parametrize("url", ["socks5://proxy:1", "http://", "http://u:SECRET@proxy:99999"])
def test_bad_proxy_urls_are_named_not_shown(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("HTTPS_PROXY", url)
    with pytest.raises(DeploymentError, match="HTTPS_PROXY does not hold the URL") as found:
        proxy_for("flower.example.org")
    assert "SECRET" not in str(found.value)

"""Forward proxy from the environment, as in Flower's SuperNode."""

from __future__ import annotations

import base64
import urllib.request
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from hdpfl_flower.errors import DeploymentError

VARIABLE = "HTTPS_PROXY"


@dataclass(frozen=True)
class Proxy:
    """Proxy that connects by ``CONNECT``.

    Attributes:
        host: its name or address.
        port: its port.
        headers: sent with ``CONNECT``: the credentials in its URL, if any; never shown.
    """

    host: str
    port: int
    headers: dict[str, str] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def proxy_for(host: str) -> Proxy | None:
    """Return the proxy of ``HTTPS_PROXY`` for ``host``; None without, or where ``NO_PROXY`` has it.

    Raises:
        DeploymentError: the variable holds no proxy's URL. Its text, which may hold a password, is
            not shown.
    """
    url = urllib.request.getproxies_environment().get("https", "")
    if not url or urllib.request.proxy_bypass(host):
        return None
    parts = urlsplit(url if "//" in url else f"//{url}", scheme="http")
    try:
        port = parts.port or 80
    except ValueError:
        port = 0
    if not parts.hostname or not port or parts.scheme != "http":
        raise DeploymentError(
            f"{VARIABLE} does not hold the URL of a proxy; set it to http://HOST:PORT, or, with "
            "credentials, to http://USER:PASSWORD@HOST:PORT (percent-encode both)"
        )
    headers = {}
    if parts.username is not None:
        words = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Proxy-Authorization"] = f"Basic {base64.b64encode(words.encode()).decode()}"
    return Proxy(parts.hostname, port, headers)

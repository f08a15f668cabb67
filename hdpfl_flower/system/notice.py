"""Notices to a person: a program that reads them, or a URL to which they are posted."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import urllib.request

from hdpfl_flower.system.paths import expanded

SECONDS = 10.0
"""Longest wait for a program or a hook."""


def send_notice(to: str, log: logging.Logger, **facts: object) -> None:
    """Send ``facts`` as JSON; log a failure.

    Args:
        to: the path of a program, which reads them from standard input, or of a file that holds a
            URL, to which they are posted: no secret stands in arguments or in a run config.
        log: of the caller.
        facts: of the event, nothing private.
    """
    if not to:
        return
    try:
        path, said = expanded(to), json.dumps(facts).encode()
        if os.access(path, os.X_OK):
            quiet = subprocess.DEVNULL
            subprocess.run(
                [path], input=said, check=True, timeout=SECONDS, stdout=quiet, stderr=quiet
            )
            return
        url, kind = path.read_text().strip(), {"Content-Type": "application/json"}
        if not url.startswith(("https://", "http://")):
            raise ValueError("no URL")
        request = urllib.request.Request(url, said, kind)  # noqa: S310 - a web address, above
        with urllib.request.urlopen(request, timeout=SECONDS):  # noqa: S310 - the same
            pass
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        # Neither the error's text nor the URL, which may be a secret.
        log.warning("notify: no notice was sent to %s: %s", to, type(error).__name__)

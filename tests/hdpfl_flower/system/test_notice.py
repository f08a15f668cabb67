"""Notices reach a program or a hook, and what fails is logged without an address."""

from __future__ import annotations

import http.server
import json
import logging
import threading
from pathlib import Path

import pytest

from hdpfl_flower.system.notice import send_notice

LOG = logging.getLogger("hdpfl.server")


def test_a_program_reads_the_notice_from_its_standard_input(tmp_path: Path) -> None:
    program = tmp_path / "tell"
    program.write_text(f'#!/bin/sh\ncat > {tmp_path}/told; echo "$#" >> {tmp_path}/told\n')
    program.chmod(0o700)
    send_notice(str(program), LOG, notice="run-ended", run="r")
    said, arguments = (tmp_path / "told").read_text().rsplit("}", 1)
    assert json.loads(said + "}") == {"notice": "run-ended", "run": "r"}
    assert arguments.strip() == "0"


def test_a_hook_is_posted_to_the_url_in_a_file(tmp_path: Path) -> None:
    told: list[bytes] = []

    class Hook(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Hook) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        (tmp_path / "url").write_text(f"http://127.0.0.1:{server.server_port}/secret\n")
        send_notice(str(tmp_path / "url"), LOG, notice="budget-low")
    assert json.loads(told[0]) == {"notice": "budget-low"}


@pytest.mark.parametrize("content", ["http://127.0.0.1:1/secret", "file:///etc/secret", None])
def test_what_fails_is_logged_without_the_secret(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str | None
) -> None:
    path = tmp_path / "url"
    if content:
        path.write_text(content)
    send_notice(str(path), LOG, notice="run-failed")
    assert f"notify: no notice was sent to {path}" in caplog.text
    assert "secret" not in caplog.text

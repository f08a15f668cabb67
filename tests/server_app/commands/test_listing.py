"""Texts of ``hdpfl list``."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from server_app.commands import app


def test_every_name_has_a_short_plain_text() -> None:
    found = json.loads(CliRunner().invoke(app, ["list", "--json"]).stdout)
    for kind in ("strategies", "parts", "models", "datasets", "guards", "attacks"):
        for name, text in found[kind].items():
            assert text, name
            assert "`" not in text, name
            assert len(text.split()) <= 16, name

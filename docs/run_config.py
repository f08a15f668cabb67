"""Writes the run config's table in ``pyproject.toml`` from the classes of its keys.

``python docs/run_config.py`` after a key was added or changed; ``tests/test_pyproject.py``
compares. ``flwr run`` lets declared keys alone be overridden.
"""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from hdpfl_flower.config.tables import flat_rows  # noqa: E402
from server_app.app import RESUME_FROM  # noqa: E402
from strategies import SETTINGS_OWNERS  # noqa: E402
from strategies.settings import setting_rows  # noqa: E402

HEAD = "[tool.flwr.app.config]"
AFTER = "\n\n[tool.ruff]"


def run_config_table() -> str:
    """Return the table, its head included, one key a line."""
    lines = [
        f"{HEAD}  # every key with its default; written by docs/run_config.py",
        f'{RESUME_FROM} = ""  # the server\'s own: no term',
        *(f"{row.key} = {row.toml}" for row in flat_rows()),
    ]
    for name, rows in groupby(setting_rows(SETTINGS_OWNERS), key=lambda row: row.group):
        lines += ["", f"[tool.flwr.app.config.{name}]"]
        lines += [f"{row.key.removeprefix(f'{name}.')} = {row.toml}" for row in rows]
    return "\n".join(lines)


def write(path: Path) -> None:
    """Replace the table in the file at ``path``."""
    text = path.read_text()
    begin, end = text.index(HEAD), text.index(AFTER)
    path.write_text(text[:begin] + run_config_table() + text[end:])


if __name__ == "__main__":
    write(ROOT / "pyproject.toml")

"""Writer of the run config table in ``pyproject.toml``.

The table comes from the classes of its keys.

``python docs/run_config.py`` after a key was added or changed; ``tests/test_pyproject.py``
compares. ``flwr run`` allows only declared keys to be overridden.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from hdpfl_tools.coordinator.project import HEAD, run_config_table  # noqa: E402

AFTER = "\n\n[tool.ruff]"


def write(path: Path) -> None:
    """Replace the table in the file at ``path``."""
    text = path.read_text()
    begin, end = text.index(HEAD), text.index(AFTER)
    path.write_text(text[:begin] + run_config_table() + text[end:])


if __name__ == "__main__":
    write(ROOT / "pyproject.toml")

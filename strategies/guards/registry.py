"""Guards by the value of the key ``guard``."""

from __future__ import annotations

from strategies.guards.by_content import ByContent
from strategies.guards.cap import Cap
from strategies.guards.guard import Guard

GUARDS: dict[str, type[Guard]] = {"none": Guard, "cap": Cap, "content": ByContent}
"""The class of each value of ``guard``."""

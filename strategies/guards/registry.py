"""Guards by the value of the key ``guard``."""

from __future__ import annotations

from hdpfl_flower.config.run_config import RunConfig
from strategies.guards.by_content import ByContent
from strategies.guards.cap import Cap
from strategies.guards.guard import Guard

GUARDS: dict[str, type[Guard]] = {"none": Guard, "cap": Cap, "content": ByContent}
"""The class of each value of ``guard``."""


def make_guard(config: RunConfig, *, sums: bool, linear_step: bool = True) -> Guard:
    """Return the guard that ``config`` names; see :class:`~strategies.guards.guard.Guard`."""
    return GUARDS[config.server.guard](config, sums=sums, linear_step=linear_step)

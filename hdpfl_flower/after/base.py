"""Work after the last round. Base class of every kind.

A kind is a file: settings, price and checks here, its work in ``client_app/after_run/``.
"""

from __future__ import annotations

from typing import ClassVar

from hdpfl_flower.config.kinds import Kind


class Ending(Kind):
    """Settings of one kind of work after the last round.

    Attributes:
        makes_model: the run ends with a personal model at its site.
    """

    key = "after"
    is_charged = True
    makes_model: ClassVar[bool] = True

"""Work after the last round: one value, a file a kind."""

from __future__ import annotations

from typing import Final

from hdpfl_flower.after.base import Ending
from hdpfl_flower.after.prior import Prior
from hdpfl_flower.after.scores import Scores
from hdpfl_flower.after.shrink import Shrink
from hdpfl_flower.after.tuning import Tuning
from hdpfl_flower.config.kinds import find_kind, parse_kind, read_line, read_settings
from hdpfl_flower.config.settings import Settings

__all__ = ["KINDS", "After", "Ending", "Prior", "Scores", "Shrink", "Tuning", "read_after"]

KINDS: Final[dict[str, type[Ending]]] = {
    kind.kind: kind for kind in (Tuning, Prior, Shrink, Scores)
}
"""Every kind by its name, in the order of their text."""


class After(Settings):
    """All that a site computes after the last round.

    >>> read_after("scores, tuning steps=3").to_text()
    'tuning steps=3 part=auto, scores share=0.5'
    """

    tuning: Tuning | None = None
    prior: Prior | None = None
    shrink: Shrink | None = None
    scores: Scores | None = None

    @property
    def kinds(self) -> tuple[Ending, ...]:
        """The kinds asked for."""
        return tuple(
            ending for ending in (getattr(self, name) for name in KINDS) if ending is not None
        )

    def over(self, defaults: After) -> After:
        """Return these kinds, filled in from a strategy's ``defaults``."""
        kinds = {ending.kind: ending for ending in defaults.kinds}
        for ending in self.kinds:
            default = type(ending)().as_texts()
            given = {k: text for k, text in ending.as_texts().items() if text != default.get(k)}
            before = kinds[ending.kind].as_texts() if ending.kind in kinds else {}
            kinds[ending.kind] = parse_kind(type(ending), {**before, **given})
        return After.parse(kinds)

    def to_text(self) -> str:
        """Return the canonical text: each kind with its settings, between commas."""
        return ", ".join(ending.to_text() for ending in self.kinds)


def read_after(value: object) -> After:
    """Return the kinds that a text lists between commas, with settings.

    Raises:
        ValueError: no kind or setting has that name, or a value is wrong; no value is in it.
    """
    if isinstance(value, After):
        return value
    endings: dict[str, Ending] = {}
    text = read_line(value)
    for words_of_kind in text.split(",") if text.strip() else ():
        name, *words = words_of_kind.split() or [""]
        kind = find_kind(name, KINDS, "kind of work after the run")
        if name in endings:
            raise ValueError(f"names '{name}' twice; leave one out")
        endings[name] = parse_kind(kind, read_settings(words))
    return After.parse(endings)

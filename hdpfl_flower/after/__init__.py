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
        return tuple(each for each in (getattr(self, name) for name in KINDS) if each is not None)

    def over(self, own: After) -> After:
        """Return these kinds, filled in from a strategy's ``own``."""
        found = {each.kind: each for each in own.kinds}
        for each in self.kinds:
            default = type(each)().as_texts()
            given = {k: text for k, text in each.as_texts().items() if text != default.get(k)}
            before = found[each.kind].as_texts() if each.kind in found else {}
            found[each.kind] = parse_kind(type(each), {**before, **given})
        return After.parse(found)

    def to_text(self) -> str:
        """Return the canonical text: each kind with its settings, between commas."""
        return ", ".join(each.to_text() for each in self.kinds)


def read_after(value: object) -> After:
    """Return the kinds of a text, between commas, with settings.

    Raises:
        ValueError: no kind or setting has that name, or a value is wrong; no value is in it.
    """
    if isinstance(value, After):
        return value
    found: dict[str, Ending] = {}
    text = read_line(value)
    for part in text.split(",") if text.strip() else ():
        name, *words = part.split() or [""]
        kind = find_kind(name, KINDS, "kind of work after the run")
        if name in found:
            raise ValueError(f"names '{name}' twice; leave one out")
        found[name] = parse_kind(kind, read_settings(words))
    return After.parse(found)

"""Local work as one value of a closed union."""

from __future__ import annotations

from typing import Final

from hdpfl_flower.config.kinds import find_kind, parse_kind, read_line, read_settings
from hdpfl_flower.config.validation import hint
from hdpfl_flower.errors import TermsError
from hdpfl_flower.work.base import Auto, Plain, Work
from hdpfl_flower.work.offset import Offset
from hdpfl_flower.work.parted import Alternate, Frozen, Joint

__all__ = [
    "KINDS",
    "Alternate",
    "Auto",
    "Frozen",
    "Joint",
    "Offset",
    "Plain",
    "Work",
    "read_work",
    "work_of",
]

KINDS: Final[dict[str, type[Work]]] = {
    kind.kind: kind for kind in (Plain, Joint, Alternate, Frozen, Offset)
}
"""Every kind of local work by its name."""


def read_work(value: object) -> Work:
    """Return the work of a text: a kind and its settings.

    ``auto`` stands for the strategy's own kind.

    Raises:
        ValueError: no kind or setting has that name, or a value is wrong; no value is in it.

    >>> read_work("alternate own-steps=2").to_text()
    'alternate pull=auto first-batch=auto stays=head mask=none share=0.5 own-steps=2'
    """
    if isinstance(value, Work):
        return value
    kind, *words = read_line(value).split() or [Auto.kind]
    given = read_settings(words)
    if kind != Auto.kind:
        return parse_kind(find_kind(kind, KINDS, "kind of local work"), given)
    keys = {key for kind_class in KINDS.values() for key in kind_class.keys()}  # noqa: SIM118
    wrong = next((key for key in given if key not in keys), None)
    if wrong is not None:
        raise ValueError(f"has a setting that no kind has{hint(wrong, keys)}")
    return Auto(changes=tuple(given.items()))


def work_of(default: Work, given: Work, strategy: str) -> Work:
    """Return the work of a run, filled in from the strategy's.

    Args:
        default: of the strategy; any kind can replace plain work; its pull and first batch stay.
        given: of the run config.
        strategy: its name.

    Raises:
        TermsError: a kind that is not the strategy's, or a setting of another kind.
    """
    if isinstance(given, Auto):
        if not given.changes:
            return default
        try:
            return parse_kind(type(default), {**default.as_texts(), **dict(given.changes)})
        except ValueError as error:
            raise TermsError(f"run config: 'work' of '{strategy}' {error}") from None
    if isinstance(default, (Plain, type(given))):
        return given.filled(default)
    raise TermsError(
        f"run config: 'work' is '{given.kind}', and '{strategy}' works '{default.kind}': leave it "
        "out, or take another strategy"
    )

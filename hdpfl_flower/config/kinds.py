"""Typed values of one line: a kind and ``key=value`` settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar, Protocol, TypeVar, cast

from pydantic import ValidationError

from hdpfl_flower.config.settings import Settings
from hdpfl_flower.config.validation import describe, hint

MOST_CHARACTERS = 500
"""Characters of a line, which is read before consent."""


class Proposal(Protocol):
    """Terms that a kind's checks read, without an import of the terms, which hold the kinds."""

    @property
    def noise(self) -> str:
        """Source of the noise."""

    @property
    def dataset(self) -> str:
        """Data set, or ``site``."""

    @property
    def learning_rate(self) -> float:
        """Rate of local SGD."""

    @property
    def local_steps(self) -> int:
        """Local steps a round; 0: from epochs."""

    @property
    def second(self) -> object:
        """Second model of a site; None: none."""


class Kind(Settings):
    """Settings of one kind.

    Attributes:
        key: of the terms, with a value of this type.
        kind: first word of its text.
        is_charged: a site pays for another mechanism than noisy steps.
    """

    key: ClassVar[str] = ""
    kind: ClassVar[str] = ""
    is_charged: ClassVar[bool] = False

    @property
    def words(self) -> str:
        """Name of its key and kind, for messages."""
        return f"'{self.key}' = '{self.kind}'"

    def as_texts(self) -> dict[str, str]:
        """Return each setting as text, by its key; not the empty ones."""
        return {key: text for key, value in self.as_config().items() if (text := str(value))}

    def to_text(self) -> str:
        """Return the canonical text: the kind, and each setting as ``key=value``."""
        return " ".join([self.kind, *(f"{key}={text}" for key, text in self.as_texts().items())])

    def check(self, terms: Proposal) -> None:
        """Refuse contradictions with other terms.

        Raises:
            TermsError: names the keys, and the remedy.
        """

    @property
    def is_unlike_rounds(self) -> bool:
        """Whether only plans of unequal rounds can pay for it."""
        return self.is_charged


KindT = TypeVar("KindT", bound=Kind)


def read_kind(kinds: Mapping[str, type[KindT]], title: str, value: object) -> KindT | None:
    """Return the value of a text, or None of an empty one.

    Args:
        kinds: by name.
        title: of the kinds, for messages.
        value: a text, or an earlier result of this function.

    Raises:
        ValueError: no kind or setting has that name, or a value is wrong; no value is in it.
    """
    if value is None or (isinstance(value, Kind) and type(value) in kinds.values()):
        return cast("KindT | None", value)
    name, *words = read_line(value).split() or [""]
    return parse_kind(find_kind(name, kinds, title), read_settings(words)) if name else None


def write_kind(value: Kind | None) -> str:
    """Return the canonical text; empty of None."""
    return value.to_text() if value else ""


def read_line(value: object) -> str:
    """Return the text of a typed value; ``ValueError`` if malformed."""
    # Operators read it before they approve, and ledgers keep it: no character may hide others.
    if not isinstance(value, str) or len(value) > MOST_CHARACTERS or not value.isprintable():
        raise ValueError(f"must be one line of at most {MOST_CHARACTERS} printable characters")
    return value


def read_settings(words: Iterable[str]) -> dict[str, str]:
    """Return the ``key=value`` settings; ``ValueError`` for a repeated one."""
    pairs = [(key, given) for key, _, given in (word.partition("=") for word in words)]
    if len(dict(pairs)) < len(pairs):
        raise ValueError("has a setting twice; leave one out")
    return dict(pairs)


def find_kind(name: str, kinds: Mapping[str, type[KindT]], title: str) -> type[KindT]:
    """Return the named kind; ``ValueError`` with the nearest name."""
    if name not in kinds:
        raise ValueError(
            f"names no {title}{hint(name, kinds)}; the first word is one of "
            f"{', '.join(kinds)}, then follow its settings as key=value"
        )
    return kinds[name]


def parse_kind(kind: type[KindT], texts: Mapping[str, str]) -> KindT:
    """Return a value of ``kind``; ``ValueError`` without the value."""
    try:
        return kind.model_validate_strings(dict(texts), strict=False)
    except ValidationError as error:
        said = describe(error, lambda _: kind.keys())
        raise ValueError(f"is of kind '{kind.kind}': {said}") from None

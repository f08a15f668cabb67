"""Typed tables of the terms: a kind and its settings, such as ``[work] kind = "alternate"``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Protocol, TypeVar, cast

from hdpfl_flower.config.settings import PREFIX, Settings, Value
from hdpfl_flower.config.tables_of_terms import read_table
from hdpfl_flower.config.validation import hint
from hdpfl_flower.errors import TermsError
from hdpfl_flower.noise_sources import NoiseSource


class Proposal(Protocol):
    """Terms that a kind's checks read, without an import of the terms, which hold the kinds."""

    @property
    def noise(self) -> str:
        """Source of the noise."""

    @property
    def source(self) -> NoiseSource:
        """Source of the noise, with its properties."""

    @property
    def dataset(self) -> str:
        """Data set, or ``site``."""

    @property
    def learning_rate(self) -> float:
        """Rate of local SGD."""

    @property
    def local_steps(self) -> int:
        """Local steps a round; 0: from epochs."""


class Kind(Settings):
    """Settings of one kind.

    Attributes:
        key: of the terms, with a table of this type.
        kind: the table's ``kind``.
        is_charged: a site pays for another mechanism than noisy steps.
    """

    key: ClassVar[str] = ""
    kind: ClassVar[str] = ""
    is_charged: ClassVar[bool] = False

    @property
    def words(self) -> str:
        """Name of its key and kind, for messages."""
        return f"'{self.key}.kind' = '{self.kind}'"

    def as_table(self) -> dict[str, Value]:
        """Return the canonical table: the kind, and each setting that is not empty."""
        settings = {key: value for key, value in self.as_config().items() if value != ""}
        return {"kind": self.kind, **settings}

    def contradictions(self, terms: Proposal) -> Iterator[str]:
        """Yield a sentence for each contradiction with other terms: the keys, and the remedy."""
        del terms
        yield from ()

    @property
    def is_unlike_rounds(self) -> bool:
        """Whether only plans of unequal rounds can pay for it."""
        return self.is_charged


KindT = TypeVar("KindT", bound=Kind)


def read_kind(kinds: Mapping[str, type[KindT]], value: object) -> KindT | None:
    """Return the value of a table, or None of an empty one.

    Args:
        kinds: by name.
        value: a table, or an earlier result of this function.

    Raises:
        ValueError: no kind or setting has that name, or a value is wrong; no value is in it.
    """
    if value is None or (isinstance(value, Kind) and type(value) in kinds.values()):
        return cast("KindT | None", value)
    key = next(iter(kinds.values())).key
    table = read_table(value, key)
    if not table:
        return None
    name = table.pop("kind", "")
    if name not in kinds:
        near = hint(name, kinds) if isinstance(name, str) else ""
        raise ValueError(
            f"is of no known kind{near}; write as '{key}.kind' one of {', '.join(kinds)}"
        )
    return parse_kind(kinds[str(name)], table)


def write_kind(value: Kind | None) -> dict[str, Value] | None:
    """Return the canonical table; None of None."""
    return value.as_table() if value else None


def parse_kind(kind: type[KindT], table: Mapping[str, Value]) -> KindT:
    """Return a value of ``kind``; ``ValueError`` without the value."""
    try:
        return kind.parse(table, f"{kind.key}.")
    except TermsError as error:
        said = str(error).removeprefix(PREFIX)
        raise ValueError(f"is of kind '{kind.kind}': {said}") from None

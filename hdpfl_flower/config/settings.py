"""Base class of the groups of run config keys.

A field is a key. Its annotation is the type and the range, its description is the line in the
tables of keys, and its default is the value of an empty run config.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, Field, ValidationError, model_validator

from hdpfl_flower.config.validation import FROZEN, Location, describe, kebab, written
from hdpfl_flower.errors import TermsError

PREFIX = "run config: "
"""How every refusal of a key begins."""
Value = bool | int | float | str
"""Values of Flower's run config."""


def _fits_flower(value: int) -> int:
    """Refuse integers beyond Flower's 64 bits with a sign."""
    if value >= 2**63:
        raise ValueError("must be below 2**63")
    return value


def _is_number(value: object) -> bool:
    """Return whether ``value`` is a float or a 64-bit integer."""
    return type(value) is float or (type(value) is int and abs(value) < 2**63)


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1)]
ShareOrNone = Annotated[float, Field(ge=0, lt=1)]
PartOfBudget = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(ge=0), AfterValidator(_fits_flower)]
AtLeastOne = Annotated[int, Field(ge=1), AfterValidator(_fits_flower)]


def _key_alone(location: Location) -> str:
    """Return the key without pydantic's names for the types that it may have."""
    return written(location[:1])


class Settings(BaseModel):
    """A frozen group of keys. Unknown keys and wrong types are refused by name.

    Keys are written in kebab-case in ``pyproject.toml``, in TOML files and on the command line.
    """

    model_config = FROZEN

    @model_validator(mode="before")
    @classmethod
    def _numbers_as_texts(cls, data: Any) -> Any:
        """Accept a number that Flower carries where a text is asked for: 0.1 means '0.1'."""
        if not isinstance(data, dict):
            return data
        fields = cls.model_fields
        texts = {key for key, name in cls.names().items() if fields[name].annotation is str}
        return {
            # `repr` of a float is the shortest text that reads back as the same number.
            key: repr(value) if key in texts and _is_number(value) else value
            for key, value in data.items()
        }

    @classmethod
    def parse(cls, data: Mapping[str, Any], prefix: str = "") -> Self:
        """Return the group written in ``data``.

        Args:
            data: the keys of this group alone.
            prefix: before each key in the run config, for messages.

        Raises:
            TermsError: a key is unknown, or a value has the wrong type or range; every mistake
                is named in one line.
        """
        try:
            return cls.model_validate(dict(data))
        except ValidationError as error:
            said = describe(error, lambda _: cls.keys(), prefix, _key_alone)
            raise TermsError(f"{PREFIX}{said}") from None

    @classmethod
    def names(cls) -> dict[str, str]:
        """Return the name of the field of each key."""
        return {field.alias or kebab(name): name for name, field in cls.model_fields.items()}

    @classmethod
    def keys(cls) -> list[str]:
        """Return every key as users write it."""
        return list(cls.names())

    def as_config(self) -> dict[str, Value]:
        """Return the group as Flower's flat run config, keys in kebab-case."""
        return self.model_dump(by_alias=True)

    def updated(self, **changes: object) -> Self:
        """Return the same group with some fields changed, validated again."""
        keys = {name: key for key, name in self.names().items()}
        values = {key: getattr(self, name) for name, key in keys.items()}
        return self.parse({**values, **{keys[name]: value for name, value in changes.items()}})

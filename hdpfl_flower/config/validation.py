"""One way to turn pydantic's findings into one clear line per mistake, without values."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from pydantic import AliasGenerator, ConfigDict, ValidationError
from pydantic.alias_generators import to_snake


def kebab(name: str) -> str:
    """Return the spelling of a field in TOML: ``clip_norm`` is written ``clip-norm``."""
    return to_snake(name).replace("_", "-")


FROZEN = ConfigDict(
    frozen=True,
    extra="forbid",
    strict=True,
    validate_by_name=False,
    validate_by_alias=True,
    allow_inf_nan=True,
    hide_input_in_errors=True,
    alias_generator=AliasGenerator(alias=kebab),
)
"""Settings of every model that is parsed from a user's text: kebab-case keys, nothing unknown."""

_WORDS = {
    "missing": "is missing",
    "bool_type": "must be true or false",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "string_type": "must be a text in quotes",
    "tuple_type": "must be a list in [ ]",
    "list_type": "must be a list in [ ]",
    "model_type": "must be a table, written [name]",
    "dict_type": "must be a table, written [name]",
    "model_attributes_type": "must be a table",
    "literal_error": "must be {expected}",
    "finite_number": "must be a finite number",
    "greater_than": "must be greater than {gt:g}",
    "greater_than_equal": "must be greater than or equal to {ge:g}",
    "less_than": "must be less than {lt:g}",
    "less_than_equal": "must be less than or equal to {le:g}",
    "too_short": "has too few entries: {min_length} at least",
    "too_long": "has too many entries: {max_length} at most",
    "string_pattern_mismatch": "is empty, or holds a control character",
    "is_instance_of": "must be a path, a text in quotes",
    "union_tag_invalid": "must be one of {expected_tags}",
    "union_tag_not_found": "is missing",
}
"""Our words for each kind of pydantic's findings; it fills in what the model asks for."""
_OTHER = "is not what is asked for here"
"""Of a kind without words: pydantic's own text names its internals, or the value."""
_TAGGED = ("union_tag_invalid", "union_tag_not_found")


def describe(error: ValidationError, keys: Iterable[str], prefix: str = "") -> str:
    """Return the mistakes of ``error`` on one line, each naming its key and what is wrong.

    Args:
        error: what pydantic found.
        keys: every key that exists, to suggest a spelling for one that does not.
        prefix: what stands before each key where the user wrote it.

    Guarantees:
        No value that was validated appears in the text, and no sentence of pydantic's: every kind
        of finding has words of ours, and the messages of our validators name keys only.
    """
    known = list(keys)
    lines = []
    for item in error.errors(include_url=False, include_input=False):
        kind, context = item["type"], item.get("ctx", {})
        tag = (context["discriminator"].strip("'"),) if kind in _TAGGED else ()
        key = ".".join(str(part) for part in (*item["loc"], *tag))
        if kind == "extra_forbidden":
            close = get_close_matches(key, known, n=1)
            hint = f"; did you mean '{prefix}{close[0]}'?" if close else ""
            lines.append(f"'{prefix}{key}' is not a known key{hint}")
        else:
            text = str(context["error"]) if kind == "value_error" else _WORDS.get(kind, _OTHER)
            text = text if kind == "value_error" else text.format(**context)
            lines.append(f"'{prefix}{key}' {text}" if key else text)
    return "; ".join(lines)

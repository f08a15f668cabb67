"""Pydantic's findings in one clear line per mistake, without values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
    "int_parsing": "must be a whole number",
    "float_parsing": "must be a number",
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
    "string_too_long": "is longer than {max_length} characters; shorten it",
    "string_unicode": "must be printable text",
    "is_instance_of": "must be a path, a text in quotes",
    "union_tag_invalid": "must be one of {expected_tags}",
    "union_tag_not_found": "is missing",
}
"""Our words for each kind of pydantic's findings."""
_OTHER = "is not what is asked for here"
"""Of a kind without words: pydantic's own text names its internals, or the value."""
_TAGGED = ("union_tag_invalid", "union_tag_not_found")
_NAMED, _SHOWN = 5, 60
"""Mistakes that one error names, and characters of a part of a key: the text may be a server's."""

Location = tuple[int | str, ...]
"""Where pydantic found a mistake."""


def written(location: Location) -> str:
    """Return a key as an error shows it: on one line, no part longer than it need be.

    >>> written(("columns", 0, "name")), len(written(("x" * 100_000,)))
    ('columns.0.name', 60)
    """
    parts = [str(component)[:_SHOWN] for component in location]
    return ".".join(
        component if component.isprintable() else ascii(component)[1:-1] for component in parts
    )


def describe(
    error: ValidationError,
    keys_at: Callable[[Location], Iterable[str]],
    prefix: str = "",
    name: Callable[[Location], str] = written,
) -> str:
    """Return the mistakes of ``error`` on one line, by key.

    Args:
        error: pydantic's mistakes.
        keys_at: location → its keys, to suggest a spelling for an unknown one.
        prefix: before each key where the user wrote it.
        name: of a location, as the user knows it.

    Guarantees:
        No value that was validated appears in the text, and no sentence of pydantic's: every kind
        of finding has words of ours, and the messages of our validators name keys only. The work
        is linear in the mistakes: the first ones are named, the others counted, and a spelling is
        suggested for the first unknown key alone.
    """
    mistakes, lines, is_first = error.errors(include_url=False, include_input=False), [], True
    for item in mistakes[:_NAMED]:
        kind, context = item["type"], item.get("ctx", {})
        tag = (context["discriminator"].strip("'"),) if kind in _TAGGED else ()
        key = name((*item["loc"], *tag))
        if kind == "extra_forbidden":
            suggestion = hint(key, keys_at(item["loc"]), prefix) if is_first else ""
            lines.append(f"'{prefix}{key}' is not a known key{suggestion}")
            is_first = False
        else:
            text = str(context["error"]) if kind == "value_error" else _WORDS.get(kind, _OTHER)
            text = text if kind == "value_error" else text.format(**context)
            lines.append(f"'{prefix}{key}' {text}" if key else text)
    more = f"; and {len(mistakes) - _NAMED} more mistakes" if len(mistakes) > _NAMED else ""
    return "; ".join(lines) + more


def nearest(key: str, candidates: Iterable[str]) -> str:
    """Return the key of ``candidates`` that ``key`` resembles; empty: none, or it is far longer.

    >>> nearest("clipnorm", ["rounds", "clip-norm"]), nearest("clip-norm" * 9, ["clip-norm"])
    ('clip-norm', '')
    """
    # A key of the server's may be long, and comparing is quadratic in its length.
    near = [candidate for candidate in candidates if len(key) <= 2 * len(candidate)]
    return next(iter(get_close_matches(key, near, n=1)), "")


def hint(word: str, candidates: Iterable[str], prefix: str = "") -> str:
    """Return an error's suggestion of the nearest candidate after ``prefix``, or empty."""
    close = nearest(word, candidates)
    return f"; did you mean '{prefix}{close}'?" if close else ""

"""Bases of objects whose text shows no private value."""

from __future__ import annotations

from pydantic import BaseModel

from hdpfl_flower.config.validation import FROZEN


class RedactedModel(BaseModel):
    """A part of a profile; its text shows no value."""

    model_config = FROZEN

    def __repr__(self) -> str:
        return f"{type(self).__name__}(<private>)"

    __str__ = __repr__


class Redacted:
    """Base class that hides private counts or records in its text."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(<private>)"

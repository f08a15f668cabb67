"""Format numbers of everything that is stored or sent; the law: ``docs/reference/formats.md``.

A number names what the fields of a file or message mean. It is raised with every new field, so that
no version reads a file without a field that it should obey. A version reads every number up to its
own, for ever; a file without a number has the first one.
"""

from __future__ import annotations

from dataclasses import dataclass

from hdpfl_flower.errors import (
    CheckpointError,
    DataError,
    HDPFLError,
    LedgerError,
    ProfileError,
    WireError,
)


@dataclass(frozen=True)
class Format:
    """The form of one kind of file, record or message.

    Attributes:
        kind: what it is, as an error names it.
        newest: the number that this version writes, and the highest that it reads.
        error: what an unreadable number raises.
        unnumbered: the number of one that carries none.
    """

    kind: str
    newest: int
    error: type[HDPFLError]
    unnumbered: int = 0

    def check(self, number: object = None) -> int:
        """Return the number of a file that carries ``number``; None: it carries none.

        Raises:
            HDPFLError: ``error``: the number is none, or of a newer version of this package.
        """
        if number is None:
            return self.unnumbered
        if type(number) is not int or number < self.unnumbered:
            raise self.error(
                f"{self.kind}: no version wrote its 'format'; correct it, or restore the file"
            )
        if number > self.newest:
            raise self.error(
                f"{self.kind}: format {number} was written by a newer version of hdpfl-flower, and "
                f"this one reads up to format {self.newest}: update hdpfl-flower"
            )
        return number


LEDGER = Format("ledger", 3, LedgerError)
PLAN = Format("plan in a ledger", 3, LedgerError)
JOURNAL = Format("journal", 4, DataError)
CHECKPOINT = Format("checkpoint", 3, CheckpointError, unnumbered=1)
PROFILE = Format("profile", 1, ProfileError, unnumbered=1)
FINAL_MODEL = Format("final model", 3, DataError)
INSTRUCTIONS = Format("message from the server", 5, WireError)
FORMATS = (LEDGER, PLAN, JOURNAL, CHECKPOINT, PROFILE, FINAL_MODEL, INSTRUCTIONS)

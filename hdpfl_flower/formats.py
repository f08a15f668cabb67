"""Format numbers of all files and messages: ``docs/reference/formats.md``.

A number names the meaning of the fields of a file or message. It is raised with every new field, so
that no version reads a file without a field that it should obey. From 0.1.0 on a version reads
every number up to its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from hdpfl_flower.errors import (
    CheckpointError,
    DataError,
    DeploymentError,
    HDPFLError,
    LedgerError,
    ProfileError,
    WireError,
)


@dataclass(frozen=True)
class Format:
    """Format of one kind of file, record or message.

    Attributes:
        kind: name of it in errors.
        error: raised for an unreadable number.
        newest: the number that this version writes, and the highest that it reads.
    """

    kind: str
    error: type[HDPFLError]
    newest: int = 1

    def check(self, number: object) -> None:
        """Refuse a file that carries ``number`` where this version cannot read it.

        Raises:
            HDPFLError: ``error``: there is no number, or it is of a newer version of this package.
        """
        if type(number) is not int or number < 1:
            raise self.error(
                f"{self.kind}: no version wrote its 'format'; correct it, or restore the file"
            )
        if number > self.newest:
            raise self.error(
                f"{self.kind}: format {number} was written by a newer version of hdpfl-flower, and "
                f"this one reads up to format {self.newest}: update hdpfl-flower"
            )


LEDGER = Format("ledger", LedgerError)
PLAN = Format("plan in a ledger", LedgerError)
JOURNAL = Format("journal", DataError)
CHECKPOINT = Format("checkpoint", CheckpointError)
PROFILE = Format("profile", ProfileError)
FINAL_MODEL = Format("final model", DataError)
RECORDS = Format("prepared records", DataError)
TABLE = Format("imported table", DataError)
INVITATION = Format("invitation", DeploymentError)
INSTRUCTIONS = Format("message from the server", WireError)
FORMATS = (
    LEDGER,
    PLAN,
    JOURNAL,
    CHECKPOINT,
    PROFILE,
    FINAL_MODEL,
    RECORDS,
    TABLE,
    INVITATION,
    INSTRUCTIONS,
)

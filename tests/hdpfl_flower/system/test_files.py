"""Files that are replaced as a whole, in folders that others may have written to."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from hdpfl_flower.system.files import replace_file


def test_what_lies_in_the_place_of_the_part_is_not_written_to(tmp_path: Path) -> None:
    """Else who planted a link reads the content, and who planted a file may change it later."""
    path, theirs = tmp_path / "model", tmp_path / "theirs"
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    theirs.touch()
    for plant in (lambda: part.symlink_to(theirs), lambda: part.hardlink_to(theirs)):
        plant()
        replace_file(path, b"secret")
        assert (path.read_bytes(), theirs.read_bytes()) == (b"secret", b"")
        assert path.is_file() and not path.is_symlink() and not path.samefile(theirs)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert {one.name for one in tmp_path.iterdir()} == {"model", "theirs"}

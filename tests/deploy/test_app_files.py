"""The copy of the app that is submitted is the app, and nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

from flwr.cli.build import build_fab_from_disk, build_fab_from_files

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "deploy"))

from app_files import app_alone, copy_app  # noqa: E402


def test_flower_makes_the_same_app_of_the_copy(tmp_path: Path) -> None:
    """Of all files of the tree but those of hidden folders and of what is built: it names them."""
    tops = [path for path in ROOT.iterdir() if path.is_file() or path.name[0] not in ".b"]
    files = [file for top in tops for file in (top, *top.rglob("*")) if file.is_file()]
    whole, _ = build_fab_from_files({file.relative_to(ROOT).as_posix(): file for file in files})
    copy_app(ROOT, tmp_path / "copy")
    assert build_fab_from_disk(tmp_path / "copy") == whole


def test_the_copy_is_small_and_goes_away() -> None:
    with app_alone(ROOT) as folder:
        tops = {path.name for path in Path(folder).iterdir()}
        assert sum(1 for _ in Path(folder).rglob("*")) < 1000
    assert {"pyproject.toml", "hdpfl_flower", "server_app"} <= tops
    assert not tops & {".venv", ".git", "tests", "docs", "deploy"}
    assert not Path(folder).exists()

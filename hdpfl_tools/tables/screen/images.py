"""Checks of a folder's images: unread, equal, or of another scale.

Only for the site's own screen, as ``losses.py``.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hdpfl_flower.config.data_source import NOBODY, DataSource
from hdpfl_flower.data.columns import file_digest
from hdpfl_flower.models.task import Task
from hdpfl_tools.tables.images.image_bounds import TooLargeError, opened
from hdpfl_tools.tables.images.image_folder import in_units, listing, without_withdrawn
from hdpfl_tools.tables.screen.losses import Labels, loss

_KINDS = {b"DICM": "DICOM", b"n+1\0": "NIfTI", b"\x89HDF": "HDF5"}
"""Formats that no reader of images takes, by their marks at bytes 128, 344 or 0."""


def about_images(source: DataSource, task: Task) -> Iterator[str]:
    """Yield lines about unread files, by class; bits; transparency; and equal images."""
    lost: list[str] = []
    labels: list[int] = []
    greatest: list[int] = []
    clear, nested, contents = 0, 0, set[bytes]()
    classes = [str(number) for number in range(task.classes)]
    withdrawn = source.withdrawn() if source.id else NOBODY
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, of single images
        for name, listed in listing(source.path):
            if name not in classes:
                continue
            files = without_withdrawn(listed, withdrawn)
            nested += sum(file.is_dir() for file in files)
            for file in in_units(files) if source.id else files:
                if file.is_dir():
                    continue
                kind, value, is_clear = _look(file)
                lost.append(kind)
                labels.append(int(name))
                clear += is_clear
                greatest += [value] if value else []
                contents.add(file_digest(file) if file.is_file() else b"")
    if nested and not source.id:
        yield (
            f"error: {nested} folders lie inside the class folders and are not read: if each "
            "holds the images of one person, set 'data.id' to \"folder\"; otherwise move the files "
            "up"
        )
    gone = np.array([bool(kind) for kind in lost], dtype=bool)
    by_class = Labels(tuple(classes), np.array(labels, np.int64), np.zeros(0, np.int64))
    unread = loss(gone, np.ones(len(gone), bool), by_class, Counter(kind for kind in lost if kind))
    if level := unread.level(1):
        yield (
            f"{level}{unread.lost} of {unread.held} files cannot be read as "
            f"images{unread.in_words(1)}; export them as PNG or JPEG"
        )
    yield from _about_bits(greatest, source.bits)
    if clear:
        yield f"{clear} images have transparent parts, which are read as white"
    if len(lost) > 1 and len(contents) == 1:
        yield "error: all files hold the same image: nothing can be learned from them"


def _about_bits(greatest: list[int], bits: int) -> Iterator[str]:
    """Yield a line where the greatest values of deep images are not of ``bits``."""
    if not greatest:
        return
    used = max(max(greatest).bit_length(), 9)
    line = f"{len(greatest)} images have more than 8 bits"
    if used != bits:
        above = "beyond" if used > bits else "far below"
        yield (
            f"warning: {line}, and their greatest value is {above} what 'data.bits' = {bits} "
            f"says: set it to {used} if the device writes {used} bits. Do not set it by what "
            "these images happen to hold"
        )
    else:
        yield f"{line}, read as {bits}"


def _look(path: Path) -> tuple[str, int, bool]:
    """Return why an image is unread or empty, its greatest value if deep, and transparency."""
    try:
        with opened(path) as image:
            deep = image.mode.startswith("I")
            if image.mode == "F":
                return "of floats", 0, False
            image.load()
            ends: Any = image.getextrema()
            value = int(ends[1]) if deep else 0
            return "", value, bool(not deep and image.has_transparency_data)
    except TooLargeError:
        return "too large", 0, False
    except Exception:
        # Decoders raise any exception on a broken file.
        return _kind_of(path), 0, False


def _kind_of(path: Path) -> str:
    """Return the format of a file that is no readable image, in a word."""
    try:
        with path.open("rb") as file:
            head = file.read(348)
    except OSError:
        return "not readable"
    marks = (head[128:132], head[344:348], head[:4])
    return next((_KINDS[mark] for mark in marks if mark in _KINDS), "damaged, or no image")

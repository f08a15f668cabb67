"""Bounds on the memory that the file of one image can ask for.

A decoder's memory depends on numbers in the file, and a process that is ended for it sends no
reply: the reply would depend on one record. So a file is measured before each step that takes
memory, and one beyond a bound is left out as a broken one is. A transparent, turned or deep image
at all bounds takes less than :data:`MOST_MEMORY`, of any of :data:`FORMATS`.
"""

from __future__ import annotations

import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image, Transpose

MAX_PIXELS = 25_000_000
"""Pixels of an image, or of a tile in it; a mammogram has 20 million."""
MAX_SIDE = 2**15
"""Pixels of a side: a narrow image takes a row of the wanted width for each of its pixels."""
MAX_FILE = 200_000_000
"""Bytes of a file: four numbers of 16 bits a pixel."""
MAX_TAGS = 2**20
"""Numbers in the tags of a TIFF file, or bytes of EXIF, which Python stores as objects."""
MAX_SEGMENTS = 2**24
"""Bytes before the pixels of a JPEG file."""
MOST_MEMORY = 800_000_000
"""Bytes that the reading of one image takes at most, the wanted size apart."""

FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
"""Formats read, by Pillow's names: others have decoders without a bound, or run a program."""

_WORD = {"I": 4, "Q": 8}
_DIRECTORIES = (0x8769, 0x8825, 0xA005)
"""Tags whose value is the place of more tags, which Pillow reads as well."""
_OF_BYTES = (1, 2, 6, 7)
_TILE = (322, 323)


class TooLargeError(ValueError):
    """The image asks for more memory than one may."""


@contextmanager
def opened(path: Path) -> Iterator[Image]:
    """Open the image at ``path``, within the bounds, before its pixels are decoded.

    Raises:
        TooLargeError: it is beyond a bound.
        Exception: any, from a broken file.
    """
    from PIL import Image

    _check_file(path)
    with Image.open(path, formats=FORMATS) as image:
        width, height = image.size
        tags: Any = getattr(image, "tag_v2", {})
        across, down = (int(tags.get(tag, 0)) for tag in _TILE)
        width, height = max(width, across), max(height, down)
        if max(width, height) > MAX_SIDE or width * height > MAX_PIXELS:
            raise TooLargeError
        yield image


def turn_of(image: Image) -> Transpose | None:
    """Return the turn that the EXIF data of a decoded ``image`` ask for.

    Raises:
        TooLargeError: its EXIF data are beyond the bound.
    """
    from PIL.Image import Transpose

    turns = (
        Transpose.FLIP_LEFT_RIGHT,
        Transpose.ROTATE_180,
        Transpose.FLIP_TOP_BOTTOM,
        Transpose.TRANSPOSE,
        Transpose.ROTATE_270,
        Transpose.TRANSVERSE,
        Transpose.ROTATE_90,
    )
    stored = (image.info.get(key, b"") for key in ("exif", "Raw profile type exif"))
    if max(map(len, stored)) > MAX_TAGS:
        raise TooLargeError
    return dict(enumerate(turns, start=2)).get(image.getexif().get(0x0112, 1))


def _check_file(path: Path) -> None:
    """Refuse a file, its tags or its segments beyond the bounds."""
    about = path.stat()
    if not stat.S_ISREG(about.st_mode):
        raise ValueError("no regular file")
    if about.st_size > MAX_FILE:
        raise TooLargeError
    with path.open("rb") as file:
        first = file.read(4)
        if first[:2] == b"\xff\xd8":
            _check_segments(file)
        elif first[:2] in (b"II", b"MM"):
            _check_tags(file, first)


def _check_segments(file: IO[bytes]) -> None:
    """Refuse a JPEG file with too many bytes before its pixels."""
    place = 2
    while place <= MAX_SEGMENTS:
        file.seek(place)
        head = file.read(4)
        if len(head) < 4 or head[1] == 0xDA:
            return
        # Between segments a decoder passes over any byte.
        place += 2 + struct.unpack(">H", head[2:])[0] if head[0] == 0xFF != head[1] else 1
    raise TooLargeError


def _check_tags(file: IO[bytes], first: bytes) -> None:
    """Refuse a TIFF file of which Pillow would unpack too many numbers."""
    order = "<" if first[:2] == b"II" else ">"
    is_big = 43 in first[2:]
    word, of_entries = ("Q", "Q") if is_big else ("I", "H")
    entry = struct.Struct(f"{order}HH{word}{word}")
    file.seek(8 if is_big else 4)
    places = [*_unpack(file, order + word)]
    seen: set[int] = set()
    numbers = 0
    while places:
        place = places.pop()
        if place in seen:
            continue
        seen.add(place)
        file.seek(place)
        for _ in range(_unpack(file, order + of_entries)[0]):
            tag, kind, count, value = _unpack(file, entry.format)
            numbers += 1 if kind in _OF_BYTES else count
            if numbers > MAX_TAGS:
                raise TooLargeError
            if tag in _DIRECTORIES:
                places.append(value)


def _unpack(file: IO[bytes], form: str) -> tuple[int, ...]:
    return struct.unpack(form, file.read(struct.calcsize(form)))

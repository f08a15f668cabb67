"""Conversion of a folder of images, one subfolder per class, to records.

A broken image alone is left out.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hdpfl_flower.config.data_source import NOBODY, Withdrawn
from hdpfl_flower.config.redacted import Redacted
from hdpfl_flower.errors import DataError
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.system.extras import extra
from hdpfl_tools.tables.images.image_bounds import opened, turn_of

if TYPE_CHECKING:
    from PIL.Image import Image

_MODES = {1: "L", 3: "RGB"}
_ROWS = 64
"""Rows of a transparent image that are laid over white at a time."""


@dataclass(frozen=True, repr=False)
class Images(Redacted):
    """Images of a folder.

    Attributes:
        records: features float32, targets int64.
        rows: number of files found.
        left_out: how many of them were, by reason.
        files: of each record.
        withdrawn: units that were left out as withdrawn; ``rows`` has none of their images.
    """

    records: Records
    rows: int
    left_out: dict[str, int]
    files: list[Path]
    withdrawn: int = 0


def read_images(
    folder: Path,
    task: Task,
    bits: int = 16,
    *,
    has_units: bool = False,
    withdrawn: Withdrawn = NOBODY,
) -> Images:
    """Return the images in subfolders ``0`` to ``C-1``, ordered by name.

    Each is converted to the task's channels (1: grey, 3: colour), resized to its height and width
    (bilinear) and scaled to [0, 1]; the first frame counts, turned as its EXIF data say.
    Transparent pixels become white; where the transparency alone holds a picture, that is read.

    Args:
        folder: the folder; names that start with a dot are passed over everywhere.
        task: a classification task with inputs (channels, height, width).
        bits: of grey images with more than 8; 2**bits - 1 becomes 1.
        has_units: whether the images lie one folder deeper, a folder a unit; others are left out.
        withdrawn: units with folders that are not opened.

    Raises:
        InstallationError: pillow is not installed.
        DataError: the folder or a subfolder cannot be listed, or the task is not one on images.
    """
    shape = task.input_shape
    if len(shape) != 3 or shape[0] not in _MODES or not task.classes:
        raise DataError(
            "'data.format' is 'images', but the run's inputs are not images of 1 or 3 channels "
            "with a class; use csv, parquet or npz"
        )
    with extra("images", "'data.format' = 'images'"):
        import PIL  # noqa: F401 - the reader of one image ignores every exception
    classes = {str(number): number for number in range(task.classes)}
    left_out = {"in no class folder": 0, "no readable image": 0}
    left_out |= {"no id": 0} if has_units else {}
    features: list[npt.NDArray[np.float32]] = []
    targets: list[int] = []
    read: list[Path] = []
    rows, gone = 0, set[str]()
    with warnings.catch_warnings():
        # Pillow's warnings disclose single images, and a log may leave the site.
        warnings.simplefilter("ignore")
        for name, listed in listing(folder):
            files = without_withdrawn(listed, withdrawn) if has_units else listed
            gone |= {unit.name for unit in listed} - {unit.name for unit in files}
            if name not in classes:
                left_out["in no class folder"] += len(files)
                rows += len(files)
                continue
            image_files = in_units(files) if has_units else files
            if has_units:
                beside = sum(not file.is_dir() for file in files)
                left_out["no id"] += beside
                rows += beside
            rows += len(image_files)
            images = [_read_image(file, shape, bits) for file in image_files]
            good = [image for image in images if image is not None]
            left_out["no readable image"] += len(images) - len(good)
            features += good
            targets += [classes[name]] * len(good)
            read += [
                file for file, image in zip(image_files, images, strict=True) if image is not None
            ]
    stacked = np.stack(features) if features else np.zeros((0, *shape), dtype=np.float32)
    records = Records(stacked, np.array(targets, dtype=np.int64))
    return Images(records, rows, left_out, read, len(gone))


def read_unlabelled(
    folder: Path, task: Task, bits: int = 16
) -> tuple[npt.NDArray[np.float32], list[str], int]:
    """Return unlabelled images of ``folder`` and subfolders, with their paths.

    Converted as by :func:`read_images`, ordered by name; unreadable files are only counted.

    Raises:
        InstallationError: pillow is not installed.
        DataError: the folder cannot be listed, or the task's inputs are not images.
    """
    shape = task.input_shape
    if len(shape) != 3 or shape[0] not in _MODES:
        raise DataError(
            "FILE is a folder, but the run's inputs are not images of 1 or 3 channels; give a "
            ".npz file"
        )
    with extra("images", "a folder of images"):
        import PIL  # noqa: F401 - the reader of one image ignores every exception
    names, images, lost = [], [], 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for beside, files in listing(folder):
            for file in files:
                if not file.is_file():
                    continue
                image = _read_image(file, shape, bits)
                lost += image is None
                if image is not None:
                    names.append(f"{beside}/{file.name}" if beside else file.name)
                    images.append(image)
    return np.stack(images) if images else np.zeros((0, *shape), np.float32), names, lost


def listing(folder: Path) -> list[tuple[str, list[Path]]]:
    """Return subfolders with their files, by name; loose files under ''."""
    try:
        entries = _visible(folder)
        beside = [entry for entry in entries if not entry.is_dir()]
        folders = [(entry.name, _visible(entry)) for entry in entries if entry.is_dir()]
    except OSError:
        raise DataError(
            "'data.path' is not a folder that this user can list; it must hold one subfolder for "
            "each class, named 0, 1, 2, …"
        ) from None
    return [("", beside), *folders]


def without_withdrawn(files: list[Path], withdrawn: Withdrawn) -> list[Path]:
    """Return ``files`` without the folders of withdrawn units, by their names."""
    if not withdrawn.digests:
        return files
    return [file for file in files if not file.is_dir() or os.fsencode(file.name) not in withdrawn]


def in_units(files: list[Path]) -> list[Path]:
    """Return the files in the folders among ``files``; a folder that cannot be listed is one."""
    images = []
    for unit in files:
        if unit.is_dir():
            try:
                images += _visible(unit)
            except OSError:
                images.append(unit)
    return images


def _visible(folder: Path) -> list[Path]:
    paths = [path for path in folder.iterdir() if not path.name.startswith(".")]
    return sorted(paths, key=lambda path: path.name)


def _read_image(path: Path, shape: tuple[int, ...], bits: int) -> npt.NDArray[np.float32] | None:
    """Return one image as float32 of ``shape`` in [0, 1]; None if unreadable."""
    try:
        with opened(path) as image:
            return _pixels(image, shape, bits)
    except Exception:
        # Decoders raise any exception on a broken file, and no exception of a record may leave.
        return None


def _pixels(image: Image, shape: tuple[int, ...], bits: int) -> npt.NDArray[np.float32]:
    """Return ``image`` as float32 of ``shape`` in [0, 1], resized; it is closed.

    Raises:
        ValueError: pixels of an unknown scale (floats).
    """
    from PIL.Image import Resampling

    channels, height, width = shape
    if image.mode == "F":
        raise ValueError("a floating-point image has no known scale")
    image.load()
    turn = turn_of(image)
    deep = image.mode.startswith("I")
    # Pillow would cut 16-bit grey at 255 on its way to 8 bits.
    mode = "F" if deep else _MODES[channels]
    is_clear = image.has_transparency_data and not deep
    upright = _opaque(image, mode) if is_clear else image.convert(mode)
    # Its pixels are freed before the next copy is made.
    image.close()
    if turn is not None:
        upright = upright.transpose(turn)
    resized = upright.resize((width, height), Resampling.BILINEAR)
    array = np.asarray(resized, dtype=np.float32).reshape(height, width, -1)
    scaled = np.clip(array / np.float32(2**bits - 1 if deep else 255), 0, 1)
    return np.broadcast_to(scaled, (height, width, channels)).transpose(2, 0, 1).copy()


def _opaque(image: Image, mode: str) -> Image:
    """Return ``image`` over white, or its transparency if that alone holds a picture.

    In strips of rows: as a whole it would take several copies of four bytes a pixel.
    """
    from PIL.Image import alpha_composite, new

    over, alpha = new(mode, image.size), new("L", image.size)
    ends: list[Any] = []
    for top in range(0, image.height, _ROWS):
        strip = image.crop((0, top, image.width, min(top + _ROWS, image.height)))
        seen = strip.convert("RGBA")
        white = new("RGBA", seen.size, "white")
        flat = alpha_composite(white, seen).convert("RGB")
        over.paste(flat.convert(mode), (0, top))
        alpha.paste(seen.getchannel("A"), (0, top))
        ends.append(flat.getextrema())
    is_blank = all(len({*chain(*channel)}) == 1 for channel in zip(*ends, strict=True))
    has_picture = len({*alpha.getextrema()}) > 1
    return alpha.convert(mode) if is_blank and has_picture else over

"""The memory of a reader does not grow with the size of one record; a larger one is left out.

Measured in a process of its own, whose peak counts what the decoders of C take.
"""

from __future__ import annotations

import ctypes
import io
import multiprocessing
import os
import struct
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from hdpfl_flower.config.data_source import DataSource
from hdpfl_flower.data.columns import MAX_RECORD
from hdpfl_flower.models.task import Task
from hdpfl_tools.tables.images.image_bounds import FORMATS, MAX_PIXELS, MAX_SIDE, MOST_MEMORY
from hdpfl_tools.tables.images.image_folder import _read_image
from hdpfl_tools.tables.site_check import check_site_data
from hdpfl_tools.tables.site_data import load_arrays, read_site_data
from hdpfl_tools.tables.sources import csv_lines
from hdpfl_tools.tables.sources.csv_rows import Form, lines_of
from hdpfl_tools.tables.sources.header import Wanted
from hdpfl_tools.tables.table_reader import load_table

TASK = Task.classification((1, 8, 6), 2)
MB = 10**6


def peaks(read: Callable[[Path], object], *paths: Path) -> list[int]:
    """Return the bytes taken at most after each of ``paths`` was read, in one process.

    It is forked: it runs the code as it stands here.
    """
    context = multiprocessing.get_context("fork")
    mine, its = context.Pipe(duplex=False)

    def work() -> None:
        # Arrow's own allocator keeps what was freed, the more the more tests ran before.
        pa.set_memory_pool(pa.system_memory_pool())
        before = memory("VmRSS")
        for path in paths:
            read(path)
            its.send(memory("VmHWM") - before)

    ctypes.CDLL(None).malloc_trim(0)  # what was freed before would be used again
    child = context.Process(target=work)
    child.start()
    its.close()
    try:
        return [mine.recv() for _ in paths]
    except EOFError:
        pytest.fail("the reading process failed")
    finally:
        child.join()


def memory(key: str) -> int:
    """Return a number of bytes that Linux has of this process."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition(f"{key}:")[2].split()[0])


def png(folder: Path, width: int, height: int) -> Path:
    """Write a transparent image, each row of which is one colour."""
    rows = zlib.compressobj(1)
    line = b"\0" + bytes((9, 9, 9, 128)) * width
    body = b"".join(rows.compress(line) for _ in range(height)) + rows.flush()
    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    path = folder / f"{width}x{height}.png"
    chunks = ((b"IHDR", header), (b"IDAT", body), (b"IEND", b""))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks))  # fmt: skip
    return path


def read_image(path: Path) -> object:
    return _read_image(path, (3, 64, 64), 16)


def test_an_image_at_the_bound_takes_what_is_stated_and_one_above_nothing(tmp_path: Path) -> None:
    at = png(tmp_path, 5000, MAX_PIXELS // 5000)
    above = [png(tmp_path, 5000, 2 * MAX_PIXELS // 5000), png(tmp_path, MAX_SIDE + 1, 9)]
    *small, large = peaks(read_image, *above, at)
    assert max(small) < 20 * MB
    assert 4 * MAX_PIXELS < large < MOST_MEMORY / 2


@pytest.mark.parametrize("picture", [slice(0, 20), slice(60, 80), slice(130, 150), slice(0, 0)])
def test_strips_of_transparent_images_are_equal(picture: slice, tmp_path: Path) -> None:
    """A picture in some rows alone is over white; without one the transparency is read."""
    drawn = np.random.default_rng(2)
    pixels = np.full((150, 40, 4), 255, np.uint8)
    pixels[..., 3] = drawn.integers(0, 256, (150, 40))
    pixels[picture, :, :3] = drawn.integers(0, 256, pixels[picture, :, :3].shape)
    (tmp_path / "0").mkdir()
    Image.fromarray(pixels).save(tmp_path / "0" / "a.png")
    source = DataSource.model_validate({"format": "images", "path": str(tmp_path)})
    task = Task.classification((3, 150, 40), 2)
    found = read_site_data(source, task, "").train.features[0]
    share = pixels[..., 3:].astype(float) / 255
    over = pixels[..., :3] * share + 255 * (1 - share)
    wanted = over if picture.stop else np.repeat(pixels[..., 3:], 3, axis=2)
    np.testing.assert_allclose(found.transpose(1, 2, 0) * 255, wanted, atol=1.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "form", "options"),
    [
        ("RGBA", "PNG", {}),
        ("CMYK", "JPEG", {"progressive": True}),
        ("RGB", "JPEG", {"progressive": True}),
        ("RGBA", "WEBP", {"lossless": True, "method": 0}),
        ("RGBA", "TIFF", {}),
        ("RGBA", "TIFF", {"compression": "tiff_lzw"}),
        ("RGBA", "JPEG2000", {}),
        ("RGB", "JPEG2000", {"irreversible": True}),
        ("RGB", "BMP", {}),
        ("RGB", "PPM", {}),
        ("P", "GIF", {"transparency": 0}),
    ],
)
def test_formats_hold_bounds(mode: str, form: str, options: dict[str, Any], tmp_path: Path) -> None:
    """Of noise, since what is equal everywhere takes less, and at a sixteenth of the pixels."""
    assert form in FORMATS
    pixels = np.random.default_rng(1).integers(0, 256, (1250, 1250, 4), np.uint8)
    image = Image.fromarray(pixels)
    exif = Image.Exif()
    exif[0x0112] = 6
    path = tmp_path / "image"
    image = image if mode == "RGBA" else image.convert("RGB").convert(mode)
    turned = {"exif": exif} if form in ("PNG", "JPEG", "WEBP", "TIFF") else {}
    image.save(path, form, **options, **turned)
    assert read_image(path) is not None
    (taken,) = peaks(read_image, path)
    assert taken < MOST_MEMORY / 16 + 15 * MB


def tiff_of(tags: list[tuple[int, int, int, int]], more: bytes = b"") -> bytes:
    """Return a TIFF file of 4 × 4 grey pixels with more tags (number, type, count, value)."""
    base = [(256, 3, 1, 4), (257, 3, 1, 4), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1),
            (273, 4, 1, 8), (277, 3, 1, 1), (278, 3, 1, 4), (279, 4, 1, 16)]  # fmt: skip
    entries = sorted([*base, *tags])
    packed = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    head = b"II*\0" + struct.pack("<I", 24) + bytes(16)
    return head + struct.pack("<H", len(entries)) + packed + bytes(4) + more


def jpeg_of(exif: int) -> bytes:
    """Return a JPEG file with ``exif`` segments of 60 KB."""
    file = io.BytesIO()
    Image.new("L", (6, 8), 7).save(file, "JPEG")
    data = file.getvalue()
    body = b"Exif\0\0" + bytes(60_000)
    segment = b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body
    return data[:2] + exif * segment + data[2:]


@pytest.mark.parametrize(
    ("few", "many"),
    [
        (jpeg_of(1), jpeg_of(300)),
        (tiff_of([(270, 3, 1, 0)]), tiff_of([(270, 3, 2**21, 0)], bytes(2**22))),
        (  # of a directory within the directory
            tiff_of([(0x8769, 4, 1, 150)], struct.pack("<HHHII", 1, 1, 5, 1, 8) + bytes(4)),
            tiff_of([(0x8769, 4, 1, 150)], struct.pack("<HHHII", 1, 1, 5, 2**20, 8) + bytes(2**23)),
        ),
        (tiff_of([]), tiff_of([(322, 4, 1, 9000), (323, 4, 1, 9000)])),
    ],
    ids=["segments", "tags", "inner tags", "tiles"],
)
def test_a_small_image_in_a_large_file_is_left_out(few: bytes, many: bytes, tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    source = DataSource.model_validate({"format": "images", "path": str(tmp_path)})
    for content, lost in ((few, 0), (many, 1)):
        (tmp_path / "0" / "image").write_bytes(content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            data = read_site_data(source, TASK, "")
            said = "\n".join(check_site_data(source, TASK, "", 1))
        assert data.summary.left_out["no readable image"] == lost
        assert ("'too large'" in said) == bool(lost)


def test_a_pipe_among_the_images_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    os.mkfifo(tmp_path / "0" / "pipe.png")
    source = DataSource.model_validate({"format": "images", "path": str(tmp_path)})
    assert read_site_data(source, TASK, "").summary.left_out["no readable image"] == 1


BOUND = 2**20


def read_csv(path: Path) -> None:
    """Read two of three records, the long one of which is left out."""
    vars(csv_lines)["MAX_RECORD"] = BOUND
    assert len(load_table(path, "csv", [Wanted(("a",), "a")]).positions) == 2


@pytest.mark.parametrize(
    "long_one",
    [
        lambda size: b"x" * size + b",1\n",
        lambda size: b'"' + b"x" * size + b'",1\n',
        lambda size: b'"' + b'""' * (size // 2) + b'",1\n',
        lambda size: b"," * size + b"\n",
        lambda size: b'"' + (b"a line, of a cell " * 20 + b"\n") * (size // 361) + b'",1\n',
    ],
    ids=["bare", "quoted", "quotes", "cells", "lines"],
)
def test_a_long_csv_record_is_bounded(long_one: Callable[[int], bytes], tmp_path: Path) -> None:
    paths = [tmp_path / f"{times}.csv" for times in (2, 3, 12)]  # the first warms allocators
    for path in paths:
        record = long_one(int(path.stem) * BOUND)
        path.write_bytes(b"a,b\n1,2\n" + record + b"3,4\n")
    _, once, again = peaks(read_csv, *paths)
    assert again - once < 4 * BOUND
    assert again < 24 * BOUND  # some 15 MB are libraries that the child touches first


RECORDS = [b"7,1", b'8,"an inner ""word"""', b'9,"two\nlines"', b'10,"with \\" in it"', b"11,5"]


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
@pytest.mark.parametrize(
    "damaged",
    [
        b'"' + b"x" * 300 + b'",1',  # in RFC 4180's form
        b'1,"' + b"x\n" * 150 + b'"',
        b'1,"' + b'a,"" and 2\n' * 40 + b'"',
        b'1,"' + b'a \\"word\\" and 2\n' * 40 + b'"',
        b"x" * 300,
        b'5,"' + b"x" * 300,  # a quote that no later line closes
        b'5,a"' + b"x" * 300,
    ],
    ids=["quoted", "multi", "doubled", "escaped", "bare", "odd", "inner"],
)
def test_a_record_above_the_bound_is_lost_alone(
    damaged: bytes, encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_lines, "MAX_RECORD", 200)
    path = tmp_path / "t.csv"
    others = [line for line in RECORDS if b"\n" not in line] if damaged.count(b'"') % 2 else RECORDS
    for place in range(len(others) + 1):
        lines = [b"a,b", *others[:place], damaged, *others[place:]]
        path.write_bytes(b"\n".join(lines) + b"\n")
        table = load_table(path, "csv", [Wanted(("a",), "a")], Form(encoding), lost=True)
        texts = table.columns[Wanted(("a",), "a")]
        numbers = [int(text) for text in texts.ids()]
        assert numbers == [int(line.partition(b",")[0]) for line in others]
        assert table.rows == len(others) + 1
        assert np.setdiff1d(np.arange(table.rows), table.positions).tolist() == [place]


def test_an_open_quote_loses_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows above the bound follow it, with and without a quote at their end that closes nothing."""
    monkeypatch.setattr(csv_lines, "MAX_RECORD", 200)
    path = tmp_path / "t.csv"
    rows = [b"%d,2" % row for row in range(100)]
    for last in ([], [b'100,"two', b'lines"']):
        path.write_bytes(b"\n".join([b"a,b", b'7,"x', *rows, *last]) + b"\n")
        assert len([*lines_of(path, Form())]) == 1 + 1 + 100 + bool(last)
        table = load_table(path, "csv", [Wanted(("a",), "a")])
        assert table.positions.tolist() == [*range(1, 101 + bool(last))]


def test_a_long_text_in_an_array_takes_no_more_and_is_no_number(tmp_path: Path) -> None:
    x = np.array([["1.5"], ["2"], ["7" * 50_000]] + [["3"]] * 200)
    x[3, 0] = " 4 "
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=x, y=np.zeros(len(x)))
    (taken,) = peaks(load_arrays, path)
    assert taken < 12 * MB < 0.4 * x.nbytes
    task = Task.classification((1,), 2)
    data = read_site_data(DataSource.model_validate({"format": "npz", "path": str(path)}), task, "")
    assert data.summary.left_out["features not finite"] == 1
    assert data.train.features[:3, 0].tolist() == [1.5, 2, 4]


def test_long_parquet_texts_become_empty_and_lists_are_no_numbers(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    long = "y" * (MAX_RECORD + 1)
    table = pa.table({"a": ["1", long, "3"], "b": [[1.0], [2.0] * 10, None], "c": [1, 2, 3]})
    table = table.append_column("d", pa.array([b"x", b"y" * MAX_RECORD, b"z"]).dictionary_encode())
    pq.write_table(table, path)
    wanted = [Wanted((name,), name) for name in "abcd"]
    read = load_table(path, "parquet", wanted, digests=True)
    texts = read.columns[wanted[0]]
    assert texts.ids() == [b"1", b"", b"3"]
    assert read.columns[wanted[0]].cells().absent.tolist() == [False, True, False]
    assert np.isnan(read.columns[wanted[1]].cells().numbers).all()
    assert read.columns[wanted[1]].cells().absent.tolist() == [False, False, True]
    assert read.columns[wanted[2]].cells().numbers.tolist() == [1, 2, 3]
    whole = read.columns[wanted[3]]
    assert [len(text) for text in whole.ids()] == [1, MAX_RECORD, 1]

"""A folder of images becomes records; a broken one is left out, alone, and not named."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hdpfl_flower.config.data_source import DataSource
from hdpfl_flower.errors import DataError
from hdpfl_flower.models.task import Task
from hdpfl_tools.tables.site_check import check_site_data
from hdpfl_tools.tables.site_data import SiteData, read_site_data, read_unit_records

SECRET = "PATIENT-123"
IMAGES = Task.classification((1, 8, 6), 3)


def put(folder: Path, name: str, image: Image.Image, **options: Any) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    image.save(folder / name, **options)


def read_folder(folder: Path, task: Task = IMAGES) -> SiteData:
    source = DataSource.model_validate({"format": "images", "path": str(folder)})
    return read_site_data(source, task, "")


def refused(folder: Path, task: Task) -> str:
    with pytest.raises(DataError) as caught:
        read_folder(folder, task)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
    return str(caught.value)


def test_images_are_converted_resized_and_scaled(tmp_path: Path) -> None:
    put(tmp_path, "2/b.png", Image.new("RGB", (12, 16), (255, 255, 255)))
    put(tmp_path, "2/a.png", Image.new("L", (6, 8), 51))
    put(tmp_path, "0/palette.gif", Image.new("P", (3, 4)))
    put(tmp_path, "0/alpha.png", Image.new("RGBA", (6, 8), (255, 255, 255, 0)))
    put(tmp_path, "0/deep.png", Image.fromarray(np.full((8, 6), 32768, np.uint16)))
    data = read_folder(tmp_path)
    assert data.train.features.shape == (5, 1, 8, 6)
    assert data.train.features.dtype == np.float32
    assert data.train.targets.tolist() == [0, 0, 0, 2, 2]
    means = data.train.features.mean(axis=(1, 2, 3))
    np.testing.assert_allclose(means, np.array([1, 0.5, 0, 0.2, 1]), atol=1e-5)
    assert data.summary.rows == 5
    colour = read_folder(tmp_path, Task.classification((3, 4, 4), 3)).train.features
    assert colour.shape == (5, 3, 4, 4)
    assert colour.min() >= 0
    assert colour.max() <= 1


def test_images_keep_rows_columns_and_their_exif_turn(tmp_path: Path) -> None:
    pixels = np.zeros((8, 6), np.uint8)
    pixels[0, :3] = 255
    put(tmp_path, "1/plain.png", Image.fromarray(pixels))
    exif = Image.Exif()
    exif[0x0112] = 3  # turned by 180 degrees
    put(tmp_path, "1/turned.png", Image.fromarray(pixels[::-1, ::-1].copy()), exif=exif)
    got = read_folder(tmp_path).train.features
    np.testing.assert_array_equal(got[0, 0], pixels / np.float32(255))
    np.testing.assert_array_equal(got[1], got[0])


def test_broken_images_and_unknown_folders_are_left_out_alone(tmp_path: Path) -> None:
    put(tmp_path, "0/good.png", Image.new("L", (6, 8), 255))
    want = read_folder(tmp_path).train.features
    buffer = io.BytesIO()
    noise = np.random.default_rng(1).integers(0, 256, (64, 64), dtype=np.uint8)
    Image.fromarray(noise).save(buffer, "PNG")
    png = buffer.getvalue()
    header = png[:16] + (10_001).to_bytes(4, "big") * 2 + png[24:]
    for name, content in {
        "0/empty.png": b"",
        "0/text.png": SECRET.encode(),
        "1/cut.png": png[:200],
        "1/huge.png": header,
        "1/tiff.tif": b"II*\x00\xff\xff\xff\xff",
        "2/float.txt": b"\xff\xd8\xff\xe0",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    put(tmp_path, "2/float.tif", Image.fromarray(np.full((8, 6), np.nan, np.float32)))
    (tmp_path / "0" / "folder").mkdir()
    (tmp_path / "0" / "gone.png").symlink_to(tmp_path / "nowhere")
    for name in ("3/x.png", "01/x.png", f"{SECRET}/x.png"):
        put(tmp_path, name, Image.new("L", (6, 8)))
    (tmp_path / "readme.txt").write_text(SECRET)
    (tmp_path / "0" / ".DS_Store").write_text(SECRET)
    (tmp_path / ".hidden").mkdir()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        data = read_folder(tmp_path)
    assert not seen
    np.testing.assert_array_equal(data.train.features, want)
    assert data.summary.rows == 14
    assert data.summary.left_out == {"in no class folder": 4, "no readable image": 9}


def test_image_folders_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    assert "not a folder" in refused(tmp_path / SECRET, IMAGES)
    (tmp_path / "file").write_text(SECRET)
    assert "not a folder" in refused(tmp_path / "file", IMAGES)
    shapes = (Task.classification((3,), 2), Task.classification((2, 4, 4), 2))
    for task in (*shapes, Task.regression((1, 4, 4))):
        assert "not images" in refused(tmp_path, task)
    (tmp_path / "empty").mkdir()
    assert read_folder(tmp_path / "empty").train.features.shape == (0, 1, 8, 6)


def test_an_image_is_held_out_by_its_file_whatever_a_server_asks_for(tmp_path: Path) -> None:
    for i in range(40):
        put(tmp_path, f"{i % 2}/{i:02}.png", Image.new("L", (6, 8), i))
    given = {"format": "images", "path": str(tmp_path), "holdout": 0.5}
    source = DataSource.model_validate(given)
    sides = [
        read_unit_records(source, task, "").held_out.tolist()
        for task in (IMAGES, Task.classification((3, 4, 4), 2), Task.classification((1, 1, 1), 2))
    ]
    assert 5 < sum(sides[0]) < 35
    assert sides[0] == sides[1] == sides[2]
    put(tmp_path, "0/+.png", Image.new("L", (6, 8), 200))
    assert read_unit_records(source, IMAGES, "").held_out.tolist()[1:] == sides[0]


def source_of(folder: Path, **more: Any) -> DataSource:
    return DataSource.model_validate({"format": "images", "path": str(folder), **more})


def check(folder: Path, task: Task = IMAGES, **more: Any) -> str:
    return "\n".join(check_site_data(source_of(folder, **more), task, "", 40))


def test_deep_images_are_read_by_their_bits_and_checked(tmp_path: Path) -> None:
    """12 bits in files of 16; images of 8 bits beside them keep their own scale."""
    for at in range(4):
        values = np.full((8, 6), 4095 if at else 2000, np.uint16)
        put(tmp_path, f"{at % 2}/{at}.png", Image.fromarray(values))
    put(tmp_path, "2/plain.png", Image.new("L", (6, 8), 255))
    read = read_site_data(source_of(tmp_path, bits=12), IMAGES, "").train.features
    np.testing.assert_allclose(sorted(read.mean(axis=(1, 2, 3))), [2000 / 4095, 1, 1, 1, 1])
    wrong, right = check(tmp_path), check(tmp_path, bits=12)
    assert "warning: 4 images have more than 8 bits" in wrong
    assert "set it to 12" in wrong
    assert "4 images have more than 8 bits, read as 12" in right
    assert "beyond what 'data.bits' = 10 says" in check(tmp_path, bits=10)


def test_one_image_of_each_folder_is_used_where_it_is_the_unit(tmp_path: Path) -> None:
    """The first by name that can be read; held out with its unit, and evaluated with it."""
    for unit in range(30):
        for at in range(3):
            name = f"{unit % 2}/p{unit:02}/{at}.png"
            put(tmp_path, name, Image.new("L", (6, 8), 3 * unit + at))
    (tmp_path / "0" / "p00" / "0.png").write_bytes(b"broken")
    put(tmp_path, "2/p01/again.png", Image.new("L", (6, 8), 200))
    put(tmp_path, "2/beside.png", Image.new("L", (6, 8), 201))
    assert "error: 31 folders lie inside the class folders" in check(tmp_path)
    source = source_of(tmp_path, id="folder", holdout=0.4)
    data = read_site_data(source, IMAGES, "")
    assert len(data.train) + len(data.test) == 30
    assert data.ids is not None
    assert len(set(data.ids)) == len(data.train)
    firsts = np.concatenate([data.train.features, data.test.features])[:, 0, 0, 0] * 255
    assert sorted(firsts.round().astype(int).tolist()) == [1, *range(3, 90, 3)]
    assert data.summary.left_out["no id"] == 1
    assert data.summary.left_out["no readable image"] == 1
    units = read_unit_records(source, IMAGES, "")
    assert len(units.records) == 30 * 3
    for unit in range(30):
        assert len({*units.held_out[units.units == unit].tolist()}) == 1
    used = units.records.take(np.flatnonzero(units.first & ~units.held_out))
    np.testing.assert_array_equal(used.features, data.train.features)

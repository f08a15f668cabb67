"""The study of public weights on images of noise: each start is another run, of one body."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from studies.framework.study import Options
from studies.public_start import study
from studies.public_start.study import PUBLIC_START
from tests.hdpfl_flower.data.test_datasets import write_idx


@pytest.mark.usefixtures("guessed_noise")
def test_each_start_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "EPOCHS", 1)
    monkeypatch.setenv("HDPFL_HOME", str(tmp_path / "home"))
    generator = np.random.default_rng(1)
    for kind, count in (("train", 6_000), ("t10k", 50)):
        folder = tmp_path / "MNIST" / "raw"
        pixels = generator.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        write_idx(folder / f"{kind}-images-idx3-ubyte", pixels)
        write_idx(folder / f"{kind}-labels-idx1-ubyte", np.arange(count) % 10)
    rows = tuple(row.label for row in PUBLIC_START.rows if "mmse" in getattr(row, "label", ""))  # type: ignore[union-attr]
    assert len(rows) == 6
    options = Options(data_dir=str(tmp_path), rounds=1, strategies=rows[3:], processes=1)
    found = PUBLIC_START.conduct(options, tmp_path / "out")
    assert [cell["row"] for cell in found.numbers["cells"]] == list(rows[3:])
    assert (tmp_path / "out" / "public-start.png").stat().st_size > 10_000
    # The frozen body is that of the whole network.
    whole, body = (tmp_path / "out" / f"{name}.safetensors" for name in ("whole", "body"))
    assert body.stat().st_size < whole.stat().st_size

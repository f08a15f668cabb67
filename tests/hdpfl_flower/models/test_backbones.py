"""Frozen backbones and public starts: the same as their outputs and models; bad files refused."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.tables_of_terms import flattened
from hdpfl_flower.config.toml_text import as_toml
from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.errors import DataError, ModelError
from hdpfl_flower.models.backbones import _network, over
from hdpfl_flower.models.image_networks import import_torchvision
from hdpfl_flower.models.task import Task
from hdpfl_flower.system.weight_files import add_weights, weight_file
from hdpfl_flower.work.backbone import OwnBackbone, ResNet18
from hdpfl_tools.simulation.datasets import load_dataset
from hdpfl_tools.simulation.in_process.in_process_run import run_in_process

IMAGES = Task.classification((1, 8, 8), 10)
WIDTH = 6
QUICK = {
    "model": "mlp:5", "rounds": 2, "local-steps": 2, "epsilons": "1,4,4", "batch-sizes": "64",
    "learning-rate": 0.5, "run-id": "r",
}  # fmt: skip


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HDPFL_HOME", str(tmp_path / "home"))
    _network.cache_clear()  # a process keeps the last network, whatever becomes of its file


def network(_: Task | None = None) -> nn.Module:
    """A user's backbone: a convolution, normalised over batches that it saw in public."""
    return nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Dropout(), nn.Linear(72, WIDTH)
    )


def batchy(_: Task) -> nn.Module:
    class Centred(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            flat = x.flatten(1)[:, :WIDTH]
            return flat - flat.mean(0)

    return Centred()


def coarse(_: Task) -> nn.Module:
    class Coarse(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.flatten(1)[:, :WIDTH].to(torch.bfloat16)

    return Coarse()


def nothing(_: Task) -> None:
    return None


def weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], None] = dict.copy) -> Path:
    """A file of the network's numbers, changed."""
    torch.manual_seed(7)
    made = network()
    made.get_submodule("1").running_mean += 0.5  # type: ignore[operator, union-attr]
    state = {key: value.contiguous() for key, value in made.state_dict().items()}
    change(state)
    folder.mkdir(exist_ok=True)
    save_file(state, folder / "w.safetensors")
    return folder / "w.safetensors"


def config_of(folder: Path, backbone: dict[str, Any], **more: object) -> RunConfig:
    """The run config of a file that names a backbone."""
    lines = {**QUICK, "runs-dir": str(folder / "runs"), "backbone": backbone, **more}
    shown = [f"{key} = {as_toml(value)}" for key, value in flattened(lines)]
    (folder / "run.toml").write_text("\n".join(shown))
    return RunConfig.load(folder / "run.toml")


def own(name: str, **more: object) -> dict[str, Any]:
    """The table of a function of this module."""
    return {"kind": "own", "function": f"{__name__}:{name}", **more}


OWN = own("network", width=WIDTH, weights="w.safetensors")


def test_a_run_is_one_over_the_backbones_outputs(tmp_path: Path) -> None:
    """The same final model, to the bit, as of a data set that holds the outputs."""
    weights(tmp_path)
    config = config_of(tmp_path, OWN)
    result = run_in_process(config, 3)
    task, data = task_for(config.terms), load_dataset("digits", "")
    assert (task.input_shape, task.of_records) == ((WIDTH,), data.task)
    np.savez(
        tmp_path / "outputs.npz",
        x=task.embed(data.train.features), y=data.train.targets,
        x_test=task.embed(data.test.features), y_test=data.test.targets,
    )  # fmt: skip
    name = f"file:{tmp_path / 'outputs.npz'}"
    own = {"dataset": name, "task": {"kind": "classification", "shape": WIDTH, "classes": 10}}
    plain = {"first.moments.share": 0.0, "runs-dir": str(tmp_path / "other")}
    other = RunConfig.parse({**QUICK, **own, **plain})
    expected = run_in_process(other, 3)
    assert {n: a.tobytes() for n, a in result.arrays.items()} == {
        n: a.tobytes() for n, a in expected.arrays.items()
    }
    assert result.rounds[-1]["metrics"] == expected.rounds[-1]["metrics"]


def test_outputs_are_the_networks_own_and_of_each_record_alone(tmp_path: Path) -> None:
    backbone = OwnBackbone(
        function=f"{__name__}:network", width=WIDTH, weights=add_weights(weights(tmp_path))
    )
    task = over(backbone, IMAGES)
    x = np.random.default_rng(1).random((150, 1, 8, 8), np.float32)
    found = task.embed(x)
    torch.manual_seed(7)
    plain = network().eval()
    plain.get_submodule("1").running_mean += 0.5  # type: ignore[operator, union-attr]
    with torch.no_grad():
        assert np.allclose(found, plain(torch.from_numpy(x)).numpy(), atol=1e-6)
    # Another number of records, other neighbours: the same bits.
    for rows in ([3], [80, 3, 149], list(range(3, 70))):
        assert found[rows].tobytes() == task.embed(x[rows]).tobytes()
    assert task.embed(x[:0]).shape == (0, WIDTH)


def test_a_record_beyond_the_numbers_becomes_zeros_and_says_nothing(tmp_path: Path) -> None:
    backbone = OwnBackbone(
        function=f"{__name__}:network", width=WIDTH, weights=add_weights(weights(tmp_path))
    )
    x = np.ones((3, 1, 8, 8), np.float32)
    x[1] = np.inf
    found = over(backbone, IMAGES).embed(x)
    assert not found[1].any()
    assert found[0].tobytes() == found[2].tobytes()


def drop(state: dict[str, torch.Tensor]) -> None:
    del state["4.bias"]


def add(state: dict[str, torch.Tensor]) -> None:
    state["5.bias"] = torch.zeros(2)


def reshape(state: dict[str, torch.Tensor]) -> None:
    state["4.bias"] = torch.zeros(WIDTH + 1)


def spoil(state: dict[str, torch.Tensor]) -> None:
    state["4.bias"] = torch.full((WIDTH,), torch.nan)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (drop, r"the file lacks 1 names: 4\.bias"),
        (add, r"has beside the model's 1 names: 5\.bias"),
        (reshape, r"'4\.bias' has the shape \(7,\), the model \(6,\)"),
        (spoil, r"'4\.bias' holds numbers that are not finite"),
    ],
)
def test_a_file_of_another_network_is_refused_by_name(
    tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], None], words: str
) -> None:
    weights(tmp_path, change)
    task = task_for(config_of(tmp_path, OWN).terms)
    with pytest.raises(ModelError, match=words):
        task.embed(np.zeros((1, 1, 8, 8), np.float32))


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (own("network", width=6), "has numbers that no file gives: 0.bias"),
        (own("batchy", width=6), "mixes the records of a batch"),
        (own("batchy", width=5), r"the shape \(n, 5\)"),
        (own("coarse", width=6), "finite numbers in float32"),
        (own("nothing", width=6), r"returned no torch\.nn\.Module"),
        (own("absent", width=6), "has no function 'absent'"),
        ({"kind": "resnet18"}, "needs its numbers; write 'backbone.weights'"),
    ],
)
def test_what_is_no_function_of_a_record_is_refused(
    tmp_path: Path, table: dict[str, Any], words: str
) -> None:
    task = task_for(config_of(tmp_path, table).terms)
    with pytest.raises(ModelError, match=words):
        task.embed(np.zeros((0, 1, 8, 8), np.float32))


class Runs:
    """A pickle that would run code."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("import pathlib; pathlib.Path('ran').touch()",)


@pytest.mark.parametrize("content", [b"", b"PK\3\4zip", b"no weights", pickle.dumps(Runs())])
def test_no_tensors_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w.safetensors").write_bytes(content)
    task = task_for(config_of(tmp_path, OWN).terms)
    with pytest.raises(ModelError, match="neither safetensors nor a torch file of tensors"):
        task.embed(np.zeros((0, 1, 8, 8), np.float32))
    assert not (tmp_path / "ran").exists()


def test_a_changed_file_and_an_absent_one_are_not_read(tmp_path: Path) -> None:
    digest = add_weights(weights(tmp_path))
    place = weight_file(digest)
    backbone = OwnBackbone(function=OWN["function"], width=WIDTH, weights=digest)
    content = place.read_bytes()
    place.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DataError, match="has another digest"):
        over(backbone, IMAGES).embed(np.zeros((0, 1, 8, 8), np.float32))
    place.unlink()
    with pytest.raises(DataError, match="hdpfl-site approve FILE"):
        over(backbone, IMAGES).embed(np.zeros((0, 1, 8, 8), np.float32))
    with pytest.raises(DataError, match="there is no file"):
        config_of(tmp_path, {**OWN, "weights": "absent.safetensors"})


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
def test_torchvisions_files_are_read(tmp_path: Path, shape: tuple[int, ...]) -> None:
    pytest.importorskip("torchvision")
    torch.manual_seed(1)
    plain = import_torchvision("models").resnet18(weights=None)
    old = {k: v for k, v in plain.state_dict().items() if not k.endswith("num_batches_tracked")}
    torch.save(old, tmp_path / "resnet18.pth")
    backbone = ResNet18(weights=add_weights(tmp_path / "resnet18.pth"))
    x = np.random.default_rng(1).random((2, *shape), np.float32)
    found = over(backbone, Task.classification(shape, 5)).embed(x)
    plain.fc = nn.Identity()
    with torch.no_grad():
        expected = plain.eval()(torch.from_numpy(np.repeat(x, 3 // shape[0], axis=1)))
    assert np.allclose(found, expected.numpy(), atol=1e-4)


class Bare(nn.Module):
    """A product of rows of 13 floats that no alignment reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, 13))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ self.weight.T)


def bare(_: Task) -> nn.Module:
    return Bare()


def narrow(_: Task) -> nn.Module:
    return nn.Sequential(nn.Linear(13, WIDTH), nn.Tanh())


@pytest.mark.parametrize("name", ["narrow", "bare"])
def test_the_bits_of_a_record_do_not_depend_on_its_place(tmp_path: Path, name: str) -> None:
    """Hostile weights of the head would turn a last bit of each later record into its class."""
    task = Task.classification((13,), 2)
    torch.manual_seed(3)
    state = {key: value.contiguous() for key, value in globals()[name](task).state_dict().items()}
    save_file(state, tmp_path / "w.safetensors")
    digest = add_weights(tmp_path / "w.safetensors")
    settings = {"function": f"{__name__}:{name}", "width": WIDTH, "weights": digest}
    embed = over(OwnBackbone.model_validate(settings), task).embed
    rows = np.random.default_rng(0).normal(size=(70, 13)).astype(np.float32)
    each = np.concatenate([embed(row[None]) for row in rows])
    for shift in range(0, 70, 3):
        np.testing.assert_array_equal(embed(np.roll(rows, shift, axis=0)), np.roll(each, shift, 0))
        np.testing.assert_array_equal(embed(rows[shift:]), each[shift:])

"""Adapters: what is trained, sent and merged; exact means; frozen layers that stay as they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.engines.dpsgd import train
from hdpfl_flower.engines.engine_choice import engine_for
from hdpfl_flower.errors import ModelError
from hdpfl_flower.models.adapters import AdaptedNetwork
from hdpfl_flower.models.backbones import _network, over
from hdpfl_flower.models.networks import Arrays, arrays_of, build_model, flatten, layout_of
from hdpfl_flower.models.parts import parts_of
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.privacy.accounting import Steps
from hdpfl_flower.privacy.noise import ReleaseStreams
from hdpfl_flower.privacy.plan import RoundPlan
from hdpfl_flower.system.weight_files import add_weights
from hdpfl_flower.wire import encode_update
from hdpfl_flower.work.backbone import BACKBONES, OwnBackbone
from hdpfl_tools.site.audit import default_training, engine_of
from hdpfl_tools.site.stored_models import with_backbone

IMAGES = Task.classification((1, 8, 8), 10)
WIDTH = 6


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HDPFL_HOME", str(tmp_path / "home"))
    _network.cache_clear()


class Attends(nn.Module):
    """Attention over the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.squeeze(1)
        found: torch.Tensor = self.attention(rows, rows, rows, need_weights=False)[0]
        return found


def network(_: Task | None = None) -> nn.Module:
    """Attention, a convolution, public batch statistics, dropout and a linear layer."""
    return nn.Sequential(
        Attends(), nn.Unflatten(1, (1, 8)), nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2),
        nn.ReLU(inplace=True), nn.Flatten(), nn.Dropout(), nn.Linear(72, WIDTH),
    )  # fmt: skip


def task_of(folder: Path, adapter: str = "lora:2") -> Task:
    """The task of images under the network, its numbers drawn and in a file."""
    torch.manual_seed(7)
    made = network()
    made.get_submodule("3").running_mean += 0.5  # type: ignore[operator, union-attr]
    save_file({k: v.contiguous() for k, v in made.state_dict().items()}, folder / "w.safetensors")
    digest = add_weights(folder / "w.safetensors")
    backbone = OwnBackbone(
        function=f"{__name__}:network", width=WIDTH, weights=digest, adapter=adapter
    )
    return over(backbone, IMAGES)


def moved(model: nn.Module, seed: int) -> Arrays:
    """Trained numbers far from the start."""
    drawn = np.random.default_rng(seed)
    return {
        name: drawn.normal(0, 0.3, array.shape).astype(np.float32)
        for name, array in arrays_of(model).items()
    }


def outputs_of(model: nn.Module, arrays: Arrays, x: torch.Tensor) -> torch.Tensor:
    model.load_state_dict({n: torch.from_numpy(a) for n, a in arrays.items()}, strict=False)
    with torch.no_grad():
        found: torch.Tensor = model.eval()(x)
    return found


def test_adapters_and_the_head_are_trained_and_nothing_else(tmp_path: Path) -> None:
    task = task_of(tmp_path)
    shapes = {name: array.shape for name, array in layout_of("logreg", task).items()}
    assert list(shapes.values()) == [(8, 2), (24, 2), (2, 2), (WIDTH, 2), (10, WIDTH), (10,)]
    assert [name.rsplit(".", 1)[1] for name in shapes] == ["b"] * 4 + ["weight", "bias"]
    assert parts_of("logreg", task).names == {"head.1.weight", "head.1.bias"}
    both = layout_of("logreg", task_of(tmp_path, "lora-both:2"))
    assert sum(name.endswith(".a") for name in both) == 4


def test_a_run_starts_at_the_backbone_and_its_numbers_are_held_once(tmp_path: Path) -> None:
    task = task_of(tmp_path)
    one, other = build_model("logreg", task, 0), build_model("logreg", task, 1)
    assert isinstance(one, AdaptedNetwork)
    assert not any(layer.training for layer in one.train().backbone.modules())
    x = torch.rand(5, 1, 8, 8)
    frozen = over(task.body.backbone.updated(adapter=""), IMAGES)  # type: ignore[union-attr]
    with torch.no_grad():
        assert np.allclose(one.eval().backbone(x).numpy(), frozen.embed(x.numpy()), atol=1e-6)
    places = [
        {value.data_ptr() for value in each.state_dict().values() if value.numel() > 150}
        for each in (one, other)
    ]
    assert places[0] == places[1] != set()
    again = other.state_dict()
    assert all(torch.equal(v, again[k]) for k, v in one.state_dict().items() if "backbone" in k)


@pytest.mark.parametrize("adapter", ["lora:2", "lora-both:2"])
def test_merged_numbers_give_equal_outputs(tmp_path: Path, adapter: str) -> None:
    task = task_of(tmp_path, adapter)
    model = build_model("logreg", task, 0)
    assert isinstance(model, AdaptedNetwork)
    arrays, x = moved(model, 1), torch.rand(5, 1, 8, 8)
    expected = outputs_of(model, arrays, x)
    plain = AdaptedNetwork(network(), nn.Sequential(nn.Flatten(), nn.Linear(WIDTH, 10)))
    whole = with_backbone("logreg", task, {**arrays, "outputs": np.ones(10, np.float32)})
    assert whole.pop("outputs").all()  # what is no parameter stays
    plain.load_state_dict({name: torch.from_numpy(array) for name, array in whole.items()})
    with torch.no_grad():
        assert torch.allclose(plain.eval()(x), expected, atol=1e-5)


@pytest.mark.parametrize(("adapter", "is_exact"), [("lora:2", True), ("lora-both:2", False)])
def test_a_fixed_factor_commutes_with_means(tmp_path: Path, adapter: str, is_exact: bool) -> None:
    task = task_of(tmp_path, adapter)
    model = build_model("logreg", task, 0)
    sites = [moved(model, seed) for seed in (1, 2)]
    mean = {name: (sites[0][name] + 3 * sites[1][name]) / 4 for name in sites[0]}
    found, one, two = (with_backbone("logreg", task, arrays) for arrays in (mean, *sites))
    names = [name for name in found if "weight" in name and name.startswith("backbone")]
    same = [np.allclose(found[n], (one[n] + 3 * two[n]) / 4, atol=1e-5) for n in names]
    assert all(same) == is_exact


def test_each_records_gradient_is_its_own_and_frozen_layers_stay(tmp_path: Path) -> None:
    """The clipped sum of an engine is that of one backward pass a record, batch statistics kept."""
    task = task_of(tmp_path)
    engine = engine_for("logreg", task, "auto", "cpu")
    engine.theta.copy_(torch.randn(len(engine.theta), generator=torch.Generator().manual_seed(1)))
    generator = torch.Generator().manual_seed(2)
    x, y = torch.rand(6, 1, 8, 8, generator=generator), torch.arange(6)
    before = {k: v.clone() for k, v in engine.model.state_dict().items()}
    total = torch.zeros_like(engine.theta)
    engine.add_clipped_sum(total, x, y, 6, 0.5)
    expected = torch.zeros_like(total)
    trained = [p for p in engine.model.parameters() if p.requires_grad]
    for row in range(6):
        loss = nn.functional.cross_entropy(engine.model(x[row : row + 1]), y[row : row + 1])
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, trained)])
        expected += gradient * min(1.0, 0.5 / float(gradient.norm()))
    assert torch.allclose(total, expected, atol=1e-5)
    after = engine.model.state_dict()
    assert all(torch.equal(after[key], value) for key, value in before.items())


def test_code_of_a_backbone_is_not_run_by_an_audit_without_a_policy(tmp_path: Path) -> None:
    task = task_of(tmp_path)
    terms = RunConfig.parse({"backbone": task.body.backbone}).terms  # type: ignore[union-attr]
    with pytest.raises(ModelError, match=r"is code: add a --profile whose 'policy\.models'"):
        engine_of(terms, default_training())
    assert engine_of(terms, default_training(), code=True) == "vmap"


# torchvision's own.


def torchvision_task(kind: str, folder: Path, shape: tuple[int, int, int]) -> Task:
    """Images under one of torchvision's networks, its drawn numbers in a file."""
    torch.manual_seed(0)
    made = getattr(pytest.importorskip("torchvision").models, kind)(weights=None)
    save_file(made.state_dict(), folder / "w.safetensors")
    digest = add_weights(folder / "w.safetensors")
    backbone = BACKBONES[kind](weights=digest, adapter="lora:4")
    return over(backbone, Task.classification(shape, 10))


def check_message(task: Task, spec: str = "logreg") -> None:
    """One round over two records: a message holds adapters and head, and every array moves."""
    engine = engine_for(spec, task, "auto", "cpu")
    start = flatten(arrays_of(build_model(spec, task, seed=0)))
    draws = np.random.default_rng(0)
    x = draws.random((2, *task.input_shape), dtype=np.float32)
    plan = RoundPlan(Steps(1.0, 1), 1.0, 0.01, 2.0)
    update = train(engine, start, Records(x, draws.integers(0, 10, 2)), plan, 0.1,
                   ReleaseStreams.simulated(0, "0", 1, "update"), 2)  # fmt: skip
    layout = layout_of(spec, task)
    assert {name.rpartition(".")[2] for name in layout if not name.startswith("head.")} == {"b"}
    sizes = [array.size for array in layout.values()]
    assert all(part.any() for part in np.split(update, np.cumsum(sizes)[:-1]))
    assert 4 * sum(sizes) < len(encode_update(update)) < 4 * sum(sizes) + 300


@pytest.mark.slow
def test_resnet18_sends_adapters_and_head_alone(tmp_path: Path) -> None:
    check_message(torchvision_task("resnet18", tmp_path, (1, 8, 8)))

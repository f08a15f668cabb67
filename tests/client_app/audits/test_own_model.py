"""A listed model that raises on a record's values: no reply depends on it without noise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from client_app.releases.scores import noisy_cells
from client_app.training.plain_sgd import LocalJob, Network, train_or_stay
from hdpfl_flower import wire
from hdpfl_flower.engines.dpsgd import settle
from hdpfl_flower.engines.engine_choice import choose_engine
from hdpfl_flower.engines.engines import Engine, VmapEngine
from hdpfl_flower.engines.ghost_clipping import BookkeepingEngine
from hdpfl_flower.engines.opacus_engine import OpacusEngine
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.models.backbones import Embedded
from hdpfl_flower.models.evaluation import count_correct, predict_apart
from hdpfl_flower.models.networks import arrays_of, build_model
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.work.backbone import OwnBackbone
from tests.client_app.messages import CLIENT_NOISE, ask, make_site, terms_of
from tests.hdpfl_flower.engines.oracle import TOLERANCE, one_thread  # noqa: F401

ODD = 0.3125
"""A value that no trial of an engine draws; scaled, the dose of one record of the site."""
CLIP_NORM, WIDTH = 0.5, 4
TASK = Task.classification((WIDTH,), 3)


class Checked(nn.Module):
    """Network that raises on a batch with a record whose last feature is :data:`ODD`."""

    def __init__(self, task: Task, layer: nn.Module, reason: type[BaseException]) -> None:
        super().__init__()
        size = task.input_shape[0]
        self.first, self.middle = nn.Linear(size, size), layer
        self.last, self.reason = nn.Linear(size, task.outputs), reason

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs."""
        x = torch.tanh(self.first(x)) + 0 * self._checked(x)
        outputs: torch.Tensor = self.last(self.middle(x))
        return outputs

    def _checked(self, x: torch.Tensor) -> torch.Tensor:
        if (x[:, -1] == ODD).any():
            raise self.reason("PATIENT-123")
        return x


class Coded(nn.Module):
    """Network of an embedding with two codes, of which records may have a third."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.codes = nn.Embedding(2, 5)
        self.last = nn.Linear(5 * task.input_shape[0], task.outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs."""
        outputs: torch.Tensor = self.last(self.codes((x != 0).long() + (x == ODD)).flatten(1))
        return outputs


def checked(task: Task) -> nn.Module:
    """Return a network of linear layers alone."""
    return Checked(task, nn.Identity(), ValueError)


def leaving(task: Task) -> nn.Module:
    """Return a network that ends the process, as a script does."""
    return Checked(task, nn.Identity(), SystemExit)


def normed(task: Task) -> nn.Module:
    """Return a network with a layer that Opacus' hooks alone split, beside the check."""
    return Checked(task, nn.LayerNorm(task.input_shape[0]), ValueError)


def backbone(task: Task) -> nn.Module:
    """Return a network without numbers for records like ``task``'s."""

    class Sums(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if (x[:, -1] == ODD).any():
                raise ValueError
            return torch.stack([x.sum(1), x.square().sum(1)], dim=1)

    del task
    return Sums()


NETWORKS = dict.fromkeys((checked, leaving), BookkeepingEngine)
NETWORKS |= {Coded: VmapEngine, normed: OpacusEngine}


def engine_of(network: object) -> Engine:
    def build() -> nn.Module:
        torch.manual_seed(0)
        return network(TASK)  # type: ignore[no-any-return, operator]

    made = choose_engine(build, "own", TASK, "auto", "cpu")
    assert type(made) is NETWORKS[network]  # type: ignore[index]
    settle(made, 8.0, 64)
    return made


def records(odd: list[int], count: int = 19) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(count, WIDTH, generator=draw)
    x[odd, -1] = ODD
    return x, torch.randint(0, TASK.outputs, (count,), generator=draw)


def answer_of(work: Callable[[], np.ndarray]) -> np.ndarray:
    try:
        return work()
    except ValueError:
        pytest.fail("one record decides whether there is an answer")


def sum_of(engine: Engine, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    total = torch.zeros_like(engine.theta)
    engine.add_clipped_sum(total, x, y, len(x), CLIP_NORM)
    return total


@pytest.mark.parametrize("odd", [[0], [18], [16, 18], [0, 5, 9], list(range(19))])
@pytest.mark.parametrize("network", NETWORKS)
def test_a_record_on_which_the_model_raises_adds_nothing(network: object, odd: list[int]) -> None:
    """Of each engine, and the other records add what they add without it."""
    engine = engine_of(network)
    x, y = records(odd)
    others = [row for row in range(len(x)) if row not in odd]
    total = sum_of(engine, x, y)
    expected = torch.zeros_like(total)
    for row in others:
        expected += sum_of(engine, x[[row]], y[[row]])
    assert (total - expected).norm() <= TOLERANCE * CLIP_NORM * max(len(others), 1)
    if others:  # an engine that broke off computes the next batch as if it had not
        again = sum_of(engine, x[others], y[others])
        assert (again - expected).norm() <= TOLERANCE * CLIP_NORM * len(others)
        assert expected.norm() > CLIP_NORM / 2


@pytest.mark.parametrize("network", NETWORKS)
def test_the_bits_of_a_record_are_the_same_whether_its_batch_raised(network: object) -> None:
    engine = engine_of(network)
    x, y = records([1], count=2)
    assert torch.equal(sum_of(engine, x, y), sum_of(engine, x[:1], y[:1]))


def test_a_row_filling_a_block_costs_its_record_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second block holds one record, and copies of the first, which raises."""
    engine = engine_of(checked)
    monkeypatch.setattr(engine.proof, "granule", lambda *_: 8)
    monkeypatch.setattr(engine.proof, "holds", lambda granule, size: size == granule)
    x, y = records([0], count=9)
    moved, alone = sum_of(engine, x, y) - sum_of(engine, x[:8], y[:8]), sum_of(engine, x[8:], y[8:])
    assert alone.norm() > CLIP_NORM / 2
    assert (moved - alone).norm() <= TOLERANCE * CLIP_NORM * 9


def site_of(folder: Path, network: str, odd: bool, holdout: float = 0.0) -> Path:
    """Return the profile of a site that lists the network, with or without the one record."""
    model = f'models = ["{__name__}:{network}"]\n'
    profile = make_site(folder, more=CLIENT_NOISE + model, holdout=holdout)
    if odd:
        with (folder / "records.csv").open("a") as file:
            file.write(f"50,{5 * (1 + ODD)},yes\n" * 30)
    return profile


@pytest.mark.parametrize("noise", ["records", "client"])
@pytest.mark.parametrize("network", ["checked", "leaving", "Coded", "normed"])
def test_a_deployed_site_answers_either_way(tmp_path: Path, network: str, noise: str) -> None:
    """Thirty copies of it: a round of this site takes one of them but with chance 1e-10."""
    terms = terms_of(noise=noise, model=f"{__name__}:{network}", strategy="fedavg")
    for odd in (False, True):
        folder = tmp_path / str(odd)
        profile = site_of(folder, network, odd)
        for server_round in (1, 2, 3):
            reply = ask(profile, terms, server_round)
            assert reply.has_content(), reply.error
        account = Ledger(folder / "ledger.sqlite").account()
        assert {each.status for each in account.releases.values()} == {"sent"}
        assert account.spent() == (1.2345678, 1e-6)


def test_an_update_is_zero_where_the_training_of_a_client_raises() -> None:
    task = Task.classification((WIDTH,), 2)
    network = Network(f"{__name__}:checked", task, "cpu")
    x, y = (each.numpy() for each in records([3]))
    job = LocalJob(network.theta.numpy().copy(), Records(x, y % 2), (np.arange(5), np.arange(9)))
    assert np.array_equal(train_or_stay(network, job, 0.5), job.start)
    assert not np.array_equal(
        train_or_stay(network, LocalJob(job.start, job.records, (np.arange(3),)), 0.5), job.start
    )


def test_a_record_is_not_counted_where_the_model_raises() -> None:
    """By the private choice and by the histogram of scores; the others are counted as ever."""
    task, spec = Task.classification((WIDTH,), 2), f"{__name__}:checked"
    arrays = arrays_of(build_model(spec, task, 0))
    x, y = (each.numpy() for each in records([2, 70], count=75))
    others = np.array([row for row in range(75) if row not in (2, 70)])
    outputs = answer_of(lambda: predict_apart(spec, task, arrays, x, "cpu"))
    assert np.isnan(outputs[[2, 70]]).all()
    assert np.array_equal(outputs[others], predict_apart(spec, task, arrays, x[others], "cpu"))
    y = y % 2
    with_odd, without = (
        count_correct(spec, task, arrays, Records(x[rows], y[rows]), "cpu")
        for rows in (np.arange(75), others)
    )
    assert 0 <= with_odd - without <= 2
    cells = [
        wire.read_sealed(noisy_cells(spec, task, arrays, Records(x[rows], y[rows]), 0.0,
                                     RandomStream(bytes(32)), "cpu"))
        for rows in (np.arange(75), others)
    ]  # fmt: skip
    assert np.array_equal(*cells)


def test_a_backbone_that_raises_on_a_record_gives_it_zeros() -> None:
    """Else one record would decide whether the site can read its records."""
    embedding = Embedded(OwnBackbone(function=f"{__name__}:backbone", width=2), TASK)
    x = records([4, 66], count=70)[0].numpy()
    found = answer_of(lambda: embedding(x))
    others = [row for row in range(70) if row not in (4, 66)]
    assert not found[[4, 66]].any()
    assert np.array_equal(found[others], embedding(x[others]))
    assert found[others].any(axis=1).all()

"""Bounds of a run's accuracy, from the noisy table of a first message by class.

The table holds of each class its share, a mean and a deviation of each number column, and the
shares of categories; of columns together it holds nothing. The least is reached by the best column
alone, without noise. The most is that of runs with the noise of the setting on made-up records
whose columns are independent in each class: real columns partly say the same.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import norm

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.data.record_moments import Floats, Layout, layout_of
from hdpfl_flower.data.run_task import schema_of, task_for
from hdpfl_flower.errors import DataError
from hdpfl_tools.coordinator.reports.advice import RunSetting
from hdpfl_tools.simulation.in_process.in_process_run import run_in_process
from server_app.releases.moments import NORMAL

TESTED = 4_000
"""Made-up records of the test."""
SEEDS = 3


def classes_of(facts: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the groups of the classes in a first message's facts; empty: it has none apart."""
    groups = facts.get("groups") or {}
    return [group for name, group in groups.items() if name.startswith("class ")]


@dataclass(frozen=True)
class Expected:
    """Bounds of an accuracy.

    Attributes:
        column: the best alone.
        least: its accuracy.
        most: mean accuracy of runs on records of independent columns.
    """

    column: str
    least: float
    most: float


def expected_accuracy(config: RunConfig, setting: RunSetting, facts: Mapping[str, Any]) -> Expected:
    """Return the bounds of the accuracy of a run of ``setting``.

    Args:
        config: of the run: its task and strategy.
        setting: sites, rounds, batches, model and noise.
        facts: of the first message, with a table of each class.

    Raises:
        DataError: a number of a class is held back, or hidden by the noise.
    """
    task = task_for(config.terms)
    classes, layout = classes_of(facts), layout_of(schema_of(config.terms), task, table=True)
    made_up = MadeUp(classes, layout, task.input_shape[0])
    counts = [site.records for site in setting.sites]
    replaced = ("data-dir", "groups", "schema", "run-id", "local-steps", "local-epochs")
    keys = {
        key: value
        for key, value in config.as_config().items()
        # Of its first message the share counts: another content would end the run, or needs names.
        if key not in replaced and (not key.startswith("first.") or key.endswith(".share"))
    }
    batches = [str(site.batch_size) for site in setting.sites]
    keys |= {
        "partition": "natural",
        "task.kind": "classification",
        "task.classes": task.classes,
        "task.shape": f"{task.input_shape[0]}",
        "epsilons": ",".join(f"{site.epsilon:g}" for site in setting.sites),
        "batch-sizes": f"each:{':'.join(batches)}",
        "rounds": setting.rounds,
        "model": setting.model,
        "learning-rate": "auto",
        "delta": setting.delta,
        "evaluation": "server",
        **(setting.noise_terms or {"local-steps": setting.steps[0]}),
    }
    accuracies = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(SEEDS):
            draws, path = np.random.default_rng(seed), Path(folder) / f"{seed}.npz"
            x, y = made_up.records(sum(counts), draws)
            x_test, y_test = made_up.records(TESTED, draws)
            owner = np.repeat(np.arange(len(counts)), counts)
            np.savez(path, x=x, y=y, x_test=x_test, y_test=y_test, owner=owner)
            of_seed = {**keys, "dataset": f"file:{path}", "seed": seed, "runs-dir": folder}
            result = run_in_process(RunConfig.parse(of_seed), len(counts))
            accuracies.append(float(result.rounds[-1]["metrics"]["accuracy"]))
    least, column = max(made_up.alone())
    most = float(np.mean(accuracies))
    return Expected(column, min(least, most), most)


class MadeUp:
    """Made-up records of the classes' noisy columns.

    Differences between classes are shrunk by the share of their squares that noise and the draw of
    the records explain: noise alone would make the classes look easy to tell.
    """

    def __init__(self, classes: Sequence[Mapping[str, Any]], layout: Layout, width: int) -> None:
        self._layout, self._width = layout, width
        counts = np.array([_number(group["records"])[0] for group in classes])
        self._shares = np.maximum(counts, 1) / np.maximum(counts, 1).sum()
        columns = [{column["name"]: column for column in group["columns"]} for group in classes]
        means = np.array([
            [_number(of[number.name]["mean"], number.half) for number in layout.numbers]
            for of in columns
        ]).reshape(len(classes), -1, 2)  # fmt: skip
        deviations = [
            [_number(of[number.name]["deviation"], number.half)[0] for number in layout.numbers]
            for of in columns
        ]
        middles = np.array([number.middle / number.half for number in layout.numbers])
        self._means = self._shrunk(means) - middles
        self._deviations = self._shares @ np.array(deviations).reshape(len(classes), -1)
        self._categories = [self._shrunk(_shares(classes, name)) for name, _, _ in layout.groups]

    def _shrunk(self, numbers: Floats) -> Floats:
        """Return values (classes, columns) of numbers (classes, columns, value and error)."""
        values, errors = numbers[..., 0], numbers[..., 1]
        differences = values - self._shares @ values
        spread = float(np.square(differences).sum())
        signal = max(0.0, 1 - float(np.square(errors).sum()) / spread) if spread else 0.0
        return np.asarray(values - (1 - np.sqrt(signal)) * differences)

    def alone(self) -> Iterator[tuple[float, str]]:
        """Yield the accuracy of the best rule by each column alone, and its name."""
        yield float(self._shares.max()), "no column"
        for (name, _, _), shares in zip(self._layout.groups, self._categories, strict=True):
            yield float((self._shares[:, None] * _positive(shares)).max(0).sum()), name
        grid = np.linspace(-4, 4, 4001)[:, None]
        for place, number in enumerate(self._layout.numbers):
            densities = norm.pdf(grid, self._means[:, place], max(self._deviations[place], 0.01))
            best = (self._shares * densities).max(1)
            yield float(np.trapezoid(best, grid[:, 0])), number.name

    def records(
        self, count: int, draws: np.random.Generator
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Return features (count, width) and classes (count,)."""
        classes = draws.choice(len(self._shares), size=count, p=self._shares)
        features = np.zeros((count, self._width), np.float32)
        numbers = self._layout.numbers
        y = self._means[classes] + self._deviations * draws.normal(size=(count, len(numbers)))
        for place, number in enumerate(numbers):
            features[:, number.place] = np.clip((y[:, place] - number.offset) / number.slope, -1, 1)
        for (_, start, names), shares in zip(self._layout.groups, self._categories, strict=True):
            edges = np.cumsum(_positive(shares), axis=1)
            chosen = (draws.random(count)[:, None] > edges[classes]).sum(1)
            features[np.arange(count), start + np.minimum(chosen, len(names) - 1)] = 1
        return features, classes.astype(np.int64)


def _positive(shares: Floats) -> Floats:
    """Return shares (classes, categories) above 0 whose rows add up to 1."""
    positive = np.maximum(shares, 1e-3)
    return np.asarray(positive / positive.sum(1)[:, None])


def _shares(classes: Sequence[Mapping[str, Any]], name: str) -> Floats:
    """Return shares of a column's categories with their errors (classes, categories, 2)."""
    cells = [group["categories"][name]["shares"].values() for group in classes]
    return np.array([[_number(cell["share"]) for cell in of_class] for of_class in cells])


def _number(estimate: Mapping[str, Any] | None, unit: float = 1.0) -> tuple[float, float]:
    """Return a value and its standard error, in units of ``unit``."""
    if not estimate or estimate["value"] is None:
        raise DataError(
            "a number of a class is held back by its site, or hidden by the noise; ask for a "
            "larger share, or more sites"
        )
    error = (estimate["high"] - estimate["low"]) / (2 * NORMAL)
    return estimate["value"] / unit, error / unit

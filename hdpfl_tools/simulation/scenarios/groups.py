"""Groups of simulated sites with changed images or labels.

Sites are numbered, and the groups are consecutive: with sizes 3, 6, 6, 6 the sites 0 to 2 are group
0, with unchanged records. Group m has its images turned by m·90°, or its labels y as (y + m) mod C.
Group 1 of two has a part of its labels drawn, or images inverted or brighter. Every other
difference between the sites comes from ``partition``. The group of a site is the simulation's own
knowledge: only an oracle strategy may read it (a test checks the strategies).

Reference: Malekmohammadi, Taik and Farnadi, Differentially Private Clustered Federated Learning
(TMLR 2025): sizes 3/6/6/6, rotation for covariate shift, label shift for concept shift.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise
from zlib import crc32

import numpy as np

from hdpfl_flower.errors import TermsError
from hdpfl_flower.linalg.types import Vector
from hdpfl_flower.models.networks import Arrays
from hdpfl_flower.models.site_summary import METRICS
from hdpfl_flower.models.task import Records, Task
from hdpfl_tools.simulation.scenarios.site_tests import OwnTests

ROTATION, LABEL_SHIFT = "rotation", "label-shift"
LABEL_NOISE, INVERTED, BRIGHTER = "label-noise", "inverted", "brighter"
MINORITY, BY_GROUP = "accuracy-minority", "accuracy-group-"
"""Metrics beside ``accuracy``: smallest groups, and each group."""

_TURNS = 4
_WRITTEN = (
    f"{ROTATION}:SIZE:SIZE… or {LABEL_SHIFT}:SIZE:SIZE…, with the number of sites in each of "
    f"two or more groups; or {LABEL_NOISE}-PERCENT:SIZE:SIZE, {INVERTED}:SIZE:SIZE or "
    f"{BRIGHTER}:SIZE:SIZE"
)


@dataclass(frozen=True)
class Groups:
    """Groups of simulated sites.

    Attributes:
        kind: ``rotation``, ``label-shift``, ``label-noise``, ``inverted`` or ``brighter``.
        sizes: the number of sites in each group, in the order of the sites.
        share: of the labels that ``label-noise`` draws, 0 to 1.
    """

    kind: str
    sizes: tuple[int, ...]
    share: float = 0.0

    @property
    def minority(self) -> tuple[int, ...]:
        """Groups of the smallest size; all if equal."""
        return tuple(m for m, size in enumerate(self.sizes) if size == min(self.sizes))

    def of_site(self, index: int, number: int) -> int:
        """Return the group of site ``index`` of ``number``.

        Raises:
            TermsError: the sizes do not add up to ``number``.

        >>> [Groups("rotation", (1, 2)).of_site(index, 3) for index in range(3)]
        [0, 1, 1]
        """
        if sum(self.sizes) != number:
            raise TermsError(
                f"'groups' has sizes for {sum(self.sizes)} sites and the run has {number}; run "
                f"{sum(self.sizes)} sites, or write sizes that add up to {number}"
            )
        ends = accumulate(self.sizes)
        return next(m for m, end in enumerate(ends) if index < end)


def parse_groups(spec: str, task: Task) -> Groups | None:
    """Return the groups named by the term ``groups``, or None.

    Args:
        spec: ``rotation:SIZE:SIZE…``, ``label-shift:SIZE:SIZE…``,
            ``label-noise-PERCENT:SIZE:SIZE``, ``inverted:SIZE:SIZE``, ``brighter:SIZE:SIZE``, or
            empty.
        task: of the run.

    Raises:
        TermsError: another form of text; no images to change, or no square ones to turn; no classes
            to shift or draw; or more groups than there are different ones.

    >>> parse_groups("rotation:3:6:6:6", Task.classification((1, 28, 28), 10)).minority
    (0,)
    """
    if not spec:
        return None
    kind, *texts = spec.split(":")
    sizes = tuple(int(text) for text in texts if text.isdecimal() and text.isascii())
    most = {ROTATION: _TURNS, LABEL_SHIFT: task.classes, INVERTED: 2, BRIGHTER: 2}
    share = 0.0
    if noise := re.fullmatch(f"{LABEL_NOISE}-([1-9][0-9]?)", kind):
        kind, share = LABEL_NOISE, int(noise[1]) / 100
        most[kind] = 2
    if kind not in most or len(sizes) != len(texts) or len(sizes) < 2:
        raise TermsError(f"'groups' is '{spec}'; write {_WRITTEN}")
    groups = Groups(kind, sizes, share)
    if fault := next(_faults(groups, task, most[kind]), ""):
        raise TermsError(f"'groups' is '{spec}', {fault}")
    return groups


def _faults(groups: Groups, task: Task, most: int) -> Iterator[str]:
    """Yield why records of ``task`` cannot have the groups, of which there may be ``most``."""
    kind, shape = groups.kind, task.input_shape
    if min(groups.sizes) < 1:
        yield "but a group needs at least 1 site; write larger sizes"
    if kind in (LABEL_SHIFT, LABEL_NOISE):
        if not task.classes:
            yield (
                "but the targets are not classes; choose a data set with classes, or "
                f"{ROTATION} for images"
            )
    elif len(shape) != 3 or (kind == ROTATION and shape[1] != shape[2]):
        square = "square " if kind == ROTATION else ""
        yield (
            f"but the records are not {square}images; choose a data set of images, or {LABEL_SHIFT}"
        )
    if len(groups.sizes) > most:
        yield f"with {len(groups.sizes)} groups, but {kind} makes at most {most}"


def seen_by(records: Records, groups: Groups | None, group: int, task: Task) -> Records:
    """Return ``records`` in the view of a site of ``group``.

    For group 0 and without groups they are unchanged. An image is inverted and made brighter
    between its own darkest and brightest value, brighter by half of that range. Labels are drawn
    uniformly from all classes, equal ones alike at each call.

    Args:
        records: as the data set has them.
        groups: the run's, or None.
        group: m, 0 ≤ m < number of groups.
        task: of the run.
    """
    if groups is None or group == 0:
        return records
    features, targets = records.features, records.targets
    if groups.kind == LABEL_SHIFT:
        return Records(features, (targets + group) % task.classes)
    if groups.kind == LABEL_NOISE:
        rng = np.random.default_rng(crc32(targets.tobytes()))
        drawn = rng.integers(task.classes, size=targets.shape)
        return Records(features, np.where(rng.random(targets.shape) < groups.share, drawn, targets))
    if groups.kind == ROTATION:
        # Axes (height, width) of shape (n, channels, height, width).
        return Records(np.ascontiguousarray(np.rot90(features, group, axes=(2, 3))), targets)
    low, high = (end(features, axis=(1, 2, 3), keepdims=True) for end in (np.min, np.max))
    if groups.kind == INVERTED:
        return Records(low + high - features, targets)
    return Records(np.minimum(features + (high - low) / 2, high), targets)


def evaluate_models(
    spec: str,
    task: Task,
    models: Sequence[Arrays],
    of_site: Mapping[str, int],
    records: Records,
    groups: Groups | None,
    tests: OwnTests | None = None,
) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Return metrics of the sites' models, pooled and per site.

    Args:
        spec: of the models.
        task: of the run.
        models: one or more.
        of_site: simulated site, by its number → its model; other sites use the first.
        records: the test set, as the data set has it.
        groups: the run's, or None.
        tests: the same test set weighted for each site; None: one for all sites.

    Returns:
        Two mappings: the pooled metrics, and those of each site.

        Pooled: ``accuracy``, ``loss`` and, for a regression, ``mse`` and ``mae`` of the models on
        the whole test set, the mean over all sites, so that a group counts by its size. With
        groups each site sees the test set as its group does; then also ``accuracy-minority``: the
        same over the sites of the smallest groups; and ``accuracy-group-0``, …: of each group.

        Each site of ``tests`` → ``accuracy``, ``loss``, … of its model on its own distribution, see
        :class:`OwnTests`. Empty for a site without a test.

    Raises:
        ModelError: the model cannot be built.
    """
    from hdpfl_flower.models.evaluation import measures, predict  # they import torch

    views: dict[int, Records] = {}

    @cache
    def tested(model: int, group: int) -> tuple[dict[str, float], dict[str, Vector]]:
        if group not in views:
            views[group] = seen_by(records, groups, group, task)
        outputs = predict(spec, task, models[model], views[group].features)
        targets = views[group].targets
        return measures(task, outputs, targets), tests.measures(outputs, targets) if tests else {}

    by_site = _by_site(tests, of_site, groups, tested) if tests else {}
    if groups is None:
        # Each model weighs by the number of sites that use it.
        counts = np.bincount(list(of_site.values()) or [0], minlength=len(models))
        used = np.flatnonzero(counts)
        pooled = [tested(int(m), 0)[0] for m in used]
        return {
            metric: float(np.average([metrics[metric] for metrics in pooled], weights=counts[used]))
            for metric in METRICS
            if metric in pooled[0]
        }, by_site
    ends = [0, *accumulate(groups.sizes)]
    members = [range(start, end) for start, end in pairwise(ends)]
    measured = [
        [tested(of_site.get(str(site), 0), group)[0] for site in sites_of]
        for group, sites_of in enumerate(members)
    ]
    means = {
        metric: [float(np.mean([metrics[metric] for metrics in group])) for group in measured]
        for metric in METRICS
        if metric in measured[0][0]
    }
    accuracies = means.pop("accuracy", [])
    return {
        **(summary(accuracies, groups) if accuracies else {}),
        **{m: float(np.average(values, weights=groups.sizes)) for m, values in means.items()},
    }, by_site


def _by_site(
    tests: OwnTests,
    of_site: Mapping[str, int],
    groups: Groups | None,
    tested: Callable[[int, int], tuple[dict[str, float], dict[str, Vector]]],
) -> dict[str, dict[str, float]]:
    """Return each site's metrics, batched by model and group."""
    number = len(tests.shares)
    alike: dict[tuple[int, int], list[int]] = {}
    for site in range(number):
        group = groups.of_site(site, number) if groups else 0
        alike.setdefault((of_site.get(str(site), 0), group), []).append(site)
    metrics: dict[int, dict[str, float]] = {}
    for key, sites in alike.items():
        metrics.update(zip(sites, tests.of_sites(sites, tested(*key)[1]), strict=True))
    return {str(site): metrics[site] for site in range(number)}


def summary(accuracies: list[float], groups: Groups) -> dict[str, float]:
    """Return accuracy over all sites, the minority, and each group.

    Args:
        accuracies: of each group, for any model of its sites.
        groups: the run's.

    >>> found = summary([0.2, 0.8], Groups("rotation", (1, 2)))
    >>> round(found["accuracy"], 3), found["accuracy-minority"], found["accuracy-group-1"]
    (0.6, 0.2, 0.8)
    """
    return {
        "accuracy": float(np.average(accuracies, weights=groups.sizes)),
        MINORITY: float(np.mean([accuracies[group] for group in groups.minority])),
        **{f"{BY_GROUP}{group}": value for group, value in enumerate(accuracies)},
    }

"""Groups of simulated sites whose data differ in a known way: turned images, shifted labels.

Sites are numbered, and the groups follow each other: with sizes 3, 6, 6, 6 the sites 0 to 2 are
group 0. Group m sees its images turned by m·90°, or its labels y as (y + m) mod C. Every other
difference between the sites comes from ``partition``. Which site is in which group is the
simulation's own knowledge: no rule but an oracle may read it (a test holds the strategies to that).

Reference: Malekmohammadi, Taik and Farnadi, Differentially Private Clustered Federated Learning
(TMLR 2025): sizes 3/6/6/6, rotation for covariate shift, label shift for concept shift.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise

import numpy as np

from hdpfl_flower.errors import TermsError
from hdpfl_flower.evaluation import evaluate
from hdpfl_flower.models import Arrays
from hdpfl_flower.task import Records, Task

ROTATION, LABEL_SHIFT = "rotation", "label-shift"
MINORITY, BY_GROUP = "accuracy-minority", "accuracy-group-"
"""Metrics beside ``accuracy``: of the smallest groups, and of group 0, 1, …"""

_TURNS = 4
_WRITTEN = (
    f"{ROTATION}:SIZE:SIZE… or {LABEL_SHIFT}:SIZE:SIZE…, the number of sites in each of two or "
    "more groups"
)


@dataclass(frozen=True)
class Groups:
    """Groups of simulated sites.

    Attributes:
        kind: ``rotation`` or ``label-shift``.
        sizes: the number of sites in each group, in the order of the sites.
    """

    kind: str
    sizes: tuple[int, ...]

    @property
    def minority(self) -> tuple[int, ...]:
        """The groups of the smallest size; where all are equal, all."""
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
    """Return the groups that the term ``groups`` names, None where it is empty.

    Args:
        spec: ``rotation:SIZE:SIZE…``, ``label-shift:SIZE:SIZE…`` or nothing.
        task: what the run learns.

    Raises:
        TermsError: not such a text; no images to turn, or no square ones; no classes to shift; or
            more groups than there are quarter turns or classes, so that two would be the same.

    >>> parse_groups("rotation:3:6:6:6", Task.classification((1, 28, 28), 10)).minority
    (0,)
    """
    if not spec:
        return None
    kind, *texts = spec.split(":")
    sizes = tuple(int(text) for text in texts if text.isdecimal() and text.isascii())
    if kind not in (ROTATION, LABEL_SHIFT) or len(sizes) != len(texts) or len(sizes) < 2:
        raise TermsError(f"'groups' is '{spec}'; write {_WRITTEN}")
    if min(sizes) < 1:
        raise TermsError(f"'groups' is '{spec}'; a group needs at least 1 site")
    shape = task.input_shape
    if kind == ROTATION and (len(shape) != 3 or shape[1] != shape[2]):
        raise TermsError(
            f"'groups' is '{spec}', and the records are no square images; choose a data set of "
            f"images, or {LABEL_SHIFT}"
        )
    if kind == LABEL_SHIFT and not task.classes:
        raise TermsError(
            f"'groups' is '{spec}', and the targets are not classes; choose a data set with "
            f"classes, or {ROTATION} for images"
        )
    most = _TURNS if kind == ROTATION else task.classes
    if len(sizes) > most:
        raise TermsError(f"'groups' names {len(sizes)} groups; {kind} tells at most {most} apart")
    return Groups(kind, sizes)


def seen_by(records: Records, groups: Groups | None, group: int, task: Task) -> Records:
    """Return ``records`` as a site of ``group`` sees them; group 0 and no groups: as they are.

    Args:
        records: as the data set has them.
        groups: the run's, or None.
        group: m, 0 ≤ m < number of groups.
        task: what the run learns.
    """
    if groups is None or group == 0:
        return records
    if groups.kind == ROTATION:
        turned = np.rot90(records.features, group, axes=(2, 3))
        return Records(np.ascontiguousarray(turned), records.targets)
    return Records(records.features, (records.targets + group) % task.classes)


def evaluate_models(
    spec: str,
    task: Task,
    models: Sequence[Arrays],
    of_site: Mapping[str, int],
    records: Records,
    groups: Groups | None,
) -> dict[str, float]:
    """Return how good the sites' models are for them, on a test set common to all.

    Args:
        spec: of the models.
        task: what they learn.
        models: one or more.
        of_site: simulated site, by its number → its model; one that is not there uses the first.
        records: the test set, as the data set has it.
        groups: the run's, or None.

    Returns:
        ``accuracy`` and ``loss``: the mean over all sites, so that a group counts by its size.
        With groups, ``accuracy-minority``: the same over the sites of the smallest groups; and
        ``accuracy-group-0``, …: of each group.

    Raises:
        ModelError: the model cannot be built.
    """
    views: dict[int, Records] = {}

    @cache
    def tested(model: int, group: int) -> dict[str, float]:
        if group not in views:
            views[group] = seen_by(records, groups, group, task)
        return evaluate(spec, task, models[model], views[group])

    def mean_of(sites: Sequence[int], group: int, metric: str) -> float:
        return float(np.mean([tested(of_site.get(str(s), 0), group)[metric] for s in sites]))

    if groups is None:
        counts = np.bincount(list(of_site.values()) or [0], minlength=len(models))
        used = np.flatnonzero(counts)
        return {
            metric: float(
                np.average([tested(int(m), 0)[metric] for m in used], weights=counts[used])
            )
            for metric in ("accuracy", "loss")
        }
    ends = [0, *accumulate(groups.sizes)]
    members = [range(start, end) for start, end in pairwise(ends)]
    found = {
        metric: [mean_of(sites, group, metric) for group, sites in enumerate(members)]
        for metric in ("accuracy", "loss")
    }
    return summary(found["accuracy"], groups) | {
        "loss": float(np.average(found["loss"], weights=groups.sizes))
    }


def summary(accuracies: list[float], groups: Groups) -> dict[str, float]:
    """Return the accuracy over all sites, over the minority's and of each group.

    Args:
        accuracies: of each group, whichever model its sites use.
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

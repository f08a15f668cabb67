"""Battery of compared cases, with learning rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hdpfl_tools.simulation.scenarios.groups import BY_GROUP
from studies.framework.study import Setting

SAFE = "mmse"
"""Safe strategy if the case is unknown."""

FEDAVG = "fedavg"

RULES = ("fedavg", "weiavg", "robust-hdp", "mmse", "oracle")
"""Compared strategies; ``weiavg`` receives all ε, ``oracle`` the noise."""

BASE: Mapping[str, Any] = {
    "clip-norm": 1.0,
    "delta": 1e-4,
    "batch-sizes": "32,64,128",
    "stack": True,
}
"""Run config keys of every run, unless changed; clients train together."""


Rate = float | str
"""Learning rate, or ``auto``."""


@dataclass(frozen=True)
class RatedTask:
    """Task with its learning rates.

    Attributes:
        config: run config keys.
        fixed: one learning rate for every strategy and case.
        grid: the rates from which each strategy gets its best in each case; none: none does.
        searches: number of runs that choose it, of seeds 0, 1, …
        seeds: reported runs of a cell in the full form.
        quick_seeds: those of the quick form.
    """

    config: Mapping[str, Any]
    fixed: Rate
    grid: tuple[float, ...] = ()
    searches: int = 1
    seeds: int = 3
    quick_seeds: int = 2


TASKS = {
    "logreg": RatedTask({"dataset": "mnist", "model": "logreg"}, 0.1, (0.03, 0.1, 0.3)),
    "mlp": RatedTask(
        # Fewer steps than the others: its runs take half of the study's hours.
        {"dataset": "mnist", "model": "mlp:32", "batch-sizes": "64,128"},
        0.1,
        (0.03, 0.1, 0.3),
    ),
    "heart": RatedTask(
        {"dataset": "heart", "model": "logreg", "partition": "natural"},
        0.3,
        (0.1, 0.3, 1.0),
        searches=3,
        seeds=20,
        quick_seeds=20,
    ),
    "odd": RatedTask(
        {"dataset": "mnist", "model": "logreg", "partition": "iid:600", "batch-sizes": "64"}, "auto"
    ),
}
"""Tasks by name; ``fixed`` is FedAvg's best search rate.

Heart's test has 184 records, each half a point: so it has more seeds, which cost little.
"""


@dataclass(frozen=True)
class Case(Setting):
    """Case of the battery.

    Attributes:
        task: name in ``TASKS``.
        tuned: whether each strategy also has its best rate here.
        metric: name of the accuracy that counts.
    """

    task: str = "logreg"
    tuned: bool = True
    metric: str = "accuracy"


RECORDS = 900
"""Records of a client, on average for uneven splits."""

ROUNDS = (12, 30)

SPLITS = {
    "iid": f"iid:{RECORDS}",
    "≤ 3 labels": f"pathological:3:{RECORDS}",
    "≤ 2 labels": f"pathological:2:{RECORDS}",
    "Dirichlet .3": f"dirichlet:0.3:{RECORDS}",
}

_HOSPITALS = {
    "strict to loose": "0.3,1,3,8",
    "loose to strict": "8,3,1,0.3",
    "equal ε": "1",
}
"""ε of Cleveland, Hungary, Switzerland, VA: the range of ``uniform:0.3:8``."""

_OTHERS = {
    "ten times the steps": Setting(
        "",
        {
            "partition": SPLITS["iid"],
            "batch-sizes": "each:9" + 19 * ":90",
            "epsilons": "dist4",
        },
    ),
    "4 clients": Setting("", {"partition": SPLITS["Dirichlet .3"], "epsilons": "dist4"}, 4),
    "60 clients": Setting("", {"partition": SPLITS["Dirichlet .3"], "epsilons": "dist4"}, 60),
    "alone": Setting("", {"partition": f"alone:0:{RECORDS}", "epsilons": "0.3" + 19 * ",2"}),
    "rotations": Setting(
        "",
        {"partition": SPLITS["iid"], "groups": "rotation:5:5:5:5", "epsilons": "dist4"},
    ),
    "quiet turned": Setting(
        "",
        {
            "partition": SPLITS["iid"],
            "groups": "rotation:17:3",
            "epsilons": 17 * "0.5," + "8,8,8",
        },
    ),
    "quiet mislabelled": Setting(
        "",
        {
            "partition": SPLITS["iid"],
            "groups": "label-shift:14:6",
            "epsilons": 14 * "0.5," + "8,8,8,8,8,8",
        },
    ),
    "few strict": Setting(
        "",
        {"partition": SPLITS["≤ 2 labels"], "epsilons": 4 * "0.05," + 15 * "8," + "8"},
    ),
    "40 % a round": Setting(
        "",
        {"partition": SPLITS["Dirichlet .3"], "epsilons": "dist4", "fraction": 0.4},
    ),
    "3 clients": Setting("", {"partition": SPLITS["Dirichlet .3"], "epsilons": "0.3,1,8"}, 3),
    "records with ε": Setting(
        "",
        {
            "partition": "sizes:" + 10 * "10:" + 9 * "1:" + "1",
            "epsilons": 10 * "8," + 9 * "0.3," + "0.3",
        },
    ),
}


def _battery() -> tuple[Case, ...]:
    heart = [
        Case(f"heart {name} {rounds}", {"epsilons": epsilons, "rounds": rounds}, 4, task="heart")
        for name, epsilons in _HOSPITALS.items()
        for rounds in ROUNDS
    ]
    mnist = [
        Case(
            f"{task} {split} {dist} {rounds}",
            {"partition": partition, "epsilons": dist.lower(), "rounds": rounds},
            task=task,
            tuned=rounds == ROUNDS[0],
        )
        for task in ("logreg", "mlp")
        for split, partition in SPLITS.items()
        for dist in ("Dist2", "Dist4", "Dist6")
        for rounds in ROUNDS
    ]
    others = [
        Case(
            f"{name} {rounds}",
            {**case.config, "rounds": rounds},
            case.sites,
            tuned=rounds == ROUNDS[0],
        )
        for name, case in _OTHERS.items()
        for rounds in ROUNDS
    ]
    # Heart first: a folder without its records stops the study before hours of MNIST.
    return (*heart, *mnist, *others)


_ODD = {
    "labels 30 %": "label-noise-30",
    "labels 70 %": "label-noise-70",
    "turned": "rotation",
    "inverted": "inverted",
    "brighter": "brighter",
}


def _odd() -> tuple[Case, ...]:
    """Return the cases with odd quiet clients, measured by the records of the others."""
    forms: Mapping[str, Mapping[int, tuple[int, ...]]] = {
        "odd": {12: (1, 3, 6), 30: (3,), 80: (3,)},
        "sampled odd": {12: (3, 6)},  # 40 % of the clients a round
    }
    return tuple(
        Case(
            f"{form} {name} {odd} ε {quiet} {rounds}",
            {
                "groups": f"{kind}:{Case.sites - odd}:{odd}",
                "epsilons": ",".join((Case.sites - odd) * [strict] + odd * [quiet]),
                "rounds": rounds,
                **({} if form == "odd" else {"fraction": 0.4}),
            },
            task="odd",
            tuned=False,
            metric=f"{BY_GROUP}0",
        )
        for form, sizes in forms.items()
        for rounds, counts in sizes.items()
        for quiet, strict in {"8": "0.5", "3": "0.5", "1": "0.3"}.items()
        for odd in counts
        for name, kind in _ODD.items()
    )


BATTERY = _battery()

ODD = _odd()

QUICK = (
    "heart strict to loose 12",
    "logreg iid Dist4 12",
    "logreg ≤ 3 labels Dist4 12",
    "alone 12",
)
"""Labels of the cases of the quick form."""

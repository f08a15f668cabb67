"""A rate that is found (``learning-rate = "auto"``) beside the best fixed one of a grid."""

from __future__ import annotations

from studies.framework.study import Setting
from studies.server_step.steps import Rates, Row, ServerStepStudy
from studies.server_step.table import BASE

GRID: tuple[Rates, ...] = (
    (0.2, 1.0),
    (0.4, 1.0),
    (0.8, 1.0),
    (1.6, 1.0),
    (0.1, 4.0),
    (0.1, 8.0),
    (0.1, 12.0),
    (0.1, 16.0),
)
"""Client × server rate: large at the clients, or at the server with a small one at the clients."""
PARTITIONS = {"iid": "iid", "≤ 3 labels": "pathological:3", "Dirichlet .3": "dirichlet:0.3"}
BUDGETS = ("dist2", "dist4", "dist6")

FOUND_RATE = ServerStepStudy(
    name="found-rate",
    title="A rate that is found, and the best of eight: MNIST, 20 clients",
    source="ours (no paper)",
    minutes=2,
    base=BASE,
    rows=(
        Row("fedavg", {"strategy": "fedavg"}, rates=GRID),
        Row("fedavg auto", {"strategy": "fedavg"}),
        Row("drift", {"strategy": "robust-hdp-drift"}, rates=GRID),
        Row("drift auto", {"strategy": "robust-hdp-drift"}),
    ),
    columns=tuple(
        Setting(f"{label} {budget}", {"partition": partition, "epsilons": budget})
        for label, partition in PARTITIONS.items()
        for budget in BUDGETS
    ),
    quick_rows=("fedavg", "fedavg auto"),
    quick_columns=("≤ 3 labels dist4",),
    notes=(
        "The best of eight pairs is chosen by a run with seed 0, which is not reported.",
        "'auto' is learning-rate = auto: nothing was searched.",
    ),
)

"""Robust-HDP's figures that train a model.

Malekmohammadi, Yu and Cao, Noise-Aware Algorithm for Heterogeneous Differentially Private Federated
Learning (ICML 2024), and chapter 3 of the first author's thesis: 20, 40 or 60 clients, one local
epoch a round, 200 rounds, C = 3, δ = 1e-4, the published ε and batch sizes. Accuracies are printed
in the thesis' Table 3.5 alone; the other figures give curves without numbers.
"""

from __future__ import annotations

from typing import Any

from hdpfl_tools.simulation.in_process.liars import OVERSTATED, Attack
from studies.framework.study import GridStudy, Setting

BASE: dict[str, Any] = {
    "dataset": "mnist",
    "model": "logreg",
    "partition": "iid",
    "rounds": 200,
    "clip-norm": 3.0,
    "delta": 1e-4,
    "batch-sizes": "published",
}
"""Paper's settings with logistic regression for its small CNN."""

DISTS = tuple(f"Dist{number}" for number in range(1, 10))

ALIKE = (
    "All runs of a seed have the same sites, ε, batches, order of records and noise.",
    "The quick form stops early, with the noise for all 200 rounds, so its accuracies are "
    "below those at the end.",
    "All of MNIST's 60,000 training records are used (3,000 for each of 20 clients; the paper "
    "keeps 600 of them for its test), and the test set is MNIST's official one.",
    "Our estimator 'auto' estimates the weights again in every round; the authors' code runs "
    "robust PCA once, in round 1, and keeps the weights.",
)


def published(dist: str) -> dict[str, str]:
    """Return the run config keys of a published list of ε."""
    return {"epsilons": f"{dist.lower()}-published"}


CONVERGENCE = GridStudy(
    name="robust-hdp-convergence",
    title="Accuracy by round and strategy: MNIST, Dist6, 20 clients",
    source="Robust-HDP, RQ2 and its convergence figure",
    minutes=10,
    base=BASE,
    rows=("robust-hdp", "weiavg", "pfa", "fedavg", "minimum", "oracle"),
    columns=(Setting("Dist6", published("Dist6")),),
    quick_noises=2,
    quick_rates=(0.003, 0.01, 0.03),
    quick_rounds=25,
    notes=(
        "The paper's picture shows Robust-HDP next to the oracle, above WeiAvg and PFA, with "
        "DPFedAvg below them and 'minimum' last (it diverged in one of the paper's three "
        "trials).",
        *ALIKE,
    ),
)

DISTRIBUTIONS = GridStudy(
    name="robust-hdp-distributions",
    title="Accuracy by distribution of ε: MNIST, 20 clients",
    source="Robust-HDP, RQ1 and RQ3 (accuracies only in figures)",
    minutes=11,
    base=BASE,
    rows=("robust-hdp", "weiavg", "pfa", "fedavg", "minimum", "oracle"),
    columns=tuple(Setting(dist, published(dist)) for dist in DISTS),
    picture="columns",
    notes=ALIKE,
)

CLIENTS = GridStudy(
    name="robust-hdp-clients",
    title="Accuracy by number of clients: MNIST, Dist6",
    source="Robust-HDP, RQ3",
    minutes=4,
    base={**BASE, **published("Dist6")},
    rows=("robust-hdp", "weiavg", "pfa", "fedavg", "oracle"),
    columns=tuple(Setting(f"{sites} clients", sites=sites) for sites in (20, 40, 60)),
    picture="columns",
    notes=(
        "All clients share MNIST, so with more clients each has fewer records, takes fewer "
        "steps and needs more noise in each step.",
        *ALIKE,
    ),
)

LIAR = 0
"""Partition of the liar: "client 12" in the paper's text.

The 12th to 14th of Dist5's ε in ascending order are 0.95; partition 0 is the first of them.
"""

FALSIFIED = GridStudy(
    name="robust-hdp-liar",
    title="One client overstates its ε to the server: MNIST, Dist5, 20 clients",
    source="Thesis, Fig. 3.6",
    minutes=3,
    base={**BASE, **published("Dist5")},
    rows=("robust-hdp", "weiavg", "pfa", "public-only", "fedavg"),
    columns=(
        Setting("says 0.95"),
        Setting("says 20", attack=Attack(OVERSTATED, sites=(LIAR,))),
    ),
    picture="columns",
    notes=(
        "The client with ε = 0.95 trains with its own ε and states 20, the largest value that "
        "our weights count. The paper's axis covers several ε without numbers.",
        "Robust-HDP and FedAvg read no ε: their two columns are the same run except for the lie.",
        *ALIKE,
    ),
)

_TABLE = {
    "weiavg": (81.14, 81.21, 84.44, 71.64, 81.45, 72.27, 80.55, 71.28, 72.07),
    "pfa": (81.29, 77.40, 80.65, 74.45, 81.89, 64.48, 81.40, 73.39, 72.97),
    "fedavg": (82.61, 74.32, 83.12, 70.8, 81.34, 66.51, 76.10, 65.16, 73.03),
    "robust-hdp": (84.84, 82.78, 80.78, 78.91, 81.66, 72.30, 79.32, 70.68, 73.82),
}
"""Thesis, Table 3.5: accuracy in percent, Dist1 to Dist9, without deviations."""

LABEL_SKEW = GridStudy(
    name="robust-hdp-label-skew",
    title="At most 8 labels a client: MNIST, 60 clients, batch size 128",
    source="Thesis, Table 3.5",
    minutes=7,
    base={**BASE, "partition": "shards:8", "batch-sizes": "128"},
    rows=("robust-hdp", "weiavg", "pfa", "fedavg"),
    columns=tuple(Setting(dist, published(dist), sites=60) for dist in DISTS),
    quick_rates=(0.03,),
    rates=(0.01, 0.03, 0.1),
    picture="columns",
    paper={
        (row, dist): value
        for row, values in _TABLE.items()
        for dist, value in zip(DISTS, values, strict=True)
    },
    notes=(
        "Shards are as in the authors' code: sorted by label, 480 shards, 8 for each client. "
        "With one batch size for all clients the noise levels differ less, and the weights "
        "matter less.",
        "The paper's numbers are those of its CNN after 200 rounds ('--full --model cnn').",
        *ALIKE,
    ),
)

"""Weights that know steps and drift: where faithful Robust-HDP loses to FedAvg, and what helps.

Robust-HDP's weights know the noise alone. Where clients hold few labels each, a quiet client pulls
the model to its own labels; ``robust-hdp-drift`` adds the variance between clients, times the
rounds planned, to the noise's: noise averages out over the rounds and drift does not.
"""

from __future__ import annotations

from studies.framework.study import GridStudy, Setting
from studies.robust_hdp.accuracy import BASE, DISTS, published

_SKEWED = ("Dist2", "Dist6", "Dist9")

DRIFT = GridStudy(
    name="drift",
    title="Robust-HDP with and without steps and drift: MNIST, 20 clients",
    source="ours (no paper)",
    minutes=8,
    base=BASE,
    rows=("robust-hdp-drift", "robust-hdp", "fedavg"),
    columns=(
        *(Setting(dist, published(dist)) for dist in DISTS),
        *(
            Setting(f"{dist} ≤ 2 labels", {**published(dist), "partition": "pathological:2"})
            for dist in _SKEWED
        ),
    ),
    quick_columns=(*_SKEWED, *(f"{dist} ≤ 2 labels" for dist in _SKEWED)),
    noises=("pld",),
    quick_rates=(0.003, 0.01, 0.03),
    quick_rounds=12,
    picture="columns",
    notes=(
        "Each method has the best of the same learning rates.",
        "Under '≤ 2 labels' each client holds two of the ten labels (pathological:2).",
        "The quick form stops early; the noise is that of all 200 rounds.",
    ),
)

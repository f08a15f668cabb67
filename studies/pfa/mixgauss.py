"""PFA's comparison on its distributions of ε, under two noise formulas.

PFA's own formula, and our accountant's.

Liu, Lou, Xiong, Liu and Meng, Projected Federated Averaging with Heterogeneous Differential Privacy
(VLDB 2021): logistic regression on MNIST, M clients with 10 shards each, 100 rounds of 100 steps
with batches of 8, C = 1, δ = 1e-5, 0.8 of the clients a round. Accuracies are only in figures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hdpfl_tools.simulation.scenarios.budgets import draw_epsilons
from studies.framework.study import GridStudy, Setting

PUBLIC_FROM = 5.0
"""ε above which sites are public, between MixGauss' two groups."""

ROUNDS, FRACTION = 100, 0.8

BASE: dict[str, Any] = {
    "dataset": "mnist",
    "model": "logreg",
    "partition": "shards:10",
    "rounds": ROUNDS,
    "local-steps": 100,
    "batch-sizes": "8",
    "clip-norm": 1.0,
    "delta": 1e-5,
    "fraction": FRACTION,
    "participations": round(FRACTION * ROUNDS),
    "public-split": f"threshold:{PUBLIC_FROM:g}",
    "require-public": True,
}
"""PFA's settings.

The noise is planned for a site's 80 of 100 rounds; a round without a public site is drawn again,
for every strategy.
"""


def with_public(spec: str, sites: int, seed: int) -> Mapping[str, str]:
    """Return the ε of ``sites`` sites, redrawn until one is public.

    The authors' code draws its lists again in the same way.
    """
    attempt = 0
    while True:
        epsilons = draw_epsilons(spec, sites, seed + 1_000 * attempt)
        if epsilons.max() > PUBLIC_FROM:
            return {"epsilons": ",".join(f"{epsilon:.4g}" for epsilon in epsilons)}
        attempt += 1


def _drawn(spec: str, sites: int) -> Callable[[int], Mapping[str, str]]:
    return lambda seed: with_public(spec, sites, seed)


def _column(number: int, sites: int) -> Setting:
    return Setting(f"MixGauss{number} (M = {sites})", {}, sites, _drawn(f"mixgauss{number}", sites))


MIXGAUSS = GridStudy(
    name="pfa-mixgauss",
    title="PFA on MixGauss1–4: MNIST, 10 shards a client",
    source="PFA, its comparison by distribution of ε and by M",
    minutes=10,
    base=BASE,
    rows=("fedavg", "weiavg", "pfa", "public-only", "random-projection", "minimum"),
    columns=tuple(_column(number, sites) for sites in (20, 30, 40, 50) for number in range(1, 5)),
    quick_columns=tuple(_column(number, 30).label for number in range(1, 5)),
    noises=("pfa", "pld"),
    quick_noises=2,
    rates=(0.01, 0.025, 0.05, 0.1),
    quick_rates=(0.05,),
    picture="columns",
    notes=(
        "The paper's noise is z = 10·q·√(T·log₁₀(1/δ))/ε with T = 8,000 steps. For a small ε "
        "this is far more noise than the steps cost: compare both blocks before you credit the "
        "projection.",
        "In every row a round without a public client is drawn again.",
        "'public-only' is the mean of only the public clients: what PFA adds to it is what the "
        "private clients contribute.",
        "In every row the public clients are those with ε above 5. The paper's text uses a "
        "Gaussian mixture; the code of its authors takes the largest tenth.",
        "All M clients share MNIST (the paper keeps 1,200 records for each client, which is "
        "the case M = 50 here).",
        "A list of ε without a public client is drawn again, as in the authors' code.",
    ),
)

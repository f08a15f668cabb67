"""Sites that lie: what each attack by form does without a guard and with one.

Ours, after the faults that Robust-HDP's weights invite: a quiet update gets the weight, whoever
sends it. Two sites of 20 lie; the bar is the same run without these two.
"""

from __future__ import annotations

from hdpfl_flower.simulation.attacks import Attack
from studies.framework.study import GridStudy, Setting
from studies.robust_hdp.accuracy import BASE, published

LIARS = (3, 7)
"""Partitions of the two that lie."""

ATTACKS = (
    "zero", "tiny", "constant", "repeated", "minus-1", "minus-5", "minus-50", "minus-5+same",
    "minus-5+jitter", "minus-5+hidden",
)  # fmt: skip

GUARDS = ("none", "cap", "centred-clipping", "evidence")

FLOOR = 7e-4
"""Noise of a coordinate that the run states as the least: ε = 5.45, the largest of both lists, with
the largest batch, 128 of 3,000, needs z = 2.31, which leaves √24·0.003·2.31·3/128 = 8.0e-4 at the
smallest learning rate; rounded down."""

LYING = GridStudy(
    name="liars",
    title="Two liars among 20 sites, by attack and guard: MNIST, Robust-HDP's weights",
    source="ours (no paper)",
    minutes=8,
    base={**BASE, "strategy": "robust-hdp"},
    rows=(
        Setting("nobody lies"),
        Setting("without the two", absent=LIARS),
        *(Setting(name, attack=Attack(name, sites=LIARS)) for name in ATTACKS),
    ),
    columns=tuple(
        Setting(
            f"{dist} {guard}",
            {**published(dist), "guard": guard}
            | ({"noise-floor": FLOOR} if guard == "evidence" else {}),
        )
        for dist in ("Dist2", "Dist6")
        for guard in GUARDS
    ),
    quick_columns=tuple(
        f"{dist} {guard}" for dist in ("Dist2", "Dist6") for guard in ("none", "evidence")
    ),
    noises=("pld",),
    quick_rounds=12,
    picture="columns",
    notes=(
        "'without the two': the same run in which the two sites that lie elsewhere take no part.",
        "minus-5 sends −5 times the site's update without noise; +same: both send the same; "
        "+jitter: each with a relative noise of 0.001; +hidden: under the noise of an honest one.",
        "Updates of zeros and copies are refused by every guard, 'none' included.",
        f"'evidence' has a 'noise-floor' of {FLOOR:g}, below what any honest site here adds.",
        "The quick form stops after 12 of 200 rounds, with the noise of all 200.",
    ),
)

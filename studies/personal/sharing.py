"""What personal parts are worth beside local training: rules and post-processing by ε and split.

Ours, no paper's: 20 clients with 300 records of MNIST each, five labels a client, and controls in
which sharing is known to be of little use: two labels a client, turned images; and none: iid.
"""

from __future__ import annotations

from typing import Any

from studies.framework.study import Setting
from studies.personal.tuned_study import Bar, Row, TunedStudy

STRICT, MIDDLE, LOOSE, MIXED = "ε 0.5", "ε 2", "ε 8", "mixed ε"
IID, TWO, TURNED = "iid ε 2", "2 labels ε 2", "turned ε 2"
SITES = 20
MENU = ("0.2", "0.5", "2", "8")
"""ε of the sites of ``MIXED``, in turn."""

BASE: dict[str, Any] = {
    "dataset": "mnist",
    "model": "mlp:32",
    "partition": "pathological:5:300",
    "rounds": 20,
    "local-steps": 5,
    "batch-sizes": "60",
    "delta": 1e-4,
    "clip-norm": 1.0,
}

PRIOR = {"personal-prior": 0.25}
"""A quarter of ε for the counts alone: the rounds' noise grows by 4 to 5 %."""
OFFSET = {"personal_rate": 0.1}
"""What ``ppsgd`` adds of an update to the offset; with all of it, its default, offsets are as noisy
as local training (seed 0, ε 0.5: 64 with all, 70 with 0.3, 72 with 0.1)."""
SHRINK = {"personal-shrink": 0.05}
"""A round's deviation of 20 rounds: all of the sum overshoots (seed 0, ε 8 with the prior: 64 with
1, 89 with 0.1, 91 with 0.05)."""

_LOCAL, _FEDAVG, _PPSGD, _WEIGHTS = "local", "fedavg", "ppsgd", "robust-hdp"
_PRIOR, _SHRINK, _BOTH = "+ prior", "+ shrink", "+ shrink + prior"


def row(strategy: str, label: str = "", *columns: str, **more: object) -> Row:
    """Return the row of a strategy with more run config; without columns in all of them."""
    config = {key.replace("_", "-"): value for key, value in more.items()}
    name = f"{strategy} {label}".strip()
    return Row(name, {"strategy": strategy, **config}, columns=columns)


def _both(share: bool, gain: bool) -> dict[str, Any]:
    keys = {**(PRIOR if share else {}), **(SHRINK if gain else {})}
    return {key.replace("-", "_"): value for key, value in keys.items()}


_UNIFORM = (STRICT, MIDDLE, LOOSE)
_ALIKE = (*_UNIFORM, IID, TWO, TURNED)

PERSONAL = TunedStudy(
    name="personal",
    title="Personal models: MNIST, 20 clients of 300 records",
    source="ours (no paper)",
    minutes=5,
    base=BASE,
    rows=(
        row(_LOCAL),
        row(_FEDAVG),
        row("mr-mtl", "", *_UNIFORM),
        row("pmtl", "", *_UNIFORM),
        row("dp-fedavg-fb", "", *_UNIFORM),
        row("fedper", "", *_UNIFORM),
        row("fedrep", "", *_UNIFORM),
        row("fedbabu", "", *_UNIFORM),
        row("dsu", "", *_UNIFORM),
        row(_PPSGD, "", **OFFSET),
        row(_PPSGD, _PRIOR, STRICT, MIDDLE, LOOSE, **OFFSET, **_both(True, False)),
        row(_FEDAVG, _PRIOR, *_ALIKE, **_both(True, False)),
        row(_FEDAVG, _BOTH, *_ALIKE, **_both(True, True)),
        row(_WEIGHTS, "", MIXED),
        row(_WEIGHTS, "+ offset", MIXED, personal_training="offset", **OFFSET),
        row(_WEIGHTS, _PRIOR, MIXED, **_both(True, False)),
        row(_WEIGHTS, _BOTH, MIXED, **_both(True, True)),
    ),
    columns=(
        Setting(STRICT, {"epsilons": "0.5"}, sites=SITES),
        Setting(MIDDLE, {"epsilons": "2"}, sites=SITES),
        Setting(LOOSE, {"epsilons": "8"}, sites=SITES),
        Setting(MIXED, {"epsilons": ",".join(MENU * (SITES // len(MENU)))}, sites=SITES),
        Setting(IID, {"epsilons": "2", "partition": "iid:300"}, sites=SITES),
        Setting(TWO, {"epsilons": "2", "partition": "pathological:2:300"}, sites=SITES),
        Setting(
            TURNED,
            {"epsilons": "2", "partition": "iid:300", "groups": "rotation:5:5:5:5"},
            sites=SITES,
        ),
    ),
    quick_columns=(STRICT, MIXED),
    rates=(0.03, 0.06, 0.12, 0.25, 0.5, 1.0),
    quick_rates=(0.06, 0.12),
    bars=(
        Bar(STRICT, (_PPSGD,), _LOCAL, 8),
        Bar(STRICT, (f"{_FEDAVG} {_PRIOR}",), _FEDAVG, 5),
        Bar(
            STRICT,
            (_PPSGD, f"{_PPSGD} {_PRIOR}", f"{_FEDAVG} {_PRIOR}", f"{_FEDAVG} {_BOTH}"),
            _LOCAL,
            10,
        ),
        Bar(MIDDLE, (_PPSGD,), _LOCAL, 3),
        Bar(LOOSE, (f"{_FEDAVG} {_BOTH}",), _FEDAVG, 3),
        Bar(MIXED, (f"{_WEIGHTS} {_BOTH}",), _WEIGHTS, 5),
        Bar(MIXED, (f"{_WEIGHTS} {_BOTH}",), _WEIGHTS, 4, worst=True),
        Bar(MIXED, (f"{_WEIGHTS} {_BOTH}",), _LOCAL, 12),
        Bar(IID, (_PPSGD,), _FEDAVG, -1),
        Bar(IID, (f"{_FEDAVG} {_PRIOR}",), _FEDAVG, -1),
        Bar(IID, (f"{_FEDAVG} {_BOTH}",), _FEDAVG, -1),
    ),
    notes=(
        "'+ prior': one noisy count a class, a quarter of ε; '+ shrink': the client's own summed "
        "deviation, by its noise; '+ offset': ppsgd's training under the strategy's weights.",
        f"Five labels a client where a column says nothing else; '{MIXED}': an ε of 0.2, 0.5, 2 or "
        "8.",
        "In 'turned' a quarter of the clients each sees images by quarter turns: a job for "
        "clusters, not for one model.",
        "A model trained at home without any noise, for the client's own eyes, is not among the "
        "rows: 'hdpfl-site worth' compares with it.",
    ),
)
"""``hdpfl reproduce personal``."""

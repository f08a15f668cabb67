"""The table of server steps: rows, columns and the rates that are searched over."""

from __future__ import annotations

from studies.framework.study import Setting
from studies.server_step.steps import Rates, Row, ServerStepStudy

CLIENT: tuple[Rates, ...] = ((0.2, 1.0), (0.4, 1.0), (0.8, 1.0))
SMALL: tuple[Rates, ...] = ((0.1, 4.0), (0.1, 8.0), (0.1, 12.0))
FEW: tuple[Rates, ...] = ((0.1, 1.0), (0.2, 1.0), (0.4, 1.0), (0.8, 1.0))
SMALLER: tuple[Rates, ...] = ((0.02, 4.0), (0.05, 3.0), (0.1, 2.0), (0.1, 4.0))
"""Both for 40 local steps a round."""

BASE = {
    "dataset": "mnist",
    "model": "logreg",
    "rounds": 30,
    "local-steps": 5,
    "clip-norm": 1.0,
    "delta": 1e-4,
    "batch-sizes": "32,64,128",
    "partition": "shards:2",
    "epsilons": "dist2",
}
"""What every run has, but for what a column or row changes."""

SERVER_STEPS = ServerStepStudy(
    name="server-step",
    title="Server steps under DP: MNIST, 20 clients",
    source="ours, after shared probes (no paper)",
    minutes=2,
    base=BASE,
    rows=(
        Row("fedavg", {"strategy": "fedavg"}, rates=CLIENT, many=FEW),
        Row("drift", {"strategy": "robust-hdp-drift"}, rates=CLIENT, many=FEW),
        Row("fedavg × rate", {"strategy": "fedavg"}, rates=SMALL, many=SMALLER),
        Row("drift × rate", {"strategy": "robust-hdp-drift"}, rates=SMALL, many=SMALLER),
        Row("fedavg auto", {"strategy": "fedavg"}),
        Row("drift auto", {"strategy": "robust-hdp-drift"}),
        Row(
            "drift+adam",
            {"strategy": "robust-hdp-drift+adam"},
            rates=((0.1, 0.01), (0.1, 0.03), (0.1, 0.1)),
        ),
        Row(
            "drift+momentum",
            {"strategy": "robust-hdp-drift+momentum"},
            rates=((0.1, 0.2), (0.1, 0.4), (0.1, 0.8)),
        ),
        Row("drift+anderson", {"strategy": "robust-hdp-drift+anderson"}, rates=CLIENT, many=FEW),
        Row("scaffold", {"strategy": "scaffold"}, rates=CLIENT, many=FEW),
        Row("drift+scaffold", {"strategy": "robust-hdp-drift+scaffold"}, rates=CLIENT, many=FEW),
        Row("fedpi", {"strategy": "fedpi"}, rates=CLIENT, many=FEW),
        Row("fedsplit", {"strategy": "fedsplit"}, rates=CLIENT, many=FEW),
    ),
    columns=(
        Setting("Dist2 skew"),
        Setting("Dist2 iid", {"partition": "iid"}),
        Setting("Dist6 skew", {"epsilons": "dist6"}),
        Setting("6 × 40", {"rounds": 6, "local-steps": 40}),
        Setting("MLP-32 tail", {"model": "mlp:32", "average": "tail"}),
    ),
    quick_rows=("fedavg", "fedavg × rate", "fedavg auto"),
    quick_columns=("6 × 40",),
    notes=(
        "Client and server rate are chosen together by runs with seed 0, which are not reported.",
        "'auto' is learning-rate = auto: nothing was searched.",
        "'tail' reports the mean of the last half of the models; in brackets the last model.",
        "Skew: two label shards a client. 6 × 40 and MLP-32 are of Dist2 skew.",
        "6 × 40 is 6 rounds of 40 local steps; the other columns have 30 of 5.",
    ),
)

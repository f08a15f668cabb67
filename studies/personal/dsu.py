"""DP-pFedDSU's Tables II and III with two controls, in both units.

Personalized federated learning via dynamic sparse updates under differential privacy
(arXiv:2503.09192; no public code). Only the rankings of its tables can be compared: data, model,
rounds, δ, sampling and batch differ here, or are missing in the paper. The controls are
training alone and a random body that never moves under a head of the client's own: if one of
them is ahead of the strategies, sharing is worthless, for any ranking.

In the paper's unit, the client, heads train without noise at home, and a trusted server noises the
sum of the clipped bodies (``client_level.py``); in ours every step of every client is DP-SGD's, and
the server is not trusted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from studies.framework.plots import plot_columns
from studies.framework.study import Findings, Options, Setting, Study, Table
from studies.personal.tuned_study import TunedRow, TunedStudy, mean_and_deviation

ALONE, FROZEN = "local training alone", "frozen random body"
FB, PPSGD, PMTL, CENTAUR = "DP-FedAvg-fb", "PPSGD", "PMTL-FT", "CENTAUR"
PUBLISHED, HONEST = "DSU (published)", "DSU honest"

TABLE_II: Mapping[str, float] = {FB: 49.0, PPSGD: 53.0, PMTL: 48.9, CENTAUR: 53.9, PUBLISHED: 55.8}
"""Paper's Table II, only for CIFAR-10, ε = 1, five labels per client."""
TABLE_III = (55.71, 55.76, 55.94)
"""Paper's Table III: DSU at three ε, nearly equal."""

FIVE, TWO = "5 labels ε 1", "2 labels ε 1"
LESS, MORE = "5 labels ε 0.5", "5 labels ε 8"
SITES, RECORDS = 20, 300

BASE: dict[str, Any] = {
    "dataset": "mnist",
    "model": "mlp:32",
    "rounds": 20,
    "local-steps": 5,
    "batch-sizes": "60",
    "delta": 1e-4,
}
"""Run config keys of both units."""

COLUMNS = tuple(
    Setting(
        label, {"epsilons": epsilon, "partition": f"pathological:{labels}:{RECORDS}"}, sites=SITES
    )
    for label, epsilon, labels in (
        (FIVE, "1", 5),
        (TWO, "1", 2),
        (LESS, "0.5", 5),
        (MORE, "8", 5),
    )
)

HEAD: dict[str, Any] = {"work": "alternate"}
STILL = {"clip-norm": 1e-4}
"""Clip norm, and so noise, too small to move the body."""

CLIENT_LEVEL = TunedStudy(
    name="dsu-client",
    title="Unit: a client (the paper's), noise by a trusted server",
    source="arXiv:2503.09192",
    minutes=3,
    base={
        **BASE,
        "strategy": "dp-fedavg",
        "noise": "server",
        "dp-fedavg.clip-lr": 0.0,
        "clip-norm": 0.01,
    },
    rows=(
        TunedRow(ALONE, {"second": "kept pull=0"}),
        TunedRow(FROZEN, {**HEAD, **STILL}),
        TunedRow(FB, {"after": "tuning steps=40 part=head"}),
        TunedRow(PPSGD, {"work": "offset"}),
        TunedRow(PMTL, {"second": "kept pull=0.1"}),
        TunedRow(CENTAUR, HEAD),
        TunedRow(PUBLISHED, {"work": "alternate mask=published"}),
        TunedRow(HONEST, {"work": "alternate mask=global-magnitude"}),
    ),
    columns=COLUMNS,
    quick_columns=(FIVE, TWO),
    rates=(0.03, 0.1, 0.3),
    quick_rates=(0.1,),
)

RECORD_LEVEL = TunedStudy(
    name="dsu-record",
    title="Unit: a record (ours), every step charged",
    source="arXiv:2503.09192",
    minutes=4,
    base={**BASE, "clip-norm": 1.0},
    rows=(
        TunedRow(ALONE, {"strategy": "local"}),
        TunedRow(FROZEN, {"strategy": "local", "work": "frozen stays=body"}),
        TunedRow(FB, {"strategy": "dp-fedavg-fb"}),
        TunedRow(PPSGD, {"strategy": "ppsgd"}),
        TunedRow(PMTL, {"strategy": "pmtl"}),
        TunedRow(CENTAUR, {"strategy": "fedrep"}),
        TunedRow(PUBLISHED, {"strategy": "dsu-published"}),
        TunedRow(HONEST, {"strategy": "dsu"}),
    ),
    columns=COLUMNS,
    quick_columns=(FIVE, TWO),
    rates=(0.03, 0.06, 0.12, 0.25, 0.5),
    quick_rates=(0.12,),
)


@dataclass(frozen=True, kw_only=True)
class DsuStudy(Study):
    """The same rows in several units.

    Attributes:
        units: a study each.
    """

    takes = TunedStudy.takes
    units: tuple[TunedStudy, ...]

    def conduct(self, options: Options, folder: Path) -> Findings:
        """Run both units and tabulate the paper's numbers beside them."""
        tables, numbers, notes = list[Table](), dict[str, Any](), list(self.notes)
        lines: dict[str, dict[str, dict[str, tuple[float, float]]]] = {}
        for unit in self.units:
            cells = unit.cells(options, folder)
            found = unit.findings(cells)
            tables += found.tables
            numbers[unit.name] = found.numbers
            notes += [note for note in found.notes if note not in notes]
            for (column, row), cell in cells.items():
                panel = lines.setdefault(unit.title, {})
                panel.setdefault(row, {})[column] = mean_and_deviation(cell.means)
        plot_columns(lines, folder / f"{self.name}.png", "accuracy, %", self.title)
        if not options.dataset:
            notes.append(
                "Not the paper's CIFAR-10, which this machine need not have: MNIST. With it in "
                "--data-dir: --dataset cifar10 --model cnn."
            )
        return Findings((*tables, printed()), numbers, tuple(notes))


def printed() -> Table:
    """Return the numbers printed in the paper."""
    rows = [(row, f"{value:g}") for row, value in TABLE_II.items()]
    flat = ", ".join(f"{value:.2f}" for value in TABLE_III)
    return Table(
        "Printed in the paper, another data set and model: only the order can be compared",
        ("Table II: CIFAR-10, five labels, ε 1", "accuracy, %"),
        (
            *rows,
            ("Table III: DSU at three ε", flat),
            (ALONE, "not printed"),
            (FROZEN, "not printed"),
        ),
    )


DSU = DsuStudy(
    name="dsu",
    title="DP-pFedDSU's Tables II and III with the controls they lack",
    source="arXiv:2503.09192, Tables II and III",
    minutes=3,
    units=(CLIENT_LEVEL, RECORD_LEVEL),
    notes=(
        "Where 'local training alone' or 'frozen random body' is ahead of a rule, what it shares "
        "is worth nothing there, whatever its place among the rules.",
        "Unit: a client. Heads and personal models train without noise at home, and must not be "
        "shown. The server noises all coordinates, so that 'DSU (published)' is private in this "
        "unit; the paper's eq. 13 noises the mask alone, and shows the mask. 'PMTL-FT' is Ditto's "
        "personal model here, pulled to the noisy mean with λ = 0.1.",
        "Unit: a record. 'DSU (published)' violates every client: its mask is a function of clean "
        "weights (ε = ∞). All other rows hold ε.",
        "The paper's Table III varies ε; here the full form has 0.5, 1 and 8.",
    ),
)
"""``hdpfl reproduce dsu``."""

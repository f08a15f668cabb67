"""R-DPCFL's figures: cluster recovery and strategies' accuracy.

Malekmohammadi, Taik and Farnadi, Differentially Private Clustered Federated Learning (TMLR 2025;
thesis, chapter 4): 21 clients in groups of 3, 6, 6, 6 on MNIST, images turned by m·90° or labels
shifted by m, E = 200, one local epoch, b = 32, C = 1, δ = 1e-4. Its results are only in figures.
Besides equal ε, clients with unequal ε and with unequal first batches are run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hdpfl_tools.simulation.datasets import load_dataset
from hdpfl_tools.simulation.in_process.comparison import RunJob
from studies.framework.kept_runs import with_run_name
from studies.framework.study import (
    Findings,
    GridStudy,
    Key,
    Options,
    Setting,
    run_jobs,
    select_or_all,
)
from studies.r_dpcfl.cluster_tables import finding_tables, mss_table, numbers_of
from studies.r_dpcfl.first_updates import (
    MapResult,
    cluster_first,
    clustered,
    read_found,
)

SITES, RECORDS, FEW = 21, 2850, 300
"""Clients, and records of each, disjoint.

21 × 2,850 of MNIST's 60,000.
"""

EPSILONS = (0.5, 1.0, 3.0, 5.0, 10.0, 15.0)
MENU = (0.5, 1.0, 3.0, 10.0)
"""Unequal ε, dealt out independently of groups."""

FIRST_RATE = 0.05
"""Rate of first rounds, which scales updates; no map depends on it."""

BASE: dict[str, Any] = {
    "dataset": "mnist",
    "model": "logreg",
    "partition": f"iid:{RECORDS}",
    "rounds": 200,
    "clip-norm": 1.0,
    "delta": 1e-4,
    "batch-sizes": "32",
}
"""Paper's settings, except model, records and learning rate."""


def dealt(values: Sequence[float], seed: int, salt: bytes) -> list[str]:
    """Return a value per site, balanced and shuffled by the seed.

    >>> sorted(dealt([1.0, 3.0], 1, b"")).count("3")
    10
    """
    generator = np.random.default_rng([seed, *salt])
    return [f"{value:g}" for value in generator.permutation(np.resize(values, SITES))]


def unequal_budgets(seed: int) -> dict[str, str]:
    """Return run config with an ε of ``MENU`` per site."""
    return {"epsilons": ",".join(dealt(MENU, seed, b"epsilons"))}


def unequal_first_batches(seed: int) -> dict[str, str]:
    """Return run config with unequal records (10:1) and ε of 1, 3, 10."""
    return {
        "epsilons": ",".join(dealt(MENU[1:], seed, b"epsilons")),
        "partition": "sizes:" + ":".join(dealt((10.0, 1.0), seed, b"records")),
    }


COLUMNS = (
    *(Setting(f"ε {e:g}", {"epsilons": f"{e:g}"}, SITES) for e in EPSILONS),
    Setting("unequal ε", {}, SITES, unequal_budgets),
    Setting("unequal batches", {}, SITES, unequal_first_batches),
    *(
        Setting(f"ε {e:g} N {FEW}", {"epsilons": f"{e:g}", "partition": f"iid:{FEW}"}, SITES)
        for e in EPSILONS
    ),
    Setting(f"unequal ε N {FEW}", {"partition": f"iid:{FEW}"}, SITES, unequal_budgets),
)
"""Columns: ε by N.

'unequal ε' is ``MENU``; 'unequal batches' are first batches of 5,000 records or 500.
"""

ROWS = (
    "r-dpcfl",
    Setting("r-dpcfl pca", {"strategy": "r-dpcfl", "r-dpcfl.cluster-map": "pca"}),
    Setting("r-dpcfl no choices", {"strategy": "r-dpcfl", "choice": {"kind": "none"}}),
    "robust-hdp+r-dpcfl",
    "late-clusters",
    "robust-hdp+late-clusters",
    Setting("ifca", {"strategy": "ifca", "ifca.clusters": 4}),
    "mr-mtl",
    Setting("ditto", {"strategy": "ditto"}, personal=True),
    "local",
    "global",
    "oracle-clusters",
)


@dataclass(frozen=True, kw_only=True)
class ClusterStudy(GridStudy):
    """Cluster recovery of each map in round 1, and accuracies.

    Attributes:
        finding_seeds: first rounds of each column, in either form.
    """

    finding_seeds: int = 4

    def conduct(self, options: Options, folder: Path) -> Findings:
        """Run the study; also find the clusters of the first updates."""
        results = self.find(options, folder)
        trained = super().conduct(options, folder)
        tables = (*finding_tables(results), mss_table(results))
        return Findings(
            (*tables, *trained.tables),
            {**trained.numbers, "found": numbers_of(results)},
            trained.notes,
        )

    def find(self, options: Options, folder: Path) -> Mapping[tuple[str, int], list[MapResult]]:
        """Return (column, seed) → results of the maps.

        Raises:
            HDPFLError: from the first round that cannot run; finished ones are kept.
        """
        labels = tuple(column.label for column in self.columns)
        columns = select_or_all(labels, options.columns, "--columns")
        seeds = range(1, (options.seeds or self.finding_seeds) + 1)
        jobs = {
            (column, seed): self.first(column, seed, options, folder)
            for seed in seeds
            for column in columns
        }
        title = f"{self.name}, first rounds"
        runs = run_jobs(list(jobs.values()), options, title, cluster_first, clustered)
        return {
            (column, seed): read_found(jobs[column, seed], runs[jobs[column, seed].terms.run_id])
            for column in columns
            for seed in seeds
        }

    def first(self, column: str, seed: int, options: Options, folder: Path) -> RunJob:
        """Return R-DPCFL's first round in a column, in a separate folder."""
        key = Key("pld", "r-dpcfl", column, FIRST_RATE, seed)
        job = self.job(key, options, folder)
        config = job.config.updated(runs_dir=str((folder / "first").absolute()))
        return with_run_name(replace(job, config=config, stop_after=1))

    def job(self, key: Key, options: Options, folder: Path) -> RunJob:
        """Return the job of a cell, adapted to smaller data sets."""
        job = super().job(key, options, folder)
        kind, _, records = job.config.simulation.partition.partition(":")
        if kind != "iid" or not options.dataset:
            return job
        most = len(load_dataset(job.terms.dataset, options.data_dir).train) // job.num_sites
        split = f"iid:{min(int(records), most)}"
        return with_run_name(replace(job, config=job.config.updated(partition=split)))


def _study(kind: str, change: str) -> ClusterStudy:
    return ClusterStudy(
        name=f"r-dpcfl-mnist-{kind}",
        title=f"Clients in groups of 3, 6, 6, 6: MNIST, {change}",
        source="R-DPCFL (TMLR 2025), thesis chapter 4",
        minutes=15,
        base={**BASE, "groups": f"{'rotation' if kind == 'rotation' else 'label-shift'}:3:6:6:6"},
        rows=ROWS,
        columns=COLUMNS,
        quick_columns=("ε 5", "unequal ε"),
        noises=("pld",),
        rates=(0.01, 0.03, 0.1),
        quick_rates=(0.03,),
        seeds=4,
        picture="columns",
        metrics={"all sites": "accuracy", "minority": "accuracy-minority"},
        notes=(
            "'Found' counts, over the first rounds of 4 seeds (both forms), how many found all "
            "four groups, and how many found the group of three. 'mixture' is our map, and "
            "'pca' is the paper's. 'M given' receives the number of groups, four.",
            "'unequal ε': ε is .5, 1, 3 or 10. 'unequal batches': the first batch is 5,000 or "
            "500, and ε is 1, 3 or 10. All else is as in the other columns: 2,850 records for "
            "each client, or as the column says.",
            "The paper's clients sample 8,000 records and may share records; here no record is "
            "at two clients. The paper's learning rate for its CNN is 0.005.",
            "The quick form stops after 20 of 200 rounds, with the noise for all 200.",
        ),
    )


ROTATION = _study("rotation", "turned by m·90°")
LABEL = _study("label", "labels y + m")

"""Draws of a simulation: data, budgets, batches, seed.

The server reads it, and simulated sites read it from Flower's ``context.run_config``. A message
holds none of it, and a site with a profile and records of its own reads none of it.
"""

from __future__ import annotations

from pydantic import Field

from hdpfl_flower.config.settings import Count, Settings
from hdpfl_flower.noise_sources import DEFAULTS, by_source


class SimulationTerms(Settings):
    """Keys from which a simulation draws its sites. Frozen."""

    seed: Count = Field(
        1,
        description="Seed of the initial model, of the client sampling, and of all that a "
        "simulation draws.",
    )
    data_dir: str = Field(
        "",
        description=(
            "Folder of the named data sets, for a simulation and for the server's public test set."
        ),
    )
    partition: str = Field(
        "contiguous",
        description="How a named data set is split over the sites: contiguous, iid, "
        "iid:RECORDS, dirichlet:ALPHA[:RECORDS], pathological:CLASSES[:RECORDS], "
        "shards:NUMBER, alone:CLASS:RECORDS, sizes:WEIGHT:WEIGHT…, natural.",
    )
    groups: str = Field(
        "",
        description="Groups of sites whose data differ, with the number of sites in each: "
        "rotation:SIZE:SIZE… (quarter turns), label-shift:SIZE:SIZE… (y + m mod "
        "C), label-noise-PERCENT:SIZE:SIZE (this share of the labels of the second "
        "group is drawn at random), inverted:SIZE:SIZE or brighter:SIZE:SIZE (the "
        "images of the second group). Empty means no groups.",
    )
    epsilons: str = Field(
        "uniform:0.3:8",
        description="The sites' ε: dist1…dist9, dist1-published…, mixgauss1…4, uniform:A:B, "
        "normal:MEAN:STD, pareto:SCALE:SHAPE, levels:E:E…, file:PATH, a list, or "
        "one number. +opt-out:SHARE may follow each of them.",
    )
    batch_sizes: str = Field(
        DEFAULTS["batch-sizes"],
        json_schema_extra={"default": "auto"},
        description="Expected batch sizes: a list from which each site draws one, all (all "
        "records of a site), each:B:B… (one for each site), or published. auto "
        f"means {by_source('batch-sizes')}.",
    )
    torch_threads: Count = Field(
        1,
        description="Torch threads of a client. 1 gives the same arrays on every machine. 0 "
        "takes all CPUs of the actor.",
    )
    stack: bool = Field(
        False,
        description="In a simulation in one process: train the clients with noise = records "
        "and a model of linear layers together, which is faster. The last bits of "
        "their updates differ.",
    )

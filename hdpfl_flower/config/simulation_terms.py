"""Draws of a simulation: data, budgets, batches, seed.

The server reads it, and simulated sites read it from Flower's ``context.run_config``. A message
holds none of it, and a site with a profile and records of its own reads none of it.
"""

from __future__ import annotations

from pydantic import Field

from hdpfl_flower.config.settings import Count, Settings
from hdpfl_flower.noise_sources import DEFAULTS, by_source


class SimulationTerms(Settings):
    """Keys that a simulation draws from. Frozen."""

    seed: Count = Field(
        1,
        description="Seed of the initial model, the client sampling, and "
        "everything a simulation draws.",
    )
    data_dir: str = Field(
        "",
        description="Folder of the named data sets (simulation, and the server's public test set).",
    )
    partition: str = Field(
        "contiguous",
        description="How a named data set is split: contiguous, "
        "iid, iid:RECORDS, dirichlet:ALPHA[:RECORDS], pathological:CLASSES[:RECORDS], "
        "shards:NUMBER, alone:CLASS:RECORDS, sizes:WEIGHT:WEIGHT…, natural.",
    )
    groups: str = Field(
        "",
        description="Simulation: groups of sites, by their sizes, whose data differ: "
        "rotation:SIZE:SIZE… (quarter turns), label-shift:SIZE:SIZE… (y + m mod C), "
        "label-noise-PERCENT:SIZE:SIZE (so many labels of the second group are drawn), "
        "inverted:SIZE:SIZE or brighter:SIZE:SIZE (its images); empty: none.",
    )
    epsilons: str = Field(
        "uniform:0.3:8",
        description="Simulation: the sites' ε. dist1…dist9, "
        "dist1-published…, mixgauss1…4, uniform:A:B, normal:MEAN:STD, "
        "pareto:SCALE:SHAPE, levels:E:E…, file:PATH, a list, or one number; "
        "+opt-out:SHARE after any.",
    )
    batch_sizes: str = Field(
        DEFAULTS["batch-sizes"],
        json_schema_extra={"default": "auto"},
        description="Simulation: expected batch sizes to draw from, all (a site's records), "
        f"each:B:B… for each site its own, or published; auto: {by_source('batch-sizes')}.",
    )
    torch_threads: Count = Field(
        1,
        description="Simulation: torch threads of a client; 1 gives "
        "the same arrays everywhere, 0 takes the actor's CPUs.",
    )
    stack: bool = Field(
        False,
        description="Simulation in one process: clients with noise = records and a model of linear "
        "layers train together, faster; their updates differ in the last bits.",
    )

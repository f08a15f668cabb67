"""Simulated sites: drawn terms, seeded noise, no protection of anyone.

A node is simulated only where its profile has ``[simulation]``, or where it has no profile and
runs under Ray or in process. A deployed node without a profile refuses.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from flwr.app import Context

from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.server_terms import ServerTerms
from hdpfl_flower.config.settings import Value
from hdpfl_flower.config.simulation_terms import SimulationTerms
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.datasets import load_dataset, task_of
from hdpfl_flower.data.own_data.dataset import OwnSource, load_own_dataset, own_source
from hdpfl_flower.errors import Declined, Reason
from hdpfl_flower.models.networks import is_user_code
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.simulation.budgets import draw_batch_sizes, draw_epsilons
from hdpfl_flower.simulation.groups import parse_groups, seen_by
from hdpfl_flower.simulation.partitions import rows_of_sites
from hdpfl_flower.system.paths import available_cores, runs_dir

_TEST_EVERY = 5


Relabel = Callable[[Records, Task], Records]
"""What a simulated liar makes of its training records."""

Trained = dict[tuple[str, str], npt.NDArray[np.float32]]
"""Ends of local SGD, each shape ``(d,)``, by the request's digest and what they are for."""


class InProcessContext(Context):
    """The context of a node that lives in the server's own process; made by the local grid.

    Attributes:
        ledger_in_file: whether its ledger outlives the process, however that ends.
        poison: what it makes of its training records, where it is a liar; None: nothing. Test
            records stay as they are.
    """

    ledger_in_file = False
    poison: Relabel | None = None

    @property
    def trained(self) -> Trained:
        """What ``in_process.py`` has done of the node's work for the message it gets next."""
        found: Trained = self.__dict__.setdefault("_trained", {})
        return found


def may_draw(context: Context) -> bool:
    """Return whether a node without a profile is one of a simulation: in process or under Ray.

    Neither the server nor a configuration file can make it so.
    """
    if isinstance(context, InProcessContext):
        return True
    ray = sys.modules.get("ray")
    return bool(ray and ray.is_initialized())


def node_index(context: Context) -> tuple[int, int]:
    """Return (partition, number of partitions) of a simulated node.

    Raises:
        Declined: the node's configuration does not say.
    """
    index = context.node_config.get("partition-id")
    number = context.node_config.get("num-partitions")
    # type(…), not isinstance: True is an int, too.
    if type(index) is not int or type(number) is not int or not 0 <= index < number:
        raise Declined(
            Reason.OTHER, "simulation: the node config needs 'partition-id' and 'num-partitions'"
        )
    return index, number


def simulated_config(context: Context, terms: RunTerms) -> RunConfig:
    """Return the run config of a simulated node, with the terms of the message that it got.

    What the run draws from, and the folder of the runs, are not in a message: the node reads them
    from the run config that Flower, or the grid in this process, passes to it.

    Raises:
        TermsError: they are wrong.
    """
    known = SimulationTerms.keys()
    drawn = tuple((key, value) for key, value in context.run_config.items() if key in known)
    runs = str(context.run_config.get("runs-dir", ""))
    return RunConfig(terms, ServerTerms(**{"runs-dir": runs}), _simulation(drawn))


@lru_cache(maxsize=64)
def _simulation(drawn: tuple[tuple[str, Value], ...]) -> SimulationTerms:
    return SimulationTerms.parse(dict(drawn))


def draw_profile(config: RunConfig, index: int, number: int) -> Profile:
    """Return the profile of simulated site ``index`` of ``number``, drawn by the public seed."""
    terms, simulation = config.terms, config.simulation
    rows = len(simulated_records(config, index, number)[0])
    epsilons = terms.simulated_epsilon or simulation.epsilons
    budget = {
        "epsilon": float(_epsilons(epsilons, number, simulation.seed)[index]),
        "delta": terms.delta,
    }
    batch_size = int(_batch_sizes(simulation.batch_sizes, number, simulation.seed)[index])
    return Profile.parse(
        {
            "budget": budget,
            "run": budget,
            "training": {
                "batch-size": min(batch_size, rows),
                "declared-records": rows,
                "torch-threads": simulation.torch_threads or _actor_cpus(),
            },
            "simulation": {"seed": simulation.seed},
            # A simulated site runs on the machine of whoever wrote the model.
            "policy": {"models": [terms.model] if is_user_code(terms.model) else []},
            "trust-server": terms.noise == "server",
            "disclose": [
                "batch-size",
                "declared-records",
                "epsilon",
                "noise-std",
                "metrics",
                "personal-metrics",
            ],
        },
        "simulated profile",
    )


def simulated_records(config: RunConfig, index: int, number: int) -> tuple[Records, Records | None]:
    """Return (training, test) records of simulated site ``index``: its part of a data set.

    A site of a group sees its part as its group does (``groups``, split before that by the data
    set's own labels). Where the terms test at the sites, every fifth record is for that.
    """
    own = config.simulation
    source = own_source(config.terms)
    records = _parts(
        config.terms.dataset, own.data_dir, own.partition, own.groups, own.seed, number, source
    )[index]
    if config.terms.evaluation != "sites":
        return records, None
    # By position, not by chance: a site has the same test records under every strategy.
    tests = np.arange(len(records)) % _TEST_EVERY == _TEST_EVERY - 1
    return records.take(np.flatnonzero(~tests)), records.take(np.flatnonzero(tests))


def simulated_ledger(config: RunConfig, index: int) -> Path:
    """Return where a simulated site's ledger lies: in the run's own folder."""
    return (
        runs_dir(config.server.runs_dir)
        / config.terms.run_id
        / "sites"
        / str(index)
        / "ledger.sqlite"
    )


def nominal_noise(profile: Profile, terms: RunTerms) -> Callable[[int], float] | None:
    """Return the formula of the paper that ``calibration`` names: rounds → noise multiplier.

    Its steps are K·N/b a round, not rounded up, as the papers' code counts them. None where the
    terms name no paper, or the site is no simulation.
    """
    from hdpfl_flower.simulation.paper_formulas import pfa_multiplier, robust_hdp_multiplier

    if terms.calibration == "pld" or not profile.simulated:
        return None
    training = profile.training
    multiplier = robust_hdp_multiplier if terms.calibration == "robust-hdp" else pfa_multiplier
    epsilon = min(profile.run.epsilon, terms.epsilon_cap or math.inf)
    sampling_prob = training.batch_size / training.declared_records
    a_round = terms.local_steps or (
        terms.local_epochs * training.declared_records / training.batch_size
    )

    def formula(rounds: int) -> float:
        return multiplier(epsilon, profile.run.delta, sampling_prob, rounds * a_round)

    return formula


_epsilons = lru_cache(maxsize=8)(draw_epsilons)
_batch_sizes = lru_cache(maxsize=8)(draw_batch_sizes)


@lru_cache(maxsize=2)
def _parts(
    dataset: str,
    data_dir: str,
    partition: str,
    spec: str,
    seed: int,
    number: int,
    own: OwnSource | None,
) -> tuple[Records, ...]:
    # Groups that the task cannot have are refused before its files are looked for.
    task = task_of(dataset) if own is None else load_own_dataset(own).task
    groups = parse_groups(spec, task) if spec else None
    data = load_dataset(dataset, data_dir) if own is None else load_own_dataset(own)
    of_site = [groups.of_site(site, number) if groups else 0 for site in range(number)]
    rows = rows_of_sites(dataset, data_dir, partition, seed, number, own)
    return tuple(
        seen_by(data.train.take(part), groups, group, data.task)
        for part, group in zip(rows, of_site, strict=True)
    )


def _actor_cpus() -> int:
    """Return the CPUs of this Ray actor, or of this process."""
    ray = sys.modules.get("ray")
    if ray and ray.is_initialized():
        assigned = ray.get_runtime_context().get_assigned_resources()
        return max(1, int(assigned.get("CPU", 1)))
    return available_cores()

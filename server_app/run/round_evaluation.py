"""Test of a round's models, at the server or the sites.

By the server also for each simulated site, on the part of the test set that is like its records.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid

from hdpfl_flower import wire
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.data.datasets import task_for
from hdpfl_flower.data.own_data.dataset import dataset_of, own_source
from hdpfl_flower.errors import TermsError
from hdpfl_flower.models.networks import Arrays
from hdpfl_flower.models.site_summary import (
    METRICS,
    NOBODY_MEASURED,
    SITE,
    SiteMeasures,
    counts,
    means,
)
from hdpfl_flower.scenarios.groups import evaluate_models, parse_groups
from hdpfl_flower.scenarios.partitions import rows_of_sites
from hdpfl_flower.scenarios.site_tests import NOTHING_LIKE_IT, OwnTests, own_tests
from server_app.run.resume import engine_of
from strategies.core.base import HDPStrategy

BROADCAST = "broadcast-"
"""Metric prefix of the training model, if it is not the reported one."""
log = logging.getLogger("hdpfl.server")


class RoundEvaluation:
    """Kind of test under a run's terms: server, sites or none."""

    def __init__(self, grid: Grid, config: RunConfig) -> None:
        """Prepare the tests of the run of ``config`` over ``grid``.

        Raises:
            TermsError: ``groups`` are none that this data set can have.
            DataError, ModelError: the data set cannot be read.
        """
        self._grid, self._central = grid, _central_test(config)
        self._is_told = False

    def __call__(
        self,
        strategy: HDPStrategy,
        record: ArrayRecord,
        server_round: int,
        models: Sequence[Arrays],
        of_site: Mapping[str, int],
    ) -> SiteMeasures:
        """Return how good the models are after a round.

        Args:
            strategy: the run's; it asks the sites where they are to test.
            record: the models that sites train from.
            server_round: the round.
            models: those that the run reports, decoded.
            of_site: site → its model; one that is not there uses the first.

        Sites test the reported model alone: each test is charged. The server tests the broadcast
        one, too, where it is another: ``broadcast-accuracy`` and so on.
        """
        # A test on public records costs no ε and asks no site.
        if self._central is not None:
            self._central.tell_sites_apart(_simulated_sites(self._grid))
            measures = self._central(models, of_site, strategy.roster.nodes)
            if not strategy.reported.differs:
                return measures
            other = self._central((wire.read_own(record),), {}, ()).metrics
            broadcast = {f"{BROADCAST}{name}": other[name] for name in METRICS if name in other}
            return replace(measures, metrics={**measures.metrics, **broadcast})
        messages = list(
            strategy.configure_evaluate(
                server_round, strategy.reported.record(record), ConfigRecord(), self._grid
            )
        )
        if not messages:
            return SiteMeasures()
        timeout = strategy.server.round_timeout
        strategy.aggregate_evaluate(
            server_round, self._grid.send_and_receive(messages, timeout=timeout)
        )
        if not strategy.tested.metrics and not self._is_told:
            self._is_told = True
            log.warning("%s", NOBODY_MEASURED)
        return strategy.tested

    def final(self, models: Sequence[Arrays], of_site: Mapping[str, int]) -> dict[str, Any]:
        """Return every measure of the run's last models, see :func:`final_measures`.

        Args:
            models: those that the run reports, decoded.
            of_site: site → its model; one that is not there uses the first.

        Returns:
            Nothing where the server has no test of them.
        """
        return self._central.final(models, of_site) if self._central is not None else {}


class CentralTest:
    """A test of a run's models, round after round.

    Guarantees:
        No record that a site trains on is in it.
    """

    def __init__(self, config: RunConfig) -> None:
        """Prepare the test of ``config`` on its data set's public test set.

        Raises:
            TermsError, DataError, ModelError: the data set cannot be read.
        """
        simulation = config.simulation
        self._config = config
        self._data = dataset_of(config.terms, simulation.data_dir)
        self._groups = parse_groups(simulation.groups, self._data.task)
        self._own: OwnTests | None = None

    def tell_sites_apart(self, num_sites: int) -> None:
        """Test each simulated site on its own distribution from now on.

        Args:
            num_sites: sites that the simulation splits the data set over; 0: not known, and
                nothing changes.

        Raises:
            TermsError, DataError: the data set cannot be split so.
        """
        if num_sites and self._own is None:
            self._own = own_tests_of(self._config, num_sites)

    def __call__(
        self, models: Sequence[Arrays], of_site: Mapping[str, int], sites: Iterable[str]
    ) -> SiteMeasures:
        """Return how good ``models`` are.

        Args:
            models: one or more.
            of_site: site → its model; one that is not there uses the first.
            sites: those of the run.
        """
        test = self._data.test
        if test is None:
            return SiteMeasures()
        here = tuple(sites) if self._own else ()
        metrics, by_site = evaluate_models(
            self._config.terms.model,
            self._data.task,
            models,
            of_site,
            test,
            self._groups,
            self._own,
        )
        tested = {site: by_site[site] for site in here if by_site.get(site)}
        return SiteMeasures(
            metrics | means(tested, SITE),
            len(here),
            counts(tested, SITE),
            {site: NOTHING_LIKE_IT for site in here if site not in tested},
            tested,
        )

    def final(self, models: Sequence[Arrays], of_site: Mapping[str, int]) -> dict[str, Any]:
        """Return the facts of :func:`final_measures`; empty without a test set."""
        from server_app.run.final_measures import final_measures

        test, spec = self._data.test, self._config.terms.model
        if test is None or not len(test):
            return {}
        return final_measures(spec, self._data.task, models, of_site, test, self._groups)


def own_tests_of(config: RunConfig, num_sites: int) -> OwnTests | None:
    """Return a simulation's site tests; None without a test set.

    Raises:
        TermsError, DataError, ModelError: the data set cannot be read, or split so.
    """
    terms, drawn = config.terms, config.simulation
    data = dataset_of(terms, drawn.data_dir)
    if data.test is None:
        return None
    rows = rows_of_sites(
        terms.dataset, drawn.data_dir, drawn.partition, drawn.seed, num_sites, own_source(terms)
    )
    return own_tests(data, rows, drawn.partition)


def _central_test(config: RunConfig) -> CentralTest | None:
    """Return the server's test; None without a test in terms or data."""
    terms, simulation = config.terms, config.simulation
    if terms.dataset == "site":
        if simulation.groups:
            raise TermsError("'groups' needs a named 'dataset': the sites' own data are not ours")
        return None
    parse_groups(simulation.groups, task_for(terms))
    # The sent part of a model with a personal part predicts nothing by itself.
    if terms.evaluation != "server" or terms.sent_part:
        return None
    if dataset_of(terms, simulation.data_dir).test is None:
        return None
    return CentralTest(config)


def _simulated_sites(grid: Grid) -> int:
    """Return the number of simulated sites; 0 without a simulation."""
    if engine_of(grid) == "simulation":  # Flower's: all of them are online after a round
        return len(list(grid.get_node_ids()))
    return int(getattr(grid, "num_sites", 0))

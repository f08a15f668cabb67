"""Test of a round's models, at the server or the sites.

By the server also for each simulated site, on the part of the test set that is like its records.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid

from hdpfl_flower import server_wire
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import TermsError
from hdpfl_flower.models.networks import Arrays
from hdpfl_flower.models.site_summary import (
    METRICS,
    NOBODY_MEASURED,
    SiteMeasures,
)
from hdpfl_flower.system.tools import tool
from server_app.run.resume import engine_of
from strategies.core.kernel import Kernel

BROADCAST = "broadcast-"
"""Metric prefix of the training model, if it is not the reported one."""
log = logging.getLogger("hdpfl.server")


class ServerTest(Protocol):
    """A test at the server; a simulation has one (``hdpfl_tools/simulation/central_test.py``)."""

    def tell_sites_apart(self, num_sites: int) -> None:
        """Test each of ``num_sites`` simulated sites on its own distribution from now on."""

    def __call__(
        self, models: Sequence[Arrays], of_site: Mapping[str, int], sites: Iterable[str]
    ) -> SiteMeasures:
        """Return how good ``models`` are at ``sites``."""

    def final(self, models: Sequence[Arrays], of_site: Mapping[str, int]) -> dict[str, Any]:
        """Return every measure of the last models."""


class RoundEvaluation:
    """Kind of test under a run's terms: server, sites or none."""

    def __init__(self, grid: Grid, config: RunConfig) -> None:
        """Prepare the tests of the run of ``config`` over ``grid``.

        Raises:
            TermsError: ``groups`` are none that this data set can have.
            DataError, ModelError: the data set cannot be read.
        """
        self._grid, self._config, self._central = grid, config, _central_test(config)
        self._is_told = False

    def follow(self, terms: RunTerms) -> None:
        """Test by the scales of ``terms`` from now on."""
        if terms.scales != self._config.terms.scales:
            self._config = replace(self._config, terms=terms)
            self._central = _central_test(self._config)

    def __call__(
        self,
        kernel: Kernel,
        record: ArrayRecord,
        server_round: int,
        models: Sequence[Arrays],
        of_site: Mapping[str, int],
    ) -> SiteMeasures:
        """Return how good the models are after a round.

        Args:
            kernel: the run's; it asks the sites where they are to test.
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
            measures = self._central(models, of_site, kernel.roster.nodes)
            if not kernel.reported.differs:
                return measures
            other = self._central((server_wire.read_own(record),), {}, ()).metrics
            broadcast = {f"{BROADCAST}{name}": other[name] for name in METRICS if name in other}
            return replace(measures, metrics={**measures.metrics, **broadcast})
        messages = list(
            kernel.configure_evaluate(
                server_round, kernel.reported.record(record), ConfigRecord(), self._grid
            )
        )
        if not messages:
            return SiteMeasures()
        timeout = kernel.server.round_timeout
        kernel.aggregate_evaluate(
            server_round, self._grid.send_and_receive(messages, timeout=timeout)
        )
        if not kernel.tested.metrics and not self._is_told:
            self._is_told = True
            log.warning("%s", NOBODY_MEASURED)
        return kernel.tested

    def final(self, models: Sequence[Arrays], of_site: Mapping[str, int]) -> dict[str, Any]:
        """Return every measure of the run's last models, see ``central_test.final_measures``.

        Args:
            models: those that the run reports, decoded.
            of_site: site → its model; one that is not there uses the first.

        Returns:
            Nothing where the server has no test of them.
        """
        return self._central.final(models, of_site) if self._central is not None else {}


def _central_test(config: RunConfig) -> ServerTest | None:
    """Return the server's test of a simulation; None where there is none."""
    if config.terms.dataset == "site":
        if config.simulation.groups:
            raise TermsError(
                "'groups' needs a named 'dataset', because the sites' own data "
                "are not at the server"
            )
        return None
    test: ServerTest | None = tool("simulation.central_test").central_test(config)
    return test


def _simulated_sites(grid: Grid) -> int:
    """Return the number of simulated sites; 0 without a simulation."""
    if engine_of(grid) == "simulation":  # Flower's: all of them are online after a round
        return len(list(grid.get_node_ids()))
    return int(getattr(grid, "num_sites", 0))

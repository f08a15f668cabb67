"""The server's test of a simulation's models, on the data set's public test set.

Also for each simulated site, on the part of the test set that is like its records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.errors import DataError
from hdpfl_flower.measures.words import SPECIFICITY
from hdpfl_flower.models.networks import Arrays
from hdpfl_flower.models.site_summary import SITE, SiteMeasures, counts, means
from hdpfl_flower.models.task import Records, Task
from hdpfl_tools.measures.clinical import (
    How,
    Statistic,
    measure,
    measures_of,
    with_intervals,
)
from hdpfl_tools.simulation.own_data.dataset import dataset_of, own_source
from hdpfl_tools.simulation.scenarios.groups import Groups, evaluate_models, parse_groups, seen_by
from hdpfl_tools.simulation.scenarios.partitions import rows_of_sites
from hdpfl_tools.simulation.scenarios.site_tests import NOTHING_LIKE_IT, OwnTests, own_tests
from server_app.run.final_measures import PUBLIC

_HOW = How(draws=300)
"""Resamples of the test records, for 95 % intervals."""


def central_test(config: RunConfig) -> CentralTest | None:
    """Return the server's test; None without a test in terms or data.

    Raises:
        TermsError: ``groups`` are none that this data set can have.
        DataError, ModelError: the data set cannot be read.
    """
    terms, simulation = config.terms, config.simulation
    parse_groups(simulation.groups, task_for(terms))
    # The sent part of a model with a personal part predicts nothing by itself.
    if terms.evaluation != "server" or terms.work.sent_part:
        return None
    if dataset_of(terms, simulation.data_dir).test is None:
        return None
    return CentralTest(config)


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


def final_measures(
    spec: str,
    task: Task,
    models: Sequence[Arrays],
    of_site: Mapping[str, int],
    test: Records,
    groups: Groups | None,
) -> dict[str, Any]:
    """Return the final facts: each model's measures with 95 % intervals.

    Of several models, and of groups that see the test set differently, the mean over the sites; its
    interval resamples the test records for all of them at once.

    Args:
        spec: of the models.
        task: of the models.
        models: one or more.
        of_site: site → its model; one that is not there uses the first.
        test: the records, as the data set has them.
        groups: the run's, or None.

    Raises:
        ModelError: a model cannot be built.
    """
    from hdpfl_flower.models.evaluation import predict  # torch, of which reports need nothing

    try:
        used = _used(models, of_site, groups)
        scored = []
        for (model, group), sites in used.items():
            seen = seen_by(test, groups, group, task)
            outputs = predict(spec, task, models[model], seen.features)
            scored.append((outputs, seen.targets, sites))
        if len(scored) == 1:
            outputs, targets, _ = scored[0]
            return {"on": PUBLIC, **measure(task, outputs, targets, how=_HOW).facts()}
        statistics = [measures_of(task, outputs, targets) for outputs, targets, _ in scored]
        numbers = [number for _, _, number in scored]
        mean = Statistic.mean(statistics, [number / sum(numbers) for number in numbers])
        specificity = {"specificity": SPECIFICITY} if task.classes else {}
        measured = with_intervals(mean, np.arange(len(test)), _HOW)
        return {"on": PUBLIC, **measured.facts(), **specificity}
    except DataError as reason:
        return {"on": PUBLIC, "records": len(test), "measures": {}, "missing": {"all": str(reason)}}


def _used(
    models: Sequence[Arrays], of_site: Mapping[str, int], groups: Groups | None
) -> Counter[tuple[int, int]]:
    """Return (model, group) → number of sites."""
    if groups is None:
        return Counter((model, 0) for model in (of_site.values() if len(models) > 1 else [0]))
    ends = [0, *accumulate(groups.sizes)]
    return Counter(
        (of_site.get(str(site), 0), group)
        for group, (start, end) in enumerate(pairwise(ends))
        for site in range(start, end)
    )

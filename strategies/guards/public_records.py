"""Public records for a guard: the server's file or the test set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.errors import TermsError
from hdpfl_flower.estimators.softmax_head import Head
from hdpfl_flower.models.features import last_inputs
from hdpfl_flower.models.networks import is_user_code, layout_of
from hdpfl_flower.models.task import Records
from hdpfl_flower.system.tools import tool
from strategies.guards.head_content import PublicMeans, public_means

RECORDS = 1000
"""Most public records that a guard uses. The first records of the test set are also counted in a
run's reported accuracy; no choice of the run depends on it."""

OTHERWISE = "take 'cap' or 'none'"


class PublicRecords:
    """Public records under the model of each round.

    Attributes:
        head: where the model's last layer lies; of one row for a logit of two classes.
    """

    def __init__(self, config: RunConfig) -> None:
        """Read the records of the run of ``config``.

        Raises:
            TermsError: the run has no public records, or its model no head to judge.
            DataError: the data set or the file cannot be read.
        """
        self._terms = terms = config.terms
        self.head = _content_head(config)
        task = task_for(terms)
        self._records: Records
        self._records, source = tool("tables.public_records").public_records(config, task)
        missing = task.classes - len(np.unique(self._records.targets))
        if missing:
            raise TermsError(
                f"run config: 'guard' = 'content': {len(self._records)} public records of "
                f"{source} lack {missing} of the classes; take other records, or {OTHERWISE}"
            )
        self._fixed: PublicMeans | None = None

    def means(self, model: Mapping[str, npt.NDArray[np.float32]]) -> PublicMeans | None:
        """Return the records' inputs to the last layer of ``model``.

        None where their classes cannot be told apart there, as in a network that has not learned.
        """
        if self._fixed is not None:
            return self._fixed
        terms, task, records = self._terms, task_for(self._terms), self._records
        features = last_inputs(terms.model, task, dict(model), records.features)
        means = public_means(features, records.targets.astype(np.int64), task.classes)
        if (
            terms.model == "logreg" and not task.body
        ):  # its features are the records', for any model
            self._fixed = means
        return means


def _content_head(config: RunConfig) -> Head:
    """Return where the last layer lies.

    Raises:
        TermsError: there is none, not all of it is sent, or it has fewer inputs than classes.
    """
    if why := next(_faults(config), ""):
        raise TermsError(f"run config: 'guard' = 'content' {why}, or {OTHERWISE}")
    layout = list(layout_of(config.terms.model, task_for(config.terms)).values())
    size, (rows, inputs) = sum(array.size for array in layout), layout[-2].shape
    return Head(size - rows * (inputs + 1), rows, inputs)


def _faults(config: RunConfig) -> Iterator[str]:
    """Yield why content cannot be judged; a later check relies on the earlier ones."""
    terms = config.terms
    if terms.dataset == "site" and not config.server.public_records:
        yield (
            "needs public records like those of the sites, and with 'dataset' = 'site' the "
            "server has none; name a file in 'public-records'"
        )
    task, model = task_for(terms), terms.model
    if not task.classes or is_user_code(model):
        yield (
            f"reads the class rows of a last layer, and 'model' '{model}' on '{terms.dataset}' "
            "has no known last layer; take another model"
        )
    if (work := terms.work).sent_part or not work.sends_every_coordinate:
        yield "reads whole class rows of whole models; leave out 'work'"
    inputs = list(layout_of(model, task).values())[-2].shape[1]
    if inputs + 1 < task.classes:
        yield (
            f"needs at least {task.classes - 1} inputs of the last layer to tell {task.classes} "
            f"classes apart, and 'model' '{model}' has {inputs}; take a wider one"
        )

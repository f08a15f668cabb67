"""The public records that a guard judges by: the first of the run's public test set."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.datasets import load_dataset, task_for
from hdpfl_flower.errors import TermsError
from hdpfl_flower.estimators.head_content import PublicMeans, public_means
from hdpfl_flower.estimators.softmax_head import Head
from hdpfl_flower.models.features import last_inputs
from hdpfl_flower.models.networks import is_user_code, layout_of

RECORDS = 1000
"""Records of the public test set, from its first, that a guard uses. The accuracy that a run
reports counts them, too: it is a gauge, and no choice of the run rests on it."""

_OTHERWISE = "take 'evidence' or 'none'"


class PublicRecords:
    """Public records under the model of each round.

    Attributes:
        head: where the model's last layer lies; of one row for a logit of two classes.
    """

    def __init__(self, config: RunConfig) -> None:
        """Read the records of the run of ``config``.

        Raises:
            TermsError: the run has no public records, or its model no head to judge.
            DataError: the data set cannot be read.
        """
        self._terms = terms = config.terms
        self.head = _content_head(terms)
        task = task_for(terms)
        test = load_dataset(terms.dataset, config.simulation.data_dir).test
        if test is None:
            raise TermsError(
                f"run config: 'guard' = 'content' needs public records, and 'dataset' "
                f"'{terms.dataset}' has no test set; {_OTHERWISE}"
            )
        self._records = test.take(np.arange(min(RECORDS, len(test))))
        missing = task.classes - len(np.unique(self._records.targets))
        if missing:
            raise TermsError(
                f"run config: 'guard' = 'content': the first {len(self._records)} test records of "
                f"'dataset' '{terms.dataset}' lack {missing} of the classes; {_OTHERWISE}"
            )
        self._fixed: PublicMeans | None = None

    def means(self, model: Mapping[str, npt.NDArray[np.float32]]) -> PublicMeans | None:
        """Return what the records are at the inputs of the last layer of ``model``.

        None where their classes cannot be told apart there, as in a network that has not learned.
        """
        if self._fixed is not None:
            return self._fixed
        terms, task, records = self._terms, task_for(self._terms), self._records
        features = last_inputs(terms.model, task, dict(model), records.features)
        found = public_means(features, records.targets.astype(np.int64), task.classes)
        if terms.model == "logreg":  # its features are the records', whatever the model
            self._fixed = found
        return found


def _content_head(terms: RunTerms) -> Head:
    """Return where the last layer lies.

    Raises:
        TermsError: there is none, not all of it is sent, or it has fewer inputs than classes.
    """
    if terms.dataset == "site":
        raise TermsError(
            "run config: 'guard' = 'content' needs public records of the sites' kind, and with "
            f"'dataset' = 'site' the server has none; name a public 'dataset', or {_OTHERWISE}"
        )
    task, model = task_for(terms), terms.model
    if not task.classes or is_user_code(model):
        raise TermsError(
            f"run config: 'guard' = 'content' reads the class rows of a last layer, and 'model' "
            f"'{model}' on '{terms.dataset}' has none that is known; {_OTHERWISE}"
        )
    if terms.sent_part or terms.shared_mask != "none":
        raise TermsError(
            "run config: 'guard' = 'content' reads whole class rows of whole models; leave out "
            f"'personal-part' and 'shared-mask', or {_OTHERWISE}"
        )
    layout = list(layout_of(model, task).values())
    rows, inputs = layout[-2].shape
    if inputs + 1 < task.classes:
        raise TermsError(
            f"run config: 'guard' = 'content' needs at least {task.classes - 1} inputs of the "
            f"last layer to tell {task.classes} classes apart, and 'model' '{model}' has {inputs}; "
            f"take a wider one, or {_OTHERWISE}"
        )
    size = sum(array.size for array in layout)
    return Head(size - rows * (inputs + 1), rows, inputs)

"""Public records of the server: its own file, or the test set of a named data set."""

from __future__ import annotations

import numpy as np

from hdpfl_flower.config.data_source import DataSource
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.data.schema import Schema
from hdpfl_flower.errors import DataError, TermsError
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.system.paths import expanded
from hdpfl_tools.simulation.own_data.dataset import dataset_of
from hdpfl_tools.tables.site_data import read_site_data
from strategies.guards.public_records import OTHERWISE, RECORDS

FILES = ("npz", "csv", "parquet")
"""File endings of public records."""


def public_records(config: RunConfig, task: Task) -> tuple[Records, str]:
    """Return the public records of a run and their source, for messages.

    Raises:
        TermsError: the run has none.
        DataError: the data set or the file cannot be read.
    """
    terms, file = config.terms, config.server.public_records
    if not file:
        test = dataset_of(terms, config.simulation.data_dir).test
        if test is None:
            raise TermsError(
                f"run config: 'guard' = 'content' needs public records, and 'dataset' "
                f"'{terms.dataset}' has no test set; name a file in 'public-records', or "
                f"{OTHERWISE}"
            )
        first = np.arange(min(RECORDS, len(test)))
        return test.take(first), f"'dataset' '{terms.dataset}'"
    path = expanded(file)
    kind = path.suffix.removeprefix(".").lower()
    if kind not in FILES or not path.is_file():
        raise TermsError(
            f"run config: 'public-records' is '{file}'; name a file that is there and ends in "
            f"{', '.join(FILES)}"
        )
    unit = Schema.load(terms.schema_text).id if terms.schema_text else ""
    source = DataSource.model_validate({"format": kind, "path": path.absolute(), "id": unit})
    try:
        records = read_site_data(source, task, terms.schema_text).train
    except DataError as error:
        words = str(error).replace("'data.path'", f"'{file}'")
        raise DataError(f"run config: 'public-records': {words}") from None
    # Every so many: a file may be sorted by class.
    every = max(-(-len(records) // RECORDS), 1)
    return records.take(np.arange(0, len(records), every)), f"'{file}'"

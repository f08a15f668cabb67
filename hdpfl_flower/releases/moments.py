"""The first message: noisy counts, sums and sums of squares of a site's columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from hdpfl_flower.config.settings import ShareOrNone
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.record_moments import Layout, layout_of, names_in, numbers_in
from hdpfl_flower.data.run_task import schema_of, task_for
from hdpfl_flower.errors import DataError, ModelError
from hdpfl_flower.models.task import Task
from hdpfl_flower.privacy.accounting import Gaussians
from hdpfl_flower.releases.base import Basis, ReleaseKind, once, reasons_for_equal_rounds

SHARE = 0.25
"""Share of ε where ``share`` is ``auto``. Of .2, .25, .35 and .5 on five splits of two tables at
ε .3 and 1, the least that was within a point of the best; training gets 3 % more noise by it."""
ALONE = 0.95
"""Share where the run ends with the message: the rest is of rounds that never come."""
MOST_COLUMNS = 2_000
"""Number columns beyond which ``auto`` asks for no first message: its noise grows with them."""

LEAST_PART = 0.5
"""Least part of the features that number columns make up where ``auto`` asks. Of heart's 25 they
are 5, and the message costs up to .4 points; on tables of numbers alone it gains 0 to 10."""


def _check_columns(text: str) -> str:
    names_in(text)
    return text


def _check_bins(text: str) -> str:
    numbers_in(text)
    return text


class Moments(ReleaseKind):
    """Counts, sums and sums of squares, asked for before round 1.

    The server makes scales of the number columns from them, and the tables of ``hdpfl statistics``.
    """

    table, kind, main, release = "first", "moments", "share", "moments"
    is_sent = is_optional = True
    consent = (
        "one noisy message before round 1: the count of records, and for each number column "
        "the sum and the sum of squares"
    )
    event = "first-message"
    title = "First message: columns over all sites"
    price = (
        "noise of the first message (each record is clipped to length 1), sent once, before round 1"
    )
    item = "first message"
    content = "of counts and sums of columns, with noise in each number"
    report = (
        "First message: once a run, before round 1, each record's columns are clipped "
        "together, summed, and sent with noise of that z in each number. The run's ε covers "
        "its cost."
    )
    share: ShareOrNone | Literal["auto"] = Field(
        "auto",
        description="Share of a site's ε that the message would cost by itself. 0 means that "
        f"none is sent. auto means {ALONE:g} with 'alone'; else {SHARE:g} for the "
        "sites' own tables and arrays where the message is found to help; else 0.",
    )
    content_of: Literal["scales", "table", "curve"] = Field(
        "scales",
        alias="content",
        description="What is sent. scales: the numbers by which number columns are scaled. "
        "table: also label counts, missing values, categories, bins and the "
        "survival curve, for hdpfl statistics. curve: only the survival curve, "
        "with the least noise.",
    )
    alone: bool = Field(
        False, description="Whether the run ends after this message, without training a model."
    )
    columns: Annotated[str, AfterValidator(_check_columns)] = Field(
        "",
        description="Number columns whose values are counted in bins, with commas between. "
        "Only for content = table.",
    )
    bins: Annotated[str, AfterValidator(_check_bins)] = Field(
        "10",
        description="Bins of these columns: a number of equal bins, or for one column the "
        "inner edges in rising order with commas between. The outer edges are the "
        "bounds of the column.",
    )
    by_label: bool = Field(
        False,
        description="Whether each class has its own counts, sums and bins. Only for content = "
        "table. A number over all classes is then a sum over the classes and has "
        "the noise of each of them.",
    )

    @property
    def is_asked(self) -> bool:
        """Whether its share is stated, or settled, and above 0."""
        return self.share not in (0, "auto")

    @property
    def asks(self) -> str:
        """Sentences on these settings' release, for the operator's approval."""
        if self.is_curve:
            return "one noisy message before round 1: events and censored records by time"
        bins = f", and bins of {', '.join(names_in(self.columns))}" if self.columns else ""
        by_class = ", separately for each class" if self.by_label else ""
        more = "; also counts of labels or survival times, categories and missing values"
        more += f"{bins}{by_class}"
        return self.consent + (more if self.is_table else "")

    @property
    def is_table(self) -> bool:
        """Whether labels, missing values and categories are counted, too."""
        return self.content_of == "table"

    @property
    def is_curve(self) -> bool:
        """Whether it is of a survival curve alone."""
        return self.content_of == "curve"

    def settled(self, terms: RunTerms) -> Moments:
        """Return the settings with a number for ``share``."""
        if self.share != "auto":
            return self
        if self.alone or self.content_of != "scales":
            return self.updated(share=ALONE if self.alone else SHARE)
        return self.updated(share=0.0 if why_not(terms) else SHARE)

    def contradictions(self, terms: RunTerms) -> Iterator[str]:
        """Yield terms under which columns cannot be measured or scaled."""
        if terms.backbone and not self.is_curve:
            yield f"{self.words} scales columns, and a 'backbone' reads them unscaled"
        if terms.task and (terms.task.mean or terms.task.std) and not self.is_curve:
            yield (
                f"{self.words} finds scales, and 'task.mean' and 'task.std' already state scales"
            )
        if (self.columns or self.by_label) and not self.is_table:
            key = "'columns' are" if self.columns else "'by-label' is"
            yield f"{self.words}: {key} only for a table; set 'content' to table"
        elif self.content_of != "scales":
            try:
                self.layout(terms, task_for(terms))
            except DataError as fault:
                yield str(fault)

    def check_task(self, task: Task) -> None:
        """Refuse records that are no rows of columns."""
        if len(task.input_shape) != 1 and not self.is_curve:
            raise DataError(f"{self.words} is only for tables, and these records are images")

    def layout(self, terms: RunTerms, task: Task) -> Layout:
        """Return the coordinates of the message; raises ``DataError`` as ``layout_of``."""
        return layout_of(
            schema_of(terms),
            task,
            table=self.is_table,
            columns=self.columns,
            bins=self.bins,
            curve=self.is_curve,
            by_label=self.by_label,
        )

    def cost(self, basis: Basis) -> Gaussians:
        """Return one release: a record moves the vector by at most 1 in length."""
        return once(basis, float(self.share))

    def place(self, terms: RunTerms) -> int:
        """Return 1."""
        del terms
        return 1


def why_not(terms: RunTerms) -> str:
    """Return why ``auto`` asks for no first message, in words; empty: it does.

    Decided by public terms alone, so that it shows nothing of a site.
    """
    if reasons := reasons_for_equal_rounds(terms):
        return f"{' and '.join(reasons)} leaves no share of ε for it"
    if terms.dataset != "site" and ":" not in terms.dataset:
        return "the bounds of a named data set are known to be near its values"
    if terms.backbone or (terms.task and (terms.task.mean or terms.task.std)):
        return "the terms scale the records already"
    try:
        task = task_for(terms)
        layout = layout_of(schema_of(terms), task)
    except (DataError, ModelError):  # refused elsewhere, with its remedy
        return "the task cannot be read"
    numbers, width = len(layout.numbers), task.input_shape[0]
    is_table = len(task.input_shape) == 1 and 2 <= numbers <= MOST_COLUMNS
    if is_table and numbers < LEAST_PART * width:
        return "most features are categories, which have no scale"
    return "" if is_table else f"it is for 2 to {MOST_COLUMNS} number columns without 'typical'"

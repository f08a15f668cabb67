"""Local work of a round: training, kept parts, update. Base class of every kind.

A kind is a file: its settings, its extra noisy steps and its checks here, its training under the
same name in ``client_app/work/``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from hdpfl_flower.config.kind import Kind, Proposal
from hdpfl_flower.config.settings import NotNegative, Value
from hdpfl_flower.config.tables_of_terms import OPEN

Part = Literal["", "head", "body"]
"""Part of a model: the last layer, all else, or neither."""


class Work(Kind):
    """Settings of one kind of local work, and its effect on plan, checks and messages.

    Attributes:
        keeps_state: a site keeps a vector of its own from round to round.
        carries_updates: a site's own updates move it beside the model.
    """

    pull: NotNegative | Literal["auto"] = Field(
        "auto",
        description="Pull λ of the steps towards the global model of the round (FedProx), or "
        "towards the mean of the sites' models (mr-mtl). auto means the value of "
        "the strategy, or else 0.",
    )
    first_batch: Literal["auto", "full", "same"] = Field(
        "auto",
        description="Batches of round 1: full (all records, which gives an exact first "
        "update), or same (as in later rounds). auto means the value of the "
        "strategy, or else same.",
    )

    key = "work"
    keeps_state: ClassVar[bool] = False
    carries_updates: ClassVar[bool] = False

    @property
    def pull_factor(self) -> float:
        """λ of the local steps; 0 where the strategy leaves it open."""
        return 0.0 if self.pull == "auto" else self.pull

    @property
    def full_first(self) -> bool:
        """Round 1 has all records in a batch."""
        return self.first_batch == "full"

    @property
    def own_part(self) -> Part:
        """Part of the model that stays at its site; empty: none."""
        return ""

    @property
    def sent_part(self) -> Part:
        """Part of the model that is sent; empty: all of it."""
        parts: dict[Part, Part] = {"head": "body", "body": "head", "": ""}
        return parts[self.own_part]

    @property
    def needs_head(self) -> bool:
        """Need of a model with a head that can be told from its body."""
        return bool(self.own_part)

    @property
    def extra_steps(self) -> int:
        """Noisy steps a round that are charged and move no parameter."""
        return 0

    @property
    def sends_every_coordinate(self) -> bool:
        """Updates of the sent part hold noise in each coordinate."""
        return True

    @property
    def sums_updates(self) -> bool:
        """Need of the sum of a site's noisy updates."""
        return False

    @property
    def needs_step_noise(self) -> bool:
        """Whether it needs the noise of single steps."""
        return False

    @property
    def reads_clean_weights(self) -> bool:
        """Whether it releases a function of weights before noise."""
        return False

    def sent_steps(self, steps: int) -> int:
        """Return the least number of a round's ``steps`` that train the sent part."""
        return steps

    def filled(self, default: Work) -> Work:
        """Return this work with open settings from ``default``."""
        open_ = [key for key in ("pull", "first_batch") if getattr(self, key) == "auto"]
        return self.model_copy(update={key: getattr(default, key) for key in open_})

    @property
    def words(self) -> str:
        """Name of its kind, and of a first batch of its own."""
        return super().words + (" with 'work.first-batch' = 'full'" if self.full_first else "")

    @property
    def is_unlike_rounds(self) -> bool:
        """Whether round 1 has other batches."""
        return self.full_first

    def contradictions(self, terms: Proposal) -> Iterator[str]:
        """Yield a step beyond the model that it is pulled to, and training without noise."""
        if self.pull_factor * terms.learning_rate > 1:
            yield (
                f"'work.pull' is {self.pull_factor:g} and 'learning-rate' is "
                f"{terms.learning_rate:g}: their product is above 1, so a step would go beyond "
                "the model to which it is pulled; lower one of them"
            )
        if self.keeps_state and not terms.source.noises_parts and terms.dataset == "site":
            yield (
                f"'noise' = '{terms.noise}' trains a personal part or an offset without noise, "
                "which only simulated sites allow: leave 'noise' at 'records', or take a named "
                "'dataset'"
            )


class Plain(Work):
    """Local steps on the whole model; the update of the whole model is sent."""

    kind = "plain"


class Auto(Work):
    """Work left to the strategy, with some settings; else plain."""

    kind = OPEN
    changes: tuple[tuple[str, Value], ...] = ()

    def contradictions(self, terms: Proposal) -> Iterator[str]:
        """Yield settings that no strategy has read."""
        del terms
        if self.changes:
            yield "'work' has settings of a kind, but no strategy names one; write 'work.kind'"

    def as_table(self) -> dict[str, Value]:
        """Return the settings given, as they are."""
        return dict(self.changes)

"""Answers of all local work of a run together, on which plan, wire and reports depend.

The terms inherit them, so that code outside of this room asks the terms, and no kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, cast

from hdpfl_flower.config.kinds import Kind

if TYPE_CHECKING:
    from hdpfl_flower.after import After
    from hdpfl_flower.config.terms import RunTerms
    from hdpfl_flower.work.backbone import Backbone
    from hdpfl_flower.work.base import Part, Work
    from hdpfl_flower.work.choice import Choice
    from hdpfl_flower.work.second import SecondModel
    from hdpfl_flower.work.spend import Spend


class SiteWork:
    """Answers over the typed values of a site's work."""

    if TYPE_CHECKING:
        work: Work
        second: SecondModel | None
        choice: Choice | None
        spend: Spend
        after: After
        backbone: Backbone | None
        noise: Literal["records", "server", "client"]
        rounds: int

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Typed values of the site's work."""
        local = (self.work, self.second, self.choice, self.spend, self.backbone)
        return (*(kind for kind in local if kind is not None), *self.after.kinds)

    @property
    def pull(self) -> float:
        """λ of the local steps; 0 where the strategy leaves it open."""
        return 0.0 if self.work.pull == "auto" else self.work.pull

    @property
    def models(self) -> int:
        """Models that a round trains under the plan: two with a private second model."""
        return self.second.models if self.second else 1

    @property
    def choices(self) -> int:
        """Private choices that a site plans for."""
        return self.choice.count(self._terms) if self.choice else 0

    @property
    def tuning_steps(self) -> int:
        """Steps after the last round; 0: none."""
        return self.after.tuning.count(self._terms) if self.after.tuning else 0

    @property
    def tunes_all(self) -> bool:
        """Whether the steps after the last round train the whole model."""
        return self.after.tuning is not None and self.after.tuning.part == "all"

    @property
    def sends_scores(self) -> bool:
        """Whether the run ends with a histogram of scores."""
        return self.after.scores is not None

    @property
    def shrinks(self) -> bool:
        """Whether the run ends with the shrunk deviation of a site."""
        return self.after.shrink is not None

    @property
    def sent_part(self) -> Part:
        """Part of the model that is sent; empty: all of it."""
        return self.work.sent_part

    @property
    def needs_head(self) -> bool:
        """Whether the run needs a model with a head that can be told from its body."""
        tunes_head = self.after.tuning is not None and not self.tunes_all
        return self.work.needs_head or tunes_head

    @property
    def has_personal_state(self) -> bool:
        """Whether a site keeps a vector from round to round."""
        return self.work.keeps_state or self.shrinks

    @property
    def sums_updates(self) -> bool:
        """Whether a site keeps the sum of its noisy updates."""
        return self.work.sums_updates or self.shrinks

    @property
    def makes_personal_model(self) -> bool:
        """Whether the run ends with a model of a part, a tuning or a prior of the site's own."""
        return self.work.keeps_state or any(ending.makes_model for ending in self.after.kinds)

    @property
    def personal_is_private(self) -> bool:
        """Whether all that a site's own models read was noised."""
        return self.noise == "records" and (self.second is None or self.models > 1)

    def noise_factor(self, server_round: int) -> float:
        """Return the noise of a round over that of the last, which all sites share; at least 1."""
        return self.spend.noise_factor(server_round, self.rounds)

    @property
    def _terms(self) -> RunTerms:
        return cast("RunTerms", self)

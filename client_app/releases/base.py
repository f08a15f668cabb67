"""Half of a kind of release at a site: its work, and its use of the sealed payload.

``client_app/app.py`` charges, reserves, seals and sends for every kind alike; a half computes and
adds the noise of the plan.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

from client_app.site.site import Site
from hdpfl_flower.models.networks import Arrays
from hdpfl_flower.privacy.plan import Plan

if TYPE_CHECKING:
    from client_app.after_run.personal_model import PersonalModel
    from hdpfl_flower.wire import Instructions

Work = Callable[[], bytes]
"""Computation with its noise → the payload to seal."""


class SiteHalf(ABC):
    """Work of a kind that is released once a run; no use of the payload by default."""

    @abstractmethod
    def prepare(self, site: Site, plan: Plan, arrays: Arrays | None) -> Work:
        """Return the work, after everything that may fail without a charge.

        Args:
            site: owner of the records.
            plan: pays for the release.
            arrays: of the final model, of the message or with the site's own part; None at the
                start of a run.

        Raises:
            DataError: the records cannot be read, or have no meaning for the kind.
        """

    def applied(
        self, site: Site, plan: Plan, model: PersonalModel, payload: bytes
    ) -> PersonalModel:
        """Return the site's own model after a sealed payload."""
        del site, plan, payload
        return model

    def at_home(self, site: Site, model: PersonalModel) -> PersonalModel:
        """Return the site's own model of a run whose noise is not of records.

        Nothing is released: no later release may read the result.
        """
        del site
        return model


class SummedHalf(SiteHalf):
    """Work of a kind that can be a part of a sum."""

    @abstractmethod
    def summed(self, site: Site, plan: Plan, instructions: Instructions) -> Work:
        """Return the work of the part."""

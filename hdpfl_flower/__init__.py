"""Federated learning where every client keeps its own differential-privacy terms.

The names below are public: each is imported when it is first used. All others may change.

Accounting: :class:`Steps`, :func:`event_of`, :func:`epsilon_of`, :func:`calibrate`. One private
training: :func:`dp_sgd`, and its :func:`audit`. A durable budget: :class:`Ledger`. Noise-aware
averaging: :func:`mmse_weights`, :class:`NoiseTracker` and other weights. For any Flower app:
:class:`NoiseAware` around a strategy, :class:`PrivateRecords` and :class:`PrivateUpdates` in a
ClientApp. A run's terms: :class:`RunConfig`, for ``hdpfl_tools.run``.

None of them needs the packages ``client_app``, ``server_app`` and ``strategies``, which a user's
own files of these names hide.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hdpfl_flower.config.run_config import RunConfig as RunConfig
    from hdpfl_flower.doors.dp_sgd import PrivateTraining as PrivateTraining
    from hdpfl_flower.doors.dp_sgd import dp_sgd as dp_sgd
    from hdpfl_flower.doors.noise_aware import NoiseAware as NoiseAware
    from hdpfl_flower.doors.notebook import audit as audit
    from hdpfl_flower.doors.notebook import mmse_weights as mmse_weights
    from hdpfl_flower.doors.private_records import PrivateRecords as PrivateRecords
    from hdpfl_flower.doors.private_updates import PrivateUpdates as PrivateUpdates
    from hdpfl_flower.errors import HDPFLError as HDPFLError
    from hdpfl_flower.estimators.noise_tracker import NoiseTracker as NoiseTracker
    from hdpfl_flower.ledger.ledger import Ledger as Ledger
    from hdpfl_flower.linalg.projection import project_private as project_private
    from hdpfl_flower.privacy.accounting import Gaussians as Gaussians
    from hdpfl_flower.privacy.accounting import Steps as Steps
    from hdpfl_flower.privacy.accounting import calibrate as calibrate
    from hdpfl_flower.privacy.accounting import epsilon_of as epsilon_of
    from hdpfl_flower.privacy.accounting import event_of as event_of
    from hdpfl_flower.privacy.noise import RandomStream as RandomStream
    from hdpfl_flower.versions import __version__ as __version__
    from hdpfl_flower.weighting.by_epsilon import epsilon_weights as epsilon_weights
    from hdpfl_flower.weighting.inverse_variance import (
        inverse_variance_weights as inverse_variance_weights,
    )

_PUBLIC = {
    "Gaussians": "hdpfl_flower.privacy.accounting",
    "HDPFLError": "hdpfl_flower.errors",
    "Ledger": "hdpfl_flower.ledger.ledger",
    "NoiseAware": "hdpfl_flower.doors.noise_aware",
    "NoiseTracker": "hdpfl_flower.estimators.noise_tracker",
    "PrivateRecords": "hdpfl_flower.doors.private_records",
    "PrivateTraining": "hdpfl_flower.doors.dp_sgd",
    "PrivateUpdates": "hdpfl_flower.doors.private_updates",
    "RandomStream": "hdpfl_flower.privacy.noise",
    "RunConfig": "hdpfl_flower.config.run_config",
    "Steps": "hdpfl_flower.privacy.accounting",
    "__version__": "hdpfl_flower.versions",
    "audit": "hdpfl_flower.doors.notebook",
    "calibrate": "hdpfl_flower.privacy.accounting",
    "dp_sgd": "hdpfl_flower.doors.dp_sgd",
    "epsilon_of": "hdpfl_flower.privacy.accounting",
    "epsilon_weights": "hdpfl_flower.weighting.by_epsilon",
    "event_of": "hdpfl_flower.privacy.accounting",
    "inverse_variance_weights": "hdpfl_flower.weighting.inverse_variance",
    "mmse_weights": "hdpfl_flower.doors.notebook",
    "project_private": "hdpfl_flower.linalg.projection",
}
"""Public name → module that defines it."""

__all__ = sorted(_PUBLIC)  # noqa: PLE0605 - the keys of a table


def __getattr__(name: str) -> Any:
    """Import a public name."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'hdpfl_flower' has no public name '{name}'")
    definer = import_module(_PUBLIC[name])
    value = getattr(definer, name, definer)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})

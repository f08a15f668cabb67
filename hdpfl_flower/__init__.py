"""Federated learning where every client keeps its own differential-privacy terms.

The names below are public: each is imported when it is first used. All others may change.

Accounting: :class:`Steps`, :func:`event_of`, :func:`epsilon_of`, :func:`calibrate`. One private
training: :func:`dp_sgd`. A durable budget: :class:`Ledger`. Noise-aware averaging:
:class:`NoiseTracker` and the weights. For any Flower app: :class:`NoiseAware` around a strategy,
:class:`PrivateUpdates` as a mod of a ClientApp. A federation in this process: :class:`RunConfig`,
:func:`run`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from client_app.dp_sgd import PrivateTraining as PrivateTraining
    from client_app.dp_sgd import dp_sgd as dp_sgd
    from client_app.private_updates import PrivateUpdates as PrivateUpdates
    from hdpfl_flower.config.run_config import RunConfig as RunConfig
    from hdpfl_flower.errors import HDPFLError as HDPFLError
    from hdpfl_flower.estimators.client_bias import ClientDifferences as ClientDifferences
    from hdpfl_flower.estimators.client_bias import differences as differences
    from hdpfl_flower.estimators.client_bias import least_error_weights as least_error_weights
    from hdpfl_flower.estimators.noise_tracker import NoiseTracker as NoiseTracker
    from hdpfl_flower.ledger.ledger import Ledger as Ledger
    from hdpfl_flower.linalg.projection import project_private as project_private
    from hdpfl_flower.privacy import audit as audit
    from hdpfl_flower.privacy.accounting import Gaussians as Gaussians
    from hdpfl_flower.privacy.accounting import Steps as Steps
    from hdpfl_flower.privacy.accounting import calibrate as calibrate
    from hdpfl_flower.privacy.accounting import epsilon_of as epsilon_of
    from hdpfl_flower.privacy.accounting import event_of as event_of
    from hdpfl_flower.privacy.noise import RandomStream as RandomStream
    from hdpfl_flower.versions import __version__ as __version__
    from server_app.in_process.in_process_run import run_in_process as run  # noqa: F401
    from strategies.averaging.weiavg import epsilon_weights as epsilon_weights
    from strategies.core.base import HDPStrategy as HDPStrategy
    from strategies.noise_aware.around_flower import NoiseAware as NoiseAware
    from strategies.noise_aware.oracle import inverse_variance_weights as inverse_variance_weights

_PUBLIC = {
    "ClientDifferences": "hdpfl_flower.estimators.client_bias",
    "Gaussians": "hdpfl_flower.privacy.accounting",
    "HDPFLError": "hdpfl_flower.errors",
    "HDPStrategy": "strategies.core.base",
    "Ledger": "hdpfl_flower.ledger.ledger",
    "NoiseAware": "strategies.noise_aware.around_flower",
    "NoiseTracker": "hdpfl_flower.estimators.noise_tracker",
    "PrivateTraining": "client_app.dp_sgd",
    "PrivateUpdates": "client_app.private_updates",
    "RandomStream": "hdpfl_flower.privacy.noise",
    "RunConfig": "hdpfl_flower.config.run_config",
    "Steps": "hdpfl_flower.privacy.accounting",
    "__version__": "hdpfl_flower.versions",
    "audit": "hdpfl_flower.privacy.audit",
    "calibrate": "hdpfl_flower.privacy.accounting",
    "differences": "hdpfl_flower.estimators.client_bias",
    "dp_sgd": "client_app.dp_sgd",
    "epsilon_of": "hdpfl_flower.privacy.accounting",
    "epsilon_weights": "strategies.averaging.weiavg",
    "event_of": "hdpfl_flower.privacy.accounting",
    "inverse_variance_weights": "strategies.noise_aware.oracle",
    "least_error_weights": "hdpfl_flower.estimators.client_bias",
    "project_private": "hdpfl_flower.linalg.projection",
    "run": "server_app.in_process.in_process_run",
}
"""Public name → module that defines it."""
_OTHER_NAMES = {"run": "run_in_process"}
"""Public names that differ from the name in their module."""
_PACKAGES = ("client_app", "server_app", "strategies")
"""Sibling packages of this project; a user's file may hide them."""

__all__ = sorted(_PUBLIC)  # noqa: PLE0605 - the keys of a table


def __getattr__(name: str) -> Any:
    """Import a public name; raises ``ImportError`` if hidden by users' files."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'hdpfl_flower' has no public name '{name}'")
    module = _PUBLIC[name]
    try:
        definer = import_module(module)
    except ModuleNotFoundError as error:
        if hidden := _hidden_by():
            raise ImportError(hidden) from None
        if f"{module}.".startswith(f"{error.name}."):  # see fab-exclude
            raise ImportError(
                f"'{name}' is in the wheel of hdpfl-flower, and not in the app that Flower sends"
            ) from None
        raise
    value = getattr(definer, _OTHER_NAMES.get(name, name), definer)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})


def _hidden_by() -> str:
    """Return the file that hides a package, with the remedy, or empty."""
    for package in _PACKAGES:
        loaded = sys.modules.get(package)
        places = [getattr(loaded, "__file__", None), *getattr(loaded, "__path__", ())]
        ours = Path(__file__).parents[1] / package
        if other := next((p for p in places if p and not Path(p).is_relative_to(ours)), None):
            return (
                f"{other} hides the package '{package}' of hdpfl-flower; rename it, or start "
                "Python from another folder"
            )
    return ""

"""Files of an app that only some runs need: the kinds that a run config may name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from client_app.training import TRAINERS
from hdpfl_flower import noise_sources
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.errors import HDPFLError
from hdpfl_flower.noise_sources import SOURCES, NoiseSource
from hdpfl_flower.releases import KINDS, asked, asked_kind
from hdpfl_flower.releases.of_run import choices_of, has_personal_state, makes_personal_model
from hdpfl_flower.releases.shrink import Shrink
from hdpfl_flower.releases.tuning import Tuning
from hdpfl_flower.work import Alternate, Frozen, Joint, Offset

ROOT = Path(noise_sources.__file__).parents[1]


@dataclass(frozen=True)
class KindOfRun:
    """Part of the app, and the runs that need it.

    Attributes:
        name: for people.
        is_named: whether complete terms need it.
        files: of the app, which are imported for such runs alone.
    """

    name: str
    is_named: Callable[[RunTerms], bool]
    files: tuple[str, ...]


def _is_linear(terms: RunTerms) -> bool:
    """Return whether the engine for chains of linear layers covers the run's model."""
    from hdpfl_flower.engines.engines import is_linear
    from hdpfl_flower.models.networks import build_model

    try:
        return is_linear(build_model(terms.model, task_for(terms), seed=0))
    except HDPFLError:  # of a file that is not on this machine
        return False


def _trains_without_noise(terms: RunTerms) -> bool:
    tunes = asked_kind(terms, Tuning) is not None
    return not terms.source.per_record or terms.second is not None or tunes


OPTIONAL = (
    KindOfRun(
        "local training without noise",
        _trains_without_noise,
        ("client_app/training/plain_sgd.py",),
    ),
    KindOfRun(
        "a second model",
        lambda terms: terms.second is not None,
        ("client_app/training/ditto.py",),
    ),
    KindOfRun(
        "a vector of the site's own",
        lambda terms: has_personal_state(terms) or makes_personal_model(terms),
        ("client_app/work/base.py", "client_app/site/personal_state.py"),
    ),
    KindOfRun(
        "parts that stay at a site",
        lambda terms: isinstance(terms.work, Joint | Alternate | Frozen),
        ("client_app/work/parted.py",),
    ),
    KindOfRun(
        "an offset of a site's own",
        lambda terms: isinstance(terms.work, Offset),
        ("client_app/work/offset.py",),
    ),
    KindOfRun(
        "a model of the site's own",
        lambda terms: makes_personal_model(terms) or asked_kind(terms, Shrink) is not None,
        ("client_app/after_run/personal_model.py",),
    ),
    KindOfRun(
        "tests at the sites",
        lambda terms: terms.evaluation == "sites",
        ("client_app/releases/metrics.py",),
    ),
    KindOfRun(
        "updates of one number",
        # A strategy of a project may ask for them, too.
        lambda terms: "pfa-plus" in terms.strategy or ":" in terms.strategy,
        ("client_app/training/last_step.py",),
    ),
    KindOfRun(
        "noise that the run gives",
        lambda terms: terms.noise_multiplier > 0,
        ("hdpfl_flower/privacy/affordable_rounds.py",),
    ),
    KindOfRun(
        "private choices",
        lambda terms: choices_of(terms) > 0,
        (
            "client_app/releases/choice.py",
            "hdpfl_flower/privacy/noisy_max.py",
            "hdpfl_flower/privacy/exponential_mechanism.py",
        ),
    ),
    KindOfRun(
        "a backbone",
        lambda terms: terms.backbone is not None,
        (
            "hdpfl_flower/models/backbones.py",
            "hdpfl_flower/models/adapters.py",
            "client_app/site/remembered.py",
        ),
    ),
    KindOfRun(
        "networks of images",
        lambda terms: terms.model in {"cnn", "resnet18"} or terms.backbone is not None,
        ("hdpfl_flower/models/image_networks.py",),
    ),
    KindOfRun(
        "engines for models that are not a chain of linear layers",
        lambda terms: not _is_linear(terms),
        (
            "hdpfl_flower/engines/ghost_clipping.py",
            "hdpfl_flower/engines/opacus_engine.py",
        ),
    ),
)
"""Parts of the app beside the kinds of release and the sources of noise."""
_OF_KEYS = {"__init__.py", "keys.py"}
"""Modules of a source of noise that the keys of all terms need."""


def _of_noise(source: NoiseSource) -> set[str]:
    """Return the files of a source of noise that no other one needs."""
    module, _ = TRAINERS[source.name]
    files = {f"client_app/training/{module}.py"} if module != "trainer" else set[str]()
    if source.own:
        shared = ROOT / "hdpfl_flower" / source.own
        files |= {f"client_app/site/{source.own}.py"}
        names = {path.name for path in shared.glob("*.py")} - _OF_KEYS
        files |= {f"hdpfl_flower/{source.own}/{name}" for name in names}
    return files


def left_out(terms: RunTerms) -> frozenset[str]:
    """Return the files of the app that a run of complete ``terms`` does not need.

    A site with such an app declines nothing more: a run that names another kind needs another app,
    which its operator has to approve.
    """
    names = {kind.kind for kind in asked(terms)}
    halves = {f"client_app/releases/{kind}.py" for kind in KINDS if kind not in names}
    files = {file for part in OPTIONAL if not part.is_named(terms) for file in part.files}
    noise = set().union(*map(_of_noise, SOURCES.values())) - _of_noise(terms.source)
    return frozenset(halves | files | noise)

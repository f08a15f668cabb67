"""A site's personal model (Ditto): trained and stored there, never sent.

Li, Hu, Beirami and Smith, ICML 2021, with a λ for each privacy level (FedHDP, Algorithm 1): after
each round that the site takes part in, one more pass of SGD over its own records, pulled towards
the round's global model; the first pass starts there. The model never reaches the server, so it
costs no ε, and its owner decides on its readers. Its metrics are sent only where the profile
discloses ``personal-metrics``; ε does not cover them.

With ``second.kind = "private"`` the pass is one of DP-SGD: each step is clipped and noised, so
that the model, and whatever is shown of it, is differentially private. These are as many more
accesses to the records: a plan that pays for both models has twice the steps in its schedule.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from client_app.site.site import Site
from client_app.training.plain_sgd import (
    LocalJob,
    Vector,
    network_for,
    shuffled_batches,
    train_or_stay,
)
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.engines.dpsgd import Pull, train
from hdpfl_flower.engines.engine_choice import engine_for
from hdpfl_flower.engines.engines import Engine
from hdpfl_flower.errors import DataError, HDPFLError
from hdpfl_flower.models.task import Records
from hdpfl_flower.privacy.noise import ReleaseStreams
from hdpfl_flower.privacy.plan import RoundPlan
from hdpfl_flower.system.devices import pick_device
from hdpfl_flower.system.files import replace_file
from hdpfl_flower.system.printable import site_log
from hdpfl_flower.wire import Instructions

log = site_log()
PERSONAL = "personal"
"""Purpose of the pass's randomness, and the vector's name in its file."""
_TRAINING = "training"
"""Key of the file's JSON record of the last round and kind."""


def train_personal_model(site: Site, instructions: Instructions, shared: Vector) -> None:
    """Train and store the site's personal model for one round.

    A result that is not finite is dropped: the next round starts from the global model.

    Args:
        site: owner of the model.
        instructions: of the round.
        shared: the round's global model, shape ``(d,)``.

    Guarantees:
        No error here costs the site its round: the reason is written to its log.
    """
    try:
        _train(site, instructions, shared)
    except HDPFLError as reason:
        log.error("no personal model in this round: %s", reason)
    except Exception as reason:  # a full disk, too, must not lose a release
        log.error("no personal model in this round: %s", type(reason).__name__)


def _train(site: Site, instructions: Instructions, shared: Vector) -> None:
    terms = instructions.terms
    second, path = terms.second, personal_path(site)
    if second is None:
        return
    if path is None:
        log.info("no personal model: the profile has no [state]")
        return
    end = site.trained(instructions.digest, PERSONAL)
    # A second pass would start from the result of the first: the resumed run would differ.
    if site.simulated and kept_round(path) == instructions.server_round:
        return  # a simulation's round is done again after a crash; this part of it is done
    if second.models > 1:
        end = _privately(site, instructions, shared, path)
    elif end is None and (job := personal_job(site, instructions, shared)) is not None:
        device = pick_device(site.profile.training.device)
        end = train_or_stay(network_for(terms.model, site.task, device), job, terms.learning_rate)
    # Not a number once would be so for good: each pass starts from the file.
    if end is None or not np.isfinite(end).all():
        end = shared
    _keep(path, end, instructions)


def _privately(site: Site, instructions: Instructions, shared: Vector, path: Path) -> Vector | None:
    """Return the personal model after a planned round of DP-SGD."""
    terms, training = instructions.terms, site.profile.training
    plan = site.paid_plan.plan
    if terms.second is None or plan.models < 2:
        return None
    personal = load_personal_model(path, len(shared), _kind_of(terms))
    return train_personal_privately(
        engine_for(terms.model, site.task, training.engine, pick_device(training.device)),
        shared if personal is None else personal,
        site.training_records(),
        plan.round(instructions.server_round, terms.clip_norm),
        terms.learning_rate,
        site.streams(instructions.server_round, PERSONAL),
        training.physical_batch,
        pull=(terms.second.pull_of(site.profile.run.epsilon), shared),
    )


def train_personal_privately(  # noqa: PLR0913 - the last by name
    engine: Engine,
    personal: Vector,
    records: Records,
    plan: RoundPlan,
    learning_rate: float,
    streams: ReleaseStreams,
    physical_batch: int,
    *,
    pull: Pull,
) -> Vector:
    """Return a personal model after a round of DP-SGD, shape ``(d,)``.

    Args:
        engine: the model; its parameters are overwritten.
        personal: the model so far, shape ``(d,)``; in the first round the global one.
        records: the site's records.
        plan: q, C, the noise and the divisor of the round, and the steps of *this* model alone.
        learning_rate: η.
        streams: of the personal model alone, used up. With the update's streams, whoever sees the
            update and the model would see the difference of two sums under the same noise.
        physical_batch: records in memory at once.
        pull: (λ, the round's global model).

    Guarantees:
        The composition of ``plan.steps`` Gaussian mechanisms and post-processing, if ``personal``
        is a result of this function or the server's model. The charge of the update does not cover
        it: a round of both is ``2 · plan.steps.count`` steps with the same q and z.

    Raises:
        TermsError: λ or the global model is wrong, as for :func:`hdpfl_flower.engines.dpsgd.train`.
    """
    return personal + train(
        engine, personal, records, plan, learning_rate, streams, physical_batch, pull=pull
    )


def personal_job(site: Site, instructions: Instructions, shared: Vector) -> LocalJob | None:
    """Return this round's pass, or None without terms or folder.

    Raises:
        DataError: the file kept is damaged.
    """
    terms, training = instructions.terms, site.profile.training
    path = personal_path(site)
    if terms.second is None or path is None:
        return None
    personal = load_personal_model(path, len(shared), _kind_of(terms))
    stream = site.streams(instructions.server_round, PERSONAL).sampling
    records = site.training_records()
    batches = shuffled_batches(
        len(records), training.batch_size, terms.local_epochs, terms.local_steps, stream
    )
    pull = terms.second.pull_of(site.profile.run.epsilon), shared
    return LocalJob(shared if personal is None else personal, records, tuple(batches), pull)


def personal_path(site: Site) -> Path | None:
    """Return the path of a run's personal model, or None."""
    folder = site.state_folder
    return kept_personal_path(folder, site.terms) if folder else None


def _kind_of(terms: RunTerms) -> str:
    """Return the kind of the run's second model, or empty."""
    return terms.second.kind if terms.second else ""


def kept_personal_path(folder: Path, terms: RunTerms) -> Path:
    """Return the path of a run's personal model in a folder.

    Guarantees:
        Two runs never share a file, whatever their names, nor do a model trained with noise and one
        trained without it: 128 bits of a SHA-256 of both stand in the name.
    """
    # JSON separates the two: no run id can imitate the pair of another.
    named = json.dumps([terms.run_id, _kind_of(terms)])
    return folder / f"personal-{hashlib.sha256(named.encode()).hexdigest()[:32]}.safetensors"


def load_personal_model(path: Path, size: int, kind: str = "") -> Vector | None:
    """Return the parameters at ``path``, shape ``(size,)``, or None.

    Args:
        path: the file.
        size: d.
        kind: ``private`` or ``kept``, as which the model must have been trained by the file's own
            word; empty: either.

    Raises:
        DataError: the file is damaged, of another model, or was trained with other noise.
    """
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="numpy") as file:
            vector: Vector = file.get_tensor(PERSONAL)
            trained_as = _training(file.metadata())["kind"]
    except (SafetensorError, KeyError, OSError, ValueError):
        raise DataError(f"the personal model {path} is damaged; remove it to start again") from None
    if kind and trained_as != kind:
        raise DataError(
            f"the personal model {path} was trained with other noise than 'second' says; remove "
            "it to start again"
        )
    if vector.shape != (size,) or vector.dtype != np.float32:
        raise DataError(
            f"the personal model {path} does not fit the run's model; remove it to start again"
        )
    return vector


def kept_round(path: Path) -> int:
    """Return the last round of the personal model at ``path``; 0: none."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            return int(_training(file.metadata())["round"])
    except (SafetensorError, LookupError, OSError, TypeError, ValueError):
        return 0


def _keep(path: Path, vector: Vector, instructions: Instructions) -> None:
    from safetensors.numpy import save

    terms = instructions.terms
    said = {"round": instructions.server_round, "kind": _kind_of(terms)}
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # One text: safetensors writes several in another order each time.
    replace_file(path, save({PERSONAL: vector}, {_TRAINING: json.dumps(said)}))


def _training(metadata: dict[str, str] | None) -> dict[str, Any]:
    """Return the training record that :func:`_keep` noted."""
    noted = json.loads((metadata or {})[_TRAINING])
    return noted if isinstance(noted, dict) else {}

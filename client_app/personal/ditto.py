"""A site's personal model: trained beside the global one, kept here, never sent.

Ditto (ICML 2021) with a λ for each privacy level (FedHDP, Algorithm 1): after each round that the
site takes part in, one more pass of plain SGD over its own records, pulled towards the round's
global model; the first one starts there. Nothing of it reaches the server, so it costs no ε; what
its owner shows of it is the owner's to decide. With ``personal-noise = "records"`` the pass is one
of DP-SGD, for which the plan pays as for the round's own, and the model may be shown.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from client_app.training.engine_choice import engine_for
from client_app.training.plain_sgd import Job, Vector, network_for, shuffled_batches
from client_app.personal.private_ditto import train_personal_privately
from client_app.site.simulated import simulated_ledger
from client_app.site.site import Site
from client_app.training.trainer import pick_device, read_model
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.datasets import task_for
from hdpfl_flower.config.personal_lambda import check_lambdas, read_lambdas
from hdpfl_flower.errors import DataError, HDPFLError
from hdpfl_flower.system.files import replace_file
from hdpfl_flower.models.networks import flatten
from hdpfl_flower.printable import site_log
from hdpfl_flower.wire import Instructions

log = site_log()
PERSONAL = "personal"
"""What the pass's randomness is for, and the name of the vector in its file."""
_TRAINING = "training"
"""Under which the file says, as JSON, after which round it was kept and with which noise."""


def train_personal_model(site: Site, instructions: Instructions) -> None:
    """Train the site's personal model for one round and keep it, if the terms ask for one.

    A result that is not finite is dropped: the next round starts from the global model.

    Guarantees:
        Nothing that goes wrong here costs the site its round: the reason goes to its log.
    """
    try:
        _train(site, instructions)
    except HDPFLError as reason:
        log.error("no personal model in this round: %s", reason)
    except Exception as reason:  # a full disk, too, must not lose a release
        log.error("no personal model in this round: %s", type(reason).__name__)


def _train(site: Site, instructions: Instructions) -> None:
    terms = instructions.terms
    check_lambdas(terms)
    if read_lambdas(terms.personal_lambda) is None:
        return
    path = personal_path(site)
    if path is None:
        log.info("no personal model: the profile has no [state]")
        return
    end = site.trained.pop((instructions.digest, PERSONAL), None)
    if site.simulated and kept_round(path) == instructions.server_round:
        return  # a simulation's round is done again after a crash; this part of it is done
    if _noise_of(terms) == "records":
        end = _privately(site, instructions, path)
    plain = _noise_of(terms) == "none"
    job = personal_job(site, instructions) if end is None and plain else None
    if job is not None:
        device = pick_device(site.profile.training.device)
        end = network_for(terms.model, task_for(terms), device).train(job, terms.learning_rate)
    if end is None or not np.isfinite(end).all():
        end = flatten(read_model(site, instructions))
    _keep(path, end, instructions)


def _privately(site: Site, instructions: Instructions, path: Path) -> Vector | None:
    """Return the personal model after a round of DP-SGD, which the plan pays for."""
    terms, training = instructions.terms, site.profile.training
    lambdas = read_lambdas(terms.personal_lambda)
    plan, _ = site.plan(site.ledger)
    if lambdas is None or plan.models < 2:
        return None
    shared = flatten(read_model(site, instructions))
    own = load_personal_model(path, len(shared), _noise_of(terms))
    return train_personal_privately(
        engine_for(terms.model, task_for(terms), training.engine, pick_device(training.device)),
        shared if own is None else own,
        site.training_records(),
        plan.round(instructions.server_round, terms.clip_norm),
        terms.learning_rate,
        site.streams(instructions.server_round, PERSONAL),
        training.physical_batch,
        pull=(lambdas[int(math.isinf(site.profile.run.epsilon))], shared),
    )


def personal_job(site: Site, instructions: Instructions) -> Job | None:
    """Return this round's pass; None where the terms ask for none, or it could not be kept.

    Raises:
        TermsError: ``personal-lambda`` is wrong.
        DataError: the file kept is damaged.
    """
    terms, training = instructions.terms, site.profile.training
    lambdas, path = read_lambdas(terms.personal_lambda), personal_path(site)
    if lambdas is None or path is None:
        return None
    shared = flatten(read_model(site, instructions))
    own = load_personal_model(path, len(shared), _noise_of(terms))
    stream = site.streams(instructions.server_round, PERSONAL).sampling
    records = site.training_records()
    batches = shuffled_batches(
        len(records), training.batch_size, terms.local_epochs, terms.local_steps, stream
    )
    pull = lambdas[int(math.isinf(site.profile.run.epsilon))], shared
    return Job(shared if own is None else own, records, tuple(batches), pull)


def personal_path(site: Site) -> Path | None:
    """Return where the personal model of a site's run lies; None without a state folder."""
    if site.profile.state is not None:
        return kept_personal_path(site.profile.state.path, site.terms)
    return simulated_personal_path(site.terms, site.index[0]) if site.index else None


def _noise_of(terms: RunTerms) -> str:
    """Return ``records`` or ``none``, which an ``auto`` that no strategy has settled stands for."""
    return "records" if terms.personal_noise == "records" else "none"


def kept_personal_path(folder: Path, terms: RunTerms) -> Path:
    """Return where the personal model of a run lies in a site's state folder.

    Guarantees:
        Two runs never share a file, whatever their names, nor do a model trained with noise and one
        trained without it: 128 bits of a SHA-256 of both stand in the name.
    """
    named = json.dumps([terms.run_id, _noise_of(terms)])
    return folder / f"personal-{hashlib.sha256(named.encode()).hexdigest()[:32]}.safetensors"


def simulated_personal_path(terms: RunTerms, index: int) -> Path:
    """Return where a simulated site's personal model lies: in the run's own folder."""
    return simulated_ledger(terms, index).with_name("personal.safetensors")


def load_personal_model(path: Path, size: int, noise: str = "") -> Vector | None:
    """Return the parameters kept at ``path``, shape ``(size,)``; None where there are none yet.

    Args:
        path: the file.
        size: d.
        noise: what the model must have been trained with, by the file's own word: a value of
            ``personal-noise``; empty: either.

    Raises:
        DataError: the file is damaged, of another model, or was trained with other noise.
    """
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="numpy") as file:
            vector: Vector = file.get_tensor(PERSONAL)
            trained_with = _training(file.metadata()).get("noise", "none")
    except (SafetensorError, KeyError, OSError, ValueError):
        raise DataError(f"the personal model {path} is damaged; remove it to start anew") from None
    if noise and trained_with != noise:
        raise DataError(
            f"the personal model {path} was trained with other noise than 'personal-noise' says; "
            "remove it to start anew"
        )
    if vector.shape != (size,) or vector.dtype != np.float32:
        raise DataError(f"the personal model {path} is of another model; remove it to start anew")
    return vector


def kept_round(path: Path) -> int:
    """Return the round that the personal model at ``path`` was trained in last; 0: none there."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            return int(_training(file.metadata()).get("round", 0))
    except (SafetensorError, OSError, ValueError):
        return 0


def _keep(path: Path, vector: Vector, instructions: Instructions) -> None:
    from safetensors.numpy import save

    terms = instructions.terms
    said = {"round": instructions.server_round, "noise": _noise_of(terms)}
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # One text: safetensors writes several in another order each time.
    replace_file(path, save({PERSONAL: vector}, {_TRAINING: json.dumps(said)}))


def _training(metadata: dict[str, str] | None) -> dict[str, Any]:
    """Return what :func:`_keep` noted of the training; empty where there is nothing."""
    found = json.loads((metadata or {}).get(_TRAINING, "{}"))
    return found if isinstance(found, dict) else {}

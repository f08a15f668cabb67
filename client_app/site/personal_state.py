"""A site's personal state of a run, never sent.

Under ``noise = records`` every vector in it is a function of noisy releases and of the server's
messages, so that it may be shown like an update; in simulations with the client as unit it is not.
It is written after the round's release is sealed in the ledger, and a message that is answered
again leaves it as it is.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from client_app.site.site import Site
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import DataError, Declined, Reason
from hdpfl_flower.system.files import replace_file

Vector = npt.NDArray[np.float32]
_FACTS = "facts"
_VECTORS = ("part", "summed", "first")


@dataclass(frozen=True, repr=False)
class PersonalState:
    """A site's own vectors after a round.

    Attributes:
        server_round: the last round with a release in it; 0: none yet.
        rounds: how many rounds it holds.
        first_round: the first round that the site took part in; 0: none yet.
        part: the personal part, shape ``(p,)``, or under ``offset`` the site's offset, ``(d,)``.
        summed: Σ of the sent part of the site's own noisy updates, shape ``(d,)``.
        first: the shared model that the first of these updates began from, shape ``(d,)``.
        variance: of the noise in each coordinate of ``summed``.
    """

    server_round: int = 0
    rounds: int = 0
    first_round: int = 0
    part: Vector | None = None
    summed: Vector | None = None
    first: Vector | None = None
    variance: float = 0.0


def personal_state_path(site: Site) -> Path:
    """Return the path of the state of a site's run.

    Raises:
        Declined: the profile names no folder for it.
    """
    folder = site.state_folder
    if folder is None:
        raise Declined(
            Reason.PROFILE,
            "[state] is missing, but the run keeps the site's own model there; set 'state.path'",
        )
    return kept_state_path(folder, site.terms)


def kept_state_path(folder: Path, terms: RunTerms) -> Path:
    """Return the path of a run's state in a folder, unique."""
    return folder / f"part-{hashlib.sha256(terms.run_id.encode()).hexdigest()[:32]}.safetensors"


def load_state(path: Path) -> PersonalState:
    """Return the state at ``path``, or an empty one.

    Raises:
        DataError: the file is damaged.
    """
    from safetensors import SafetensorError, safe_open

    if path in _HELD:
        return _HELD[path]
    if not path.is_file():
        return PersonalState()
    try:
        with safe_open(path, framework="numpy") as file:
            facts = json.loads((file.metadata() or {})[_FACTS])
            vectors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return PersonalState(**facts, **vectors)
    except (SafetensorError, KeyError, OSError, ValueError, TypeError):
        raise DataError(
            f"the personal part {path} is damaged; restore it, or remove it to start again"
        ) from None


_HELD: dict[Path, PersonalState] = {}
"""States of simulated sites in this process, one vector each."""


def hold_state(path: Path, state: PersonalState) -> None:
    """Keep ``state`` in memory until :func:`write_states`."""
    _HELD[path] = state


def write_states() -> None:
    """Write the states of :func:`hold_state`; raises ``OSError``."""
    while _HELD:
        path, state = _HELD.popitem()
        save_state(path, state)


def path_before(path: Path) -> Path:
    """Return the path of a simulated site's previous state."""
    return path.with_name(f"before-{path.name}")


def save_state(path: Path, state: PersonalState, *, durable: bool = False) -> None:
    """Write ``state`` atomically to ``path``, after the release is sealed.

    Args:
        path: of the file.
        state: to write.
        durable: wait until the disk has it.

    Raises:
        OSError: the folder cannot be written.
    """
    from safetensors.numpy import save

    vectors = {name: getattr(state, name) for name in _VECTORS}
    facts = {
        "server_round": state.server_round,
        "rounds": state.rounds,
        "first_round": state.first_round,
        "variance": state.variance,
    }
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    content = save(
        {name: vector for name, vector in vectors.items() if vector is not None},
        {_FACTS: json.dumps(facts)},
    )
    replace_file(path, content, durable=durable)

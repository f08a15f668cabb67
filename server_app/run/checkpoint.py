"""Checkpoint of a run: one file, replaced after every round.

``checkpoint.safetensors`` holds the model, whatever arrays the strategy made of it, by name and in
their order; the memory of the strategy, its guard and its sampler; where a seeded simulation's
randomness stands; and the length of the journal. It is on disk before anything of its round leaves
the server: a model is sent, tested, shown or written elsewhere only after that, so that no round is
ever released twice with different noise. With ``noise = server`` it is as secret as the journal.

A complete run has none.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hdpfl_flower import formats
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import CheckpointError, HDPFLError
from hdpfl_flower.models.networks import Arrays
from hdpfl_flower.monitoring.journal import Event
from hdpfl_flower.privacy.noise import Positions
from hdpfl_flower.system.files import sync
from hdpfl_flower.versions import __version__, versions
from strategies.core.kernel import Kernel
from strategies.core.strategy_state import SavedState, restore_strategy

log = logging.getLogger("hdpfl.server")

NAME = "checkpoint.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """A run between two rounds.

    Attributes:
        config: the run's, settled, before the strategy proposed its own terms.
        server_round: the last finished round; 0 before the first.
        missed: rounds without a quorum up to then, one after another.
        model: as the strategy returned it.
        memory: of the strategy.
        streams: bytes that a seeded simulation took of the server's two streams; else None.
        journal: bytes that the journal had before the round's own line.
        facts: of that line, without metrics and seconds; None before the first round.
        origin: ``engine``, and the further facts that ``hdpfl resume`` needs to start it again.
    """

    config: RunConfig
    server_round: int
    missed: int
    model: Arrays
    memory: SavedState
    streams: Positions | None
    journal: int
    facts: Event | None
    origin: Mapping[str, Any]

    def restore(self, kernel: Kernel) -> None:
        """Restore a new strategy from the checkpoint; raises ``CheckpointError``."""
        try:
            restore_strategy(kernel, self.memory)
        except (LookupError, TypeError, ValueError, AttributeError, HDPFLError):
            raise CheckpointError(
                f"the checkpoint of run '{self.config.terms.run_id}' does not hold the state "
                f"that strategy '{kernel.terms.strategy}' keeps; resume with the version that "
                "wrote it"
            ) from None


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Replace the file at ``path`` atomically; an interruption leaves the old file.

    Raises:
        OSError: the disk refuses; nothing is left behind.

    Guarantees:
        When it returns the disk has the file under its name. Only its owner can read it.
    """
    from safetensors.numpy import save

    arrays = [*checkpoint.model.values(), *checkpoint.memory.arrays.values()]
    numbered = {str(i): np.asarray(array, order="C") for i, array in enumerate(arrays)}
    head = {
        "format": formats.CHECKPOINT.newest,
        "version": __version__,
        "versions": versions(),
        "terms": json.dumps(checkpoint.config.as_config(), sort_keys=True),
        "round": checkpoint.server_round,
        "missed": checkpoint.missed,
        "streams": asdict(checkpoint.streams) if checkpoint.streams else None,
        "journal": checkpoint.journal,
        "facts": checkpoint.facts,
        "origin": dict(checkpoint.origin),
        "kept": checkpoint.memory.facts,
        "model": list(checkpoint.model),
        "arrays": list(checkpoint.memory.arrays),
    }
    text = json.dumps(head)
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        # Made with its mode before it has content: a run's state is its owner's alone.
        os.close(os.open(partial, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600))
        # By Python: its error names a full disk; that of save_file is no OSError.
        partial.write_bytes(save(numbered, {"head": text, "sha256": _digest(text, numbered)}))
        partial.chmod(0o600)
        sync(partial)
        # Content on the disk, then the name: a power cut leaves the old file or the new one, whole.
        partial.replace(path)
        sync(path.parent)  # the name, too
    except BaseException:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def read_checkpoint(path: Path) -> Checkpoint:
    """Return the checkpoint at ``path``.

    Raises:
        CheckpointError: it is not there, damaged, or of another version.
    """
    from safetensors import SafetensorError, safe_open

    damaged = CheckpointError(
        f"the checkpoint {path} is damaged, so the run cannot be resumed. The model of the last "
        "round is in model.safetensors in the same folder"
    )
    if not path.is_file():
        raise CheckpointError(
            f"there is no checkpoint in {path.parent}; name the folder of an interrupted run, "
            "or its id"
        )
    try:
        with safe_open(path, framework="numpy") as file:
            said = file.metadata()
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        head = json.loads(said["head"])
        written = head["format"], head["version"]
    except (SafetensorError, LookupError, TypeError, ValueError, OSError):
        raise damaged from None
    formats.CHECKPOINT.check(written[0])
    if written != (formats.CHECKPOINT.newest, __version__):
        raise CheckpointError(
            f"hdpfl-flower {written[1]} (format {written[0]}) wrote the checkpoint {path}, and "
            f"this is {__version__} (format {formats.CHECKPOINT.newest}); resume with the "
            "version that wrote it"
        )
    if said.get("sha256") != _digest(said["head"], arrays):
        raise damaged
    _tell_of_other_versions(head["versions"])
    numbers = iter(range(len(arrays)))
    model = {name: arrays[str(next(numbers))] for name in head["model"]}
    memory = {name: arrays[str(next(numbers))] for name in head["arrays"]}
    return Checkpoint(
        config=RunConfig.parse(json.loads(head["terms"])),
        server_round=head["round"],
        missed=head["missed"],
        model=model,
        memory=SavedState(head["kept"], memory),
        streams=Positions(**head["streams"]) if head["streams"] else None,
        journal=head["journal"],
        facts=head["facts"],
        origin=head["origin"],
    )


def _digest(head: str, arrays: Mapping[str, np.ndarray[Any, Any]]) -> str:
    digest = hashlib.sha256(head.encode())
    for name in sorted(arrays):
        # Name, type and shape enter the digest, too: equal bytes of another shape are another
        # state.
        array = arrays[name]
        digest.update(f"\n{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ravel(array).view(np.uint8).data)
    return digest.hexdigest()


def _tell_of_other_versions(then: Mapping[str, str]) -> None:
    now = versions()
    other = [
        f"{name} {then[name]}, now {now.get(name)}" for name in then if then[name] != now.get(name)
    ]
    if other:
        log.warning(
            "the run began with %s: the last bits of its arrays may differ", "; ".join(other)
        )

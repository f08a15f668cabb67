"""Encrypted outputs of a backbone, kept for a run."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt
from flwr.app import ConfigRecord, RecordDict

from hdpfl_flower.models.task import Embedding, Task
from hdpfl_flower.system.files import replace_file

_KEY, _NONCE = "hdpfl.backbone", 12


@dataclass(frozen=True, eq=False)
class Remembered:
    """Embedding with outputs that a site keeps, encrypted, from message to message of a run.

    They are private data like the records. Their file lies in the state folder; its key is in the
    node's memory alone and ends with it. Flower's process has the key and not the folder.
    """

    embedding: Embedding
    memory: RecordDict
    folder: Path

    @property
    def records(self) -> Task:
        """The task of the records themselves."""
        return self.embedding.records

    def __call__(self, features: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the outputs for n records: those stored, if they are of these records."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if not len(features):
            return self.embedding(features)
        stored = self.memory.setdefault(_KEY, ConfigRecord({"key": os.urandom(32)}))
        cipher, file = AESGCM(cast("bytes", stored["key"])), self.folder / "backbone.bin"
        digest = sha256(repr(self.embedding).encode() + features.tobytes()).digest()
        try:
            sealed = file.read_bytes()
            plain = cipher.decrypt(sealed[:_NONCE], sealed[_NONCE:], digest)
            return np.frombuffer(plain, np.float32).reshape(len(features), -1).copy()
        except (OSError, InvalidTag, ValueError):  # none, of another run or other records, cut off
            outputs, nonce = self.embedding(features), os.urandom(_NONCE)
        with contextlib.suppress(OSError):  # a full disk: computed anew at the next message
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            replace_file(file, nonce + cipher.encrypt(nonce, outputs.tobytes(), digest))
        return outputs

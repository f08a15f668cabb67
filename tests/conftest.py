"""Every test works in folders of its own and leaves the user's alone."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.seconds import LONG, listed

if TYPE_CHECKING:
    from hdpfl_flower.config.profile import Profile
    from hdpfl_flower.config.terms import RunTerms

if "PYTEST_XDIST_WORKER" in os.environ:  # the workers share the cores; torch reads it at import
    os.environ.setdefault("OMP_NUM_THREADS", "1")

MEMORY, ROOM = Path("/dev/shm"), 4 * 2**30
"""Where tests write: ledgers wait for the disk at every entry. Bytes that must be free there."""
if (
    MEMORY.is_dir()
    and shutil.disk_usage(MEMORY).free > ROOM
    and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC  # a test installs commands and runs them
):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))  # pytest's own folder is below it

settings.register_profile(
    "house",
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)
settings.load_profile("house")


ENGINES = Path(__file__).parent / "e2e"
"""Where ``make test`` looks for the tests of the engines: elsewhere they would never run."""


@pytest.fixture(autouse=True, scope="session")
def _costs_by_arrays() -> None:
    """As simulations; ``tests/hdpfl_tools/measures/test_pld.py`` holds them against the library."""
    from hdpfl_flower.privacy.accounting import account_by

    def by_arrays(interval: float) -> object:
        from hdpfl_tools.measures.pld import GridAccountant

        return GridAccountant(interval)

    account_by(by_arrays)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let the garbage collector rest: what is imported stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of ``seconds.txt``, long files first; refuse engines outside of their folder.

    At the end one of two workers would be idle beside a long test.
    """
    table = listed()
    longest = dict[str, float]()
    for function, seconds in table.items():
        file = function.partition("::")[0]
        longest[file] = max(seconds, longest.get(file, 0.0))
    # By files: the fixtures of a module are set up once.
    items.sort(key=lambda item: -longest.get(item.nodeid.partition("::")[0], 0.0))
    for item in items:
        seconds = table.get(item.nodeid.partition("[")[0], 0.0)
        if seconds:
            item.add_marker("seconds")
        if seconds >= LONG:
            item.add_marker("long")
        if item.get_closest_marker("engines") and ENGINES not in item.path.parents:
            raise pytest.UsageError(f"{item.nodeid} is marked 'engines': move it to {ENGINES}")


@pytest.fixture(scope="session")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One HDPFL_HOME for the session."""
    return tmp_path_factory.mktemp("hdpfl-home")


@pytest.fixture(autouse=True)
def _own_home(monkeypatch: pytest.MonkeyPatch, shared_home: Path) -> None:
    monkeypatch.setenv("HDPFL_HOME", str(shared_home))
    monkeypatch.delenv("HDPFL_PROFILE", raising=False)


@pytest.fixture(autouse=True)
def _prepared_in_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prepare records in this process: one of its own takes seconds to import torch."""
    from client_app.site import prepared_records

    if not request.node.get_closest_marker("tool_process"):
        monkeypatch.setattr(prepared_records, "ask_tool", prepared_by)


def prepared_by(profile: Profile, terms: RunTerms) -> None:
    """Bind a run to prepared records, as the operator's tool does."""
    from hdpfl_tools.site.approval.preparation import bind_run

    bind_run(profile, terms)


@pytest.fixture
def guessed_noise(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Noise by the central limit, without the search for the least: for tests of other subjects."""
    from hdpfl_flower.privacy import accounting

    monkeypatch.setattr(accounting, "_search", accounting._gaussian_guess)
    accounting._calibrate.cache_clear()
    yield
    accounting._calibrate.cache_clear()

"""A federation and a Ray for all tests of a worker; stopped at the end, also where one failed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from hdpfl_flower.config.run_config import RunConfig
from tests.e2e.engines import SITES, Federation, Ray, free_ports, seeded_terms, write_seeded_site


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Give all tests of one federation, of Ray or of one file to one worker (--dist loadgroup)."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.xdist_group(_group(item)))


def _group(item: pytest.Item) -> str:
    used, parameters = item.fixturenames, getattr(item, "callspec", None)  # type: ignore[attr-defined]
    engine = parameters.params.get("run_on_engine") if parameters else None
    if "federation" in used or engine == "deployed":
        return "federation"
    return "ray" if "ray" in used or engine == "simulated" else item.path.stem


@pytest.fixture(scope="session")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A SuperLink and four SuperNodes "0" to "3", seeded as a simulation of four sites is."""
    yield from _federation(tmp_path_factory.mktemp("federation"))


@pytest.fixture(scope="session")
def pinned_federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """The same with process isolation; the sites run the app as it is now, and no other."""
    yield from _federation(tmp_path_factory.mktemp("pinned"), "--pin")


def _federation(home: Path, *words: str) -> Iterator[Federation]:
    for index in range(SITES):
        write_seeded_site(home / "sites" / str(index), seeded_terms(), index, SITES)
    made = Federation(home, free_ports(SITES + 3))
    try:
        started = made.call("up", *words, "--sites", home / "sites")
        assert started.returncode == 0, started.stderr
        yield made
    finally:
        made.call("down")


@pytest.fixture(scope="session")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ray]:
    """What ``flwr run`` starts for simulations."""
    made = Ray(tmp_path_factory.mktemp("ray"), free_ports(1))
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture(params=["deployed", "simulated"])
def run_on_engine(request: pytest.FixtureRequest) -> Callable[[RunConfig], Path]:
    """Each of Flower's engines: runs terms at four sites to their good end, returns the folder."""

    def deployed(terms: RunConfig) -> Path:
        folder, done = request.getfixturevalue("federation").run(terms)
        assert done.returncode == 0, done.stdout + done.stderr
        return folder

    def simulated(terms: RunConfig) -> Path:
        ray = request.getfixturevalue("ray")
        folder, streamed = ray.run(terms, SITES)
        assert ray.last_run()["status"] == "finished:completed", streamed.stdout
        return folder

    return {"deployed": deployed, "simulated": simulated}[request.param]

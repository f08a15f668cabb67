"""A federation and a Ray for all tests of a worker; stopped at the end, also where one failed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

from hdpfl_flower.config.run_config import RunConfig
from tests.e2e.engines import SITES, Federation, Ray, free_ports, seeded_terms, write_seeded_site

LONGEST = ("federation", "test_opt_out", "ray", "test_canaries", "test_inbox", "test_demo")
"""The groups of ``make test`` in the order in which they start; the others follow."""


class _ByEngine(LoadFileScheduling):
    """Gives all tests of the shared federation to one worker, and those of Ray to one.

    Long groups start first: what is left at the end, when one worker may idle, is short. Not by
    ``--dist loadgroup``: under pytest 9.2, xdist 3.8 loses the groups.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = Path(nodeid.partition("::")[0]).stem
        if file in ("test_deployed", "test_proxy", "test_slow_site") or "[deployed-" in nodeid:
            return "federation"
        return "ray" if file == "test_ray" or "[simulated-" in nodeid else file

    def _assign_work_unit(self, node: Any) -> None:
        for group in reversed(LONGEST):
            if group in self.workqueue:
                self.workqueue.move_to_end(group, last=False)
        super()._assign_work_unit(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _ByEngine | None:
    return _ByEngine(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(scope="session")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A SuperLink and four SuperNodes "0" to "3", seeded as a simulation of four sites is.

    Sites run the app as it is now, and no other; in the tests of the demo, of opting out and of
    reply times Flower's launcher loads what is sent.
    """
    home = tmp_path_factory.mktemp("federation")
    for index in range(SITES):
        write_seeded_site(home / "sites" / str(index), seeded_terms(), index, SITES)
    made = Federation(home, free_ports(SITES + 3))
    try:
        started = made.call("up", "--pin", "--sites", home / "sites")
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

"""One federation and one Ray for all tests; stopped at the end, also where a test failed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.engines import SITES, Federation, Ray, free_ports, seeded_terms, write_seeded_site


@pytest.fixture(scope="session")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A SuperLink and four SuperNodes "0" to "3", seeded as a simulation of four sites is."""
    home = tmp_path_factory.mktemp("federation")
    for index in range(SITES):
        write_seeded_site(home / "sites" / str(index), seeded_terms(), index, SITES)
    made = Federation(home, free_ports(SITES + 2))
    try:
        started = made.call("up", "--sites", home / "sites")
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

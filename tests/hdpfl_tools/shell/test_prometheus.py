"""Readings as Prometheus reads them: text, OpenMetrics, HTTP, a file; nothing of another place."""

from __future__ import annotations

import http.client
import re
import stat
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse

from hdpfl_flower.errors import DeploymentError
from hdpfl_flower.monitoring import series as metrics
from hdpfl_flower.monitoring.series import SERIES, Reading, series_at
from hdpfl_tools.shell.prometheus import Address, Exporter, keep_writing, serve, write_textfile

ODD = 'a "b"\n\\c ü'


def readings() -> Iterator[Reading]:
    yield metrics.RUN.reads(1, "r", "fedavg", "logreg", "digits")
    yield metrics.RECEIVED.reads(3, "r")
    yield metrics.WEIGHT.reads(0.25, "r", ODD)
    yield metrics.LOSS.reads(float("nan"), "r", "all")
    yield metrics.SPENT_EPSILON.reads(3.217391)


def test_text_and_openmetrics_say_the_same_and_parse() -> None:
    shown = Exporter("coordinator", readings)
    plain = {s.name: s for f in parse(shown.text().decode()) for s in f.samples}
    opened = {s.name: s for f in parse_open(shown.openmetrics().decode()) for s in f.samples}
    assert plain.keys() == opened.keys()
    assert plain["hdpfl_run_info"].labels["strategy"] == "fedavg"
    assert plain["hdpfl_run_received_bytes_total"].value == 3
    for found in (plain, opened):
        assert found["hdpfl_site_weight_ratio"].labels == {"run": "r", "site": ODD}


@pytest.mark.parametrize(("place", "shown"), [("coordinator", False), ("site", True)])
def test_only_series_of_its_own_place_are_shown(place: metrics.Place, shown: bool) -> None:
    """Whatever an exporter reads, ε is shown at the site alone, and updates at the coordinator."""
    text = Exporter(place, readings).text()
    assert (b"3.217391" in text) == shown
    assert (b"weight" in text) != shown


def test_it_answers_over_http_until_it_is_stopped() -> None:
    stop, at = serve(Exporter("coordinator", readings), Address("127.0.0.1", 0))
    try:
        with urllib.request.urlopen(f"http://{at}/metrics", timeout=10) as reply:
            assert b"hdpfl_site_weight_ratio" in reply.read()
        with pytest.raises(DeploymentError, match="--port"):
            serve(Exporter("coordinator", readings), Address("127.0.0.1", int(at.split(":")[1])))
    finally:
        stop()
    with pytest.raises(OSError):
        urllib.request.urlopen(f"http://{at}/metrics", timeout=10)


def test_a_file_is_whole_or_not_there(tmp_path: Path) -> None:
    shown, path = Exporter("site", readings), tmp_path / "site.prom"
    keep_writing(shown, path, 0, mode=0o640)
    assert b"3.217391" in path.read_bytes()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    with pytest.raises(DeploymentError, match=r"\.prom"):
        write_textfile(shown, tmp_path / "site.txt", mode=0o640)
    with pytest.raises(DeploymentError, match="cannot be written"):
        write_textfile(shown, tmp_path / "nowhere" / "site.prom", mode=0o640)
    assert [p.name for p in tmp_path.iterdir()] == ["site.prom"]


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("127.8.0.1", True),
     ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("site.example.org", False)],
)  # fmt: skip
def test_what_is_this_machine_alone(host: str, local: bool) -> None:
    assert Address(host, 1).local == local


def test_a_name_that_no_encoding_holds_and_a_long_one_end_no_exporter() -> None:
    """Before: half of a character in a run's name was an error of every scrape, for ever."""
    found = [
        metrics.WEIGHT.reads(number, run, "s")
        for number, run in enumerate(["\ud800", "r" * 300, "r" * 301, "\udcff"])
    ]
    shown = Exporter("coordinator", lambda: found)
    for write, read in ((shown.text, parse), (shown.openmetrics, parse_open)):
        try:
            (family,) = read(write().decode())
        except UnicodeEncodeError:
            pytest.fail("a scrape ends")
        assert {s.labels["run"]: s.value for s in family.samples} == {
            "\\ud800": 0, "r" * 200: 2, "\\udcff": 3,
        }  # fmt: skip
        assert len(family.samples) == 3


def answer(address: Address, headers: dict[str, str]) -> tuple[int, bytes]:
    """Serve there, ask once with these headers and no others; return the status and the body."""
    stop, at = serve(Exporter("site", readings), address)
    connection = http.client.HTTPConnection("127.0.0.1", int(at.rpartition(":")[2]), timeout=10)
    try:
        connection.putrequest("GET", "/metrics", skip_host=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()
        stop()


@pytest.mark.parametrize(
    ("at", "host", "answered"),
    [
        ("127.0.0.1", "127.0.0.1:28291", True),
        ("127.0.0.1", "localhost", True),
        ("127.0.0.1", "[::1]:28291", True),
        ("127.0.0.1", "Exporter:28291", True),  # given as a name
        ("0.0.0.0", "exporter", True),
        ("0.0.0.0", "10.0.0.7:28291", True),
        ("127.0.0.1", "10.0.0.7:28291", False),
        ("127.0.0.1", "rebound.example.org:28291", False),
        ("0.0.0.0", "rebound.example.org:28291", False),
        ("127.0.0.1", "127.0.0.1.example.org", False),
        ("127.0.0.1", "localhost@rebound.example.org", False),
        ("127.0.0.1", "rebound.example.org/localhost", False),
        ("127.0.0.1", "", False),
        ("127.0.0.1", None, False),
    ],
)
def test_foreign_host_names_are_not_answered(at: str, host: str | None, answered: bool) -> None:
    """DNS rebinding: a page of the web asks this machine by its own name."""
    headers = {} if host is None else {"Host": host}
    status, body = answer(Address(at, 0, names=("exporter",)), headers)
    assert (status == 200) == answered
    assert (b"3.217391" in body) == answered


@pytest.mark.parametrize(
    ("borne", "answered"),
    [
        ("Bearer a-token-of-some-length", True),
        (None, False),
        ("", False),
        ("Bearer ", False),
        ("Bearer a-token-of-some-lengtH", False),
        ("Basic a-token-of-some-length", False),
        ("Bearer \xff", False),
    ],
)
def test_a_request_without_the_token_is_not_answered(borne: str | None, answered: bool) -> None:
    address = Address("127.0.0.1", 0, token="a-token-of-some-length")
    assert "a-token" not in repr(address)
    headers = {"Host": "localhost"} | ({} if borne is None else {"Authorization": borne})
    status, body = answer(address, headers)
    assert status == (200 if answered else 401)
    assert (b"3.217391" in body) == answered


# --- the list of series: their names, their places, their readings


BUDGET = ("epsilon", "delta", "multiplier", "releases", "requests", "entries")
"""Units that tell of a site's budget: its own exporter alone may have them."""


def test_names_are_unique_and_as_prometheus_wants_them() -> None:
    names = [series.name for series in SERIES]
    assert len(set(names)) == len(names) > 40
    for series in SERIES:
        assert re.fullmatch(r"hdpfl(_[a-z]+)+", series.name), series.name
        assert series.counter == series.name.endswith("_total")
        assert series.meaning.endswith("."), series.name
        assert len(set(series.labels)) == len(series.labels)


def test_every_series_has_one_place_and_no_budget_is_the_coordinators() -> None:
    ours, sites = set(series_at("coordinator")), set(series_at("site"))
    assert ours | sites == set(SERIES)
    assert not ours & sites
    assert all(series.labels[0] in ("run", "file") for series in ours)
    assert [series.name for series in ours if series.unit in BUDGET] == []
    assert {series.unit for series in sites} >= set(BUDGET)

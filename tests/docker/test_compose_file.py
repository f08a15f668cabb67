"""``docker/compose.yml`` as it stands: what every container may do, see and reach.

Needs no Docker. Each rule is also held against a copy of the file with a bug in it.
"""

from __future__ import annotations

import copy
import importlib
import itertools
import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from hdpfl_flower.versions import __version__
from hdpfl_tools.coordinator.commands import app as coordinator_app
from hdpfl_tools.site.commands import app as site_app
from hdpfl_tools.site.service_files import Services
from tests.deploy.test_systemd import PARSERS, program_of
from tests.hdpfl_tools.site.test_service_files import services_of_a_site

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker" / "compose.yml").read_text())
SITES = ("cleveland", "hungarian", "switzerland", "va")
ONCE = ("setup", "register", "run", "ledger")
ALONE = ("node", "tasks", "site-exporter")
"""Services of the file that ``hdpfl-site join`` writes."""
Compose = dict[str, Any]
services = services_of_a_site


def site_of(service: str) -> str:
    """Return whose container it is; empty for the coordinator's."""
    return next((site for site in SITES if service.startswith(f"{site}-")), "")


def volumes(service: dict[str, Any]) -> dict[str, str]:
    """Return the mode of each volume by its name."""
    parts = [text.split(":") for text in service.get("volumes", [])]
    return {name: mode[0] if mode else "rw" for name, _, *mode in parts}


def check_sealed(compose: Compose) -> None:
    """Nobody is root, has a capability, gets one, writes to the image, or takes all there is."""
    for name, service in compose["services"].items():
        assert service["read_only"] and service["init"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["user"].split(":")[0] not in ("0", "root"), name
        assert "privileged" not in service and "cap_add" not in service, name
        assert {"mem_limit", "cpus", "pids_limit"} <= service.keys(), name


def check_pinned(compose: Compose) -> None:
    """Every image has a version, or is named by the operator; ours has that of the package."""
    for name, service in compose["services"].items():
        image = re.sub(r"\$\{HDPFL_(VERSION|IMAGE):-([^}]+)\}", r"\2", service["image"])
        assert re.fullmatch(r".*:v?\d+\.\d+\.\d+", image), name
        if "hdpfl" in image:
            role = "site" if site_of(name) or name in ALONE else "coordinator"
            assert image == f"hdpfl-{role}:{__version__}", name


def check_watched(compose: Compose) -> None:
    """What stays up is looked at, and started again when it ends."""
    for name, service in compose["services"].items():
        if name in ONCE:
            assert service["restart"] == "no", name
        else:
            assert service["restart"] == "unless-stopped", name
            assert service["healthcheck"]["test"][0] == "CMD", name


def check_apart(compose: Compose) -> None:
    """No network has containers of two sites; of the coordinator's only the SuperLink is beside."""
    members: dict[str, set[str]] = {}
    for name, service in compose["services"].items():
        for network in service.get("networks", ()):
            members.setdefault(network, set()).add(name)
        assert "networks" in service or service["network_mode"] == "none", name
    assert members.keys() == compose["networks"].keys()
    for network, names in members.items():
        owners = {site_of(name) for name in names}
        beside = {name for name in names if not site_of(name)}
        assert len(owners - {""}) <= 1, network
        assert owners == {""} or beside <= {"superlink"}, network
        inside = compose["networks"][network].get("internal", False)
        assert inside or all(name.endswith("grafana") for name in names), network


def check_nothing_listens_outside(compose: Compose) -> None:
    """Of all ports only Grafanas' are published, to this machine."""
    for name, service in compose["services"].items():
        ports = service.get("ports", [])
        assert bool(ports) == name.endswith("grafana"), name
        assert all(port.startswith("127.0.0.1:") for port in ports), name


def check_seen(compose: Compose) -> None:
    """A volume of a site is in its own containers alone, read-only unless they write there."""
    for name, service in compose["services"].items():
        if name == "setup":
            continue
        site, role = site_of(name), name.rsplit("-", 1)[-1]
        for volume, mode in volumes(service).items():
            assert site_of(volume) == site or volume == "public", (name, volume)
            kind = volume.removeprefix(f"{site}-") if site else volume
            assert mode == ("rw" if (kind, role) in WRITES else "ro"), (name, volume)
            if kind in SEES:
                assert role in SEES[kind], (name, volume)


WRITES = {
    ("ledger", "tasks"), ("anchor", "tasks"), ("state", "tasks"), ("ledger", "exporter"),
    ("anchor", "exporter"), ("prometheus", "prometheus"), ("superlink", "superlink"),
    ("runs", "tasks"), ("operator", "register"), ("operator", "run"),
}  # fmt: skip
SEES = {
    "certs": (), "key": ("node",), "superlink-key": ("superlink",), "secret": ("node", "tasks"),
    "files": ("tasks", "exporter"), "ledger": ("tasks", "exporter"), "state": ("tasks", "exporter"),
    "anchor": ("tasks", "exporter"), "superlink-secret": ("superlink", "tasks"),
}  # fmt: skip
"""Which roles see a kind of volume, and which write to it."""


def check_pinned_code(compose: Compose) -> None:
    """At a site only approved apps are in PATH, for whatever starts what a server asks for."""
    for site, role in itertools.product(SITES, ("node", "tasks")):
        environment = compose["services"][f"{site}-{role}"]["environment"]
        assert environment["PATH"] == "/srv/hdpfl/approved/bin"


def check_options(compose: Compose) -> None:
    """Every option is one of the installed program; TLS is off on the sites' own networks alone."""
    for name, service in compose["services"].items():
        for program, *words in programs(service.get("command", [])):
            given = {word.split("=")[0] for word in words if word.startswith("--")}
            if program in PARSERS:
                module, function = PARSERS[program]
                parser = getattr(importlib.import_module(module), function)()
                assert given <= set(parser._option_string_actions), name
            elif program in ("hdpfl", "hdpfl-site"):
                assert given <= options(program, words), name
            if "--insecure" in given:
                where = site_of(name) and name.endswith(("-tasks", "-exporter"))
                assert where or name == "tasks", name


def programs(command: list[str]) -> list[list[str]]:
    """Return the programs of a command, each with its words; those of a shell, too."""
    if command[:2] == ["/bin/sh", "-c"]:
        lines = re.split(r"&&", re.sub(r"\bexec ", "", command[2]))
        return [program_of(words) for words in map(shlex.split, lines)]
    return [program_of(command)] if command else []


def options(program: str, words: list[str]) -> set[str]:
    command = typer.main.get_command({"hdpfl": coordinator_app, "hdpfl-site": site_app}[program])
    for word in words:
        if word not in getattr(command, "commands", {}):
            break
        command = command.commands[word]  # type: ignore[attr-defined]
    return {option for parameter in command.params for option in parameter.opts}


CHECKS = (check_sealed, check_pinned, check_watched, check_apart, check_nothing_listens_outside,
          check_seen, check_pinned_code, check_options)  # fmt: skip


@pytest.mark.parametrize("check", CHECKS)
def test_the_file(check: Callable[[Compose], None]) -> None:
    check(COMPOSE)


@pytest.mark.parametrize("check", [check_sealed, check_pinned, check_watched, check_options])
def test_the_file_of_a_coordinator(check: Callable[[Compose], None]) -> None:
    compose = yaml.safe_load((ROOT / "docker" / "coordinator.yml").read_text())
    assert compose["services"]["proxy"]["network_mode"] == "service:superlink"
    check(compose)


@pytest.mark.parametrize("check", [check_sealed, check_pinned, check_watched, check_options])
def test_the_file_of_an_invited_site(
    check: Callable[[Compose], None], services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    check(yaml.safe_load(services.compose()))


BUGS: dict[str, tuple[Callable[[Compose], None], Callable[[dict[str, Any]], object]]] = {
    "a container of root": (check_sealed, lambda s: s["va-tasks"].update(user="0:0")),
    "a root file system that can be written": (
        check_sealed, lambda s: s["va-node"].update(read_only=False)),
    "capabilities kept": (check_sealed, lambda s: s["exporter"].update(cap_drop=[])),
    "a container without a limit": (check_sealed, lambda s: s["va-tasks"].pop("mem_limit")),
    "whatever image is newest": (
        check_pinned, lambda s: s["grafana"].update(image="grafana/grafana:latest")),
    "a container that nobody starts again": (
        check_watched, lambda s: s["superlink"].update(restart="no")),
    "two sites on one network": (
        check_apart, lambda s: s["va-node"]["networks"].update({"cleveland": {}})),
    "a site's tasks beside the coordinator": (
        check_apart, lambda s: s["exporter"]["networks"].update({"va": {}})),
    "the coordinator's Prometheus asks a site": (
        check_apart, lambda s: s["prometheus"]["networks"].update({"va-watch": {}})),
    "a site's exporter that reaches the world": (
        check_apart, lambda s: s["va-exporter"]["networks"].update({"va-view": {}})),
    "a port that everybody reaches": (
        check_nothing_listens_outside, lambda s: s["grafana"].update(ports=["3000:3000"])),
    "the SuperLink's port published": (
        check_nothing_listens_outside,
        lambda s: s["superlink"].update(ports=["127.0.0.1:8000:8000"])),
    "records that can be written": (
        check_seen, lambda s: s["va-tasks"].update(volumes=["va-files:/site"])),
    "records at the node": (
        check_seen, lambda s: s["va-node"]["volumes"].append("va-files:/site:ro")),
    "the key where the tasks run": (
        check_seen, lambda s: s["va-tasks"]["volumes"].append("va-key:/run/hdpfl/key:ro")),
    "another site's ledger": (
        check_seen, lambda s: s["va-exporter"]["volumes"].append("cleveland-ledger:/other:ro")),
    "everybody's keys": (
        check_seen, lambda s: s["superlink"]["volumes"].append("certs:/certs:ro")),
    "any code that is sent": (
        check_pinned_code, lambda s: s["va-tasks"]["environment"].update(PATH="/usr/bin")),
    "tasks of the coordinator without TLS": (
        check_options, lambda s: s["superlink-tasks"]["command"].append("--insecure")),
}  # fmt: skip


@pytest.mark.parametrize("bug", BUGS)
def test_the_file_with_a_bug_is_refused(bug: str) -> None:
    check, put_in = BUGS[bug]
    broken = copy.deepcopy(COMPOSE)
    put_in(broken["services"])
    with pytest.raises(AssertionError):
        check(broken)

"""``docker/compose.yml`` for real: a run over four sites, what each container sees and reaches."""

from __future__ import annotations

import json
import os
import re
import secrets
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from hdpfl_flower.monitoring.series import series_at
from tests.docker.stack import (
    PORTS,
    PYTHON,
    ROLES,
    ROOT,
    SITES,
    Done,
    Stack,
    missing,
    quietly,
    started,
)

pytestmark = pytest.mark.docker

TERMS = tomllib.loads((ROOT / "deploy" / "demo" / "run.toml").read_text())
APP = ("superlink", "superlink-tasks", "exporter")
AT_SITES = tuple(f"{site}-{role}" for site in SITES for role in ROLES)
STAYING = (*APP, "prometheus", "grafana", *AT_SITES)
"""All containers that are up as long as the federation is."""


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    if lacking := missing():
        pytest.skip(f"this machine lacks {lacking}")
    bundle = os.environ.get("PIP_CERT")
    with started(f"hdpfl-{secrets.token_hex(3)}", Path(bundle) if bundle else None) as made:
        yield made


@pytest.fixture(scope="module")
def ended(stack: Stack) -> Done:
    """What ``run`` said at its end."""
    return stack.compose("run", "--rm", "-T", "run")


def verified(stack: Stack, site: str) -> str:
    done = stack.execute(f"{site}-exporter", "hdpfl-site", "ledger")
    assert done.returncode == 0, done.stderr
    return done.stdout


def report(stack: Stack, site: str) -> dict[str, dict[str, int]]:
    done = stack.execute(f"{site}-exporter", "hdpfl-site", "report", "--json")
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def rounds(stack: Stack) -> list[dict[str, object]]:
    """Return the rounds of the newest run."""
    text = stack.python(
        "exporter",
        "from pathlib import Path; print(max(Path('/hdpfl/runs').glob('*/journal.jsonl'),"
        " key=lambda path: path.stat().st_mtime).read_text())",
    )
    events = [json.loads(line) for line in text.splitlines() if line]
    return [event for event in events if event["event"] == "round"]


def test_the_run_completes_with_every_site_in_every_round(stack: Stack, ended: Done) -> None:
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    assert [event["accepted"] for event in rounds(stack)] == [list(SITES)] * TERMS["rounds"]
    assert "protected: " in ended.stdout


@pytest.mark.parametrize("site", SITES)
def test_each_ledger_has_the_releases_of_the_run(stack: Stack, ended: Done, site: str) -> None:
    assert "entries verified" in verified(stack, site)
    told = report(stack, site)
    assert told["updates"] == {"reserved": 0, "sealed": 0, "sent": TERMS["rounds"], "lost": 0}


def test_every_container_is_well(stack: Stack, ended: Done) -> None:
    for service in STAYING:
        stack.wait_until_healthy(service)
        assert stack.inspect(service)["RestartCount"] == 0, stack.logs(service)[-20:]


def test_every_exporter_is_scraped(stack: Stack, ended: Done) -> None:
    assert stack.wait_for("coordinator", 'up{job="hdpfl"} == 1') == 1
    assert stack.wait_for("coordinator", f"hdpfl_run_finished_rounds == {TERMS['rounds']}")
    for site in SITES:
        assert stack.wait_for(site, 'up{job="hdpfl-site"} == 1') == 1
        assert stack.wait_for(site, "hdpfl_ledger_intact_bool") == 1
        profile = tomllib.loads((ROOT / "deploy" / "demo" / site / "profile.toml").read_text())
        charged = stack.wait_for(site, "hdpfl_run_charged_epsilon > 0")
        assert charged == pytest.approx(profile["run"]["epsilon"])


def named(text: str) -> set[str]:
    """Return the series that an exporter shows."""
    return set(re.findall(r"^(hdpfl_\w+)", text, re.M))


def test_no_epsilon_is_at_the_coordinator(stack: Stack, ended: Done) -> None:
    """Not at its exporter, and not in its Prometheus, whatever asked what."""
    there = stack.metrics("coordinator")
    assert named(there)
    private = {series.name for series in series_at("site")}
    assert not named(there) & private
    assert "epsilon" not in there
    assert stack.ask("coordinator", "{__name__=~'hdpfl_(budget|plan|ledger|run_charged).*'}") == []
    for site in SITES:  # or nothing would have been looked for
        assert "hdpfl_budget_taken_ratio" in named(stack.metrics(site))
        assert named(stack.metrics(site)) <= private


REACH = """
import socket
from concurrent.futures import ThreadPoolExecutor
def reached(address):
    try:
        socket.create_connection(address, timeout=2).close()
    except OSError:
        return False
    return True
addresses = {addresses}
with ThreadPoolExecutor(len(addresses)) as pool:
    print([a for a, there in zip(addresses, pool.map(reached, addresses)) if there])
"""


def reached(stack: Stack, source: str, targets: list[str]) -> set[str]:
    """Return which services answer ``source``, at any of their addresses and ports."""
    owners = {
        network["IPAddress"]: target
        for target in targets
        for network in stack.inspect(target)["NetworkSettings"]["Networks"].values()
    }
    assert "" not in owners
    addresses = [(ip, port) for ip in owners for port in PORTS]
    found = eval(stack.python(source, REACH.format(addresses=addresses)))
    return {owners[ip] for ip, _ in found}


@pytest.mark.parametrize("site", SITES)
def test_no_container_of_a_site_reaches_another_sites(stack: Stack, site: str) -> None:
    others = [name for name in AT_SITES if not name.startswith(site)]
    for role in ROLES:
        assert reached(stack, f"{site}-{role}", others) == set(), role
    for role, own in (
        ("node", {"superlink", f"{site}-node"}),
        ("tasks", {f"{site}-node"}),  # not even the coordinator
        ("prometheus", {f"{site}-exporter", f"{site}-prometheus"}),
        ("exporter", {f"{site}-exporter", f"{site}-prometheus"}),
    ):
        near = ["superlink", *(f"{site}-{name}" for name in ROLES)]
        assert reached(stack, f"{site}-{role}", near) == own, role


SEALED = """
status = dict(line.split(':', 1) for line in open('/proc/self/status'))
assert int(status['CapEff'], 16) == int(status['CapBnd'], 16) == 0, status
assert status['NoNewPrivs'].strip() == '1'
assert '0' not in status['Uid'].split(), status['Uid']
try:
    open('/here', 'w')
except OSError as error:
    print(error.strerror)
"""


def test_every_container_is_sealed(stack: Stack) -> None:
    for service in STAYING:
        assert stack.python(service, SEALED).strip() == "Read-only file system", service
        assert stack.inspect(service)["HostConfig"]["Init"] is True


def test_each_container_sees_what_it_needs_and_no_more(stack: Stack) -> None:
    def there(service: str, *paths: str) -> list[bool]:
        code = f"import os; print([os.access(p, os.R_OK) for p in {paths}])"
        return list(json.loads(stack.python(service, code).lower()))

    records, key, ledger = "/site/data.csv", "/run/hdpfl/key/node.key", "/site/ledger/ledger.sqlite"
    shared = f"{ledger}.peers/own.key"
    for site in SITES:
        assert there(f"{site}-node", records, key, ledger, shared) == [False, True, False, False]
        assert there(f"{site}-tasks", records, key, ledger, shared) == [True, False, True, True]
        assert there(f"{site}-exporter", records, key, ledger, shared) == [True, False, True, True]
        for words in ("open('/site/data.csv', 'a')", "open('/site/profile.toml', 'a')"):
            done = stack.execute(f"{site}-tasks", PYTHON, "-c", words)
            assert "Read-only file system" in done.stderr


def test_no_secret_is_an_argument_or_in_a_log(stack: Stack, ended: Done) -> None:
    code = "print(open('/run/hdpfl/{}').read())"
    for service in ("superlink", *(f"{site}-node" for site in SITES)):
        told = json.dumps(stack.inspect(service)) + "\n".join(stack.logs(service))
        secret = stack.python(service, code.format("secret/superexec.secret")).strip()
        assert len(secret) == 64
        assert secret not in told
        assert "PRIVATE KEY" not in told


def test_the_second_run_shares_its_noise(stack: Stack, ended: Done) -> None:
    program = ("python", "/srv/hdpfl/src/deploy/containers.py")
    terms = "/srv/hdpfl/src/deploy/demo/shared.toml"
    done = stack.compose("run", "--rm", "-T", "run", *program, "run", terms)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    asked = tomllib.loads((ROOT / "deploy" / "demo" / "shared.toml").read_text())["rounds"]
    assert [event["accepted"] for event in rounds(stack)] == [list(SITES)] * asked


LISTED = """
import json, re
parts = json.load(open('/srv/hdpfl/sbom.cdx.json'))['components']
names = {part['name'].lower() for part in parts}
listed = {line.split()[0].lower() for line in open('/srv/hdpfl/licences.txt').readlines()[1:]}
import importlib.metadata as m
there = {one.metadata['Name'].lower() for one in m.distributions()}
print(json.dumps([sorted(names), sorted(listed), sorted(there)]))
"""
NOT_AT_A_SITE = re.compile(
    "nvidia-.*|cuda-.*|triton|ray|pytest.*|mypy.*|jupyter.*|mkdocs.*|ruff|matplotlib|pip"
)


@pytest.mark.parametrize(
    ("service", "unwanted"),
    [("cleveland-tasks", NOT_AT_A_SITE), ("exporter", re.compile("nvidia-.*|triton|ray|pytest.*"))],
)
def test_an_image_holds_its_list(stack: Stack, service: str, unwanted: re.Pattern[str]) -> None:
    names, listed, there = json.loads(stack.python(service, LISTED))
    assert set(there) <= set(names) and set(there) <= set(listed)
    assert not [name for name in there if unwanted.fullmatch(name)]
    size = json.loads(quietly("docker", "image", "inspect", stack.inspect(service)["Image"]).stdout)
    assert size[0]["Size"] <= 2.6e9


# --- what goes wrong, and where the operator reads it -----------------------------------------


KILL = """
import os, signal
for pid in os.listdir('/proc'):
    if pid.isdigit() and pid != '1' and int(pid) != os.getpid():
        os.kill(int(pid), signal.SIGKILL)
"""


def test_a_container_that_is_killed_comes_back(stack: Stack, ended: Done) -> None:
    before = verified(stack, "va")
    stack.execute("va-tasks", PYTHON, "-c", KILL)
    stack.wait_until_healthy("va-tasks", restarts=1)  # before it, it is healthy from then
    assert stack.inspect("va-tasks")["RestartCount"] == 1
    assert verified(stack, "va") == before


def test_a_profile_that_is_missing(stack: Stack, ended: Done) -> None:
    """``setup`` is the one that could take it away, and puts it back."""
    files = "/hdpfl/federation/sites/va/"
    away = f"import os; os.rename('{files}profile.toml', '{files}away.toml')"
    stack.do("run", "--rm", "-T", "--no-deps", "setup", "python", "-c", away)
    try:
        stack.do("restart", "va-tasks")
        stack.wait_for_line("va-tasks", "error: profile /site/profile.toml is not there; write "
                            "one: hdpfl-site profile new")  # fmt: skip
    finally:
        stack.do("run", "--rm", "-T", "--no-deps", "setup")
    stack.wait_until_healthy("va-tasks")


def test_a_ledger_that_cannot_be_written(stack: Stack, ended: Done, tmp_path: Path) -> None:
    before = verified(stack, "va")
    override = tmp_path / "readonly.yml"
    override.write_text('services: {va-tasks: {volumes: ["va-ledger:/site/ledger:ro"]}}\n')
    stack.do("up", "-d", "--no-deps", "va-tasks", more=(override,))
    line = stack.wait_for_line("va-tasks", "cannot be written")
    assert re.fullmatch(r"error +ledger: /site/ledger/ledger.sqlite cannot be written by this "
                        r"user, so the site would refuse a run: check its owner, and that its "
                        r"volume is not mounted read-only", line)  # fmt: skip
    stack.do("up", "-d", "--no-deps", "va-tasks")
    stack.wait_until_healthy("va-tasks")
    assert verified(stack, "va") == before


SHORT = """
sed 's/^rounds = .*/rounds = 2/' /srv/hdpfl/src/deploy/demo/run.toml > /tmp/short.toml &&
exec python /srv/hdpfl/src/deploy/containers.py run /tmp/short.toml
"""


def test_another_versions_site_runs_nothing(stack: Stack, ended: Done, tmp_path: Path) -> None:
    """What another version's image has, an approved app of another digest, is mounted over ours."""
    before, volume = verified(stack, "va"), f"{stack.project}_other"
    override = tmp_path / "other.yml"
    override.write_text(
        'services: {va-tasks: {volumes: ["other:/srv/hdpfl/approved"]}}\nvolumes: {other: {}}\n'
    )
    rename = "cd /srv/hdpfl/approved/apps && mv * $(head -c 64 /dev/zero | tr '\\0' 0)"
    stack.do("up", "-d", "--no-deps", "va-tasks", more=(override,))
    quietly("docker", "run", "--rm", "--user=0:0", "-v", f"{volume}:/srv/hdpfl/approved",
            "hdpfl-site:test", "sh", "-c", rename)  # fmt: skip
    stack.wait_until_healthy("va-tasks")
    stack.do("run", "--rm", "-T", "run", "sh", "-c", SHORT)
    assert [event["accepted"] for event in rounds(stack)] == [["cleveland", "hungarian",
                                                               "switzerland"]] * 2  # fmt: skip
    line = stack.wait_for_line("va-tasks", "error: ")
    assert re.match(r"error: the app of this run is not approved, SHA-256 [0-9a-f]{64}; nothing of "
                    r"it was run\.", line)  # fmt: skip
    assert verified(stack, "va") == before

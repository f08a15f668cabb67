"""``deploy/kubernetes`` as it stands: valid for Kubernetes, sealed, a site that nobody calls.

Needs no cluster. Each rule is also held against a copy of the files with a bug in it.
"""

from __future__ import annotations

import copy
import importlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from hdpfl_flower.versions import __version__
from tests.deploy.test_systemd import PARSERS
from tests.docker.test_compose_file import COMPOSE, options, programs

ROOT = Path(__file__).parents[2]
OLDEST, NEWEST = "1.29", kubernetes_validate.latest_version()
Manifest = dict[str, Any]
Manifests = dict[tuple[str, str, str], Manifest]
"""(namespace, kind, name) → the object."""
SITE, COORDINATOR = "hdpfl-site", "hdpfl-coordinator"


def read() -> Manifests:
    found: Manifests = {}
    for path in sorted((ROOT / "deploy" / "kubernetes").glob("*.yml")):
        for one in yaml.safe_load_all(path.read_text()):
            about = one["metadata"]
            key = (about.get("namespace", ""), one["kind"], about["name"])
            assert key not in found, key
            found[key] = one
    return found


MANIFESTS = read()


def pods(all_: Manifests) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield namespace, name and pod of each workload."""
    for (namespace, kind, name), one in all_.items():
        if kind in ("Deployment", "Job"):
            yield namespace, name, one["spec"]["template"]["spec"]


def containers(all_: Manifests) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the pod's and its own name of each container, first ones included."""
    for _, name, pod in pods(all_):
        for one in (*pod.get("initContainers", ()), *pod["containers"]):
            yield name, one["name"], one


def mounts(container: dict[str, Any]) -> dict[str, bool]:
    """Return whether each volume may be written to, by its name."""
    return {m["name"]: not m.get("readOnly", False) for m in container["volumeMounts"]}


def check_schema(all_: Manifests) -> None:
    """Kubernetes accepts every object, and knows every key of it."""
    for one in all_.values():
        for version in (OLDEST, NEWEST):
            kubernetes_validate.validate(one, version, strict=True)


def check_sealed(all_: Manifests) -> None:
    """What the restricted standard asks of pods, and a root file system that nobody writes to."""
    for namespace in (SITE, COORDINATOR):
        labels = all_["", "Namespace", namespace]["metadata"]["labels"]
        assert labels == {"pod-security.kubernetes.io/enforce": "restricted"}
    for _, name, pod in pods(all_):
        assert pod["automountServiceAccountToken"] is False, name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys(), name
        who = pod["securityContext"]
        assert who["runAsNonRoot"] and who["runAsUser"] == 49999, name
        assert who["seccompProfile"] == {"type": "RuntimeDefault"}, name
        kinds = {kind for volume in pod["volumes"] for kind in volume.keys() - {"name"}}
        assert kinds <= {"configMap", "emptyDir", "persistentVolumeClaim", "secret"}, name
    for pod_name, name, one in containers(all_):
        assert one["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }, (pod_name, name)  # fmt: skip
        assert "memory" in one["resources"]["limits"], (pod_name, name)
        assert re.fullmatch(r".*:\d+\.\d+\.\d+", one["image"]), name
        own = {f"hdpfl-{role}:{__version__}" for role in ("site", "coordinator")}
        assert "hdpfl" not in one["image"] or one["image"] in own, name


def check_single(all_: Manifests) -> None:
    """A ledger, a node's key and the SuperLink's database have one writer at any time."""
    for (_, kind, name), one in all_.items():
        if kind == "Deployment":
            assert (one["spec"]["replicas"], one["spec"]["strategy"]) == (
                1,
                {"type": "Recreate"},
            ), name


def check_kept(all_: Manifests) -> None:
    """The ledger and its anchor are on volumes that outlive pods, and not on the same one."""
    for _, name, pod in pods(all_):
        for volume in pod["volumes"]:
            if volume["name"] in ("ledger", "anchor", "state", "records", "runs", "superlink"):
                claim = volume["persistentVolumeClaim"]["claimName"]
                assert claim == volume["name"], name


def check_seen(all_: Manifests) -> None:
    """The key is in what calls out alone; records are in what trains, and nobody writes them."""
    for pod, name, one in containers(all_):
        for volume, written in mounts(one).items():
            if volume in SEES:
                assert (pod, name) in SEES[volume], (pod, name, volume)
            if volume in ("key", "secret", "records", "profile", "ca", "coordinator", "proxy"):
                assert not written, (pod, name, volume)


SEES = {
    "key": {("node", "node"), ("superlink", "superlink"), ("superlink", "proxy")},
    "secret": {("node", "node"), ("tasks", "tasks"), ("superlink", "superlink"),
               ("superlink", "tasks")},
    "records": {("tasks", "tasks")},
    "profile": {("tasks", "profile"), ("ledger-init", "profile")},
    "ledger": {("tasks", "tasks"), ("tasks", "exporter"), ("ledger-init", "ledger-init")},
}  # fmt: skip


def check_secrets_are_elsewhere(all_: Manifests) -> None:
    """No key and no profile is in a file of this repository, or in a container's environment."""
    assert not {kind for _, kind, _ in all_} & {"Secret"}
    for _, name, one in containers(all_):
        assert not any("secretKeyRef" in str(each) for each in one.get("env", ())), name


def check_network(all_: Manifests) -> None:
    """By default nothing passes; a site's node calls one address, its tasks the node alone."""
    policies = {name: one["spec"] for (ns, kind, name), one in all_.items()
                if ns == SITE and kind == "NetworkPolicy"}  # fmt: skip
    assert policies["nothing"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    assert policies.keys() == {"nothing", "names", "node", "tasks"}
    (call,) = policies["node"]["egress"]
    assert [peer["ipBlock"]["cidr"][-3:] for peer in call["to"]] == ["/32"]
    assert [port["port"] for port in call["ports"]] == [8000]
    (inside,) = policies["tasks"]["egress"]
    assert inside["to"] == [{"podSelector": {"matchLabels": {"app": "node"}}}]
    (asked,) = policies["node"]["ingress"]
    assert asked["from"] == [{"podSelector": {"matchLabels": {"app": "tasks"}}}]
    (watched,) = policies["tasks"]["ingress"]
    assert [port["port"] for port in watched["ports"]] == [28291] and watched["from"]
    (names,) = policies["names"]["egress"]
    assert {port["port"] for port in names["ports"]} == {53}
    outside = {
        key[0] for key, one in all_.items()
        if key[1] == "Service" and one["spec"].get("type", "ClusterIP") != "ClusterIP"
    }  # fmt: skip
    assert outside == {COORDINATOR} and not {kind for _, kind, _ in all_} & {"Ingress"}
    coordinator = all_[COORDINATOR, "NetworkPolicy", "superlink"]["spec"]
    assert coordinator["egress"] == [] and coordinator["podSelector"] == {}
    assert coordinator["ingress"][0] == {"ports": [{"port": 8000, "protocol": "TCP"}]}
    assert all(rule["from"] for rule in coordinator["ingress"][1:])


def check_programs(all_: Manifests) -> None:
    """Every option is one of the installed program; a site's code is pinned as in containers."""
    count = 0
    for pod, name, one in containers(all_):
        for program, *words in programs(one.get("command", [])):
            given = {word.split("=")[0] for word in words if word.startswith("--")}
            if program in PARSERS:
                module, function = PARSERS[program]
                parser = getattr(importlib.import_module(module), function)()
                assert given <= set(parser._option_string_actions), name
                count += 1
            elif program in ("hdpfl", "hdpfl-site"):
                assert given <= options(program, words), name
            if "--insecure" in given:
                assert (pod, name) in {("tasks", "tasks"), ("tasks", "exporter")}
        if (pod, name) in {("node", "node"), ("tasks", "tasks")}:
            paths = [each["value"] for each in one["env"] if each["name"] == "PATH"]
            assert paths == ["/srv/hdpfl/approved/bin"]
    assert count == 4


CHECKS = (check_schema, check_sealed, check_single, check_kept, check_seen,
          check_secrets_are_elsewhere, check_network, check_programs)  # fmt: skip


@pytest.mark.parametrize("check", CHECKS)
def test_the_manifests(check: Callable[[Manifests], None]) -> None:
    check(MANIFESTS)


def test_a_sites_programs_are_started_as_by_compose() -> None:
    """But for health checks, which Kubernetes makes by itself."""
    for role in ("node", "tasks"):
        pod = MANIFESTS[SITE, "Deployment", role]["spec"]["template"]["spec"]
        (ours,) = (one["command"] for one in pod["containers"] if one["name"] == role)
        theirs = COMPOSE["services"][f"cleveland-{role}"]["command"]
        for own, other in zip(programs(ours), programs(theirs), strict=True):
            words = " ".join(other).replace("$$", "$").partition(" --health-server-address")[0]
            assert " ".join(own) == words


def spec(all_: Manifests, kind: str, name: str, namespace: str = SITE) -> dict[str, Any]:
    found: dict[str, Any] = all_[namespace, kind, name]["spec"]
    return found


def pod_of(all_: Manifests, name: str) -> dict[str, Any]:
    found: dict[str, Any] = spec(all_, "Deployment", name)["template"]["spec"]
    return found


BUGS: dict[str, tuple[Callable[[Manifests], None], Callable[[Manifests], object]]] = {
    "a key that Kubernetes does not know": (
        check_schema, lambda m: spec(m, "Deployment", "tasks").update(replica=1)),
    "a number where a text must be": (
        check_schema, lambda m: pod_of(m, "node")["containers"][0]["env"].append(
            {"name": "X", "value": 1})),
    "a pod of root": (
        check_sealed, lambda m: pod_of(m, "node")["securityContext"].update(runAsUser=0)),
    "a root file system that can be written": (
        check_sealed, lambda m: pod_of(m, "tasks")["containers"][0]["securityContext"].update(
            readOnlyRootFilesystem=False)),
    "a token of the cluster": (
        check_sealed, lambda m: pod_of(m, "tasks").update(automountServiceAccountToken=True)),
    "a folder of the machine": (
        check_sealed, lambda m: pod_of(m, "tasks")["volumes"].append(
            {"name": "host", "hostPath": {"path": "/"}})),
    "whatever image is newest": (
        check_sealed, lambda m: pod_of(m, "node")["containers"][0].update(
            image="hdpfl-site:latest")),
    "two writers of a ledger": (
        check_single, lambda m: spec(m, "Deployment", "tasks").update(replicas=2)),
    "an update that starts the second first": (
        check_single, lambda m: spec(m, "Deployment", "tasks").update(
            strategy={"type": "RollingUpdate"})),
    "a ledger that ends with its pod": (
        check_kept, lambda m: pod_of(m, "tasks")["volumes"].__setitem__(
            3, {"name": "ledger", "emptyDir": {}, "persistentVolumeClaim": {"claimName": "tmp"}})),
    "an anchor on the ledger's volume": (
        check_kept, lambda m: pod_of(m, "tasks")["volumes"].__setitem__(
            4, {"name": "anchor", "persistentVolumeClaim": {"claimName": "ledger"}})),
    "records at the node": (
        check_seen, lambda m: pod_of(m, "node")["containers"][0]["volumeMounts"].append(
            {"name": "records", "mountPath": "/records", "readOnly": True})),
    "the key where the tasks run": (
        check_seen, lambda m: pod_of(m, "tasks")["containers"][0]["volumeMounts"].append(
            {"name": "key", "mountPath": "/key", "readOnly": True})),
    "records that can be written": (
        check_seen, lambda m: pod_of(m, "tasks")["containers"][0]["volumeMounts"].append(
            {"name": "records", "mountPath": "/other"})),
    "a secret in a file": (
        check_secrets_are_elsewhere, lambda m: m.update(
            {(SITE, "Secret", "profile"): {"kind": "Secret"}})),
    "tasks that reach the world": (
        check_network, lambda m: spec(m, "NetworkPolicy", "tasks")["egress"][0].pop("to")),
    "a node that calls anybody": (
        check_network, lambda m: spec(m, "NetworkPolicy", "node")["egress"][0].update(
            to=[{"ipBlock": {"cidr": "0.0.0.0/0"}}])),
    "no default": (check_network, lambda m: m.pop((SITE, "NetworkPolicy", "nothing"))),
    "a site that listens outside": (
        check_network, lambda m: spec(m, "Service", "node").update(type="LoadBalancer")),
    "any code that is sent": (
        check_programs, lambda m: pod_of(m, "tasks")["containers"][0]["env"][0].update(
            value="/usr/bin")),
    "an option that Flower does not have": (
        check_programs, lambda m: pod_of(m, "node")["containers"][0].update(
            command=["flower-supernode", "--superlnk=x"])),
}  # fmt: skip


@pytest.mark.parametrize("bug", BUGS)
def test_the_manifests_with_a_bug_are_refused(bug: str) -> None:
    check, put_in = BUGS[bug]
    broken = copy.deepcopy(MANIFESTS)
    put_in(broken)
    with pytest.raises((AssertionError, KeyError, kubernetes_validate.ValidationError)):
        check(broken)

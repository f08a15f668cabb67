"""Sites that the run config lists by their keys: no other node is asked."""

from __future__ import annotations

import logging
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import ProfileError, StrategyError, TermsError
from hdpfl_tools.shell.site_keys import make_site_keys
from strategies.core.roster import fingerprint_of
from tests.strategies.core.test_approvals import Operators, approves, clock, run_of  # noqa: F401

NAMES = ("a", "b", "c", "d")
KEYS = {name: make_site_keys(name).public for name in NAMES}
"""Public keys in OpenSSH's form, as 'hdpfl certs' writes them."""
REGISTERED = {name: public_key_to_bytes(load_ssh_public_key(key)) for name, key in KEYS.items()}  # type: ignore[arg-type]
"""The same, as 'flwr supernode register' stores them."""
PRINTS = {name: fingerprint_of(key) for name, key in REGISTERED.items()}


class Registered(Operators):
    """Nodes that were registered with their keys."""

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [
            NodeInfo(node_id=node, name=name, public_key=REGISTERED[name])
            for node, name in self.names.items()
        ]


@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="compares with OpenSSH")
def test_a_fingerprint_is_that_of_openssh(tmp_path: Path) -> None:
    for name, key in KEYS.items():
        (tmp_path / "k.pub").write_bytes(key)
        said = subprocess.run(
            ["ssh-keygen", "-lf", tmp_path / "k.pub"], capture_output=True, text=True, check=True
        )
        assert said.stdout.split()[1] == PRINTS[name]


def test_unlisted_nodes_get_no_message(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    grid = Registered(dict.fromkeys(NAMES, approves))
    with caplog.at_level(logging.WARNING):
        result, _ = run_of(grid, tmp_path, sites=f"{PRINTS['c']}, {PRINTS['a']}")
    assert [each["accepted"] for each in result.rounds] == [["a", "c"]] * 2
    assert {name for name, _, _ in grid.asked} == {"a", "c"}
    assert caplog.text.count("'sites': 2 online nodes are not listed") == 1


def test_listed_sites_that_are_not_online_are_named(tmp_path: Path) -> None:
    grid = Registered({"a": approves, "b": approves})
    sites = ",".join(PRINTS[name] for name in ("a", "c", "d"))
    with pytest.raises(StrategyError) as error:
        run_of(grid, tmp_path, sites=sites)
    assert "1 of 'min-sites' = 2 sites joined within 'join-timeout' = 100 s; " in str(error.value)
    assert f"not registered: {PRINTS['c']}, {PRINTS['d']}; 1 online nodes" in str(error.value)


def test_a_simulation_has_no_keys_and_says_so(tmp_path: Path) -> None:
    grid = Operators(dict.fromkeys(NAMES, approves))
    with pytest.raises(StrategyError, match="leave out 'sites' in a simulation"):
        run_of(grid, tmp_path, sites=f"{PRINTS['a']},{PRINTS['b']}")


@pytest.mark.parametrize(
    ("sites", "words"),
    [
        ("hospital-a", "'sites' lists 1 that are not fingerprints: write SHA256:"),
        ("{a},SHA256:short", "'sites' lists 1 that are not fingerprints"),
        ("{a},{b}=", "'sites' lists 1 that are not fingerprints"),
        ("{a},{a}", "'sites' lists a fingerprint twice"),
        ("{a}", "'sites' lists 1, fewer than 'min-sites' = 2"),
    ],
)
def test_a_wrong_list_names_the_key_and_the_remedy(sites: str, words: str) -> None:
    with pytest.raises(TermsError) as error:
        RunConfig.parse({"sites": sites.format(**PRINTS)})
    assert words in str(error.value)


def test_a_profile_refuses_what_is_no_fingerprint() -> None:
    with pytest.raises(ProfileError, match=r"'policy\.only-named'"):
        Profile.parse({"policy": {"only-named": "hospital-a"}})

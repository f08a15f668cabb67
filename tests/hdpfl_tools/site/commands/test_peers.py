"""``hdpfl-site peers``, ``hdpfl members``, and what ``hdpfl check`` says of shared noise."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.shared_noise.masks import public_of
from hdpfl_flower.shared_noise.members import fingerprint_of
from hdpfl_flower.shared_noise.peers import Peer
from hdpfl_flower.system.fingerprints import spoken
from tests.hdpfl_tools.site.commands.conftest import SiteFolder

KEYS = {name: public_of(bytes([number]) * 32) for number, name in enumerate("bcd", start=1)}
FOLDER = "ledger/ledger.sqlite.peers"


def peer_file(site: SiteFolder, name: str, key: bytes | None = None) -> Path:
    """Write the file of a peer, as its operator sends it."""
    path = site.folder / f"{name}.peer"
    path.write_text(Peer(name, key or KEYS[name]).line())
    return path


def own_print(site: SiteFolder) -> str:
    """Return this site's fingerprint, as a command prints it."""
    return site("peers", "show", "--name", "a").out.split(maxsplit=1)[1].strip()


# --- show, add, list, remove --------------------------------------------------------------------


def test_show_makes_one_key_and_keeps_it(opened: SiteFolder) -> None:
    first = own_print(opened)
    assert own_print(opened) == first
    assert [len(group) for group in first.split()] == [4] * 8
    key = opened.folder / FOLDER / "own.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700
    assert key.read_text().split()[1] not in opened("peers", "show", "--name", "a").out


def test_show_writes_a_file_that_a_peer_adds(opened: SiteFolder) -> None:
    to = opened.folder / "mine.peer"
    done = opened("peers", "show", "--name", "clinic-a", "--to", to)
    assert done.code == 0, done.err
    (line,) = to.read_text().splitlines()
    assert line.split()[:2] == ["hdpfl-peer-1", "clinic-a"]
    assert spoken(fingerprint_of(bytes.fromhex(line.split()[2]))) in done.out
    assert "exists already" in opened("peers", "show", "--name", "a", "--to", to).error()


def test_show_takes_the_profiles_name_and_says_where_it_has_none(opened: SiteFolder) -> None:
    assert "add --name NAME" in opened("peers", "show").error()
    opened.write_profile(('approval = "standing"', 'approval = "standing"\nname = "ward-7"'))
    assert opened("peers", "show").out.startswith("ward-7  ")
    assert "letters, digits" in opened("peers", "show", "--name", "St. Mary's").error()


def test_there_is_no_key_without_a_ledger(site: SiteFolder) -> None:
    assert "hdpfl-site ledger --init" in site("peers", "show", "--name", "a").error()
    assert not (site.folder / FOLDER).exists()


def test_add_asks_and_takes_no_for_an_answer(opened: SiteFolder) -> None:
    file = peer_file(opened, "b")
    refused = opened("peers", "add", file, answer="n\n")
    assert refused.code == 1
    assert "'b' was not added" in refused.err
    assert spoken(fingerprint_of(KEYS["b"])) in refused.out
    assert "no peer has been added" in opened("peers", "list").out
    assert opened("peers", "add", file, answer="y\n").code == 0
    assert opened("peers", "list").out == f"b  {spoken(fingerprint_of(KEYS['b']))}\n"


def test_a_fingerprint_that_was_heard_is_not_asked_for(opened: SiteFolder) -> None:
    file, heard = peer_file(opened, "b"), spoken(fingerprint_of(KEYS["b"])).upper()
    said = opened("peers", "add", file, "--fingerprint", fingerprint_of(KEYS["c"])).error()
    assert "is not that of '--fingerprint'" in said
    assert opened("peers", "add", file, "--fingerprint", heard).code == 0
    assert opened("peers", "add", file, "--yes").code == 0  # once more changes nothing
    assert json.loads(opened("peers", "list", "--json").out) == {"b": fingerprint_of(KEYS["b"])}


def test_several_files_are_added_in_one_call(opened: SiteFolder) -> None:
    files = [peer_file(opened, name) for name in KEYS]
    assert opened("peers", "add", *files, "--yes").code == 0
    assert list(json.loads(opened("peers", "list", "--json").out)) == list(KEYS)


def test_a_changed_key_is_refused_until_the_peer_is_removed(opened: SiteFolder) -> None:
    opened("peers", "add", peer_file(opened, "b"), "--yes")
    changed = peer_file(opened, "b", KEYS["c"])
    assert "'b' has another key here" in opened("peers", "add", changed, "--yes").error()
    assert opened("peers", "remove", "b").code == 0
    assert opened("peers", "add", changed, "--yes").code == 0


def test_two_sites_share_no_key(opened: SiteFolder) -> None:
    opened("peers", "add", peer_file(opened, "b"), "--yes")
    said = opened("peers", "add", peer_file(opened, "c", KEYS["b"]), "--yes").error()
    assert "'b' has this key already" in said


def test_the_own_key_is_no_peers(opened: SiteFolder) -> None:
    to = opened.folder / "own.peer"
    opened("peers", "show", "--name", "a", "--to", to)
    assert "the site's own key" in opened("peers", "add", to, "--yes").error()


def test_what_is_no_file_of_a_peer_is_refused(opened: SiteFolder) -> None:
    broken = opened.folder / "broken.peer"
    for text in ("", "hdpfl-peer-1 b 00ff", "hdpfl-peer-1 ../b " + "00" * 32, "\xff" * 5000):
        broken.write_text(text)
        assert "is not the file of a peer" in opened("peers", "add", broken, "--yes").error()
    assert "is not the file of a peer" in opened("peers", "add", "absent", "--yes").error()
    assert "there is no peer 'b'" in opened("peers", "remove", "b").error()
    assert "there is no peer '../x'" in opened("peers", "remove", "../x").error()


def test_a_key_that_others_can_read_is_an_error(opened: SiteFolder) -> None:
    own_print(opened)
    (opened.folder / FOLDER / "own.key").chmod(0o644)
    assert "chmod 600" in opened("peers", "show", "--name", "a").error()


def test_a_new_ledger_needs_a_new_key(opened: SiteFolder) -> None:
    own_print(opened)
    opened.ledger_path.unlink()
    (opened.folder / "anchor" / "ledger.anchor").unlink()
    assert opened("ledger", "--init").code == 0
    assert "belongs to another ledger" in opened("peers", "show", "--name", "a").error()


# --- the coordinator ----------------------------------------------------------------------------


def test_the_coordinator_prints_the_members_of_files(opened: SiteFolder) -> None:
    files = [peer_file(opened, name) for name in KEYS]
    done = opened.bare("members", *files, program="hdpfl")
    assert done.code == 0, done.err
    opened.terms_path.write_text(f'noise = "shared"\n{done.out}')
    terms = RunConfig.load(opened.terms_path).terms
    assert terms.members == ",".join(f"{n}={fingerprint_of(key)}" for n, key in KEYS.items())
    twice = opened.bare("members", *files, files[0], program="hdpfl")
    assert "'members' lists a name twice" in twice.error()


@pytest.mark.parametrize(
    ("members", "more", "words"),
    [
        ("", "", "noise = 'shared' needs 'members', NAME=KEY of every site"),
        ("bcd", "min-sites = 4\n", "'min-sites' is 4 and 'members' has 3 keys"),
        ("bcd", "min-sites = 3\ncolluders = 2\n", "'members' are fewer than 'colluders' + 2"),
    ],
)
def test_check_names_what_a_run_with_shared_noise_lacks(
    opened: SiteFolder, members: str, more: str, words: str
) -> None:
    listed = ",".join(f"{name}={fingerprint_of(KEYS[name])}" for name in members)
    text = 'noise = "shared"\ndataset = "site"\nschema = "heart"\nevaluation = "none"\n'
    opened.terms_path.write_text(f'{text}members = "{listed}"\n{more}')
    assert words in opened.bare("check", opened.terms_path, program="hdpfl").error()

"""Keys of a site and of its peers: files that others must not read, and members that are known."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import Declined, LedgerError, Reason
from hdpfl_flower.shared_noise.masks import pair_secret, public_of
from hdpfl_flower.shared_noise.members import fingerprint_of
from hdpfl_flower.shared_noise.peers import HEAD, SUFFIX, Peer, Peers, read_peer

BEGUN = "2026-01-01T00:00:00Z"


def peers_at(folder: Path, begun: str = BEGUN) -> Peers:
    folder.mkdir(exist_ok=True)
    return Peers(folder / "ledger.sqlite", begun)


def as_peer(peers: Peers, name: str) -> Peer:
    return Peer(name, public_of(peers.own(make=True)))


@pytest.fixture
def three(tmp_path: Path) -> list[Peers]:
    """Sites a, b and c, each with the keys of the others."""
    sites = [peers_at(tmp_path / name) for name in "abc"]
    files = [as_peer(site, name) for site, name in zip(sites, "abc", strict=True)]
    for own, site in enumerate(sites):
        for other, peer in enumerate(files):
            if other != own:
                site.add(peer)
    return sites


def members(*sites: Peers) -> RunTerms:
    entries = [
        f"{'abcdef'[number]}={fingerprint_of(public_of(site.own(make=True)))}"
        for number, site in enumerate(sites)
    ]
    return RunTerms.parse({"noise": "shared", "members": ",".join(entries)})


def test_the_key_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    site = peers_at(tmp_path / "a")
    with pytest.raises(LedgerError, match="hdpfl-site peers show"):
        site.own()
    key = site.own(make=True)
    assert len(key) == 32
    assert site.own() == site.own(make=True) == key
    path = site.folder / "own.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(site.folder.stat().st_mode) == 0o700
    assert key.hex() not in repr(site)
    assert peers_at(tmp_path / "b").own(make=True) != key


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o666])
def test_a_key_that_others_can_read_is_not_used(tmp_path: Path, mode: int) -> None:
    site = peers_at(tmp_path / "a")
    site.own(make=True)
    (site.folder / "own.key").chmod(mode)
    with pytest.raises(LedgerError, match="chmod 600"):
        site.own(make=True)


def test_a_key_belongs_to_one_ledger(tmp_path: Path) -> None:
    """A new ledger does not know which rounds the key has masked."""
    key = peers_at(tmp_path / "a").own(make=True)
    rebuilt = peers_at(tmp_path / "a", "2026-02-02T00:00:00Z")
    for make in (False, True):
        with pytest.raises(LedgerError, match="belongs to another ledger"):
            rebuilt.own(make=make)
    (rebuilt.folder / "own.key").unlink()
    assert rebuilt.own(make=True) != key


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        f"hdpfl-key-1 {'00' * 31} {BEGUN}",
        f"hdpfl-key-2 {'00' * 32} {BEGUN}",
        "a b c d",
        f"hdpfl-key-1 {'zz' * 32} {BEGUN}",
        "é" * 40,
    ],
)
def test_a_damaged_key_is_named(tmp_path: Path, text: str) -> None:
    site = peers_at(tmp_path / "a")
    site.own(make=True)
    (site.folder / "own.key").write_text(text)
    with pytest.raises(LedgerError, match="is damaged"):
        site.own(make=True)


def test_a_peer_is_read_as_it_was_written(tmp_path: Path) -> None:
    peer = Peer("st.-mary_2", bytes(range(32)))
    path = tmp_path / "a.peer"
    path.write_text(peer.line())
    assert read_peer(path) == peer


KEY = "ab" * 32


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        f"{HEAD} a",
        f"{HEAD} a {KEY} more",
        f"hdpfl-peer-2 a {KEY}",
        f"{HEAD} a {KEY[2:]}",
        f"{HEAD} a {KEY}00",
        f"{HEAD} ../a {KEY}",
        f"{HEAD} .a {KEY}",
        f"{HEAD} a/b {KEY}",
        f"{HEAD} {'n' * 101} {KEY}",
        f"{HEAD} ä {KEY}",
        f"{HEAD} a\x00 {KEY}",
        f"{HEAD} a {'0' * 10**6}",
        f"{HEAD} a {'x' * 64}",
        f"{HEAD} -_. {KEY}",
        "\x00" * 500,
    ],
)
def test_a_file_that_is_no_peers_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.peer"
    path.write_text(text)
    with pytest.raises(LedgerError, match=r"is not the file of a peer.*peers show --to FILE"):
        read_peer(path)


def test_a_missing_file_and_a_folder_are_no_peers(tmp_path: Path) -> None:
    for path in (tmp_path / "none.peer", tmp_path):
        with pytest.raises(LedgerError, match="is not the file of a peer"):
            read_peer(path)


def test_a_peer_is_added_once_and_its_key_never_changes_unseen(tmp_path: Path) -> None:
    site, b, c = (peers_at(tmp_path / name) for name in "abc")
    peer, other = as_peer(b, "b"), as_peer(c, "c")
    site.add(peer)
    site.add(peer)
    assert site.known() == [peer]
    with pytest.raises(LedgerError, match="another key here; ask its operator why"):
        site.add(Peer("b", other.public_key))
    with pytest.raises(LedgerError, match="'b' has this key already"):
        site.add(Peer("c", peer.public_key))
    with pytest.raises(LedgerError, match="the site's own key"):
        site.add(as_peer(site, "d"))
    assert site.known() == [peer]
    site.remove("b")
    assert site.known() == []
    site.add(Peer("b", other.public_key))


@pytest.mark.parametrize("name", ["b", "../ledger", "own", "", "own.key"])
def test_what_is_no_peer_is_not_removed(tmp_path: Path, name: str) -> None:
    site = peers_at(tmp_path / "a")
    site.own(make=True)
    with pytest.raises(LedgerError, match="no peer"):
        site.remove(name)
    assert site.own()


def test_members_have_numbers_in_their_order(three: list[Peers]) -> None:
    terms = members(*three)
    assert [site.number(terms) for site in three] == [0, 1, 2]
    assert [site.number(members(*three[::-1])) for site in three] == [2, 1, 0]


def test_two_sites_have_one_secret_and_pairs_their_own(three: list[Peers]) -> None:
    terms = members(*three)
    secrets = [site.secrets(terms, (0, 1, 2)) for site in three]
    assert [sorted(of) for of in secrets] == [[1, 2], [0, 2], [0, 1]]
    for own in range(3):
        for other in set(range(3)) - {own}:
            assert secrets[own][other] == secrets[other][own]
    assert len({secret for of in secrets for secret in of.values()}) == 3
    assert sorted(three[0].secrets(terms, (0, 2))) == [2]


def test_a_stranger_among_the_members_declines_by_name(three: list[Peers], tmp_path: Path) -> None:
    terms = members(*three, peers_at(tmp_path / "stranger"))
    for call in (three[0].number, lambda asked: three[0].secrets(asked, (0, 1, 2))):
        with pytest.raises(Declined, match=r"does not know, of: d; .*peers add FILE") as declined:
            call(terms)
        assert declined.value.reason is Reason.POLICY


def test_a_name_with_a_strangers_key_is_a_stranger(three: list[Peers], tmp_path: Path) -> None:
    """A server that puts a key of its own beside a name that the operator knows."""
    false = peers_at(tmp_path / "false")
    with pytest.raises(Declined, match="does not know, of: b;"):
        three[0].number(members(three[0], false, three[2]))


def test_a_removed_peer_is_a_stranger(three: list[Peers]) -> None:
    terms = members(*three)
    three[0].remove("c")
    with pytest.raises(Declined, match="does not know, of: c;"):
        three[0].number(terms)


def test_members_without_this_site_and_no_members_decline(three: list[Peers]) -> None:
    with pytest.raises(Declined, match="does not list this site"):
        three[0].number(members(*three[1:]))
    with pytest.raises(Declined, match="'members' is empty"):
        three[0].number(RunTerms.parse({"noise": "shared"}))


@pytest.mark.parametrize("numbers", [(0, 1, 3), (0, 2046)])
def test_a_set_that_names_no_member_declines(three: list[Peers], numbers: tuple[int, ...]) -> None:
    with pytest.raises(Declined, match="names no member"):
        three[0].secrets(members(*three), numbers)


def test_a_peers_key_of_small_order_declines(tmp_path: Path) -> None:
    site, honest = peers_at(tmp_path / "a"), peers_at(tmp_path / "b")
    weak = Peer("c", bytes(32))
    for peer in (as_peer(honest, "b"), weak):
        site.add(peer)
    terms = members(site, honest)
    text = f"{terms.members},c={weak.fingerprint}"
    with pytest.raises(Declined, match="not a valid key: remove the peer"):
        site.secrets(terms.updated(members=text), (0, 1, 2))


def test_a_damaged_file_of_a_peer_stops_before_any_run(three: list[Peers]) -> None:
    (three[0].folder / f"b{SUFFIX}").write_text("x")
    with pytest.raises(LedgerError, match="is not the file of a peer"):
        three[0].number(members(*three))


def test_the_secret_is_of_the_key_in_the_file(three: list[Peers]) -> None:
    terms = members(*three)
    (known, _) = three[0].known()
    assert three[0].secrets(terms, (0, 1))[1] == pair_secret(three[0].own(), known.public_key)
    assert three[0].blur() == three[0].own()

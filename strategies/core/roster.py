"""Roster of a run: sites online, with disclosed facts."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import StrategyError
from hdpfl_flower.monitoring.rejection import Rejected, Rejection
from hdpfl_flower.system.fingerprints import listed
from strategies.core.checks import NO_REPLY, rejection_of
from strategies.core.exchange import Exchange

log = logging.getLogger("hdpfl.server")

WAITING = frozenset({Rejection.PENDING, Rejection.REFUSED})
"""Answer of a site before its operator's approval."""
FIRST_PAUSE, LONGEST_PAUSE = 2.0, 60.0
"""Seconds between questions to a pending site, increasing."""
LONGEST_ASK = 600.0
"""Longest wait for a joining site, in seconds."""


def site_order(site: str) -> tuple[bool, int, str]:
    """Return the key of the order of sites: 2 before 10."""
    return (not site.isdigit(), int(site) if site.isdigit() else 0, site)


@dataclass
class Roster:
    """The sites of a run.

    A site is its node's registered name; in a simulation, its partition index. Node ids and the
    order of replies are random, and float32 sums depend on order, so nothing goes by them.

    Attributes:
        needed: facts without which a site takes no part.
        welcome: facts that are asked for and can be done without.
        nodes: site → node id, the sites online, in order.
        disclosed: site → fact → number, see ``wire.SITE_KEYS``.
        silent: site → why it did not answer the question for its name and facts.
        undecided: site → pending or refused, the sites without their operator's approval of the
            run.
        on_decision: called with a site and ``pending``, ``refused`` or, later, ``approved``.
        absent: sites that were online and are not; those that come back are asked again.
        on_presence: called with a site and ``offline`` or, later, ``online``.
        not_named: nodes online that the terms' ``sites`` do not list; none of them is asked.
        not_online: fingerprints in ``sites`` of which no node is online.
    """

    config: RunConfig
    needed: frozenset[str]
    welcome: frozenset[str] = frozenset()
    nodes: dict[str, int] = field(default_factory=dict)
    disclosed: dict[str, dict[str, float]] = field(default_factory=dict)
    silent: dict[str, Rejected] = field(default_factory=dict)
    undecided: dict[str, Rejection] = field(default_factory=dict)
    on_decision: Callable[[str, str], object] = lambda _site, _status: None
    absent: set[str] = field(default_factory=set)
    on_presence: Callable[[str, str], object] = lambda _site, _status: None
    not_named: int = 0
    not_online: tuple[str, ...] = ()
    _pause: float = FIRST_PAUSE
    _ask_again_at: float = 0.0
    _names: dict[int, str] = field(default_factory=dict)
    _online: list[int] = field(default_factory=list)

    def eligible(self) -> list[str]:
        """Return the approved sites online with all required facts, in order."""
        if not self.needed:
            return self.joined()
        disclosed, needed, nothing = self.disclosed, self.needed, dict[str, float]()
        return [s for s in self.joined() if needed <= disclosed.get(s, nothing).keys()]

    def joined(self) -> list[str]:
        """Return the approved sites online, in order."""
        if not self.undecided:
            return list(self.nodes)
        return [site for site in self.nodes if site not in self.undecided]

    @property
    def declined(self) -> set[str]:
        """Sites that declined when they were asked to join."""
        return {s for s, said in self.silent.items() if said.code is Rejection.DECLINED}

    def left_out(self) -> dict[str, list[str]]:
        """Return joined sites with missing facts, and their names."""
        there = set(self.eligible())
        left = [site for site in self.joined() if site not in there]
        return {site: sorted(self.needed - set(self.disclosed.get(site, {}))) for site in left}

    def why_left_out(self, site: str) -> str:
        """Return why a site takes no part, with a remedy.

        A site that declines gives no reason; the terms' demands on its profile are known here.
        """
        said = self.silent.get(site)
        if said is None:
            facts = ", ".join(self.left_out()[site])
            return f"the site does not disclose {facts}; 'disclose' in its profile must list it"
        source, reason = (
            self.config.terms.source,
            f"{said.words}; the site's own log states the reason",
        )
        if source.permission and said.code is Rejection.DECLINED:
            reason += (
                f", for instance that noise = '{source.name}' needs '{source.permission} = true' "
                "in its profile"
            )
        return reason

    def check_anybody(self, name: str) -> None:
        """Raise ``StrategyError`` if no site informs the strategy ``name``."""
        if self.eligible():
            return
        silent = [site for site in self.nodes if site in self.silent]
        reasons = "; or: ".join(sorted({self.why_left_out(site) for site in silent}))
        raise StrategyError(
            f"strategy '{name}': no site takes part: {reasons}"
            if len(silent) == len(self.nodes)
            else f"strategy '{name}' needs {', '.join(sorted(self.needed))}, which no site "
            "discloses; list it under 'disclose' in the profiles, or take a strategy that "
            "needs no disclosure"
        )

    def gather(self, grid: Grid) -> None:
        """Wait for ``min-sites`` joined sites without pending ones; ask for facts.

        After ``join-timeout`` undecided sites are waited for no longer; those that approve later
        join in a later round.

        Raises:
            StrategyError: too few sites joined within ``join-timeout``.
        """
        server = self.config.server
        deadline = time.monotonic() + server.join_timeout
        self.refresh(grid)
        while len(self.joined()) < server.min_sites or self._pending():
            if time.monotonic() > deadline:
                break
            time.sleep(1)
            self.refresh(grid)
        if len(self.joined()) < server.min_sites:
            raise StrategyError(
                f"{len(self.joined())} of 'min-sites' = {server.min_sites} sites joined within "
                f"'join-timeout' = {server.join_timeout:g} s; {self._why_too_few()}"
            )

    def refresh(self, grid: Grid, rejected: Mapping[str, Rejected] | None = None) -> None:
        """Update ``nodes``; ask newcomers and, at intervals, pending sites.

        Args:
            grid: Flower's.
            rejected: site → why its last update was not used: an operator may have withdrawn.
        """
        for site, why in (rejected or {}).items():
            if why.code in WAITING:
                self._note_decision(site, why.code)
        online = self._named(grid)
        new = {node: name for node, name in online.items() if node not in self._names}
        # In this process no operator decides; a site that discloses nothing is not asked.
        has_operators = getattr(grid, "engine", "") != "in-process"
        if new and (has_operators or self.needed or self.welcome or not all(new.values())):
            self._ask(grid, new, LONGEST_ASK)
        self._names.update({node: name for node, name in new.items() if name})
        if self._online != list(online):  # mostly the same as in the last round, in thousands
            before = self.nodes
            self._online, self.nodes = list(online), self._in_order(online)
            self._note_presence(before)
        if (pending := self._pending()) and time.monotonic() >= self._ask_again_at:
            again = {self.nodes[site]: self._names[self.nodes[site]] for site in pending}
            self._ask(grid, again, LONGEST_PAUSE)
            self._pause = min(1.5 * self._pause, LONGEST_PAUSE)
            self._ask_again_at = time.monotonic() + self._pause

    def _named(self, grid: Grid) -> dict[int, str]:
        """Return node id → name of the nodes online that ``sites`` lists; all without a list.

        Raises:
            StrategyError: there is a list, and no node online has a key: they are simulated.
        """
        there, sites = list(grid.get_nodes()), listed(self.config.terms.sites)
        if not sites:
            return {node.node_id: node.name for node in there}
        prints = {node.node_id: fingerprint_of(node.public_key) for node in there}
        if there and not any(prints.values()):
            raise StrategyError(
                "'sites' lists nodes by the public keys with which they were registered, and "
                "simulated nodes have no keys: leave out 'sites' in a simulation"
            )
        named = {node.node_id: node.name for node in there if prints[node.node_id] in sites}
        absent = tuple(fingerprint for fingerprint in sites if fingerprint not in prints.values())
        if (len(there) - len(named), absent) != (self.not_named, self.not_online):
            self.not_named, self.not_online = len(there) - len(named), absent
            log.warning("'sites': %s", self._about_list())
        return named

    def _about_list(self) -> str:
        """Return which listed sites are not online, and how many nodes are left out, in words."""
        gone = f"not online, or not registered: {', '.join(self.not_online)}; "
        return f"{gone if self.not_online else ''}{self.not_named} online nodes are not listed"

    def _in_order(self, online: Iterable[int]) -> dict[str, int]:
        """Return site → node id, in order."""
        by_name: dict[str, int] = {}
        for node in online:
            name = self._names[node]
            # Two nodes of one name: the second gets its id too, so that neither hides the other.
            by_name[name if name not in by_name else f"{name}@{node}"] = node
        return {site: by_name[site] for site in sorted(by_name, key=site_order)}

    def _pending(self) -> list[str]:
        """Return the sites online without an operator's decision."""
        if not self.undecided:
            return []
        return [site for site in self.nodes if self.undecided.get(site) is Rejection.PENDING]

    def _why_too_few(self) -> str:
        waiting = [
            f"{code.value}: {', '.join(sites)}"
            for code in (Rejection.PENDING, Rejection.REFUSED)
            if (sites := [site for site in self.nodes if self.undecided.get(site) is code])
        ]
        about = f"of 'sites': {self._about_list()}; " if self.config.terms.sites else ""
        if not waiting:
            return f"{about}start more or lower 'min-sites'"
        return (
            f"{about}{'; '.join(waiting)}; their operators decide with 'hdpfl-site requests': "
            "raise 'join-timeout' or lower 'min-sites'"
        )

    def _note_decision(self, site: str, code: Rejection | None) -> None:
        """Store and report a new decision of the operator of ``site``."""
        if self.undecided.get(site) is code:
            return
        if code is None:
            del self.undecided[site]
        else:
            self.undecided[site] = code
        status = "approved" if code is None else code.value
        log.warning("site %s: %s", site, _DECISIONS[status])
        self.on_decision(site, status)

    def _note_presence(self, before: Mapping[str, int]) -> None:
        """Report the sites that went or came back; a silent one is asked anew when it is back."""
        for site in sorted(before.keys() - self.nodes.keys() - self.absent, key=site_order):
            self.absent.add(site)
            if site in self.silent:
                self._names.pop(before[site], None)
            log.warning("site %s is offline: the SuperLink does not hear its node", site)
            self.on_presence(site, "offline")
        for site in sorted(self.absent & self.nodes.keys(), key=site_order):
            self.absent.discard(site)
            log.warning("site %s is online again and is asked from now on", site)
            self.on_presence(site, "online")

    def _ask(self, grid: Grid, nodes: dict[int, str], longest: float) -> None:
        """Send ``query.join``; a node without a usable answer discloses no fact.

        Args:
            grid: Flower's.
            nodes: node id → its name, where it has one.
            longest: seconds to wait, where ``join-timeout`` is longer.
        """
        content = server_wire.write_instructions(self.config.terms, 0, ArrayRecord())
        exchange = Exchange(content, wire.JOIN, {str(node): node for node in nodes})
        timeout = min(self.config.server.join_timeout, longest)
        replies = grid.send_and_receive(exchange.messages, timeout=timeout)
        facts: dict[int, dict[str, float]] = {}
        self._online = []  # an answer may name its node anew
        silent = dict.fromkeys(nodes, NO_REPLY)
        for key, reply in exchange.match(replies):
            node = int(key)
            if reply.has_error():
                silent[node] = rejection_of(reply.error.code)
                continue
            silent.pop(node)
            with contextlib.suppress(wire.WireError):  # it discloses nothing that can be used
                facts[node] = server_wire.read_site(reply.content)
        for node, name in nodes.items():
            answer = facts.get(node, {})
            index = answer.pop("partition", None)
            unnamed = f"node-{node}" if index is None else f"{index:.0f}"
            self._names[node] = name or unnamed
            self._note_answer(self._names[node], answer, silent.get(node))

    def _note_answer(self, site: str, disclosed: dict[str, float], silent: Rejected | None) -> None:
        """Store a site's answer, or the reason for its silence.

        Without a reply a pending site stays pending.
        """
        if silent is None or silent.code in WAITING:
            self._note_decision(site, silent.code if silent else None)
        self.disclosed[site] = disclosed
        self.silent.pop(site, None)
        if silent is not None:
            self.silent[site] = silent


_DECISIONS = {
    "pending": "pending, because its operator has not approved the run",
    "refused": "refused, because its operator does not take part in the run",
    "approved": "approved, and takes part from now on",
}


@lru_cache(maxsize=4096)
def fingerprint_of(public_key: bytes) -> str:
    """Return the fingerprint of a key in PEM, as Flower registers it; empty for other bytes.

    It is that of ``ssh-keygen -lf KEY.pub``. A simulated node has no key.

    >>> fingerprint_of(b"32 random bytes of a simulation")
    ''
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        PublicFormat,
        load_pem_public_key,
    )

    try:
        key = load_pem_public_key(public_key)
    except (ValueError, UnsupportedAlgorithm):
        return ""
    if not isinstance(key, EllipticCurvePublicKey):  # the only ones that Flower registers
        return ""
    line = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    digest = hashlib.sha256(base64.b64decode(line.split()[1])).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"

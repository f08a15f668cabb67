"""Roster of a run: the sites online, by name, and the facts that each has disclosed."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field

from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from hdpfl_flower import wire
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import StrategyError
from hdpfl_flower.monitoring.rejection import Rejected, Rejection
from strategies.core.checks import NO_REPLY, rejection_of
from strategies.core.exchange import Exchange


def site_order(site: str) -> tuple[bool, int, str]:
    """Return the key of the one order that rows, sampling and sums follow: 2 before 10."""
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
        silent: site → why it did not say who it is, where it was asked.
    """

    config: RunConfig
    needed: frozenset[str]
    welcome: frozenset[str] = frozenset()
    nodes: dict[str, int] = field(default_factory=dict)
    disclosed: dict[str, dict[str, float]] = field(default_factory=dict)
    silent: dict[str, Rejected] = field(default_factory=dict)
    _names: dict[int, str] = field(default_factory=dict)

    def eligible(self) -> list[str]:
        """Return the sites online that disclosed everything needed, in order."""
        return [s for s in self.nodes if self.needed <= set(self.disclosed.get(s, {}))]

    def left_out(self) -> dict[str, list[str]]:
        """Return the other sites online, each with the names of the facts that are missing."""
        missing = {s: sorted(self.needed - set(self.disclosed.get(s, {}))) for s in self.nodes}
        return {site: facts for site, facts in missing.items() if facts}

    def why_left_out(self, site: str) -> str:
        """Return why a site takes no part, and what its operator can do about it.

        A site that declines gives no reason; what the terms ask of its profile is known here.
        """
        said = self.silent.get(site)
        if said is None:
            facts = ", ".join(self.left_out()[site])
            return f"it does not disclose {facts}; 'disclose' in its profile must list it"
        trust = self.config.terms.noise == "server" and said.code is Rejection.DECLINED
        return f"{said.words}; its own log says why" + (
            ", for instance that noise = 'server' needs 'trust-server = true' in its profile"
            if trust
            else ""
        )

    def check_anybody(self, name: str) -> None:
        """Raise ``StrategyError`` with the reasons, where nobody informs the strategy ``name``."""
        if self.eligible():
            return
        needs, open_ = ", ".join(sorted(self.needed)), [s for s in self.nodes if s in self.silent]
        if len(open_) < len(self.nodes):
            raise StrategyError(
                f"strategy '{name}' needs {needs}, which no site discloses; list it under "
                "'disclose' in the profiles, or take a strategy that needs nothing"
            )
        reasons = "; or: ".join(sorted({self.why_left_out(site) for site in open_}))
        raise StrategyError(f"strategy '{name}': no site takes part: {reasons}")

    def gather(self, grid: Grid) -> None:
        """Wait until ``min-sites`` sites are online, and ask them what is needed.

        Raises:
            StrategyError: too few sites joined within ``join-timeout``.
        """
        server = self.config.server
        deadline = time.monotonic() + server.join_timeout
        self.refresh(grid)
        while len(self.nodes) < server.min_sites:
            if time.monotonic() > deadline:
                raise StrategyError(
                    f"{len(self.nodes)} of 'min-sites' = {server.min_sites} sites joined within "
                    f"'join-timeout' = {server.join_timeout:g} s; start more or lower 'min-sites'"
                )
            time.sleep(1)
            self.refresh(grid)

    def refresh(self, grid: Grid) -> None:
        """Bring ``nodes`` up to date; ask newcomers for what is needed and is not known."""
        online = {node.node_id: node.name for node in grid.get_nodes()}
        new = {node: name for node, name in online.items() if node not in self._names}
        if new and (self.needed or self.welcome or not all(new.values())):
            self._ask(grid, new)
        self._names.update({node: name for node, name in new.items() if name})
        by_name: dict[str, int] = {}
        for node in online:
            name = self._names[node]
            # Two nodes of one name: the second gets its id too, so that neither hides the other.
            by_name[name if name not in by_name else f"{name}@{node}"] = node
        self.nodes = {site: by_name[site] for site in sorted(by_name, key=site_order)}

    def _ask(self, grid: Grid, nodes: dict[int, str]) -> None:
        """Send ``query.join``; a node that does not answer well discloses nothing."""
        content = wire.write_instructions(self.config.terms, 0, ArrayRecord())
        exchange = Exchange(content, wire.JOIN, {str(node): node for node in nodes})
        replies = grid.send_and_receive(exchange.messages, timeout=self.config.server.join_timeout)
        facts: dict[int, dict[str, float]] = {}
        silent = dict.fromkeys(nodes, NO_REPLY)
        for key, reply in exchange.match(replies):
            node = int(key)
            if reply.has_error():
                silent[node] = rejection_of(reply.error.code)
                continue
            silent.pop(node)
            with contextlib.suppress(wire.WireError):  # it discloses nothing that can be used
                facts[node] = wire.read_site(reply.content)
        for node, name in nodes.items():
            known = facts.get(node, {})
            index = known.pop("partition", None)
            unnamed = f"node-{node}" if index is None else f"{index:.0f}"
            self._names[node] = name or unnamed
            self.disclosed[self._names[node]] = known
            if node in silent:
                self.silent[self._names[node]] = silent[node]

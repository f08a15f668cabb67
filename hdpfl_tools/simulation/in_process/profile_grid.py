"""Sites with own profiles in this process: rehearsal without a network.

Only the engine is a rehearsal: records are read, ledgers charged and noise drawn as at a deployed
site, and a run waits for its operators. Whoever calls this sees every site's profile.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

from flwr.app import Context, RecordDict
from flwr.app.user_config import UserConfig

from hdpfl_tools.simulation.in_process.grid import LocalGrid


class ProfileGrid(LocalGrid):
    """Deployed sites in this process, by name.

    Guarantees:
        No node is simulated: without ``[data]`` and ``[ledger]`` in its profile it declines, and
        its noise has no seed.
    """

    engine = "rehearsal"

    def __init__(self, profiles: Mapping[str, Path]) -> None:
        """Make a node a profile.

        Args:
            profiles: name of the site → its ``profile.toml``.
        """
        super().__init__(0)
        names = dict(enumerate(profiles, start=2))  # node 1 is the server itself
        self._contexts: dict[int, Context] = {  # type: ignore[assignment]
            node: Context(
                run_id=1,
                node_id=node,
                node_config=cast(UserConfig, {"profile": str(profiles[name].absolute())}),
                state=RecordDict(),
                run_config={},
            )
            for node, name in names.items()
        }
        self.name_nodes(names)

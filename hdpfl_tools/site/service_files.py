"""Units of systemd and a Compose file by which a site's node, tasks and exporter start.

Their values are paths that the site typed, and the coordinator's address. Each is one word of plain
characters in double quotes, which systemd, a shell, YAML and Compose read alike, so that no value
adds a directive, a word or a key.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from hdpfl_flower.config.profile import Profile
from hdpfl_flower.errors import DeploymentError

PORT = 9094
"""Port of Flower's own default, at which a node offers its tasks."""
_PLAIN = re.compile(r"[\w/.,:=@+\[\] -]+")


@dataclass(frozen=True, repr=False)
class Services:
    """Services of a site in one folder.

    Attributes:
        site: its registered name.
        address: HOST:PORT of the coordinator.
        home: absolute folder of keys, certificate and profile.
        profile: absolute path of the profile.
        port: of 127.0.0.1, at which the units of node and tasks talk.
    """

    site: str
    address: str
    home: Path
    profile: Path
    port: int = PORT

    def units(self) -> dict[str, str]:
        """Return units of systemd for the user's own manager: file name → text.

        That of the exporter is there if its packages are installed.

        Raises:
            DeploymentError: a path has a character that could be read as a command.
        """
        programs = str(Path(sys.executable).parent)
        return {
            f"hdpfl-{self.site}-{kind}.service": self._filled(f"{kind}.service", programs=programs)
            for kind in ("node", "tasks", *(["exporter"] if find_spec("prometheus_client") else []))
        }

    def compose(self) -> str:
        """Return a Compose file in which node and tasks see their own files alone.

        Folders of ledger, anchor and state are made, for Docker would make them for root.

        Raises:
            DeploymentError: as above; or the caller is root, or a path of the profile is missing.
        """
        if os.geteuid() == 0:
            raise DeploymentError(
                "containers run as the user who calls this command, and none may run as root; "
                "call it as another user, who owns the records and the profile"
            )
        site = Profile.load(self.profile)
        if site.ledger is None or site.state is None or site.data is None:
            raise DeploymentError("the profile needs [data], [ledger] and [state]; add them")
        folders = [site.ledger.path.parent, site.state.path]
        folders += [site.ledger.anchor.parent] if site.ledger.anchor is not None else []
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        named = [self.home / "superexec.secret", self.profile]
        named += [path for path in (site.data.path,) if path != Path() and path.exists()]
        return self._filled(
            "compose.yml",
            user=f"{os.geteuid()}:{os.getegid()}",
            read=[str(path) for path in named],
            written=[str(folder) for folder in dict.fromkeys(folders)],
        )

    def _filled(self, template: str, **facts: object) -> str:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined

        environment = Environment(  # noqa: S701 - no HTML
            loader=FileSystemLoader(Path(__file__).parent / "services"),
            undefined=StrictUndefined,
            trim_blocks=True,
            keep_trailing_newline=True,
            finalize=plain_word,
        )
        return environment.get_template(f"{template}.j2").render(
            site=self.site, address=self.address, port=self.port, home=str(self.home),
            profile=str(self.profile), approved=str(self.home / "approved"), **facts)  # fmt: skip


def plain_word(value: object) -> str:
    r"""Return a value as one quoted word of a unit, a shell and YAML.

    Raises:
        DeploymentError: it has another character than letters, digits, spaces and ``/.,:=@+[]-_``.

    >>> plain_word("/srv/site a")
    '"/srv/site a"'
    """
    text = str(value)
    if not _PLAIN.fullmatch(text):
        raise DeploymentError(
            f"{text!r} has a character that a unit or a shell could read as a command; move the "
            "files to a path of letters, digits, spaces and '/.,=@+-_', or name another --folder"
        )
    return f'"{text}"'

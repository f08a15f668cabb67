"""Keys of shared noise: of a run's terms, and of a site's policy."""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from hdpfl_flower.config.redacted import RedactedModel
from hdpfl_flower.config.settings import AtLeastOne, Count, Settings, ShareOrNone

MOST_MEMBERS: Final = 2**11 - 1
"""Members of a run at most: so many sums fit into the ring (``ring.py``)."""
MOST_MEMBERS_TEXT = 131_072
"""Characters of the list of members."""
_MEMBER = re.compile(r"([^\s=,]{1,200})=([0-9a-f]{32})")
"""Names are read in logs and on screens: without control characters, and of bounded length."""


def check_members(text: str) -> str:
    """Return a list of members in one form, each once.

    Raises:
        ValueError: an entry has another form, or a name or a key stands there twice.

    >>> check_members("b = 0011 2233 4455 6677 8899 aabb ccdd eeff")
    'b=00112233445566778899aabbccddeeff'
    """
    entries = [re.sub(r"\s", "", entry) for entry in text.split(",")]
    entries = [entry for entry in entries if entry]
    pairs = [_MEMBER.fullmatch(entry) for entry in entries]
    read = [pair.groups() for pair in pairs if pair and pair[1].isprintable()]
    if len(read) < len(entries):
        raise ValueError(
            "has an entry that is not a member: write NAME=KEY with commas between, where KEY "
            "is the 32 digits that 'hdpfl-site peers show' prints at the site NAME"
        )
    if len(read) > MOST_MEMBERS:
        raise ValueError(f"lists more than {MOST_MEMBERS} members")
    for label, values in (("name", [n for n, _ in read]), ("key", [key for _, key in read])):
        if len({*values}) < len(values):
            raise ValueError(f"lists a {label} twice; each site has its own name and key")
    return ",".join(f"{name}={key}" for name, key in read)


Members = Annotated[str, Field(max_length=MOST_MEMBERS_TEXT), AfterValidator(check_members)]
"""Members of shared noise, ``NAME=KEY`` between commas."""


class SharingTerms(Settings):
    """Terms of a run whose noise the sites share."""

    members: Members = Field(
        "",
        description="noise = shared: the sites that share the noise, as NAME=KEY with commas "
        "between. NAME is the name of the site's node, and KEY is the fingerprint "
        "that 'hdpfl-site peers show' prints at the site. Empty means all sites of "
        "a simulation.",
    )
    colluders: Count = Field(
        0,
        description="noise = shared: number t of members that may collude with the server and "
        "with each other. The noise of the other members is enough to keep the "
        "promise. 0 means a third of the other members, at least 1.",
    )
    least_members: Count = Field(
        0,
        description=("noise = shared: number of sites that a round needs. 0 means colluders + 2."),
    )
    spare_rounds: ShareOrNone = Field(
        0.1,
        description="noise = shared: number of rounds that may be lost, as a share of "
        "'rounds'. Each site pays for these rounds in advance. A round is lost if "
        "one of its sites does not answer.",
    )


class SharingPolicy(RedactedModel):
    """Bounds of a site on runs with shared noise."""

    shared_noise: bool = Field(
        False,
        description='Whether terms may set `noise = "shared"`. Then the site adds only a share of '
        "the noise, and relies on the other members for the rest (`hdpfl-site peers`). If this is "
        "false, the site declines such a run. A simulated site allows it.",
    )
    least_colluders: AtLeastOne = Field(
        1, description="The least `colluders` of a run with shared noise."
    )
    least_members: Annotated[int, Field(ge=3)] = Field(
        3, description="The least number of sites in a round with shared noise."
    )

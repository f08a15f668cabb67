"""Places of pages whose commands are run, and whose outputs are held against the run."""

from __future__ import annotations

from collections.abc import Mapping

from tests.docs.blocks import BLOCKS, Block

Place = tuple[str, str]
"""Page and heading."""

RUNS: Mapping[Place, str] = {
    ("docs/concepts/clusters.md", "Clients in groups"): "",
    ("docs/concepts/levels.md", "Privacy levels and opt-outs"): "",
    ("docs/how-to/add-a-strategy.md", "Where it lies"): "",
    ("docs/how-to/compare.md", "Before a run"): "cp deploy/demo/run.toml .",
    ("docs/how-to/compare.md", "Side by side"): "",
    ("docs/how-to/measures.md", "Over all sites, without disclosure"): "",
    ("docs/how-to/own-code.md", "Own data, model and strategy"): "",
    ("docs/how-to/own-data.md", "In a simulation"): "",
    ("docs/how-to/reproduce.md", "Reproduce the papers' tables and figures"): "",
    ("docs/start/before-the-first-model.md", "Try it"): "",
    ("docs/start/install.md", "Install"): "",
}
"""Place → a command before its own. Run are the blocks with an output; without any, all."""

TUTORIAL = "docs/start/from-csv-to-report.md"
"""Its blocks are run in their order by ``test_the_tutorial_prints_what_it_shows``."""

NO_OUTPUT: Mapping[Place, str] = {
    ("docs/how-to/measures.md", "Coefficients, with intervals"): "rows of a run's HTML page",
    ("docs/how-to/deploy.md", "Deploy over separate machines"): "a drawing of two machines",
    ("docs/how-to/resume.md", "A node that only looks alive"): "a report to Flower",
    ("docs/how-to/reproduce.md", "Reproduce the papers' tables and figures"): "test_reproduce.py",
}
"""Place → why its blocks of text, or one of them, are none of our output."""


def is_run(block: Block) -> bool:
    """Return whether the commands of a block are run by ``test_outputs.py``."""
    if block.place not in RUNS or block.language != "console" or "--full" in block.text:
        return False
    return output_of(block) is not None or not any(
        other.language == "text" for other in BLOCKS if other.place == block.place
    )


def output_of(block: Block) -> Block | None:
    """Return the block after the commands of a block, if it is their output."""
    after = BLOCKS[BLOCKS.index(block) + 1 :][:1]
    return (
        after[0]
        if after and after[0].place == block.place and after[0].language == "text"
        else None
    )

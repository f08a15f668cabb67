"""Documents that list what the code has are held against the code."""

from __future__ import annotations

import json
import re
from pathlib import Path

import typer.main

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.config.validation import kebab
from server_app.commands import app
from strategies import STRATEGIES

ROOT = Path(__file__).parents[1]
PAGES = (
    ROOT / "README.md",
    ROOT / "docker" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
)


def test_the_terms_are_listed_with_their_defaults() -> None:
    rows = re.findall(
        r"^\| `([a-z-]+)` \| `(.*?)` \| (.*) \|$", (ROOT / "docs/terms.md").read_text(), re.M
    )
    assert rows == [
        (
            field.alias or kebab(name),
            json.dumps(field.default, ensure_ascii=False),
            field.description,
        )
        for name, field in RunTerms.model_fields.items()
    ]


def test_every_hdpfl_command_in_the_documents_exists() -> None:
    command = typer.main.get_command(app)
    commands = getattr(command, "commands")  # noqa: B009 - a click group, untyped
    for path in PAGES:
        for line in re.findall(r"^\$? ?hdpfl ([a-z].*)$", path.read_text(), re.M):
            name, *words = line.split()
            assert name in commands, f"{path.name}: hdpfl {name}"
            chosen = commands[name]
            if (group := getattr(chosen, "commands", None)) is not None:
                chosen = group[words[0]]
            options = {option for p in chosen.params for option in p.opts}
            given = {word.split("=")[0] for word in words if word.startswith("--")}
            assert given <= options, f"{path.name}: hdpfl {name} {given - options}"


def test_every_rule_is_in_the_readme() -> None:
    text = (ROOT / "README.md").read_text()
    assert all(f"`{name}`" in text for name in STRATEGIES)


def test_every_make_target_named_in_the_readme_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"`make ([a-z-]+)", (ROOT / "README.md").read_text())) <= targets


def test_links_lead_somewhere() -> None:
    for path in PAGES:
        for link, section in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", path.read_text()):
            target = path.parent / link if link else path
            assert target.exists(), f"{path.name}: {link}"
            assert not section or section in sections(target), f"{path.name}: {link}#{section}"


def sections(path: Path) -> set[str]:
    """Return what links may name in a page, as GitHub derives it from the headings."""
    titles = re.findall(r"^#+ (.*)$", path.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}

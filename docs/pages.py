"""Reference pages made from the code: ``python docs/pages.py`` writes them, a test compares.

Nothing that the code already states is copied by hand: keys, defaults and meanings come from the
fields of the models, options from the command lines, series from their table. The pages of
``COPIES`` are added when the site is built; MkDocs calls ``on_files`` and ``on_page_markdown``.
"""

from __future__ import annotations

import html
import json
import re
import sys
import types
from collections.abc import Iterable, Mapping
from datetime import date
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from mkdocs.structure.files import File
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
BOUNDS = {"ge": "from", "gt": "above", "lt": "below", "le": "up to"}
WORDS = {
    int: "whole number",
    float: "number",
    str: "text",
    bool: "true or false",
    Path: "path",
    date: "date",
}
_ROLE = re.compile(r":(?:func|class|meth|data|mod|attr|exc|const):(?=`)")


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table."""
    head = list(head)
    lines = [head, ["---"] * len(head), *map(list, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def limits(field: FieldInfo) -> str:
    """Return the bounds of a number in words: `` from 0, below 1``."""
    bounds = [
        f"{word} {getattr(item, name):g}"
        for item in field.metadata
        for name, word in BOUNDS.items()
        if getattr(item, name, None) is not None
    ]
    return " " + ", ".join(bounds) if bounds else ""


def kind(annotation: Any, bounds: str = "") -> str:
    """Return a field's type in words."""
    from hdpfl_flower.config.tables_of_terms import Pairs

    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        parts = [option for option in get_args(annotation) if option is not types.NoneType]
        return " or ".join(kind(option, bounds) for option in parts)
    if hasattr(annotation, "__origin__") and hasattr(annotation, "__metadata__"):
        return kind(annotation.__origin__, bounds)
    if origin is Literal:
        shown = (
            value if str(value).strip() else json.dumps(value) for value in get_args(annotation)
        )
        return " or ".join(f"`{value}`" for value in shown)
    if origin in (tuple, dict):
        inner = get_args(annotation)[0 if origin is tuple else 1]
        words = "list of " if origin is tuple else "table: a name, and a "
        return "tables" if annotation == Pairs else words + kind(inner)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "table"
    return WORDS[annotation] + bounds


def default(field: FieldInfo) -> str:
    """Return a field's default as TOML writes it; empty where a value must be given."""
    from hdpfl_flower.config.kind import Kind

    if field.default is PydanticUndefined:
        return ""
    if field.default is None or field.default == Path():
        return "none"
    if isinstance(field.default, Kind):
        return f"`{json.dumps(field.default.as_table())}`"
    extra = field.json_schema_extra
    stated = extra["default"] if isinstance(extra, dict) else field.default
    value = list(stated) if isinstance(stated, tuple) else stated
    return f"`{json.dumps(value, ensure_ascii=False)}`"


def keys(model: type[BaseModel]) -> list[tuple[str, str, str, str]]:
    """Return key, type, default and meaning of each field of ``model``."""
    from hdpfl_flower.config.validation import kebab

    rows = []
    for name, field in model.model_fields.items():
        meaning = field.description
        if not meaning:
            raise ValueError(f"{model.__name__}.{name} has no description")
        key = f"`{field.alias or kebab(name)}`"
        rows.append((key, kind(field.annotation, limits(field)), default(field), meaning))
    return rows


def section(model: type[BaseModel]) -> str:
    """Return the table of a model's keys, below the first paragraph of its docstring."""
    head = " ".join((model.__doc__ or "").strip().partition("\n\n")[0].split())
    return f"{plain(head)}\n\n" + table(("key", "type", "default", "meaning"), keys(model))


def plain(text: str) -> str:
    """Return a docstring as Markdown: single backticks, no Sphinx roles."""
    return _ROLE.sub("", text).replace("``", "`")


def terms_page() -> str:
    """Return the keys of a run's config."""
    from hdpfl_flower.config.run_config import GROUPS
    from hdpfl_flower.config.tables import KINDS, TITLES
    from hdpfl_flower.releases import KINDS as RELEASES
    from strategies import SETTINGS_OWNERS

    intro = (
        "# Run config\n\n"
        "This page lists every key of a run, in three groups. Messages to sites hold only the keys "
        "of the group *terms*. But Flower itself hands the whole run config that `flwr run` "
        "received to every node, so do not write anything private into any key. Give the keys "
        'with `flwr run . --run-config "rounds=30 '
        "strategy='fedavg'\"`, as a TOML file (`--run-config run.toml`), or to `hdpfl compare` "
        "with `--set KEY=VALUE` or `--terms run.toml`. A run with an unknown key or a value of a "
        "wrong type is refused, and the message names the key. A site's own ε, δ, batch size and "
        "data are in its [profile](profile.md). No key of this page can make a run cost a site "
        "more privacy than its profile allows. `resume-from` resumes a run "
        "([resume](../how-to/resume.md)) and belongs to no group. The "
        "[glossary](../concepts/glossary.md) explains the words.\n\n"
    )
    parts = [f"## {TITLES[name]}\n\n{section(group)}" for name, group in GROUPS.items()]
    settings = [
        (f"`{name}.{key.strip('`')}`", *row)
        for name, owner in SETTINGS_OWNERS.items()
        for key, *row in keys(owner.settings_type)
    ]
    settings_intro = (
        "## Settings of strategies\n\nA setting belongs to the strategy that runs, or to a part of "
        "it (as in `robust-hdp+pfa`). In a TOML file a setting is a line of the strategy's table: "
        "`estimator` in the table `[robust-hdp]` for `robust-hdp.estimator`.\n\n"
    )
    of_kinds = (
        "## Tables of the terms\n\nEach table has a `kind`, and the settings of that kind. In a "
        'TOML file write `[work]` with lines such as `kind = "alternate"` and `own-steps = 2`; on '
        'a command line write `work.kind="alternate" work.own-steps=2`. With `auto` the kind or '
        "the strategy decides the value.\n"
    )
    after = (
        "## Kinds of release\n\nThese are releases before round 1, together with the updates, or "
        "after the last round. Each kind has a table of its own: in a TOML file `[after.tuning]` "
        "with `steps = 40`, on a command line `after.tuning.steps=40`. The first setting of a "
        "kind in this table asks for the kind.\n\n"
    )
    head = ("key", "type", "default", "meaning")

    def of(kinds: Mapping[str, type[BaseModel]]) -> str:
        """Return the settings of several kinds as a table; of a kind without any its name."""
        none = [("", "", "", "no settings")]
        rows = [(f"`{name}`", *row) for name, kind_ in kinds.items() for row in keys(kind_) or none]
        return table(("kind", *head), rows)

    tables = [of_kinds]
    tables += [f"### `[{name}]`\n\n{of(kinds)}" for name, kinds in KINDS.items()]
    tables += [after + of({f"{kind_.table}.{name}": kind_ for name, kind_ in RELEASES.items()})]
    tables += [settings_intro + table(head, settings)]
    return intro + "\n".join([*parts, *tables])


def profile_page() -> str:
    """Return the sections of a site's profile."""
    from hdpfl_flower.config.data_source import DataSource, OwnColumn, QueryTable
    from hdpfl_flower.config.profile import Profile
    from hdpfl_flower.config.validation import kebab

    intro = (
        "# Profile of a site\n\n"
        "The profile is a TOML file on the site's own disk. Only its owner may be able to read it "
        "(`chmod 600`). It is never sent over the network, and no error message shows a value of "
        "it. There is an example under [write the "
        "profile](../how-to/site.md#1-join-or-write-the-profile). Relative paths start at the "
        "folder of the profile. A key without a default must be given. A deployed site without "
        "`[data]` and `[ledger]` sends nothing.\n\n"
    )
    top, parts = [], []
    for name, field in Profile.model_fields.items():
        inner = [t for t in (field.annotation, *get_args(field.annotation)) if isinstance(t, type)]
        model = next((t for t in inner if issubclass(t, BaseModel)), None)
        if model is None:
            key, words = f"`{kebab(name)}`", kind(field.annotation, limits(field))
            if not field.description:
                raise ValueError(f"Profile.{name} has no description")
            top.append((key, words, default(field), field.description))
        else:
            parts.append(f"\n## `[{kebab(name)}]`\n\n{section(model)}")
            if model is DataSource:
                parts.append(f"\n## `[data.columns.NAME]`\n\n{section(OwnColumn)}")
                parts.append(f"\n## `[data.tables.NAME]`\n\n{section(QueryTable)}")
    head = "## Top level\n\n" + table(("key", "type", "default", "meaning"), top)
    return intro + head + "".join(parts)


def schema_page() -> str:
    """Return the keys of a table's public schema, and the built-in one."""
    from hdpfl_flower.data.schema import (
        CategoryColumn,
        EventColumn,
        Label,
        NumberColumn,
        Schema,
    )

    heart = (ROOT / "hdpfl_flower/data/schemas/heart.toml").read_text()
    parts = {
        "Top level": Schema,
        "`[label]`": Label,
        "`[label.event]`": EventColumn,
        '`[[columns]]` with `type = "number"`': NumberColumn,
        '`[[columns]]` with `type = "category"`': CategoryColumn,
    }
    intro = (
        "# Schema of a table\n\n"
        "A schema is part of a run's terms (the key `schema`). The key holds TOML text, the name "
        "of a built-in schema, or the path of a file; then the terms hold the text of the file "
        "([write a schema](../how-to/schema.md)). Bounds, values for missing cells and categories "
        "are constants of the schema. They are never statistics of a site's records. "
        "A cell that cannot be read counts as missing. A record whose label is unknown contributes "
        "zero.\n"
    )
    body = "".join(f"\n## {title}\n\n{section(model)}" for title, model in parts.items())
    return f"{intro}{body}\n## Built in: `heart`\n\n```toml\n{heart}```\n"


def commands_page(name: str) -> str:
    """Return the help of a command line, every command and option."""
    import typer
    from typer.cli import get_docs_for_click

    if name == "hdpfl":
        from hdpfl_tools.coordinator.commands import app
    else:
        from hdpfl_tools.site.commands import app
    command: Any = typer.main.get_command(app)
    text = html.unescape(
        get_docs_for_click(obj=command, ctx=typer.Context(command), name=name).rstrip()
    )
    for outer, group in (("", command), *command.commands.items()):
        head, mark, rest = text.partition(f"## `{name} {outer}`" if outer else f"# `{name}`")
        for inner, leaf in getattr(group, "commands", {}).items():
            said = f"* `{inner}`: {leaf.get_short_help_str(limit=200)}"
            rest = re.sub(rf"^\* `{inner}`: .*$", said, rest, count=1, flags=re.M)
        text = head + mark + rest
    return text.replace("**Usage**:\n\n", "").replace("**Options**:\n\n", "Options:\n\n") + "\n"


def metrics_page() -> str:
    """Return every Prometheus series of both exporters."""
    from hdpfl_flower.monitoring.series import series_at

    parts = [
        "# Metrics\n\nThis page lists every series of the two Prometheus exporters. "
        "[Monitor](../how-to/monitor.md) explains how to set them up. The coordinator's series "
        "contain no ε, δ, batch size or number of records of a site.\n"
    ]
    for place, title in (("coordinator", "The coordinator's series"), ("site", "A site's series")):
        rows = [
            (f"`{s.name}`", ", ".join(f"`{label}`" for label in s.labels) or "-", s.meaning)
            for s in series_at(place)  # type: ignore[arg-type]
        ]
        parts.append(f"\n## {title}\n\n" + table(("series", "labels", "meaning"), rows))
    return "".join(parts)


def wire_page() -> str:
    """Return the contents of messages, from the file that encodes and decodes them."""
    from hdpfl_flower import server_wire, wire

    drawing = re.search(r"^    server →.*?(?=\n\n|\Z)", wire.__doc__ or "", re.M | re.S)
    if drawing is None:
        raise ValueError("the docstring of hdpfl_flower/wire.py holds no table of keys")
    rows = [
        ("`site`, the answer to *join*", listed(wire.SITE_KEYS)),
        ("`metrics`, the answer to *evaluate*", listed(wire.METRIC_KEYS)),
        ("codes of a site that sends nothing", ", ".join(f"`{code}`" for code in wire.REASONS)),
        (
            "message types",
            listed(
                (wire.TRAIN, wire.EVALUATE, wire.JOIN, server_wire.query_of("KIND"), wire.FINISH)
            ),
        ),
    ]
    return (
        "# Wire\n\nThis page lists every key that is sent over the network. "
        "`hdpfl_flower/wire.py` encodes and decodes the keys at a site, and "
        "`hdpfl_flower/server_wire.py` at the server. The [threat model](../concepts/"
        "threat-model.md#what-is-visible) states who sees what.\n\n"
        f"```\n{drawing[0]}\n```\n\n" + table(("what", "keys"), rows)
    )


def listed(names: Iterable[str]) -> str:
    """Return names as code, sorted."""
    return ", ".join(f"`{name}`" for name in sorted(names))


def combinations_page() -> str:
    """Return the parts that may follow a strategy's name, and every need of an option."""
    import strategies
    from hdpfl_flower.config.run_config import RunConfig
    from strategies.core.declaration import PROPERTIES

    parts = [
        (
            f"`+{name}`",
            f"`{part_class.__module__}`",
            first_line(sys.modules[part_class.__module__].__doc__),
        )
        for table in strategies.PARTS
        for name, part_class in table.items()
    ]
    by_need: dict[tuple[str, str], list[str]] = {}
    for option, needs in strategies.options():
        words = f"`{option}`" if option.startswith("+") else option.replace("'", "`")
        for name, remedy in needs.items():
            by_need.setdefault((name, remedy), []).append(words)
    offers = {
        name: strategies.make_strategy(RunConfig.parse({"strategy": name})).declare()
        for name in strategies.STRATEGIES
        if name != "oracle-clusters"
    }
    lacking = {
        name: [strategy for strategy in offers if not getattr(offers[strategy], name)]
        for name in PROPERTIES
    }
    few = len(offers) // 2
    return (
        "# Combinations\n\nThe name of a strategy may have up to three parts, with `+` between "
        "them: first the weights, then at most one part that acts around the weights, then at most "
        "one server step. An example is `robust-hdp+pfa+momentum`. Each part has its settings in a "
        "table of its own.\n\n"
        + table(("part", "module", "what it is"), parts)
        + "\n## Needs\n\nParts, server steps, guards and keys need certain properties of a "
        "strategy. If a strategy lacks such a property, the run is refused before it starts, and "
        "the message names both.\n\n"
        + table(
            ("option", "property that it needs", "what to do if the strategy lacks it"),
            [
                (", ".join(options), PROPERTIES[name].needed, remedy)
                for (name, remedy), options in by_need.items()
            ],
        )
        + "\n## Properties\n\nThe table lists the strategies that lack a property with the default "
        "values of their keys. A part has the properties of the weights before it.\n\n"
        + table(
            ("property", "strategies that lack it"),
            [
                (
                    PROPERTIES[name].needed,
                    ("all except " + listed(set(offers) - set(names)))
                    if len(names) > few
                    else listed(names) or "none; with some keys a strategy can lack it",
                )
                for name, names in lacking.items()
            ],
        )
    )


def first_line(doc: str | None) -> str:
    """Return the first sentence of a docstring as Markdown."""
    return plain((doc or "").strip().partition("\n\n")[0].replace("\n", " "))


def bugs_page() -> str:
    """Return the bugs that ``make mutants`` puts back."""
    from tests.mutants.table import MUTANTS, TABLE

    intro = (
        "# Bugs put back\n\n`make mutants` puts each of these "
        f"{len(MUTANTS)} bugs into the code, one at a time, and requires that a test fails. They "
        "are bugs of the code that protects privacy: consent, replies, messages, ledgers, "
        "accounting, noise, DP-SGD, audits.\n"
    )
    parts = [intro]
    for title, mutants in TABLE.items():
        rows = [
            (m.name, f"`{m.file}`", f"`tests/{m.killer.partition('::')[0]}`")
            for m in sorted(mutants, key=lambda mutant: mutant.file)
        ]
        parts.append(f"\n## {plain(title)}\n\n")
        parts.append(table(("bug", "where", "test"), rows))
    return "".join(parts)


def copied(name: str) -> str:
    """Return a page of the repository's root, its links turned into those of the site."""
    text = re.sub(r"\]\(docs/", "](../", (ROOT / name).read_text())
    return re.sub(r"\[([^\]]*)\]\((?!\.\./|http)[^)]*\)", r"\1", text)  # files outside of the site


API = {
    "Accounting": ("Steps", "Gaussians", "event_of", "epsilon_of", "calibrate"),
    "Train privately": ("dp_sgd", "PrivateTraining", "RandomStream"),
    "Keep a budget": ("Ledger",),
    "Average noisy updates": (
        "NoiseTracker",
        "inverse_variance_weights",
        "mmse_weights",
        "epsilon_weights",
        "project_private",
    ),
    "In any Flower app": ("NoiseAware", "PrivateRecords", "PrivateUpdates"),
    "Configure and test": ("RunConfig", "HDPFLError", "audit"),
}
"""Heading → the public names under it."""
BESIDE = {"run": "hdpfl_tools", "HDPStrategy": "strategies.core.base"}
"""Public names of other packages, which a user's ``client_app.py`` or ``strategies.py`` hides."""


def api_page() -> str:
    """Return the page of the public names, from their docstrings."""
    import hdpfl_flower

    sys.path[:0] = [] if str(DOCS) in sys.path else [str(DOCS)]
    from docstrings import described

    parts = [
        "# Python API\n\n`from hdpfl_flower import NAME` imports one of the names on this page, "
        "and no other name; `hdpfl_flower.__version__` is the version. All other names are private "
        "and may change. [Use it as a library](../how-to/library.md) has examples.\n"
    ]
    for heading, names in API.items():
        parts.append(f"\n## {heading}\n")
        for name in names:
            public = getattr(hdpfl_flower, name)
            inner = f".{public.__name__}" if hasattr(public, "__module__") else ""
            module = getattr(public, "__module__", public.__name__)
            parts.append("\n" + described(module + inner, name))
    parts.append(
        "\n## Run and extend\n\nThese two names need all packages of hdpfl-flower. Start Python in "
        "a folder that has no `client_app.py`, `server_app.py` or `strategies.py` of your own, "
        "because such a file would hide the package with the same name.\n"
    )
    for name, package in BESIDE.items():
        parts.append(f"\n`from {package} import {name}`\n")
        public = getattr(import_module(package), name)
        parts.append("\n" + described(f"{public.__module__}.{public.__name__}", name))
    return re.sub(r"\n{3,}", "\n\n", "".join(parts).rstrip() + "\n")


def site_code_page() -> str:
    """Return the page of the files that run at a site."""
    from client_app.site.app_digest import PACKAGES
    from hdpfl_tools.site.approval.reading import STAGES, site_files

    sources = {
        path.relative_to(ROOT).as_posix(): path.read_bytes()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }
    files = site_files(sources)
    whole = sum(len(source.splitlines()) for source in sources.values())
    parts = [
        "# Read what runs at your site\n\nThis page is for a security officer. Only these files of "
        "the app can run at a site that answers a message. The list follows the imports in the "
        "source, including imports inside functions. The files are in the order in which a message "
        "reaches them. The sentences under each title say what its files promise, so that a "
        "reviewer knows what to look for.\n\n`hdpfl-site approve APP.fab --to DIR` prints the "
        "number of lines for the app that you are asked to approve, and `hdpfl-site approve "
        "APP.fab --read` opens the files in this order. Files that the coordinator added are "
        "listed with the training.\n\n"
        f"The list has {sum(file.lines for file in files):,} of {whole:,} lines of the app, in "
        f"{len(files)} files.\n"
    ]
    for number, stage in enumerate(STAGES):
        rows = [
            (f"`{file.name}`", str(file.lines), plain(file.subject))
            for file in files
            if file.stage == number and file.lines > 1
        ]
        lines = sum(file.lines for file in files if file.stage == number)
        parts.append(f"\n## {number + 1}. {stage.title}: {lines:,} lines\n\n{stage.promise}\n\n")
        parts.append(table(("file", "lines", "subject"), rows))
    return "".join(parts)


PAGES = {
    "reference/site-code.md": site_code_page,
    "reference/terms.md": terms_page,
    "reference/profile.md": profile_page,
    "reference/schema.md": schema_page,
    "reference/cli-hdpfl.md": lambda: commands_page("hdpfl"),
    "reference/cli-hdpfl-site.md": lambda: commands_page("hdpfl-site"),
    "reference/metrics.md": metrics_page,
    "reference/combinations.md": combinations_page,
    "reference/wire.md": wire_page,
    "reference/api.md": api_page,
}
"""Every generated page that is committed."""

COPIES = {
    "project/bugs-put-back.md": bugs_page,
    "project/changelog.md": lambda: copied("CHANGELOG.md"),
    "project/security.md": lambda: copied("SECURITY.md"),
    "project/contributing.md": lambda: copied("CONTRIBUTING.md"),
}
"""Pages of the site alone: files of the root, and a page of 100 kB."""


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of the site alone."""
    if str(ROOT) not in sys.path:  # MkDocs restores the path after it has loaded this file
        sys.path.insert(0, str(ROOT))
    for name, make in COPIES.items():
        files.append(File.generated(config, name, content=make()))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return a page with links that work in the repository turned into those of the site."""
    markdown = re.sub(r"(\]\([^)]*notebooks/[a-z-]+)\.ipynb\)", r"\1.md)", markdown)
    return re.sub(
        r"\]\(\.\./\.\./(CONTRIBUTING|SECURITY|CHANGELOG)\.md\)",
        lambda page: f"](../project/{page[1].lower()}.md)",
        markdown,
    )


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    for _name, _make in PAGES.items():
        (DOCS / _name).write_text(_make(), encoding="utf-8")

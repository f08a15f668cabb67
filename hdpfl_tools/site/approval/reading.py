"""An app's files that run at a site, in the order of a message.

Found by the imports of its source, which is parsed and not executed: in functions, too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

START = "client_app.app"
_SERVERS = ("strategies", "server_app")
_BY_IMPORT = {"hdpfl_flower", *_SERVERS}
"""Packages of which imports decide; of any other all modules count: terms can name a model."""


@dataclass(frozen=True)
class Stage:
    """Stage of a message's way through a site.

    Attributes:
        title: of the stage.
        promise: property that a reviewer can check in its files.
        rooms: packages and modules that serve it; the longest prefix of a module counts.
    """

    title: str
    promise: str
    rooms: tuple[str, ...]


STAGES = (
    Stage(
        "A message arrives",
        "Every message gets one answer: a result, or one of four constant codes. It leaves at the "
        "time that `reply-after` sets. No reason and no text of an error is sent.",
        ("client_app", "hdpfl_flower.wire", "hdpfl_flower.reply_time",
         "hdpfl_flower.errors", "hdpfl_flower.formats", "hdpfl_flower"),
    ),
    Stage(
        "Its terms are read",
        "The server's text is data: no part of it is executed or opened as a path. Its size is "
        "bounded before it is parsed. If this version does not know a term, the site declines.",
        ("hdpfl_flower.config", "hdpfl_flower.work", "hdpfl_flower.releases"),
    ),
    Stage(
        "Profile and operator decide",
        "Unless the operator approved these terms and this app, no record is read and nothing is "
        "charged or disclosed.",
        ("client_app.site", "hdpfl_flower.privacy.policy"),
    ),
    Stage(
        "The price is computed",
        "One plan pays for all rounds of a run. The noise is rounded up. Its ε comes from "
        "privacy-loss distributions that bound the exact ε from above.",
        ("hdpfl_flower.privacy",),
    ),
    Stage(
        "The ledger is charged",
        "Every release is charged and reserved before the work, and sealed before it is sent. The "
        "same request gets the same bytes. No run exceeds the lifetime cap.",
        ("hdpfl_flower.ledger",),
    ),
    Stage(
        "The records are opened",
        "A message reads only one file, which the operator's tool prepared, and no export. The "
        "ledger binds the run to the file's SHA-256. Units that withdrew are left out.",
        ("client_app.site.prepared_records", "hdpfl_flower.ledger.checked_table",
         "hdpfl_flower.data", "hdpfl_flower.models.backbones", "hdpfl_flower.models.task"),
    ),
    Stage(
        "The model is trained",
        "The gradient of each record is clipped to C, whatever its values; noise of the system's "
        "generator is added to each sum, and to nothing less.",
        ("client_app.training", "client_app.work", "hdpfl_flower.engines", "hdpfl_flower.models",
         "hdpfl_flower.linalg", "hdpfl_flower.privacy.noise",
         "hdpfl_flower.privacy.clipped_update"),
    ),
    Stage(
        "The run ends",
        "What is released after the last round (scores, counts) is charged like an update. The "
        "site's own models stay in its folder.",
        ("client_app.after_run", "client_app.releases", "hdpfl_flower.measures"),
    ),
    Stage(
        "Beside all of it",
        "Files are replaced whole, with mode 0600; text from outside is printed on one line.",
        ("hdpfl_flower.system",),
    ),
)  # fmt: skip
"""Stages in the order of a message."""


@dataclass(frozen=True)
class SiteFile:
    """File of an app that runs at a site.

    Attributes:
        name: of the file in the bundle.
        subject: first line of its docstring.
        lines: of the file.
        stage: number of its stage, from 0.
    """

    name: str
    subject: str
    lines: int
    stage: int


def site_files(files: Mapping[str, bytes]) -> list[SiteFile]:
    """Return the files of an app that can run at a site, in the order of :data:`STAGES`.

    Args:
        files: content by name, as in a bundle.

    Guarantees:
        No file is executed. A file that the imports do not reach is not listed; modules of
        ``client_app`` and of the coordinator's own package all are. Of the latter's imports those
        of the server's packages are not followed: a strategy is never imported at a site, and a
        model that imports one is listed itself.
    """
    modules = {_module(name): name for name in files if name.endswith(".py")}
    owned = [m for m in modules if m.partition(".")[0] not in _BY_IMPORT]
    waiting, seen = [START, *owned], set[str]()
    while waiting:
        module = waiting.pop()
        if module in modules and module not in seen:
            seen.add(module)
            # A module's import runs the packages that it lies in.
            waiting += [module.rpartition(".")[0]]
            of_server = () if module.partition(".")[0] in {"client_app", *_BY_IMPORT} else _SERVERS
            waiting += [m for m in _imports(files[modules[module]]) if not m.startswith(of_server)]
    listed = [_site_file(modules[module], module, files) for module in seen]
    return sorted(listed, key=lambda file: (file.stage, file.name))


def _module(name: str) -> str:
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _imports(source: bytes) -> Iterator[str]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # then Python cannot import it, either
        return
    waiting: list[ast.AST] = [tree]
    while waiting:
        match waiting.pop():
            case ast.If(test=ast.Name(id="TYPE_CHECKING"), orelse=otherwise):
                waiting += otherwise  # the rest is read by type checkers alone
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                yield module
                yield from (f"{module}.{alias.name}" for alias in names)
            case node:
                waiting += ast.iter_child_nodes(node)


def _site_file(name: str, module: str, files: Mapping[str, bytes]) -> SiteFile:
    source = files[name]
    try:
        subject = (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]
    except (SyntaxError, ValueError):
        subject = "cannot be parsed"
    return SiteFile(name, subject, len(source.splitlines()), _stage_of(module))


def _stage_of(module: str) -> int:
    """Return the number of the stage with the longest prefix; a project's own: of training."""
    places = [
        (len(room), number)
        for number, stage in enumerate(STAGES)
        for room in stage.rooms
        if module == room or module.startswith(f"{room}.")
    ]
    training = next(n for n, stage in enumerate(STAGES) if "client_app.training" in stage.rooms)
    return max(places)[1] if places else training

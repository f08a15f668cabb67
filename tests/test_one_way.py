"""The way of one update: which of our files run between a prepared record and the new model.

A reader who follows a record through the system opens these files and no others.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from flwr.app import Message, RecordDict

from client_app.site import site as site_module
from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.profile import Profile
from hdpfl_tools.site.approval.preparation import bind_run
from server_app.run.rounds import run
from strategies.core.kernel import Kernel
from tests.client_app.messages import config_of, make_site, model_of, send
from tests.federation import ScriptedGrid

ROOT = Path(__file__).parents[1]
OURS = ("hdpfl_flower", "client_app", "server_app", "strategies", "hdpfl_tools")
MOST = 35
"""Files; 44 while a message read the table itself; one checks that the table was imported."""


class Files:
    """The files of which a function is called while they are watched."""

    def __init__(self) -> None:
        self._codes: set[str] = set()

    @property
    def found(self) -> set[str]:
        """Those of the packages, from the repository's root."""
        below = [Path(code).relative_to(ROOT) for code in self._codes if code.startswith(str(ROOT))]
        return {str(path) for path in below if path.parts[0] in OURS}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note the file of every call; a module's own lines, at its import, are no call."""

        def note(frame: FrameType, event: str, _: object) -> None:
            if event == "call" and frame.f_code.co_name != "<module>":
                self._codes.add(frame.f_code.co_filename)

        before = sys.getprofile()
        sys.setprofile(note)
        try:
            yield
        finally:
            sys.setprofile(before)


def from_the_row_on(files: Files, profile: Path, content: RecordDict) -> Message:
    """Return a site's reply; watch from the reading of its records to the reply."""
    read: Callable[..., Any] = site_module.records_of_run
    watching = files.watched()

    def watch(*words: Any) -> Any:
        watching.__enter__()
        return read(*words)

    site_module.records_of_run = watch  # type: ignore[assignment]
    try:
        return send({"profile": str(profile)}, wire.TRAIN, content)
    finally:
        watching.__exit__(None, None, None)
        site_module.records_of_run = read


def test_few_files_lie_between_a_row_and_the_model(tmp_path: Path) -> None:
    files, after = Files(), Files()
    config = config_of(
        strategy="fedavg", rounds=1, **{"min-sites": 1, "runs-dir": str(tmp_path / "runs")}
    )
    content = server_wire.write_instructions(config.terms, 1, model_of(config.terms))
    profiles = [make_site(tmp_path / name) for name in "abc"]
    for profile in profiles:
        bind_run(Profile.load(profile), config.terms)
    replies = [from_the_row_on(files, profile, content) for profile in profiles]
    answers = {f"site-{i}": replies[i].content for i in range(3)}
    combine = Kernel.aggregate_train

    def aggregate(self: Kernel, server_round: int, messages: Iterable[Message]) -> Any:
        with after.watched():
            return combine(self, server_round, messages)

    Kernel.aggregate_train = aggregate  # type: ignore[method-assign]
    try:
        result = run(
            ScriptedGrid({name: lambda _, one=answer: one for name, answer in answers.items()}),
            config,
        )
    finally:
        Kernel.aggregate_train = combine  # type: ignore[method-assign]
    assert len(result.rounds[0]["accepted"]) == 3
    ours = {"hdpfl_flower/engines/dpsgd.py", "client_app/site/prepared_records.py"}
    assert ours <= files.found
    assert "hdpfl_tools/tables/table_reader.py" not in files.found
    assert "strategies/averaging/fedavg.py" in after.found
    way = sorted(files.found | after.found)
    assert len(way) <= MOST, "\n".join(way)

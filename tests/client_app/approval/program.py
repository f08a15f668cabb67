"""A launcher in small, whose messages are Python: ``test_importer.py`` starts it, with -I.

    program.py CODE             as a launcher
    program.py --hold-imports … as the importer

Its folder is in ``HDPFL_TEST_HOME``, with a copy of the importer in ``lib``.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from pathlib import Path
from typing import Any


def main(home: Path) -> None:
    importer = load_importer(home)
    if sys.argv[1] == importer.HOLD:
        hold(home, importer)
        return
    place = importer.find_place(str(home), "app")
    if place is not None and (status := importer.answer(place)) is not None:
        sys.exit(status)
    try:
        work(importer)
    finally:
        importer.after_message(place)


def hold(home: Path, importer: Any) -> None:
    serving = importer.Importer(sys.argv[2:], lambda: not (home / "withdrawn").exists())
    with (home / "importers").open("a") as file:
        file.write(f"{os.getpid()}\n")
    sys.path[:0] = os.environ.get("HDPFL_TEST_PATH", "").split(":")
    for name in os.environ.get("HDPFL_TEST_IMPORTS", "").split():
        importlib.import_module(name)
    if (home / "thread").exists():
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    if serving.serve():
        importer.run_and_exit(lambda: work(importer))


def work(importer: Any) -> None:
    exec(sys.argv[1], {"importer": importer, "sys": sys, "os": os})


def load_importer(home: Path) -> Any:
    spec = importlib.util.spec_from_file_location("hdpfl_importer", home / "lib" / "importer.py")
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


if __name__ == "__main__":
    main(Path(os.environ["HDPFL_TEST_HOME"]))

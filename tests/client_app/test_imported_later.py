"""An importer has imported all that a message needs: a child of it would import it every time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.e2e.engines import ROOT

PROBE = """
import importlib, sys
from pathlib import Path
from client_app.app import app
for name in app.imported_later:
    importlib.import_module(name)
from hdpfl_flower import wire
from tests.client_app.messages import ask
from tests.privacy.sites import DECLARED, digits, make_site, terms_of
before = set(sys.modules)
for model in ("logreg", "mlp:16"):
    profile, terms = make_site(Path(sys.argv[1]) / model, digits(DECLARED)), terms_of(model)
    ask(profile, terms, 1, wire.JOIN)
    for number in range(1, terms.rounds + 1):
        ask(profile, terms, number)
    ask(profile, terms, 1, wire.EVALUATE)
    ask(profile, terms, terms.rounds, wire.FINISH)
print(*sorted(set(sys.modules) - before))
"""
SMALL = {
    "encodings.cp437", "hdpfl_flower.data.images.image_folder",
    "hdpfl_flower.scenarios.paper_formulas", "torch.utils._device",
}  # fmt: skip
"""Modules of milliseconds: of some sites' records or terms, or a private one of torch, whose
absence in another version would end the importer."""


def test_no_message_imports_what_an_importer_could_hold(tmp_path: Path) -> None:
    """Torch imports symbolic algebra, half a second, for some calls: none of them is made."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(tmp_path)], cwd=ROOT,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) <= SMALL

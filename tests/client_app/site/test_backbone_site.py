"""A deployed site under a frozen backbone: what it lists and holds, and what it keeps in memory."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import RecordDict
from safetensors.torch import load_file, save_file
from torch import nn
from typer.testing import CliRunner

from client_app.after_run.final_model import FinalModel, write_final_model
from client_app.site.remembered import Remembered
from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.models import backbones
from hdpfl_flower.models.backbones import over
from hdpfl_flower.models.task import Task
from hdpfl_flower.system.weight_files import weight_file
from hdpfl_tools.site.commands import app
from tests.client_app.messages import make_site, model_of, send, terms_of

FUNCTION = f"{__name__}:network"
seen: list[int] = []


def network(_: Task | None = None) -> nn.Module:
    """Three numbers of a row of a table."""
    return nn.Sequential(Noting(), nn.Linear(2, 3), nn.Tanh())


class Noting(nn.Module):
    """Notes each batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``x``."""
        seen.append(len(x))
        return x


@pytest.fixture(autouse=True)
def digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The weights, added as an operator does; returns their digest."""
    monkeypatch.setenv("HDPFL_HOME", str(tmp_path / "home"))
    backbones._network.cache_clear()
    torch.manual_seed(3)
    save_file(network().state_dict(), tmp_path / "w.safetensors")
    done = CliRunner().invoke(app, ["approve", str(tmp_path / "w.safetensors")])
    assert done.exit_code == 0, done.output
    found = done.output.split('"')[1]
    assert found.startswith("sha256:")
    return found


def test_a_file_of_weights_that_cannot_be_read_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / "bad.safetensors").write_bytes(b"none")
    done = CliRunner().invoke(app, ["approve", str(tmp_path / "bad.safetensors")])
    assert done.exit_code != 0
    assert len(list((tmp_path / "home" / "weights").iterdir())) == 1


def terms(digest: str) -> RunTerms:
    return terms_of(backbone={"kind": "own", "function": FUNCTION, "width": 3, "weights": digest})


def policy(digest: str, function: str = FUNCTION) -> str:
    return f'[policy]\nweights = ["{digest}"]\nmodels = ["{function}"]\n'


def ask(profile: Path, asked: RunTerms, server_round: int, memory: RecordDict) -> int | None:
    """Return the code of a refusal; None where the site trained."""
    kind = wire.TRAIN if server_round else wire.JOIN
    content = server_wire.write_instructions(asked, server_round, model_of(asked))
    reply = send({"profile": str(profile)}, kind, content, memory=memory)
    return reply.error.code if reply.has_error() else None


def releases(folder: Path) -> int:
    ledger = Ledger(folder / "ledger.sqlite")
    found = len(ledger.account().releases)
    ledger.close()
    return found


def test_a_site_that_lists_the_weights_trains_on_their_outputs(tmp_path: Path, digest: str) -> None:
    profile, memory = make_site(tmp_path, more=policy(digest)), RecordDict()
    asked = terms(digest)
    assert {n: a.shape for n, a in server_wire.read_own(model_of(asked)).items()} == {
        "1.weight": (1, 3),
        "1.bias": (1,),
    }
    assert ask(profile, asked, 0, memory) is None
    assert ask(profile, asked, 1, memory) is None
    assert releases(tmp_path) == 1


def test_outputs_are_computed_once_a_run_and_kept_encrypted(tmp_path: Path, digest: str) -> None:
    """The node's memory holds the key alone, the disk no byte of a row."""
    profile, memory = make_site(tmp_path, more=policy(digest)), RecordDict()
    asked = terms(digest)
    assert ask(profile, asked, 1, memory) is None
    assert list(memory) == ["hdpfl.backbone"]
    assert len(memory["hdpfl.backbone"]["key"]) == 32  # type: ignore[arg-type]
    ages = [(20.0 + i, i % 10) for i in range(61)]
    scaled = np.array([(age / 50 - 1, dose / 5 - 1) for age, dose in ages], np.float32)
    rows = over(asked.backbone, Task.classification((2,), 2)).embed(scaled)  # type: ignore[arg-type]
    assert (tmp_path / "state" / "backbone.bin").stat().st_size == 12 + rows.nbytes + 16
    files = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert not [row for row in rows for content in files if row.tobytes() in content]
    before = len(seen)
    assert ask(profile, asked, 2, memory) is None
    assert len(seen) == before
    # Other records, or another key, are not those kept.
    records = tmp_path / "records.csv"
    records.write_text(records.read_text().replace("20,0,no", "21,0,no"))
    done = CliRunner().invoke(app, ["prepare", "run-1", "--yes", "--profile", str(profile)])
    assert done.exit_code == 0, done.output
    assert ask(profile, asked, 3, memory) is None
    assert len(seen) > before
    before = len(seen)
    assert ask(profile, terms(digest), 3, RecordDict()) is None
    assert len(seen) > before


def double(features: np.ndarray) -> np.ndarray:
    """Stand in for a backbone."""
    return features * 2


def stored(folder: Path, memory: RecordDict, value: float) -> bytes:
    """Return the file of the outputs of records that all hold ``value``."""
    Remembered(double, memory, folder)(np.full((3, 2), value, np.float32))  # type: ignore[arg-type]
    return (folder / "backbone.bin").read_bytes()


def test_no_two_files_under_a_key_have_one_nonce(tmp_path: Path) -> None:
    """A nonce used twice shows the difference of two outputs, and lets files be forged.

    Also of the same records again, and of processes that begin alike.
    """
    memory = RecordDict()
    files = [stored(tmp_path, memory, value) for value in (1.0, 2.0, 1.0, 2.0, 3.0)]
    (tmp_path / "backbone.bin").unlink()
    files.append(stored(tmp_path, memory, 3.0))
    key = memory["hdpfl.backbone"]["key"]
    for child in range(3):
        with multiprocessing.get_context("fork").Pool(1) as pool:
            files.append(pool.apply(stored, (tmp_path / f"{child}", memory, float(child))))
    assert len({file[:12] for file in files}) == len(files) == 9
    assert len({file[12:] for file in files}) == len(files)
    assert memory["hdpfl.backbone"]["key"] == key


def test_each_run_has_a_key_of_its_own(tmp_path: Path) -> None:
    runs = [RecordDict() for _ in range(4)]
    for run in runs:
        stored(tmp_path, run, 1.0)
    assert len({run["hdpfl.backbone"]["key"] for run in runs}) == 4


@pytest.mark.parametrize("case", ["no list", "other weights", "other code", "no file", "damaged"])
def test_a_site_without_them_charges_nothing(tmp_path: Path, digest: str, case: str) -> None:
    lines = {
        "no list": "",
        "other weights": policy("sha256:" + "0" * 64),
        "other code": policy(digest, "clinic:other"),
    }
    profile = make_site(tmp_path, more=lines.get(case, policy(digest)))
    if case == "no file":
        weight_file(digest).unlink()
    if case == "damaged":
        weight_file(digest).write_bytes(b"else")
    code = ask(profile, terms(digest), 1, RecordDict())
    assert code in {wire.DECLINED, wire.FAILED}
    assert releases(tmp_path) == 0


def test_the_check_of_a_site_reads_records_as_they_are_stored(tmp_path: Path, digest: str) -> None:
    """Columns, losses and leaks are of the table, not of the backbone's outputs."""
    profile = make_site(tmp_path, more=policy(digest))
    lines = [f"{key} = {json.dumps(value)}" for key, value in terms(digest).as_config().items()]
    (tmp_path / "run.toml").write_text("\n".join(lines))
    command = ["profile", "check", "--profile", str(profile), "--terms", str(tmp_path / "run.toml")]
    done = CliRunner().invoke(app, command)
    assert "61 records" in done.output, done.output
    assert "error" not in done.output.lower(), done.output


def test_a_site_trains_adapters_and_exports_them_merged(tmp_path: Path, digest: str) -> None:
    """Of the rows themselves nothing is kept; without the file the site declines."""
    profile, memory = make_site(tmp_path, more=policy(digest)), RecordDict()
    asked = terms_of(
        backbone={
            "kind": "own",
            "function": FUNCTION,
            "width": 3,
            "weights": digest,
            "adapter": "lora:1",
        }
    )
    assert {name: array.shape for name, array in server_wire.read_own(model_of(asked)).items()} == {
        "backbone.1.parametrizations.weight.0.b": (3, 1),
        "head.1.weight": (1, 3),
        "head.1.bias": (1,),
    }
    assert ask(profile, asked, 1, memory) is None
    assert not list(memory)
    assert not (tmp_path / "state" / "backbone.bin").exists()
    (tmp_path / "state").mkdir(exist_ok=True)
    write_final_model(tmp_path / "state", FinalModel(asked, server_wire.read_own(model_of(asked))))
    target = tmp_path / "whole.safetensors"
    command = ["model", "show", "--profile", str(profile), "--to", str(target)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    own = load_file(tmp_path / "w.safetensors")
    whole = load_file(target)
    assert torch.equal(whole["backbone.1.weight"], own["1.weight"])  # B is zero at first
    weight_file(digest).unlink()
    assert ask(profile, asked, 2, memory) == wire.DECLINED
    assert releases(tmp_path) == 1

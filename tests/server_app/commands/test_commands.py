"""``hdpfl`` as a user runs it: results on the screen, one clear line where something is wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_app import in_process
from hdpfl_flower.versions import __version__
from server_app.commands import main

Command = Callable[..., subprocess.CompletedProcess[str]]

SMALL = [
    "--clients",
    "4",
    "--rounds",
    "3",
    "--epsilons",
    "1,2,4,8",
    "--batch-sizes",
    "32",
    "--jobs",
    "1",
]


def hdpfl(
    *words: str, home: Path, more: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command with a home of its own.

    In a process of its own: what a user waits for, and what stops it, are the process's.
    """
    command = [sys.executable, "-c", "from server_app.commands import main; main()", *words]
    environment = {**os.environ, "HDPFL_HOME": str(home), "COLUMNS": "100", **(more or {})}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a command in this process, which has imported torch already."""

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["hdpfl", *words])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        return subprocess.CompletedProcess(words, int(end.value.code or 0), said.out, said.err)

    return call


def test_compare_gives_a_table_a_file_and_a_picture(tmp_path: Path, here: Command) -> None:
    out = tmp_path / "out"
    words = ["compare", "--strategies", "fedavg,robust-hdp", *SMALL, "--seeds", "2"]
    done = here(*words, "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert "fedavg" in done.stdout
    assert "robust-hdp" in done.stdout
    assert "±" in done.stdout
    content = json.loads((out / "comparison.json").read_text())
    for strategy in ("fedavg", "robust-hdp"):
        accuracy = content["results"][strategy]["accuracy"]
        assert [len(accuracy), len(accuracy[0])] == [2, 3]
    assert (out / "comparison.png").stat().st_size > 10_000


def test_compare_trains_clients_together_where_it_is_asked_to(
    tmp_path: Path, here: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []
    work = in_process.train_stacked

    def train_stacked(stack: Any, jobs: Any, *more: Any) -> Any:
        counted.append(len(jobs))
        return work(stack, jobs, *more)

    monkeypatch.setattr(in_process, "train_stacked", train_stacked)
    words = ["compare", "--strategies", "fedavg", *SMALL, "--seeds", "1"]
    found = []
    for more in ([], ["--stack"]):
        out = tmp_path / str(len(more))
        done = here(*words, *more, "--out", str(out))
        assert done.returncode == 0, done.stderr
        found.append(json.loads((out / "comparison.json").read_text()))
    assert counted == [4, 4, 4]  # 3 rounds of 4 clients, of the second run alone
    assert [content["terms"]["stack"] for content in found] == [False, True]
    losses = [content["results"]["fedavg"]["loss"] for content in found]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)


@pytest.mark.slow
def test_two_jobs_at_a_time_give_what_one_gives(tmp_path: Path, here: Command) -> None:
    words = ["compare", "--strategies", "fedavg,oracle", *SMALL, "--seeds", "1"]
    results = []
    for jobs in ("1", "2"):
        out = tmp_path / jobs
        done = here(*words, "--jobs", jobs, "--out", str(out))
        assert done.returncode == 0, done.stderr
        results.append(json.loads((out / "comparison.json").read_text())["results"])
    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["compare", "--strategies", "fedsgd"], "'fedsgd' is not known; choose one of fedavg"),
        (["compare", "--strategies", " , "], "--strategies names no strategy; write such as"),
        (["compare", "--dataset", "mnist"], "'data-dir' is empty"),
        (["compare", "--dataset", "mnist", "--data-dir", "/nowhere"], "/nowhere"),
        (["compare", "--dataset", "imagenet"], "imagenet"),
        (["compare", "--epsilons", "dist10"], "'epsilons'"),
        (["compare", "--epsilons", "0.5,-1", "--clients", "2"], "'epsilons'"),
        (["compare", "--batch-sizes", "0"], "'batch-sizes'"),
        (["compare", "--partition", "shreds:2"], "'partition'"),
        (["compare", "--model", "gpt"], "model 'gpt' is not known"),
        (["compare", "--rounds", "0"], "'rounds' must be greater than or equal to 1"),
        (["compare", "--set", "clipnorm=1"], "did you mean 'clip-norm'?"),
        (["compare", "--set", "clip-norm"], "write KEY=VALUE"),
        (["compare", "--terms", "/nowhere.toml"], "/nowhere.toml"),
        (["exporter", "--history", "no-such-run"], "no journal at"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_clear_line(
    words: list[str],
    line: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jobs = ["--jobs", "1"] if "compare" in words else []
    monkeypatch.setattr(sys, "argv", ["hdpfl", *words, *jobs])
    with pytest.raises(SystemExit) as end:
        main()
    stderr = capsys.readouterr().err
    assert end.value.code == 1
    assert line in stderr
    assert len(stderr.strip().splitlines()) == 1, stderr


def test_ctrl_c_keeps_what_was_finished(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["--strategies", "fedavg,robust-hdp", *SMALL, "--seeds", "200", "--out", str(out)]
    command = [sys.executable, "-c", "from server_app.commands import main; main()", "compare"]
    environment = {**os.environ, "HDPFL_HOME": str(tmp_path)}
    process = subprocess.Popen(
        command + words, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - a shell
    )  # fmt: skip  # that starts the tests in the background has them ignore Ctrl-C
    deadline = time.monotonic() + 300  # Ctrl-C in the middle of an import is nobody's concern
    second = out / "robust-hdp-seed2" / "journal.jsonl"
    while not second.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "interrupted" in stderr
    assert "Traceback" not in stderr
    content = json.loads((out / "comparison.json").read_text())
    assert len(content["results"]["fedavg"]["accuracy"]) >= 2
    assert "fedavg" in stdout
    assert f"--resume --out {out}" in stderr


def test_compare_resumes(tmp_path: Path, here: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    words = ["compare", "--strategies", "fedavg", *SMALL, "--seeds", "2", "--out", str(out)]
    first = here(*words, "--resume")
    assert first.returncode == 0, first.stderr
    content = (out / "comparison.json").read_bytes()
    (out / "fedavg-seed2" / "finished.json").unlink()
    journals = [out / f"fedavg-seed{seed}" / "journal.jsonl" for seed in (1, 2)]
    before = [journal.read_bytes() for journal in journals]
    again = here(*words, "--resume")
    assert again.returncode == 0, again.stderr
    assert again.stdout == first.stdout
    assert (out / "comparison.json").read_bytes() == content
    changed = [journal.read_bytes() != old for journal, old in zip(journals, before, strict=True)]
    assert changed == [False, True]
    other = here(*words, "--resume", "--set", "clip-norm=2")
    assert other.returncode == 1
    assert "'clip-norm'" in other.stderr


def test_bare_and_help_show_the_commands(here: Command) -> None:
    done = here("--help")
    assert done.returncode == 0
    assert all(command in done.stdout for command in ("demo", "compare", "report"))


def test_help_says_what_an_argument_is_and_is_plain_in_a_file(here: Command) -> None:
    done = here("report", "--help")
    assert "A run's folder or its id under runs-dir" in done.stdout
    assert "\x1b" not in done.stdout


NAMING_IMPORTS = """
import sys
from server_app.commands import main
try:
    main()
finally:
    print({"torch", "strategies"} & sys.modules.keys())
"""


def test_the_version_is_printed_without_an_import_of_torch() -> None:
    command = [sys.executable, "-c", NAMING_IMPORTS, "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == f"hdpfl-flower {__version__}\nset()\n"


@pytest.mark.slow
def test_a_broken_torchvision_stops_only_what_needs_it(tmp_path: Path) -> None:
    broken = tmp_path / "broken" / "torchvision"
    broken.mkdir(parents=True)
    said = "operator torchvision::nms does not exist"  # what a pair that does not match says
    (broken / "__init__.py").write_text(f"raise RuntimeError({said!r})")
    words = ["compare", "--strategies", "fedavg", *SMALL, "--seeds", "1"]
    path = {"PYTHONPATH": str(broken.parent)}
    assert hdpfl(*words, home=tmp_path, more=path).returncode == 0
    needs_it = hdpfl(*words, "--model", "resnet18", home=tmp_path, more=path)
    assert needs_it.returncode == 1
    assert "install the pair together: pip install" in needs_it.stderr
    assert len(needs_it.stderr.strip().splitlines()) == 1

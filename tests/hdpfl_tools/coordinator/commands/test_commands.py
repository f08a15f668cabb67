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

import pytest

from hdpfl_tools.coordinator.commands import main

Command = Callable[..., subprocess.CompletedProcess[str]]

SMALL = ["--clients=4", "--rounds=3", "--epsilons=1,2,4,8", "--batch-sizes=32", "--jobs=1"]


def hdpfl(
    *words: str, home: Path, more: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command with a home of its own.

    In a process of its own: what a user waits for, and what stops it, are the process's.
    """
    command = [
        sys.executable,
        "-c",
        "from hdpfl_tools.coordinator.commands import main; main()",
        *words,
    ]
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


def test_rates_are_tuned_on_other_seeds_and_rows_compared_pair_by_pair(
    tmp_path: Path, here: Command
) -> None:
    out, tex = tmp_path / "out", tmp_path / "tables.tex"
    words = ["compare", "--strategies", "fedavg,fedsplit", *SMALL, "--seeds", "2"]
    words += ["--rates", "0.0001,0.3", "--against", "fedsplit", "--latex", str(tex)]
    done = here(*words, "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert "fedavg: rate 0.3, the best of 0.0001, 0.3 on seeds 10001 to 10002" in done.stdout
    assert "Difference from 'fedsplit' on the same seeds: accuracy" in done.stdout
    assert "warning: the server finds" not in done.stdout
    results = json.loads((out / "comparison.json").read_text())["results"]
    assert [results[name]["learning-rate"] for name in results] == [0.3, 0.3]
    assert results["fedavg"]["seeds"] == [1, 2]
    text = tex.read_text()
    assert text.count(r"\toprule") == text.count(r"\bottomrule") >= 3
    assert r"fedavg & 0." in text and r"$\pm$" in text and "±" not in text


def test_a_table_of_found_and_fixed_rates_says_so(tmp_path: Path, here: Command) -> None:
    words = ["compare", "--strategies", "fedavg,fedsplit", *SMALL, "--seeds", "1"]
    done = here(*words, "--out", str(tmp_path / "out"))
    assert "warning: the server finds the rate of some rows" in done.stdout
    assert "--rates 0.03,0.1,0.3,1" in done.stdout


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ["compare", "--against", "mean"],
            "--against: there is no row 'mean'; choose one of fedavg",
        ),
        (["compare", "--rates", "0.1,fast"], "--rates: write positive numbers with commas"),
        (["compare", "--rates", "0"], "--rates: write positive numbers with commas"),
        (["compare", "--rates", ","], "--rates: name at least one rate"),
        (["compare", "--rates", "1", "--learning-rate", "1"], "leave out 'learning-rate'"),
        (["compare", "--strategies", "fedsgd"], "'fedsgd' is not known; choose one of fedavg"),
        (["compare", "--strategies", " , "], "--strategies names no strategy; write names such as"),
        (["compare", "--dataset", "mnist"], "'data-dir' is empty"),
        (["compare", "--dataset", "mnist", "--data-dir", "/nowhere"], "/nowhere"),
        (["compare", "--model", "gpt"], "model 'gpt' is not known"),
        (["compare", "--set", "clipnorm=1"], "did you mean 'clip-norm'?"),
        (["compare", "--set", "clip-norm"], "write KEY=VALUE"),
        (["compare", "--terms", "/nowhere.toml"], "/nowhere.toml"),
        (["exporter", "--history", "no-such-run"], "no journal at"),
    ],
)
def test_a_mistake_is_one_clear_line(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
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
    command = [
        sys.executable,
        "-c",
        "from hdpfl_tools.coordinator.commands import main; main()",
        "compare",
    ]
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

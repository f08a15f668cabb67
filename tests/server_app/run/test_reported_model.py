"""The model that a run reports, beside the one that its sites train from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.models.networks import flatten
from hdpfl_tools.simulation.in_process.grid import LocalGrid
from hdpfl_tools.simulation.in_process.in_process_run import run_in_process
from server_app.run.rounds import RunResult

ROUNDS = 4
Sent = list[tuple[str, bytes]]


@pytest.fixture(name="sent")
def models_sent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sent]:
    """Every message's type and model, a round each."""
    sent: Sent = []
    send = LocalGrid.send_and_receive

    def listen(grid, messages, *, timeout=None):  # type: ignore[no-untyped-def]
        messages = list(messages)
        content = messages[0].content
        if "model" in content and len(content["model"]):
            model = flatten(server_wire.read_own(content["model"]))
            sent.append((messages[0].metadata.message_type, model.tobytes()))
        return send(grid, messages, timeout=timeout)

    monkeypatch.setattr(LocalGrid, "send_and_receive", listen)
    yield sent


def run(folder: Path, **keys: object) -> RunResult:
    name = "-".join(map(str, keys.values())) or "plain"
    return run_in_process(RunConfig.parse({
        "strategy": "fedavg", "rounds": ROUNDS, "local-steps": 2, "runs-dir": str(folder),
        "run-id": name, "epsilons": "8", "learning-rate": 1.0, **keys,
    }), 3)  # fmt: skip


@pytest.mark.usefixtures("guessed_noise")
@pytest.mark.parametrize(
    ("average", "weights"), [("tail", [0, 0, 1 / 2, 1 / 2]), ("ergodic", [1 / 4] * 4)]
)
def test_the_mean_is_stored_tested_sent_and_journalled_beside_the_broadcast_model(
    tmp_path: Path, sent: Sent, average: str, weights: list[float]
) -> None:
    """Sites train the same models as without it."""
    plain = run(tmp_path)
    trained, last = [m for kind, m in sent if kind == wire.TRAIN], flatten(plain.arrays)
    models = [np.frombuffer(m, np.float32) for m in trained[1:]] + [last]
    sent.clear()
    result = run(tmp_path, average=average)
    assert [m for kind, m in sent if kind == wire.TRAIN] == trained
    reported = flatten(result.arrays)
    expected = np.array(weights) @ np.array(models, dtype=np.float64)
    np.testing.assert_allclose(reported, expected, rtol=1e-5, atol=1e-6)
    assert [m for kind, m in sent if kind == wire.FINISH] == [reported.tobytes()]
    stored = load_file(result.folder / "model.safetensors")
    for name, array in result.arrays.items():
        np.testing.assert_array_equal(stored[name], array)
    first = weights.index(max(weights)) + 1
    for event, alone in zip(result.rounds, plain.rounds, strict=True):
        metrics, begun = event["metrics"], event["round"] >= first
        assert metrics["broadcast-loss" if begun else "loss"] == alone["metrics"]["loss"]
        assert ("broadcast-accuracy" in metrics) == begun
        if begun:
            assert event["gauges"]["averaged_models"] == event["round"] - first + 1
    assert result.rounds[-1]["metrics"]["loss"] != plain.rounds[-1]["metrics"]["loss"]

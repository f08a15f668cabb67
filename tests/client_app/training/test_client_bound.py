"""What one record can do to a client's update: turn it round; and what an attacker learns of it.

The attack is on the real ClientApp. The server sends a model and a learning rate at which a single
record more decides where the clipped update points: S·(1 − 1e-6) one way or the other. Releases
with and without that record, by coin, have Gaussian scores, and ``hdpfl_flower/privacy/audit.py``
finds a lower bound on ε. At the calibration for a client against nothing (1 S in place of 2 S) the
bound at a claim of ε = 8 was 15.3 with 1,000 releases: such a bound is wrong once in a million true
claims.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from flwr.app import ArrayRecord

from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.models.networks import arrays_of, build_model
from hdpfl_flower.privacy.audit import Evidence
from hdpfl_tools.site.audit import SURE
from tests.client_app.messages import CLIENT_NOISE, make_site, send, terms_of

CLAIM, DELTA = 8.0, 1e-5
CLIP_NORM = 3.0
"""Not 1: else a noise that forgets S would pass."""
WITHOUT, RECORD = ["50,5,yes"] * 4, "50,5,no"
"""Features in the middle of their bounds are 0: the update lies along the bias alone."""


def write_site(folder: Path, epsilon: float, rows: list[str]) -> Path:
    """Return the profile of a site whose batch is all its records, and whose cap never ends."""
    profile = make_site(folder, more=CLIENT_NOISE)
    text = profile.read_text()
    for old, new in (
        ("2.4691356", "inf"), ("1.2345678", str(epsilon)), ("delta = 1e-5", "delta = 1e-2"),
        ("delta = 1e-6", f"delta = {DELTA}"), ("batch-size = 7", "batch-size = 61"),
    ):  # fmt: skip
        text = text.replace(old, new)
    profile.write_text(text)
    (folder / "ledger.sqlite").unlink()
    Ledger.create(folder / "ledger.sqlite", np.inf, 1e-2).close()
    (folder / "records.csv").write_text("\n".join(["age,dose,sick", *rows, ""]))
    return profile


def attack_terms(run: int) -> RunTerms:
    more = {"learning-rate": 1e6, "clip-norm": CLIP_NORM, "run-id": f"run-{run}"}
    return terms_of(noise="client", strategy="fedhdp", rounds=1, **more)


def chosen_model() -> ArrayRecord:
    """Return the model that the server sends: 'yes' with probability .9, whatever the features.

    Each 'yes' then pulls the bias by .1, and one 'no' by .9 the other way.
    """
    terms = attack_terms(0)
    arrays = arrays_of(build_model(terms.model, task_for(terms), 1))
    for array in arrays.values():
        array[:] = np.log(9.0) if array.ndim == 1 else 0.0
    return server_wire.write_model(arrays)


def update_of(profile: Path, run: int) -> np.ndarray:
    content = server_wire.write_instructions(attack_terms(run), 1, chosen_model())
    reply = send({"profile": str(profile)}, wire.TRAIN, content)
    assert reply.has_content(), reply.error
    return server_wire.read_update(reply.content, 3).astype(np.float64)


def evidence(score: np.ndarray, member: np.ndarray, rest: np.ndarray) -> Evidence:
    """Return what the scores say of μ; σ from both groups and from numbers of noise alone."""
    groups = [score[member], score[~member]]
    squares = sum(float(np.square(g - g.mean()).sum()) for g in groups) + float((rest**2).sum())
    freedom = len(score) - 2 + rest.size
    sigma = np.sqrt(squares / freedom)
    error = np.sqrt(sum(1 / len(group) for group in groups))
    return Evidence(float(groups[1].mean() - groups[0].mean()) / sigma, error, freedom)


def test_one_record_turns_the_clipped_update_round(tmp_path: Path) -> None:
    """Without noise (ε infinite): as far apart as two clipped updates can be."""
    few = write_site(tmp_path / "without", np.inf, WITHOUT)
    more = write_site(tmp_path / "with", np.inf, [*WITHOUT, RECORD])
    without, with_it = update_of(few, 1), update_of(more, 1)
    for update in (without, with_it):
        assert np.linalg.norm(update) == pytest.approx(CLIP_NORM * (1 - 1e-6), rel=1e-6)
    assert np.linalg.norm(with_it - without) == pytest.approx(2 * CLIP_NORM * (1 - 1e-6), rel=1e-6)


def test_an_attacker_learns_no_more_than_the_claim(tmp_path: Path) -> None:
    """The sure bound is above a true claim once in a million; half the noise it rejects.

    With half the noise μ is 3.33 ± .17 at 200 releases, and the bound, 4.75 errors below, is above
    the claim unless μ is estimated 4.6 errors low: 2 in a million.
    """
    number = 200
    member = np.random.default_rng().permutation(np.arange(number) % 2 == 1)  # by the system's coin
    profiles: dict[tuple[bool, int], Path] = {}
    updates = []
    for run, there in enumerate(member.tolist()):
        key = there, run // 50  # a ledger is verified from its first entry: none grows long
        if key not in profiles:
            rows = [*WITHOUT, RECORD] if there else WITHOUT
            profiles[key] = write_site(tmp_path / f"{there}-{run // 50}", CLAIM, rows)
        updates.append(update_of(profiles[key], run))
    found = np.array(updates)
    score, rest = found[:, 2], found[:, :2]
    assert evidence(score, member, rest).epsilon_bound(DELTA, SURE) <= CLAIM
    means = np.where(member, score[member].mean(), score[~member].mean())
    half = evidence(means + (score - means) / 2, member, rest / 2)
    assert half.epsilon_bound(DELTA, SURE) > CLAIM

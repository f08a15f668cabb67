"""The attack on exact answers: labels read off accuracies, up to the bound of the profile.

The coordinator chooses each model, here a threshold on one column. Two thresholds with one record
between them have accuracies that differ by that record's label, whatever the rest.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from client_app.site.site import Site
from hdpfl_flower import server_wire, wire
from hdpfl_flower.models.task import Records
from tests.client_app.messages import ask, make_site, send, terms_with_test

AGES = range(20, 81)
"""Of the site's 61 records; which of them are held out, the attacker does not know."""
RUN = {"noise": "server", "strategy": "fedhdp", "delta": 1e-6, "rounds": 16}
"""A trusted server's run, which costs no ε: as many of them as the server likes."""


def site_of(folder: Path, answers: int) -> Path:
    profile = make_site(folder, disclose='["metrics"]', holdout=0.5)
    text = profile.read_text().replace("exact-answers = 20", f"exact-answers = {answers}")
    profile.write_text("trust-server = true\n" + text)
    return profile


def attack_answers(profile: Path) -> dict[int, bool]:
    """Return the labels that the answers show, by age."""
    right: dict[int, float] = {}
    for number, age in enumerate([*AGES, AGES.stop]):
        run, server_round = divmod(number, int(str(RUN["rounds"])))
        terms = terms_with_test(**RUN, **{"run-id": f"run-{run}"})
        assert ask(profile, terms, server_round + 1).has_content()
        model = server_wire.write_model(
            {
                "1.weight": np.array([[50.0, 0.0]], np.float32),  # of ages as -1 … 1
                "1.bias": np.array([50.5 - age], np.float32),
            }
        )
        content = server_wire.write_instructions(terms, server_round + 1, model)
        reply = send({"profile": str(profile)}, wire.EVALUATE, content)
        if reply.has_content():
            right[age] = server_wire.read_metrics(reply.content)["accuracy"]
    pairs = [(age, right[age] - right[age + 1]) for age in AGES if {age, age + 1} <= right.keys()]
    return {age: change > 0 for age, change in pairs if change}


@pytest.fixture(name="held_out")
def labels_held_out(monkeypatch: pytest.MonkeyPatch) -> dict[int, bool]:
    """The truth, noted while the site tests."""
    found: dict[int, bool] = {}
    real = Site.test_records

    def noting(self: Site) -> Records | None:
        records = real(self)
        if records is not None:
            ages = np.rint(50 + 50 * records.features[:, 0]).astype(int)
            found.update(zip(ages.tolist(), (records.targets == 1).tolist(), strict=True))
        return records

    monkeypatch.setattr(Site, "test_records", noting)
    return found


@pytest.mark.parametrize("answers", [0, 8])
def test_answers_show_fewer_labels_than_they_are(tmp_path: Path, answers: int) -> None:
    shown = attack_answers(site_of(tmp_path, answers))
    assert len(shown) < max(answers, 1)
    assert bool(shown) == bool(answers), "the attack sees what is answered"


def test_enough_answers_show_every_label(tmp_path: Path, held_out: dict[int, bool]) -> None:
    """The test of the attack: what a site that states so many answers gives away."""
    shown = attack_answers(site_of(tmp_path, 100))
    assert shown == held_out
    assert len(held_out) > 20

"""``flwr run`` under Ray: what a user sees when a run fails."""

from __future__ import annotations

import pytest

from tests.e2e.engines import Ray, seeded_terms

pytestmark = pytest.mark.engines


def test_a_failed_run_says_why_on_one_line_and_in_flowers_list(ray: Ray) -> None:
    """``flwr run`` itself ends with 0: its status is to be read from ``flwr list``."""
    _, streamed = ray.run(seeded_terms(strategy="nope"), 2)
    assert "ERROR: 'strategy': 'nope' is not known; choose one of" in streamed.stdout
    last = ray.last_run()
    assert last["status"] == "finished:failed"
    assert "'nope' is not known" in last["status-details"]

"""What a person is told of a run: of approvals that wait and of its end, and nothing private."""

from __future__ import annotations

from server_app.app import _notice_of


def test_each_event_has_its_notice() -> None:
    assert _notice_of({"event": "approval", "site": "a", "status": "approved"}) == {}
    assert _notice_of({"event": "approval", "site": "a", "status": "pending"}) == {
        "notice": "request-pending",
        "site": "a",
    }
    assert _notice_of({"event": "round"}) == {}

"""Who may ask a site for noise on its whole update in place of its records."""

from __future__ import annotations

import pytest

from hdpfl_flower.errors import Declined
from hdpfl_flower.privacy.policy import check_client_noise
from tests.hdpfl_flower.ledger.plans import profile, terms


def test_noise_of_the_client_is_declined_unless_the_policy_allows_it() -> None:
    with pytest.raises(Declined, match="'client-noise' is not set"):
        check_client_noise(profile(), terms(noise="client"))
    check_client_noise(profile(policy={"client-noise": True}), terms(noise="client"))


def test_a_simulated_site_may() -> None:
    check_client_noise(profile(simulation={"seed": 1}), terms(noise="client"))


@pytest.mark.parametrize("noise", ["records", "server"])
def test_other_noise_needs_no_such_policy(noise: str) -> None:
    check_client_noise(profile(), terms(noise=noise))

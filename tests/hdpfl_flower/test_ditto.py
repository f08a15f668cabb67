"""λ of personal models, as written in the terms."""

from __future__ import annotations

import pytest

from hdpfl_flower.ditto import read_lambdas
from hdpfl_flower.errors import TermsError


@pytest.mark.parametrize("spec", ["-1", "a", "1,2,3", "inf", "nan", "1,"])
def test_a_pull_that_is_none_is_refused(spec: str) -> None:
    with pytest.raises(TermsError, match="'personal-lambda' is"):
        read_lambdas(spec)


def test_private_sites_come_first() -> None:
    assert read_lambdas("0.05, 0.005") == (0.05, 0.005)

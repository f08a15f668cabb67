"""λ of personal models, as written in the terms."""

from __future__ import annotations

import pytest

from hdpfl_flower.config.personal_lambda import check_lambdas, read_lambdas
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import TermsError


@pytest.mark.parametrize("spec", ["-1", "a", "1,2,3", "inf", "nan", "1,"])
def test_a_pull_that_is_none_is_refused(spec: str) -> None:
    with pytest.raises(TermsError, match="'personal-lambda' is"):
        read_lambdas(spec)


def test_private_sites_come_first() -> None:
    assert read_lambdas("0.05, 0.005") == (0.05, 0.005)


def test_a_step_beyond_the_global_model_is_refused() -> None:
    def terms(pulls: str) -> RunTerms:
        return RunTerms.parse({"personal-lambda": pulls, "learning-rate": 0.5})

    check_lambdas(terms("2,0.1"))
    check_lambdas(terms(""))
    with pytest.raises(TermsError, match="their product is above 1"):
        check_lambdas(terms("0.1,2.1"))

"""What pulls a site's personal model towards the global one.

Li, Hu, Beirami and Smith, Ditto: Fair and Robust Federated Learning Through Personalization (ICML
2021), with a λ for each privacy level as in FedHDP, Algorithm 1.
"""

from __future__ import annotations

import math

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import TermsError


def read_lambdas(spec: str) -> tuple[float, float] | None:
    """Return λ of private and of opted-out sites; None where there are no personal models.

    Raises:
        TermsError: not one or two numbers ≥ 0.

    >>> read_lambdas("0.05,0.005"), read_lambdas("0"), read_lambdas("")
    ((0.05, 0.005), (0.0, 0.0), None)
    """
    if not spec.strip():
        return None
    try:
        values = [float(text) for text in spec.split(",")]
    except ValueError:
        values = []
    if len(values) not in (1, 2) or not all(0 <= value < math.inf for value in values):
        raise TermsError(
            f"'personal-lambda' is '{spec}'; write one number of at least 0, or two: "
            "PRIVATE,OPTED-OUT"
        )
    return values[0], values[-1]


def check_lambdas(terms: RunTerms) -> None:
    """Refuse a ``personal-lambda`` that no site can follow.

    A step goes η·λ of the way to the global model: above 1 it ends beyond it, from 2 on further
    and further away.

    Raises:
        TermsError: as :func:`read_lambdas`, or η·λ > 1.
    """
    lambdas = read_lambdas(terms.personal_lambda)
    if lambdas and max(lambdas) * terms.learning_rate > 1:
        raise TermsError(
            f"'personal-lambda' is '{terms.personal_lambda}' and 'learning-rate' "
            f"{terms.learning_rate:g}: their product is above 1, and a step would go beyond the "
            "global model; lower one of them"
        )

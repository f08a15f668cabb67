"""What pulls a site's personal model towards the global one.

Li, Hu, Beirami and Smith, Ditto: Fair and Robust Federated Learning Through Personalization (ICML
2021), with a λ for each privacy level as in FedHDP, Algorithm 1.
"""

from __future__ import annotations

import math

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

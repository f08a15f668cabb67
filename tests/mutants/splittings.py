"""Bugs of operator splitting: the scheme, its closed form, the studies' methods."""

from __future__ import annotations

from tests.mutants.runner import Mutant

FILE = "strategies/splitting/scheme.py"
SCHEME = "strategies/splitting/test_scheme.py::test_"
METHODS = "studies/splitting/test_methods.py::test_"
_FIXED = "any_fixed_point_minimises_the_problem_regularised_at_the_effective_step"
MUTANTS = (
    Mutant(
        "a splitting without β",
        FILE,
        "theta = z + self.beta * (mean - z)",
        "theta = z + (mean - z)",
        SCHEME + _FIXED,
    ),
    Mutant(
        "a splitting without γ",
        FILE,
        "return u + self.gamma * (theta - u), mean",
        "return theta, mean",
        SCHEME + "fedpi_is_spingarns_method_of_partial_inverses",
    ),
    Mutant(
        "a splitting without α",
        FILE,
        "z = u + self.alpha * (prox - u)",
        "z = prox",
        SCHEME + "fedrp_is_fedprox_with_a_server_rate_of_2",
    ),
    Mutant(
        "the effective step without αβ",
        FILE,
        "(self.alpha + self.beta - self.alpha * self.beta)",
        "(self.alpha + self.beta)",
        SCHEME + _FIXED,
    ),
    Mutant(
        "ergodic averages not weighted by η",
        "studies/splitting/methods.py",
        "total += now\n            mean = mean + now / total",
        "total += 1\n            mean = mean + 1 / total",
        METHODS + "the_ergodic_mean_is_weighted_by_eta",
    ),
    Mutant(
        "FedAvg with one gradient step for all k",
        "studies/splitting/methods.py",
        "for _ in range(method.gradient_steps):",
        "for _ in range(1):",
        METHODS + "fedavg_ends_at_its_closed_form",
    ),
)

"""Bugs of noise that falls over the rounds."""

from __future__ import annotations

from tests.mutants.runner import Mutant

TESTS = "hdpfl_flower/privacy/test_spend.py::test_"
COST = TESTS + "what_is_drawn_costs_the_runs_epsilon"
PLAN = "hdpfl_flower/privacy/plan.py"
ACCOUNTING = "hdpfl_flower/privacy/accounting.py"
MUTANTS = (
    Mutant(
        "falling noise that is accounted and not drawn",
        PLAN,
        "        return self.noise_multiplier * steps.noise_factor * (self.sensitivity * clip_norm)\n",
        "        return self.noise_multiplier * (self.sensitivity * clip_norm)\n",
        COST,
    ),
    Mutant(
        "late rounds that are charged as the first ones",
        ACCOUNTING,
        "        noise = noise_multiplier * steps.noise_factor\n",
        "        noise = noise_multiplier * max(one.noise_factor for one in schedule)\n",
        COST,
    ),
    Mutant(
        "steps of unlike noise that are merged",
        ACCOUNTING,
        "        kind = steps.sampling_prob, steps.noise_factor\n",
        "        kind = steps.sampling_prob, schedule[0].noise_factor\n",
        TESTS + "steps_of_unlike_noise_are_not_merged_and_order_does_not_matter",
    ),
    Mutant(
        "one price for rounds of unlike noise",
        "hdpfl_flower/ledger/renyi.py",
        "        noise = plan.noise_multiplier * steps.noise_factor\n",
        "        noise = plan.noise_multiplier * plan.steps[0].noise_factor\n",
        TESTS + "each_round_has_its_own_price",
    ),
    Mutant(
        "a factor of the server's that no operator approved",
        "hdpfl_flower/privacy/policy.py",
        'FREE_TERMS = frozenset({"clip-norm"})',
        'FREE_TERMS = frozenset({"clip-norm", "spend"})',
        TESTS + "what_the_site_approved_is_what_it_draws",
    ),
    Mutant(
        "a bound of the noise that is above honest noise",
        "strategies/noise_aware/claimed_noise.py",
        "min(rounds - full, terms.spend.quietest(rounds))",
        "(rounds - full)",
        TESTS + "an_honest_site_is_never_quieter_than_its_claim",
    ),
    Mutant(
        "an estimate that takes falling noise for even noise",
        "hdpfl_flower/estimators/temporal.py",
        "    means = (1 + ratios**2) / 2\n",
        "    means = np.ones(len(ratios))\n",
        "hdpfl_flower/estimators/test_temporal.py::"
        "test_noise_that_falls_by_a_known_factor_stays_right",
    ),
)

"""Bugs of what a site's claims bound, and of the shares of the model."""

from __future__ import annotations

from tests.mutants.runner import Mutant

CLAIMED = "strategies/noise_aware/claimed_noise.py"
BOUNDS = "strategies/noise_aware/test_claimed_noise.py::test_"
SHARES = "hdpfl_flower/monitoring/influence.py"
SHARED = "hdpfl_flower/monitoring/test_influence.py::test_"
HONEST = BOUNDS + "an_honest_site_is_never_quieter_than_its_bound"

MUTANTS = (
    Mutant(
        "bound on the noise rounded up",
        CLAIMED,
        "    return low\n",
        "    return 1.02 * low\n",
        BOUNDS + "one_gaussian_is_bounded_just_below_the_least_there_is",
    ),
    Mutant(
        "bound of a usual delta, not of the longest",
        CLAIMED,
        "            1 / records,\n",
        "            1e-5,\n",
        HONEST + "[plain]",
    ),
    Mutant(
        "bound of all rounds where a site plans for some",
        CLAIMED,
        "min(terms.rounds, terms.participations or terms.rounds)",
        "terms.rounds",
        HONEST + "[participations]",
    ),
    Mutant(
        "bound of sampled batches in a full round",
        CLAIMED,
        "    if full and server_round == 1:\n",
        "    if full and server_round == 0:\n",
        HONEST + "[work]",
    ),
    Mutant(
        "bound without the pull",
        CLAIMED,
        "decay = 1 - min(1.0, terms.learning_rate * terms.pull)",
        "decay = 1.0",
        BOUNDS + "what_a_pull_leaves_of_the_noise",
    ),
    Mutant(
        "bound of steps that train what stays",
        "hdpfl_flower/work/parted.py",
        "return min(steps, 1)",
        "return steps",
        BOUNDS + "given_noise_is_its_own_bound_and_needs_no_epsilon",
    ),
    Mutant(
        "events that a mechanism may have",
        CLAIMED,
        "p > grown * q * _SLACK + delta",
        "p > 0.5 * (grown * q * _SLACK + delta)",
        BOUNDS + "one_gaussian_is_bounded_just_below_the_least_there_is",
    ),
    Mutant(
        "estimates below the bound left",
        CLAIMED,
        "Raised(np.maximum(variances, least),",
        "Raised(variances,",
        BOUNDS + "estimates_below_are_raised_and_no_others",
    ),
    Mutant(
        "weights are of what was not raised",
        "strategies/noise_aware/mmse.py",
        "NoiseAndSteps(raised.variances,",
        "NoiseAndSteps(variances,",
        BOUNDS + "a_quiet_site_that_claims_a_strict_epsilon_gets_no_more_than_its_claim",
    ),
    Mutant(
        "only who has all of a model decides it",
        SHARES,
        "HALF = 0.5",
        "HALF = 0.9",
        SHARED + "more_than_half_of_at_least_three_decides",
    ),
    Mutant(
        "half of a model is more than half",
        SHARES,
        "share > HALF + _ROUNDING",
        "share >= HALF",
        SHARED + "more_than_half_of_at_least_three_decides",
    ),
    Mutant(
        "of two sites one decides",
        SHARES,
        "LEAST_SITES = 3",
        "LEAST_SITES = 2",
        SHARED + "more_than_half_of_at_least_three_decides",
    ),
    Mutant(
        "shares without the server's rate",
        SHARES,
        'float(gauges.get("server_rate", 1.0)) * float(event.get("scale", 1.0))',
        'float(event.get("scale", 1.0))',
        SHARED + "parts_are_the_coefficients_of_the_updates_in_the_model",
    ),
    Mutant(
        "shares without the scale",
        SHARES,
        'float(event.get("scale", 1.0))',
        "1.0",
        SHARED + "parts_are_the_coefficients_of_the_updates_in_the_model",
    ),
    Mutant(
        "shares that count what was taken back",
        SHARES,
        "                    rest = parts[site] - part\n",
        "                    rest = parts[site]\n",
        SHARED + "what_is_taken_back_counts_no_more",
    ),
    Mutant(
        "shares of the last start alone",
        "server_app/run/rounds.py",
        "        for event in self._result.rounds:\n            self._influence.add(event)\n",
        "",
        "server_app/run/test_resume.py::test_every_rule_goes_on_as_if_nothing_had_happened[fedavg]",
    ),
    Mutant(
        "coefficients of the last round alone",
        "strategies/guards/by_content.py",
        "before.get(site, 0.0) + of_round.get(site, 0.0)",
        "of_round.get(site, 0.0)",
        "strategies/core/test_content_guard.py::test_what_a_liar_gave_is_taken_out_at_the_rates_of_its_rounds",
    ),
    Mutant(
        "the log says who took part where the server adds the noise",
        "server_app/run/rounds.py",
        'if named else "one site (the journal names it)"',
        "",
        "server_app/run/test_rounds.py::"
        "test_who_took_part_is_in_no_log_where_the_server_adds_the_noise",
    ),
)

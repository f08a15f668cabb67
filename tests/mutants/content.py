"""Bugs of the guard that judges content."""

from __future__ import annotations

from tests.mutants.runner import Mutant

_GUARD, _HEAD = "strategies/guards/content.py", "strategies/guards/head_content.py"
_CORE, _BASE = "strategies/guards/by_content.py", "strategies/guards/guard.py"
_TESTS = "strategies/guards/test_content.py::"
_RUNS = "strategies/core/test_content_guard.py::"
_HONEST = _TESTS + "test_honest_sites_stay_whatever_labels_they_hold"
_LIARS = _TESTS + "test_liars_are_refused_and_nobody_else"
_RATE = _TESTS + "test_noise_alone_refuses_as_seldom_as_stated"

MUTANTS = (
    Mutant(
        "no tolerance for the model's error",
        _GUARD,
        "TOLERANCE = 0.5",
        "TOLERANCE = 0.0",
        _HONEST,
    ),
    Mutant(
        "a lie may be as large as the truth", _GUARD, "TOLERANCE = 0.5", "TOLERANCE = 1.0", _LIARS
    ),
    Mutant(
        "records of another kind are judged",
        _GUARD,
        "FOREIGN = 0.3",
        "FOREIGN = 300.0",
        _TESTS + "test_records_of_another_kind_are_not_judged_by_labels",
    ),
    Mutant("nobody's records are public enough", _GUARD, "FOREIGN = 0.3", "FOREIGN = 0.01", _LIARS),
    Mutant(
        "the fit is taken for sure",
        _HEAD,
        "outside + sure * further < most * (inside - sure * doubt)",
        "outside - 9 * sure * further < most * (inside + 9 * sure * doubt)",
        "strategies/guards/test_head_content.py"
        "::test_public_means_explain_records_of_their_kind_alone",
    ),
    Mutant(
        "all may be undone",
        _GUARD,
        "AGAINST = 0.1",
        "AGAINST = 1.0",
        _LIARS,
    ),
    Mutant("nobody is idle", _GUARD, "IDLE, LONG = 0.4, 3.0", "IDLE, LONG = 0.04, 3.0", _LIARS),
    Mutant(
        "half of the usual length is idle",
        _GUARD,
        "IDLE, LONG = 0.4, 3.0",
        "IDLE, LONG = 1.5, 3.0",
        _HONEST,
    ),
    Mutant(
        "a long step stays long",
        _GUARD,
        "IDLE, LONG = 0.4, 3.0",
        "IDLE, LONG = 0.4, 30.0",
        _TESTS + "test_a_long_step_is_shortened_to_the_usual_length",
    ),
    Mutant(
        "any step above the usual is long",
        _GUARD,
        "IDLE, LONG = 0.4, 3.0",
        "IDLE, LONG = 0.4, 1.0",
        _HONEST,
    ),
    Mutant(
        "steps that are not known are all alike",
        _GUARD,
        "WIDEST = 10.0",
        "WIDEST = 1.0",
        _TESTS + "test_without_known_steps_nobody_is_idle_and_ten_times_the_steps_are_no_inflation",
    ),
    Mutant(
        "many steps must move a site further",
        _GUARD,
        "least * np.minimum(counts, usual)",
        "least * counts",
        _TESTS + "test_many_steps_need_not_move_a_site_further",
    ),
    Mutant(
        "a quiet site is believed",
        _GUARD,
        "known[min(suspects, (len(known) - 1) // 2)] / QUIETEST",
        "known[0] / QUIETEST",
        _TESTS + "test_nobody_is_believed_to_be_far_quieter_than_those_who_may_not_lie",
    ),
    Mutant(
        "the measure of quiet is the noisiest site",
        _GUARD,
        "known[min(suspects, (len(known) - 1) // 2)] / QUIETEST",
        "known[min(suspects, len(known) - 1)] / QUIETEST",
        _TESTS + "test_the_measure_of_quiet_is_within_the_quieter_half_however_many_may_lie",
    ),
    Mutant(
        "a precision is bounded by another number",
        _GUARD,
        "QUIETEST = 4.0",
        "QUIETEST = 40.0",
        _TESTS + "test_nobody_is_believed_to_be_far_quieter_than_those_who_may_not_lie",
    ),
    Mutant(
        "a level for one pair of classes",
        _GUARD,
        "alarm_level(2 * tests * pairs, freedom)",
        "alarm_level(2, freedom)",
        _RATE,
    ),
    Mutant(
        "a level for one round",
        _GUARD,
        "level = np.array([alarm_level(4 * tests, freedom)",
        "level = np.array([alarm_level(4, freedom)",
        _RATE,
    ),
    Mutant(
        "levels of a normal number",
        _GUARD,
        "stdtrit(freedom, FALSE_ALARMS / tests)",
        "stdtrit(1e9, FALSE_ALARMS / tests)",
        _TESTS + "test_levels_grow_with_the_tests_and_fall_with_the_freedom",
    ),
    Mutant(
        "levels are rounded down",
        _GUARD,
        "math.ceil(-100 *",
        "math.floor(-100 *",
        _TESTS + "test_levels_grow_with_the_tests_and_fall_with_the_freedom",
    ),
    Mutant(
        "the last upload alone is judged",
        _GUARD,
        "WINDOWS = (0.0, 0.7, 1.0)",
        "WINDOWS = (0.0, 0.0, 0.0)",
        _TESTS + "test_a_lie_below_the_noise_of_a_round_is_found_by_the_sums",
    ),
    Mutant(
        "noise adds up as signal does",
        _GUARD,
        "(state.noise, noise, kept**2)",
        "(state.noise, noise, kept)",
        _TESTS + "test_a_site_is_remembered_over_rounds_that_it_missed",
    ),
    Mutant(
        "no limit on who is refused",
        _GUARD,
        "left = settings.max_liars - int(np.count_nonzero(after.refused))",
        "left = len(sites)",
        _TESTS + "test_no_more_than_max_liars_are_refused_and_the_worst_first",
    ),
    Mutant(
        "a majority is refused",
        _GUARD,
        "left = min(left, (len(sites) - 1) // 2 - len(refused))",
        "pass",
        _TESTS + "test_never_half_of_a_round_is_refused",
    ),
    Mutant(
        "unknown noise is judged",
        _GUARD,
        "measured = np.isfinite(noise) & (noise > 0)",
        "noise = np.where(np.isfinite(noise), noise, 1e-6)\n    measured = noise > 0",
        _TESTS + "test_unknown_noise_is_not_judged",
    ),
    Mutant(
        "content at a wrong scale",
        _HEAD,
        "np.sum(np.square(inverse), axis=0)",
        "np.sum(np.square(inverse), axis=0) ** 0.5",
        "strategies/guards/test_head_content.py"
        "::test_content_of_pure_noise_has_the_stated_variance",
    ),
    Mutant(
        "a logit's rows have its whole norm twice",
        _HEAD,
        "np.concatenate([-rows, rows], axis=1) / math.sqrt(2)",
        "np.concatenate([-rows, rows], axis=1)",
        "strategies/guards/test_head_content.py::test_a_logit_has_two_rows_of_half_the_noise",
    ),
    Mutant(
        "the guard's facts weigh",
        _CORE,
        "for f, facts in updates.disclosed.items() if f not in self._own}",
        "for f, facts in updates.disclosed.items()}",
        _RUNS + "test_its_facts_are_asked_for_and_not_handed_on",
    ),
    Mutant(
        "weights by another noise than the guard's",
        "strategies/noise_aware/robust_hdp.py",
        "if updates.noise is not None:",
        "if updates.noise is not None and not updates.sites:",
        _RUNS + "test_weights_use_the_noise_that_the_guard_believes",
    ),
    Mutant(
        "the noise of the refused stays",
        _BASE,
        "noise=updates.noise and _noise_of(updates.noise, stay),",
        "noise=updates.noise,",
        _RUNS + "test_who_is_refused_is_out_of_the_rows_and_of_their_noise",
    ),
    Mutant(
        "a shortened row keeps its square",
        _CORE,
        "updates.squares[i] *= judged.factors[i] ** 2",
        "pass",
        _RUNS + "test_a_long_step_is_shortened_in_its_row_and_its_square",
    ),
    Mutant(
        "what a liar by content gave stays in the head",
        _CORE,
        "part[start:] = heads.pop(site, np.float32(0))",
        "heads.pop(site, np.float32(0))",
        _RUNS + "test_what_a_liar_gave_is_taken_out_at_the_rates_of_its_rounds",
    ),
    Mutant(
        "content without proofs",
        _CORE,
        "kept = self._without_proven(kept)",
        "pass",
        _RUNS + "test_what_is_proven_is_refused_whatever_the_limit_and_stays_so",
    ),
    Mutant(
        "what is proven is forgotten",
        "strategies/guards/proof.py",
        "tuple(sorted({*state.shared, *found}))",
        "tuple(sorted(found))",
        _RUNS + "test_what_is_proven_is_refused_whatever_the_limit_and_stays_so",
    ),
    Mutant(
        "content without a floor",
        _BASE,
        "Floor(config.terms.rounds, config.server.noise_floor, LARGEST_ERROR[form])",
        "Floor(config.terms.rounds, 0.0, LARGEST_ERROR[form])",
        _RUNS + "test_an_upload_without_new_noise_is_refused",
    ),
    Mutant(
        "a bounded precision is not shown",
        _CORE,
        "(variances > estimated).astype(np.float64)",
        "(variances < estimated).astype(np.float64)",
        _RUNS + "test_weights_use_the_noise_that_the_guard_believes",
    ),
)

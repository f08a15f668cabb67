"""Bugs of the guards against sites that lie."""

from __future__ import annotations

from tests.mutants.runner import Mutant

MUTANTS = (
    Mutant(
        "guard lets zeros pass",
        "strategies/guards/bounds.py",
        "        if not row.any():\n            refused[site] = ZEROS\n        elif often",
        "        if often",
        "strategies/guards/test_bounds.py::test_zeros_are_refused_and_minus_zero_is_zero",
    ),
    Mutant(
        "guard keeps the first of two copies",
        "strategies/guards/bounds.py",
        "        elif often[digest.tobytes()] > 1:",
        "        elif digest.tobytes() in [d.tobytes() for d in found[: sites.index(site)]]:",
        "strategies/guards/test_bounds.py::test_of_two_equal_updates_both_are_refused",
    ),
    Mutant(
        "guard forgets a site's last upload",
        "strategies/guards/bounds.py",
        "after, refused = dict(digests), {}\n    for site, row, digest",
        "after, refused = {}, {}\n    for site, row, digest",
        "strategies/guards/test_bounds.py::test_a_site_is_remembered_over_rounds_it_missed",
    ),
    Mutant(
        "minus zero hides a copy",
        "strategies/guards/bounds.py",
        "row + np.float32(0)",
        "row",
        "strategies/guards/test_bounds.py::test_of_two_equal_updates_both_are_refused",
    ),
    Mutant(
        "a poisoned site trains on its own labels",
        "client_app/site/site.py",
        "self.poison(train, self.task) if self.poison else train",
        "train",
        "server_app/in_process/test_liars.py"
        "::test_a_poisoned_site_trains_on_changed_labels_under_its_own_noise",
    ),
    Mutant(
        "min-max leaves the colluders' updates",
        "hdpfl_flower/scenarios/attacks.py",
        "float(roots.min())",
        "float(roots.max())",
        "hdpfl_flower/scenarios/test_attacks.py"
        "::test_min_max_stays_among_the_colluders_and_no_further",
    ),
    Mutant(
        "a quiet liar adds all of its noise",
        "hdpfl_flower/scenarios/attacks.py",
        'sight.quieter() if self.disguise == "quiet" else sight',
        "sight",
        "hdpfl_flower/scenarios/test_attacks.py::test_a_quiet_liar_adds_a_fifth_of_the_noise",
    ),
    Mutant(
        "cap cuts and does not share the rest",
        "strategies/guards/bounds.py",
        "below * (left / max(below.sum(), _NOTHING))",
        "below",
        "strategies/guards/test_bounds.py::test_what_is_cut_off_is_shared_in_proportion",
    ),
    Mutant(
        "cap fills once",
        "strategies/guards/bounds.py",
        "    while (capped >",
        "    if (capped >",
        "strategies/guards/test_bounds.py::test_what_is_cut_off_is_shared_in_proportion",
    ),
    Mutant(
        "shared noise is not looked for",
        "strategies/guards/proof.py",
        "pairs += shared_noise(silent, lengths, floor.rounds, max(HUSH, floor.rounding))",
        "pass",
        "strategies/guards/test_shared_noise.py::test_all_that_share_their_noise_are_refused_however_many[2]",
    ),
    Mutant(
        "a proof within the limit alone",
        "strategies/guards/proof.py",
        "    found = {sites[i] for pair in pairs for i in pair}\n",
        "    found = {sites[i] for pair in pairs for i in pair} if len(pairs) < 2 else set()\n",
        "strategies/guards/test_shared_noise.py::test_all_that_share_their_noise_are_refused_however_many",
    ),
    Mutant(
        "the floor proves nothing",
        "strategies/guards/proof.py",
        "too_near(inner_products(updates), updates.shape[1], floor.noise, floor.rounds)",
        "too_near(inner_products(updates), updates.shape[1], 0.0, floor.rounds)",
        "strategies/guards/test_shared_noise.py::test_without_a_head_the_floor_proves_it",
    ),
    Mutant(
        "a quiet site makes everybody a colluder",
        "strategies/guards/shared_noise.py",
        "np.maximum(rest, rest.T) < least",
        "np.minimum(rest, rest.T) < least",
        "strategies/guards/test_shared_noise.py::test_a_quiet_site_proves_nothing_against_the_others",
    ),
    Mutant(
        "nearness leaves chance no room",
        "strategies/guards/shared_noise.py",
        "(free - 2 * math.sqrt(free * doubt))",
        "free",
        "strategies/guards/test_shared_noise.py"
        "::test_honest_sites_at_the_floor_are_near_no_one_more_often_than_stated",
    ),
    Mutant(
        "rounding taken for shared noise",
        "strategies/guards/shared_noise.py",
        "audible = lengths > hush * norms",
        "audible = lengths > hush * float(np.median(lengths))",
        "strategies/guards/test_shared_noise.py::test_sites_without_noise_share_none",
    ),
    Mutant(
        "chance of one pair in one round",
        "strategies/guards/shared_noise.py",
        "FALSE_ALARMS / pairs)",
        "FALSE_ALARMS)",
        "strategies/guards/test_shared_noise.py"
        "::test_the_threshold_grows_with_the_pairs_and_rounds_of_a_run",
    ),
    Mutant(
        "uploads that take turns",
        "strategies/guards/bounds.py",
        "[0 if distinct else -1 :]",
        "[-1:]",
        "strategies/guards/test_bounds.py"
        "::test_uploads_that_take_turns_are_repetitions_and_copies_all_the_same",
    ),
    Mutant(
        "yesterday's upload of another site",
        "strategies/guards/bounds.py",
        "elif distinct and digest.tobytes() in known:",
        "elif False:",
        "strategies/guards/test_bounds.py"
        "::test_uploads_that_take_turns_are_repetitions_and_copies_all_the_same",
    ),
    Mutant(
        "a multiple of a sum is called no sum",
        "strategies/splitting/base.py",
        "return replace(inner, is_convex=inner.is_convex and self._scale == 1)",
        "return replace(inner, is_convex=False, is_weighted_sum=self._scale == 1)",
        "strategies/test_contract.py::test_exactly_the_rules_that_are_no_weighted_sum_say_so",
    ),
    Mutant(
        "a part of each direction's own is called a sum",
        "strategies/fedhdp/level_averaging.py",
        'is_sum = self.terms.noise != "server" and self.level_ratio.strip() != AUTO',
        'is_sum = self.terms.noise != "server"',
        "strategies/test_contract.py"
        "::test_levels_are_a_weighted_sum_but_with_ratios_of_many_directions_or_the_servers_noise",
    ),
    Mutant(
        "a part is taken out at another round's rate",
        "strategies/guards/by_content.py",
        "self._take(site, start, len(update)) / np.float32(rate)",
        "self._take(site, start, len(update))",
        "strategies/server_step/test_steps.py"
        "::test_what_a_refused_site_put_in_is_taken_out_at_the_rates_of_its_rounds",
    ),
    Mutant(
        "shared noise is read from the signal",
        "strategies/guards/proof.py",
        "shared_noise(silent, lengths,",
        "shared_noise(updates, lengths,",
        "strategies/guards/test_shared_noise.py::test_precise_honest_sites_may_look_alike",
    ),
    Mutant(
        "a jittered repetition passes",
        "strategies/guards/proof.py",
        "STILL = 1e-4",
        "STILL = 1e-12",
        "strategies/guards/test_proof.py::test_who_hardly_changes_its_upload_is_refused_though_it_jitters",
    ),
    Mutant(
        "the floor is no floor",
        "strategies/guards/proof.py",
        "if level < least}",
        "if level < least / 5}",
        "strategies/guards/test_proof.py::test_less_noise_than_the_floor_is_refused",
    ),
    Mutant(
        "the floor leaves chance no room",
        "strategies/guards/proof.py",
        "(1 - SURE * math.sqrt(2 / noise.shape[1]))",
        "(1 + 0 * math.sqrt(2 / noise.shape[1]))",
        "strategies/guards/test_proof.py::test_less_noise_than_the_floor_is_refused",
    ),
    Mutant(
        "the quorum counts the refused",
        "strategies/core/base.py",
        "if len(updates.sites) < report.quorum:",
        "if len(updates.sites) + len(self.guard.refused) < report.quorum:",
        "strategies/core/test_guard.py::test_refusals_below_the_quorum_leave_the_model_as_it_was",
    ),
    Mutant(
        "what a liar gave stays in the model",
        "strategies/guards/by_content.py",
        "update = update - self._take(site, start, len(update))",
        "update = update - 0 * self._take(site, start, len(update))",
        "strategies/core/test_content_guard.py::test_what_a_liar_gave_is_taken_out_at_the_rates_of_its_rounds",
    ),
    Mutant(
        "a part is taken out without its scale",
        "hdpfl_flower/weights.py",
        "np.float32(outcome.scale * outcome.weights[site]) * row",
        "np.float32(outcome.weights[site]) * row",
        "strategies/core/test_content_guard.py::test_what_a_liar_gave_is_taken_out_at_the_rates_of_its_rounds",
    ),
    Mutant(
        "who stays is not restored when a liar is taken out",
        "strategies/guards/by_content.py",
        "update = update + self._restored(gone, start, len(update)) / np.float32(rate)",
        "pass",
        "strategies/core/test_content_guard.py"
        "::test_what_a_liar_gave_is_taken_out_at_the_rates_of_its_rounds[0]",
    ),
    Mutant(
        "who stays grows without a bound when others are taken out",
        "strategies/guards/by_content.py",
        "MOST_RESTORED = 2.0",
        "MOST_RESTORED = 20.0",
        "strategies/core/test_content_guard.py::test_who_stays_is_at_most_doubled",
    ),
    Mutant(
        "a cap with a projection",
        "strategies/guards/cap.py",
        "if not sums:",
        "if sums is None:",
        "strategies/core/test_guard.py::test_a_bound_on_weights_and_a_projection_do_not_go_together",
    ),
    Mutant(
        "the journal gives a weight to the wrong site",
        "strategies/core/base.py",
        "report.accepted = list(kept.sites)",
        "report.accepted = list(reversed(kept.sites))",
        "strategies/core/test_guard.py::test_zeros_and_copies_are_out_of_the_round_under_every_guard",
    ),
    Mutant(
        "a strategy of a user's own that may call itself linear",
        "strategies/contract.py",
        "_require(close or not linear,",
        "_require(True or linear,",
        "strategies/test_external.py"
        "::test_the_command_prints_a_line_a_check_and_fails_with_the_first_that_does",
    ),
    Mutant(
        "cap lets what is proven pass",
        "strategies/guards/cap.py",
        "return self._without_proven(kept)",
        "return kept",
        "strategies/core/test_guard.py"
        "::test_more_colluders_than_may_lie_are_out_of_every_round[cap]",
    ),
)

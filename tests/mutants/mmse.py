"""Bugs of MMSE averaging and of weights that differ by class row."""

from __future__ import annotations

from tests.mutants.runner import Mutant

BIAS = "hdpfl_flower/estimators/test_client_bias.py::test_"
MMSE = "strategies/noise_aware/test_mmse.py::test_"
ROWS = "hdpfl_flower/test_weights.py::test_"

MUTANTS = (
    Mutant(
        "a bias counts as if there were one round",
        "strategies/noise_aware/mmse.py",
        "math.sqrt(self.terms.rounds) * factors",
        "math.sqrt(1) * factors",
        MMSE + "each_row_has_the_weights_of_the_formula[False]",
    ),
    Mutant(
        "the target is equal shares, whatever the records",
        "strategies/noise_aware/mmse.py",
        "    return record_weights(records)",
        "    return np.full(len(measured), 1 / len(measured))",
        MMSE + "each_row_has_the_weights_of_the_formula[False]",
    ),
    Mutant(
        "an upload counts whole, not per local step",
        "strategies/noise_aware/mmse.py",
        "total /= np.float32(steps[i])",
        "total /= np.float32(1)",
        MMSE + "each_row_has_the_weights_of_the_formula[False]",
    ),
    Mutant(
        "differences in any row count in every row",
        "strategies/noise_aware/mmse.py",
        "[one.total[start:end] for one in sums]",
        "[one.total for one in sums]",
        MMSE + "a_noisy_client_keeps_the_label_that_it_alone_holds",
    ),
    Mutant(
        "a part around it gets weights by row",
        "strategies/composition.py",
        "OneWeightMMSE if weighting is MMSE else weighting",
        "weighting",
        MMSE + "around_it_a_part_has_one_weight_for_each_client",
    ),
    Mutant(
        "records count whatever a site declares",
        "hdpfl_flower/weights.py",
        "MAX_SHARE = 10.0",
        "MAX_SHARE = 1e9",
        MMSE + "who_overstates_its_records_gains_ten_times_the_median_at_most",
    ),
    Mutant(
        "the sums of large models are copies of the updates",
        "strategies/noise_aware/mmse.py",
        "KEPT = 25_000",
        "KEPT = 10_000_000",
        MMSE + "large_blocks_are_sampled",
    ),
    Mutant(
        "the sums of a large head are copies of the updates",
        "strategies/noise_aware/mmse.py",
        "min(KEPT, max(KEPT_OF_ROWS // head.classes, LEAST_OF_A_ROW))",
        "KEPT",
        MMSE + "many_class_rows_share_what_is_kept",
    ),
    Mutant(
        "what all clients share counts as a difference",
        "hdpfl_flower/estimators/client_bias.py",
        "np.linalg.eigh(apart @ units @ apart)",
        "np.linalg.eigh(units)",
        MMSE + "where_all_agree_the_weights_are_those_of_least_noise",
    ),
    Mutant(
        "the largest chance eigenvalue counts as a difference",
        "hdpfl_flower/estimators/client_bias.py",
        "_QUANTILE = 2.0234",
        "_QUANTILE = 0.0",
        BIAS + "noise_alone_has_no_directions_but_at_the_stated_rate[20-785]",
    ),
    Mutant(
        "a client differs by its noise",
        "hdpfl_flower/estimators/client_bias.py",
        "shrunk: Floats = factors * np.maximum(0, 1 - chance / squares)[:, None]",
        "shrunk: Floats = factors",
        BIAS + "a_client_does_not_differ_by_its_noise",
    ),
    Mutant(
        "what the weights leave out is not tested",
        "strategies/noise_aware/mmse.py",
        "return target + kept * (shares - target), directions",
        "return shares, directions",
        MMSE + "quiet_clients_that_are_odd_do_not_decide",
    ),
    Mutant(
        "noise counts as left out",
        "hdpfl_flower/estimators/client_bias.py",
        "self.squares += float(means @ means) - chance",
        "self.squares += float(means @ means)",
        BIAS + "its_estimate_has_no_bias_and_the_stated_variance",
    ),
    Mutant(
        "a round's chance for that of the run",
        "hdpfl_flower/estimators/client_bias.py",
        "alarm / (1 + math.log2(rounds))",
        "0.5",
        BIAS + "noise_alone_moves_the_weights_in_few_runs[14-0.3-0.19-12]",
    ),
    Mutant(
        "an alarm is as likely where it costs fifteen times the noise",
        "hdpfl_flower/estimators/client_bias.py",
        "RUN_ALARM * min(1.0, max((self.noise - more) / more, np.finfo(float).eps))",
        "RUN_ALARM",
        BIAS + "noise_alone_moves_the_weights_in_few_runs[100-0.01-0.02-12]",
    ),
    Mutant(
        "the noise of few coordinates is normal",
        "hdpfl_flower/estimators/client_bias.py",
        "- ndtri(tail))",
        "+ self.squares / math.sqrt(self.variance))",
        BIAS + "the_share_is_that_of_the_least_error",
    ),
    Mutant(
        "the line goes on as if its noise fell evenly",
        "hdpfl_flower/estimators/client_bias.py",
        "max(0.0, self.squares) + self.curve",
        "max(0.0, self.squares) + 2 * self.curve",
        BIAS + "the_share_is_that_of_the_least_error",
    ),
    Mutant(
        "negative weights are cut off, not solved for",
        "hdpfl_flower/estimators/client_bias.py",
        "            if not len(wrong):\n",
        "            if len(wrong) >= 0:\n",
        BIAS + "weights_are_those_of_scipys_non_negative_least_squares",
    ),
    Mutant(
        "a site may have a class row for itself under the cap",
        "strategies/guards/cap.py",
        "np.array([cap_weights(block, limit) for block in rows.shares])",
        "rows.shares",
        ROWS + "the_cap_holds_in_every_row",
    ),
    Mutant(
        "a refused site's part is taken out by its mean weight",
        "hdpfl_flower/weights.py",
        "np.float32(factors[block]) * row[stretch]",
        "np.float32(outcome.scale * outcome.weights[site]) * row[stretch]",
        ROWS + "the_parts_of_the_sites_add_up_to_the_update",
    ),
    Mutant(
        "row weights are not checked",
        "strategies/core/checks.py",
        "        _check_rows(outcome.row_weights, n)",
        "        pass",
        ROWS + "rows_that_are_not_convex_are_refused[change0]",
    ),
)

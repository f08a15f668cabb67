"""Bugs of what the server measures: noise levels, robust PCA, memory."""

from __future__ import annotations

from tests.mutants.runner import Mutant

HEAD = "hdpfl_flower/estimators/test_softmax_head.py::test_"
RP = "hdpfl_flower/estimators/test_robust_pca.py::test_"
CREDIBLE = "hdpfl_flower/estimators/test_credible.py::test_"
GAPS = "hdpfl_flower/estimators/test_upload_gaps.py::test_"
IDENTIFIED = "hdpfl_flower/estimators/test_identification.py::test_"
PAIRS = "hdpfl_flower/estimators/test_near_copies.py::test_"
UP = "hdpfl_flower/linalg/test_sums.py::test_"

MUTANTS = (
    Mutant(
        "an update that the others predict exactly hides a heavy tail",
        "hdpfl_flower/estimators/residual_mad.py",
        "np.divide(mad, mean_square, where=left, out=np.ones_like(mad))",
        "np.divide(mad, mean_square)",
        "hdpfl_flower/estimators/test_noise_level.py::test_an_update_that_the_others_predict_exactly_hides_no_heavy_tail",
    ),
    Mutant(
        "a quiet head is believed whatever the rest says",
        "hdpfl_flower/estimators/softmax_head.py",
        "np.log(np.maximum(silent, least)) - np.log(levels)",
        "np.log(np.maximum(silent, 1e-12)) - np.log(levels)",
        HEAD + "a_forged_quiet_head_gains_no_more_than_a_quarter[0.0-4]",
    ),
    Mutant(
        "a quiet head is measured against itself",
        "hdpfl_flower/estimators/softmax_head.py",
        "least = np.minimum(levels, quietest) / BELIEVED",
        "least = np.minimum(silent, quietest) / BELIEVED",
        HEAD + "a_forged_quiet_head_gains_no_more_than_a_quarter[0.001-4]",
    ),
    Mutant(
        "a forged head over the rounds is measured in one round alone",
        "hdpfl_flower/estimators/temporal.py",
        "        quietest_part(rows),\n    )\n    return combined",
        "        0 * quietest_part(rows),\n    )\n    return combined",
        HEAD + "a_forged_head_is_not_believed_over_the_rounds_either",
    ),
    Mutant(
        "silence of the last round for that of all",
        "hdpfl_flower/estimators/temporal.py",
        "facts[:, _SILENT] += silent_squares",
        "facts[:, _SILENT] = silent_squares",
        HEAD + "silence_adds_up_over_the_rounds_where_the_signals_move",
    ),
    Mutant(
        "every estimator listens to the head",
        "hdpfl_flower/estimators/noise_level.py",
        'if method == "auto" and head is not None and previous is None:',
        "if head is not None and previous is None:",
        HEAD + "only_auto_listens_to_the_head",
    ),
    Mutant(
        "a sparse part not there yet counts as settled",
        "hdpfl_flower/estimators/robust_pca.py",
        "there = len(limits) > 3 and bool(np.all(np.array(history[-4:]) > floor))",
        "there = len(limits) > 3",
        RP + "a_row_whose_sparse_part_is_not_there_yet_hides_nothing[strong-30-2]",
    ),
    Mutant(
        "replies kept beside the matrix",
        "strategies/core/exchange.py",
        "for reply in _letting_go(replies):",
        "for reply in replies:",
        "strategies/core/test_exchange.py::test_a_reply_is_gone_before_the_next_one_comes",
    ),
    Mutant(
        "a full disk found out by a signal",
        "hdpfl_flower/linalg/update_matrix.py",
        "            os.posix_fallocate(file.fileno(), 0, size)",
        "            file.truncate(size)",
        "hdpfl_flower/linalg/test_update_matrix.py::test_a_full_disk_is_an_error_and_not_the_end_of_the_process",
    ),
    Mutant(
        "the container's limit unread",
        "hdpfl_flower/linalg/update_matrix.py",
        "available = min(available, int(_CGROUP.read_text()))",
        "available = max(available, int(_CGROUP.read_text()))",
        "hdpfl_flower/linalg/test_update_matrix.py::test_the_limit_is_a_quarter_of_the_machine_or_of_the_container",
    ),
    Mutant(
        "the last block left out of a sum",
        "hdpfl_flower/linalg/sums.py",
        "result[start : start + BLOCK] = total",
        "result[start : start + len(total) - 1] = total[:-1]",
        UP + "blocks_change_no_bit",
    ),
    Mutant(
        "a round without an equation to spare called identified",
        "hdpfl_flower/estimators/identification.py",
        "spare_equations(n, factors) < SPARE",
        "spare_equations(n, factors) < 0",
        IDENTIFIED + "as_many_unknowns_as_equations_are_not[6-3]",
    ),
    Mutant(
        "four clients called identified",
        "hdpfl_flower/estimators/identification.py",
        "lambda: n < FEWEST,",
        "lambda: n < 3,",
        IDENTIFIED + "fewer_than_five_clients_are_not",
    ),
    Mutant(
        "levels that chance may turn called identified",
        "hdpfl_flower/estimators/identification.py",
        "not expected_excess(model, effective) <= _EXPECTED",
        "not expected_excess(model, effective) <= 1",
        IDENTIFIED + "too_few_coordinates_are_not",
    ),
    Mutant(
        "a signal that a client may have for itself overlooked",
        "hdpfl_flower/estimators/identification.py",
        "not cost_of_private_signal(levels, moments) <= _COST",
        "False",
        IDENTIFIED + "a_strong_signal_is_not",
    ),
    Mutant(
        "a jittered copy takes all the weight",
        "hdpfl_flower/estimators/noise_level.py",
        "groups = near_copies(moments, d, model, share * d) if copies",
        "groups = [] if copies",
        PAIRS + "copies_weigh_together_what_one_client_would[auto-2-0.001]",
    ),
    Mutant(
        "a copy of every round takes all the weight",
        "hdpfl_flower/estimators/noise_level.py",
        "groups = near_copies(moments, d, model, most_left=LEFT_OF_DIFFERENCES)",
        "groups = near_copies(moments, d, model, most_left=0.0)",
        PAIRS + "copies_weigh_together_what_one_client_would[temporal-2-0.001]",
    ),
    Mutant(
        "every copy counts for one",
        "hdpfl_flower/estimators/noise_level.py",
        "variances=found.variances * found.copies,",
        "variances=found.variances,",
        PAIRS + "two_groups_count_apart",
    ),
    Mutant(
        "two who agree with others too taken for copies",
        "hdpfl_flower/estimators/near_copies.py",
        "if risen is not None and np.all(risen >= RISES * base[group]):",
        "if risen is not None:",
        PAIRS + "two_quiet_clients_of_a_strong_common_signal_are_no_copies[10]",
    ),
    Mutant(
        "a flat update passes for the quietest",
        "hdpfl_flower/estimators/noise_level.py",
        "levels = levels_of_flat(found.variances, flat)",
        "levels = found.variances",
        CREDIBLE + "a_flat_update_is_the_noisiest_of_the_round[auto-constant]",
    ),
    Mutant(
        "a flat update of every round passes for the quietest",
        "hdpfl_flower/estimators/temporal.py",
        "used = np.flatnonzero(found & ~flat)",
        "used = np.flatnonzero(found)",
        CREDIBLE + "over_the_rounds_too_and_it_is_no_upload_to_compare_with[temporal]",
    ),
    Mutant(
        "numbers that are not finite reach the estimators",
        "hdpfl_flower/estimators/credible.py",
        "wrong = np.flatnonzero(~(squares <= np.finfo(np.float32).max))",
        "wrong = np.flatnonzero(squares < 0)",
        CREDIBLE + "no_other_error_gets_through[auto]",
    ),
    Mutant(
        "what drifts over a gap counts as noise",
        "hdpfl_flower/estimators/upload_gaps.py",
        "raw = (weights * (means - moved)).sum(axis=1)",
        "raw = (weights * means).sum(axis=1)",
        GAPS + "at_30_percent_the_drift_is_subtracted",
    ),
    Mutant(
        "a head of a few inputs identifies by itself",
        "hdpfl_flower/estimators/noise_level.py",
        "found.identified or (error <= SURE_OF_HEAD and not combined.forged.any())",
        "found.identified or not combined.forged.any()",
        HEAD + "a_head_of_few_inputs_identifies_nothing_by_itself[48-False]",
    ),
    Mutant(
        "a difference that is all shared passes for silence",
        "hdpfl_flower/estimators/noise_level.py",
        "return Differences(np.maximum(levels, _HUNDREDTH * squares), counts, sure)",
        "return Differences(levels, counts, sure)",
        "hdpfl_flower/estimators/test_noise_level.py::test_"
        "a_factor_of_ones_own_in_the_differences_does_not_pass_for_silence",
    ),
    Mutant(
        "a bound of one round replaces what the rounds before showed",
        "hdpfl_flower/estimators/temporal.py",
        "        moving &= found.identified\n",
        "",
        "hdpfl_flower/estimators/test_temporal.py::test_a_bound_replaces_no_estimate[3]",
    ),
    Mutant(
        "a drift that nobody shows taken for none",
        "hdpfl_flower/estimators/upload_gaps.py",
        "np.where(known, _UNSURE * drift, _UNKNOWN)",
        "np.where(known, _UNSURE * drift, 0)",
        GAPS + "a_gap_whose_drift_nobody_shows_is_not_identified",
    ),
)

"""Bugs of what the server measures: noise levels, robust PCA, memory."""

from __future__ import annotations

from tests.mutants.runner import Mutant

HEAD = "hdpfl_flower/test_head.py::test_"
RP = "hdpfl_flower/test_robust_pca.py::test_"
UP = "hdpfl_flower/test_updates.py::test_"

MUTANTS = (
    Mutant(
        "a quiet head is believed whatever the rest says",
        "hdpfl_flower/head.py",
        "np.log(np.maximum(silent, least)) - np.log(levels)",
        "np.log(np.maximum(silent, 1e-12)) - np.log(levels)",
        HEAD + "a_forged_quiet_head_gains_no_more_than_a_quarter[0.0-4]",
    ),
    Mutant(
        "a quiet head is measured against itself",
        "hdpfl_flower/head.py",
        "least = np.minimum(levels, quietest) / BELIEVED",
        "least = np.minimum(silent, quietest) / BELIEVED",
        HEAD + "a_forged_quiet_head_gains_no_more_than_a_quarter[0.001-4]",
    ),
    Mutant(
        "a forged head over the rounds is measured in one round alone",
        "hdpfl_flower/temporal.py",
        "        quietest_part(rows),\n    )\n    return spoken",
        "        0 * quietest_part(rows),\n    )\n    return spoken",
        HEAD + "a_forged_head_is_not_believed_over_the_rounds_either",
    ),
    Mutant(
        "silence of the last round for that of all",
        "hdpfl_flower/temporal.py",
        "facts[:, _SILENT] += silent_squares",
        "facts[:, _SILENT] = silent_squares",
        HEAD + "silence_adds_up_over_the_rounds_where_the_signals_move",
    ),
    Mutant(
        "every estimator listens to the head",
        "hdpfl_flower/noise_level.py",
        'if method != "auto" or head is None or previous is not None:',
        "if head is None or previous is not None:",
        HEAD + "only_auto_listens_to_the_head",
    ),
    Mutant(
        "a sparse part not there yet counts as settled",
        "hdpfl_flower/robust_pca.py",
        "there = len(limits) > 3 and bool(np.all(np.array(history[-4:]) > floor))",
        "there = len(limits) > 3",
        RP + "a_row_whose_sparse_part_is_not_there_yet_hides_nothing[strong-30-2]",
    ),
    Mutant(
        "replies kept beside the matrix",
        "strategies/exchange.py",
        "for reply in _letting_go(replies):",
        "for reply in replies:",
        "strategies/test_exchange.py::test_a_reply_is_gone_before_the_next_one_comes",
    ),
    Mutant(
        "a full disk found out by a signal",
        "hdpfl_flower/matrix.py",
        "            os.posix_fallocate(file.fileno(), 0, size)",
        "            file.truncate(size)",
        "hdpfl_flower/test_matrix.py::test_a_full_disk_is_an_error_and_not_the_end_of_the_process",
    ),
    Mutant(
        "the container's limit unread",
        "hdpfl_flower/matrix.py",
        "available = min(available, int(_CGROUP.read_text()))",
        "available = max(available, int(_CGROUP.read_text()))",
        "hdpfl_flower/test_matrix.py::test_the_limit_is_a_quarter_of_the_machine_or_of_the_container",
    ),
    Mutant(
        "the last block left out of a sum",
        "hdpfl_flower/updates.py",
        "result[start : start + _BLOCK] = total",
        "result[start : start + len(total) - 1] = total[:-1]",
        UP + "blocks_change_no_bit",
    ),
)

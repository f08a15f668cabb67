"""Bugs of arithmetic: rows that meet in their rounding, forwards that mix, norms too small."""

from __future__ import annotations

from tests.mutants.runner import Mutant

ROWS = "hdpfl_flower/models/test_row_batches.py::test_"
CHOICE = "client_app/training/test_engine_choice.py::test_"
ROUNDING = "client_app/audits/test_rounding.py::test_"
_GRANULE = "a_kernel_gets_the_first_number_of_rows_that_keeps_them_apart"
_TRAINING = "a_forward_that_mixes_in_training_alone_is_refused"
MUTANTS = (
    Mutant(
        "a last block of its own size",
        "client_app/training/engines.py",
        "missing = -len(x) % granule",
        "missing = 0",
        ROUNDING + "a_kernel_with_a_tail_gets_batches_without_one",
    ),
    Mutant(
        "batches of a size that nobody proved",
        "client_app/training/engines.py",
        "rows = len(x) if self.proof.holds(granule, len(x)) else granule",
        "rows = len(x)",
        "client_app/training/test_rows_apart.py::test_a_size_that_fails_is_taken_in_blocks",
    ),
    Mutant(
        "the proof of a block left out",
        "hdpfl_flower/models/row_batches.py",
        "self._held[key] = self._proven(granule, size)",
        "self._held[key] = True",
        ROWS + f"{_GRANULE}[places-1]",
    ),
    Mutant(
        "a size taken for proven by its block",
        "hdpfl_flower/models/row_batches.py",
        "        if size == granule:\n            return True\n        generator",
        "        if size % granule == 0:\n            return True\n        generator",
        ROWS + "a_size_whose_order_differs_is_taken_in_blocks",
    ),
    Mutant(
        "a proof among the same rows each time",
        "hdpfl_flower/models/row_batches.py",
        "known = max(2 * granule, _FEWEST)",
        "known = granule",
        ROWS + f"{_GRANULE}[mixed-1]",
    ),
    Mutant(
        "a proof with one thread for any number",
        "hdpfl_flower/models/row_batches.py",
        "key = torch.get_num_threads(), granule, size",
        "key = 0, granule, size",
        ROWS + "what_is_proven_is_proven_for_the_present_threads",
    ),
    Mutant(
        "records counted in blocks of their own size",
        "hdpfl_flower/models/evaluation.py",
        "filled = rows.new_zeros(block, *rows.shape[1:])",
        "filled = rows.new_zeros(len(rows), *rows.shape[1:])",
        ROWS + "records_are_counted_in_blocks_of_one_size",
    ),
    Mutant(
        "records counted where they are not proven apart",
        "hdpfl_flower/models/evaluation.py",
        "block = self._proof.block(_BLOCKS)",
        "block = _BLOCKS[0]",
        ROWS + "of_a_model_that_mixes_records_each_is_counted_alone",
    ),
    Mutant(
        "a check of the mode that tests",
        "client_app/training/engine_choice.py",
        "    model.train()\n    outputs",
        "    model.eval()\n    outputs",
        CHOICE + f"{_TRAINING}[centred_in_training-bookkeeping]",
    ),
    Mutant(
        "one direction of a pair alone",
        "client_app/training/engine_choice.py",
        "same[other] = True",
        "same[: other + 1] = True",
        CHOICE + f"{_TRAINING}[cumulative_from_the_end-opacus]",
    ),
    Mutant(
        "ghost norm without its floor",
        "client_app/training/ghost_clipping.py",
        "torch.maximum((inputs * deltas).sum((1, 2)), floor)",
        "(inputs * deltas).sum((1, 2))",
        "client_app/training/test_ghost_clipping.py::test_a_ghost_norm_is_never_too_small",
    ),
)

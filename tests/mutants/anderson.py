"""Bugs of Anderson acceleration: its weights, its step, its gate."""

from __future__ import annotations

from tests.mutants.runner import Mutant

WEIGHTS = "hdpfl_flower/linalg/test_anderson.py::test_"
GATE = "strategies/server_step/test_mixing_gate.py::test_"
STEP = "strategies/server_step/test_anderson.py::test_"

MUTANTS = (
    Mutant(
        "mixing by the pseudoinverse, without border and ridge",
        "hdpfl_flower/linalg/anderson.py",
        "np.linalg.solve(bordered, np.append(np.zeros(m), 1.0))[:m]",
        "np.linalg.pinv(gram) @ np.ones(m)",
        WEIGHTS + "a_residual_of_zero_is_found_where_the_pseudoinverse_leaves_one",
    ),
    Mutant(
        "a ridge in the unit of the residuals",
        "hdpfl_flower/linalg/anderson.py",
        "gram / (largest if largest > 0 else 1.0)",
        "gram",
        WEIGHTS + "weights_do_not_depend_on_the_unit[-80]",
    ),
    Mutant(
        "mixing whatever the noise",
        "strategies/server_step/anderson.py",
        'return self.settings.gate == "none" or is_better(gram, noise, weights, d)',
        "return True",
        STEP + "a_constant_signal_is_not_extrapolated_by_chance",
    ),
    Mutant(
        "mixing where chance alone is better",
        "strategies/server_step/mixing_gate.py",
        "> math.sqrt(chdtri(len(gram) - 1, ALARM)) * error",
        "> 0",
        GATE + "of_a_constant_signal_no_weights_are_better[10000.0]",
    ),
    Mutant(
        "the noise that past models carry left out",
        "strategies/server_step/mixing_gate.py",
        "weights**2 @ noise + carried)",
        "weights**2 @ noise)",
        GATE + "what_noise_explains_holds_what_the_models_carry",
    ),
    Mutant(
        "images mixed as if all began at the present model",
        "strategies/server_step/anderson.py",
        "jump = -exact_sum(np.cumsum(weights)[:-1], moves)",
        "jump = 0 * mean",
        STEP + "the_step_is_the_mixing_of_the_last_models[1.0]",
    ),
    Mutant(
        "rounds of other sites mixed with the present one",
        "strategies/server_step/anderson.py",
        "if state.sites != updates.sites:",
        "if False:",
        STEP + "rounds_of_other_sites_are_forgotten",
    ),
    Mutant(
        "mixing back to a saddle",
        "strategies/server_step/anderson.py",
        "not (jump * (residuals[-1] + mean)).sum() > 0:",
        "False:",
        STEP + "a_saddle_that_is_left_behind_is_not_returned_to",
    ),
)

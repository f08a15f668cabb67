"""The files that protect, and the tests that cover each: what ``make mutants-fuzz`` changes."""

from __future__ import annotations

H, C = "hdpfl_flower/", "client_app/"
FILES: dict[str, tuple[str, ...]] = {
    H + "account.py": (H + "test_account.py", H + "test_ledger.py", H + "test_ledger_rules.py",
                       H + "test_ledger_budget.py", H + "test_ledger_machine.py"),
    H + "accounting.py": (H + "test_accounting_rules.py", H + "test_accounting.py",
                          H + "test_selection.py", H + "test_selection_gumbel.py"),
    H + "central_noise.py": (H + "test_central_noise.py", "strategies/test_fedhdp.py",
                             C + "test_client_level.py"),
    H + "chain.py": (H + "test_chain_rules.py", H + "test_ledger.py", H + "test_ledger_damage.py",
                     H + "test_simulated_ledger.py"),
    H + "early_exit.py": (H + "test_given_noise.py", C + "test_budgets.py"),
    H + "ledger.py": (H + "test_ledger_rules.py", H + "test_ledger.py",
                      H + "test_ledger_budget.py", H + "test_ledger_damage.py",
                      H + "test_ledger_machine.py", H + "test_simulated_ledger.py",
                      C + "test_budgets.py"),
    H + "losses.py": (C + "test_stacked.py", C + "test_engines.py", C + "test_bookkeeping.py"),
    H + "mechanism.py": (H + "test_mechanism.py", H + "test_policy.py", H + "test_work_bounds.py",
                         H + "test_plan_extras.py", H + "test_given_noise.py"),
    H + "models.py": (H + "test_models.py", H + "test_model_bounds.py"),
    H + "noise.py": (H + "test_noise.py", H + "test_noise_batches.py", C + "test_dpsgd_noise.py",
                     H + "test_selection.py", H + "test_selection_gumbel.py"),
    H + "selection.py": (H + "test_selection_rules.py", H + "test_selection.py",
                          H + "test_plan_extras.py"),
    H + "selection_gumbel.py": (H + "test_selection_gumbel.py", C + "test_choice.py"),
    H + "site_data.py": (H + "test_site_data.py", C + "commands/test_profile.py"),
    H + "trust.py": (H + "test_policy.py", C + "test_client_level.py"),
    H + "wire.py": (H + "test_wire.py", H + "test_wire_rules.py"),
    H + "wire_arrays.py": (H + "test_wire.py", H + "test_wire_rules.py"),
    C + "app.py": (C + "test_app.py", C + "test_budgets.py", C + "test_choice.py",
                   C + "test_personal_model.py", C + "test_client_level.py", C + "test_refusals.py",
                   "privacy/test_disclosure.py"),
    C + "bookkeeping.py": (C + "test_bookkeeping.py", C + "test_engines.py"),
    C + "choice.py": (C + "test_choice.py",),
    C + "client_level.py": (C + "test_client_level.py",),
    C + "dpsgd.py": (C + "test_dpsgd_settings.py", C + "test_dpsgd_pull.py", C + "test_dpsgd.py",
                     C + "test_dpsgd_noise.py"),
    C + "engine_choice.py": (C + "test_engine_choice.py", C + "test_app.py"),
    C + "engines.py": (C + "test_engines.py", C + "test_dpsgd.py"),
    C + "held_out.py": (C + "test_app.py", C + "test_personal_model.py"),
    C + "timing.py": (C + "test_timing.py",),
    C + "training.py": (C + "test_app.py", C + "test_choice.py", C + "test_projected.py",
                        C + "test_model_bounds.py"),
}  # fmt: skip
"""Source file → test files, below ``tests/``. A test that starts a process of its own sees no
change: what it alone covers survives here."""

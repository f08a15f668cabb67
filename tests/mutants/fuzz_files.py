"""The files that protect, and the tests that cover each: what ``make mutants-fuzz`` changes."""

from __future__ import annotations

FILES: dict[str, tuple[str, ...]] = {
    "hdpfl_flower/formats.py": ("test_formats.py",),
    "hdpfl_flower/monitoring/rejection.py": (
        "test_formats.py",
        "hdpfl_flower/monitoring/test_journal.py",
    ),
    "hdpfl_flower/ledger/account.py": (
        "hdpfl_flower/ledger/test_account.py",
        "hdpfl_flower/ledger/test_ledger.py",
        "hdpfl_flower/ledger/test_ledger_rules.py",
        "hdpfl_flower/ledger/test_ledger_budget.py",
        "hdpfl_flower/ledger/test_ledger_machine.py",
        "hdpfl_flower/ledger/test_filter_ledger.py",
        "hdpfl_flower/ledger/test_filter_machine.py",
    ),
    "hdpfl_flower/ledger/renyi.py": ("hdpfl_flower/ledger/test_renyi.py",),
    "hdpfl_flower/privacy/accounting.py": (
        "hdpfl_flower/privacy/test_accounting_rules.py",
        "hdpfl_flower/privacy/test_accounting.py",
        "hdpfl_flower/privacy/test_noisy_max.py",
        "hdpfl_flower/privacy/test_exponential_mechanism.py",
    ),
    "hdpfl_flower/privacy/central_dp.py": (
        "hdpfl_flower/privacy/test_central_dp.py",
        "strategies/fedhdp/test_fedhdp.py",
        "client_app/training/test_client_level.py",
    ),
    "hdpfl_flower/ledger/hash_chain.py": (
        "hdpfl_flower/ledger/test_hash_chain_rules.py",
        "hdpfl_flower/ledger/test_ledger.py",
        "hdpfl_flower/ledger/test_ledger_damage.py",
        "hdpfl_flower/ledger/test_in_memory.py",
    ),
    "hdpfl_flower/privacy/affordable_rounds.py": (
        "hdpfl_flower/privacy/test_given_noise.py",
        "client_app/site/test_budgets.py",
    ),
    "hdpfl_flower/ledger/ledger.py": (
        "hdpfl_flower/ledger/test_ledger_rules.py",
        "hdpfl_flower/ledger/test_ledger.py",
        "hdpfl_flower/ledger/test_ledger_budget.py",
        "hdpfl_flower/ledger/test_ledger_damage.py",
        "hdpfl_flower/ledger/test_ledger_machine.py",
        "hdpfl_flower/ledger/test_in_memory.py",
        "client_app/site/test_budgets.py",
    ),
    "hdpfl_flower/models/losses.py": (
        "client_app/training/test_stacked_sgd.py",
        "client_app/training/test_engines.py",
        "client_app/training/test_ghost_clipping.py",
    ),
    "hdpfl_flower/privacy/plan.py": (
        "hdpfl_flower/privacy/test_plan_rules.py",
        "hdpfl_flower/privacy/test_plan.py",
        "hdpfl_flower/privacy/test_policy.py",
        "hdpfl_flower/privacy/test_work_bounds.py",
        "hdpfl_flower/privacy/test_plan_extras.py",
        "hdpfl_flower/privacy/test_given_noise.py",
    ),
    "hdpfl_flower/models/networks.py": (
        "hdpfl_flower/models/test_networks.py",
        "hdpfl_flower/models/test_network_bounds.py",
    ),
    "hdpfl_flower/privacy/noise.py": (
        "hdpfl_flower/privacy/test_noise_rules.py",
        "hdpfl_flower/privacy/test_noise.py",
        "hdpfl_flower/privacy/test_noise_batches.py",
        "hdpfl_flower/privacy/test_noise_ahead.py",
        "client_app/training/test_dpsgd_noise.py",
        "hdpfl_flower/privacy/test_noisy_max.py",
        "hdpfl_flower/privacy/test_exponential_mechanism.py",
    ),
    "hdpfl_flower/privacy/noisy_max.py": (
        "hdpfl_flower/privacy/test_noisy_max_rules.py",
        "hdpfl_flower/privacy/test_noisy_max.py",
        "hdpfl_flower/privacy/test_plan_extras.py",
    ),
    "hdpfl_flower/privacy/exponential_mechanism.py": (
        "hdpfl_flower/privacy/test_exponential_mechanism.py",
        "client_app/training/test_private_choice.py",
    ),
    "hdpfl_flower/data/site_data.py": (
        "hdpfl_flower/data/test_site_data.py",
        "hdpfl_flower/data/test_image_folder.py",
        "client_app/commands/test_profile.py",
    ),
    "hdpfl_flower/privacy/policy.py": (
        "hdpfl_flower/privacy/test_trust_rules.py",
        "hdpfl_flower/privacy/test_policy.py",
        "hdpfl_flower/privacy/test_plan_rules.py",
        "hdpfl_flower/privacy/test_unit.py",
        "client_app/training/test_client_level.py",
    ),
    "hdpfl_flower/wire.py": ("hdpfl_flower/test_wire.py", "hdpfl_flower/test_wire_rules.py"),
    "client_app/app.py": (
        "client_app/test_app.py",
        "client_app/site/test_budgets.py",
        "client_app/training/test_private_choice.py",
        "client_app/after_run/test_personal_model.py",
        "client_app/training/test_client_level.py",
        "client_app/site/test_refusals.py",
        "privacy/test_disclosure.py",
    ),
    "client_app/training/ghost_clipping.py": (
        "client_app/training/test_ghost_clipping.py",
        "client_app/training/test_engines.py",
    ),
    "client_app/training/private_choice.py": ("client_app/training/test_private_choice.py",),
    "client_app/training/client_level.py": (
        "client_app/training/test_client_level_rules.py",
        "client_app/training/test_client_level.py",
    ),
    "client_app/training/dpsgd.py": (
        "client_app/training/test_dpsgd_rules.py",
        "client_app/training/test_dpsgd_settings.py",
        "client_app/training/test_dpsgd_bits.py",
        "client_app/training/test_dpsgd_pull.py",
        "client_app/training/test_dpsgd.py",
        "client_app/training/test_dpsgd_noise.py",
    ),
    "client_app/training/engine_choice.py": (
        "client_app/training/test_engine_choice.py",
        "client_app/test_app.py",
    ),
    "client_app/training/engines.py": (
        "client_app/training/test_engine_rules.py",
        "client_app/training/test_engines.py",
        "client_app/training/test_dpsgd.py",
    ),
    "client_app/work/base.py": (
        "client_app/training/test_personal_round.py",
        "client_app/training/test_dpsgd_phases.py",
        "client_app/after_run/test_personal_site.py",
    ),
    "client_app/site/personal_state.py": (
        "client_app/after_run/test_personal_files.py",
        "client_app/after_run/test_personal_site.py",
    ),
    "client_app/after_run/end_of_run.py": (
        "client_app/after_run/test_prior.py",
        "client_app/after_run/test_personal_site.py",
        "client_app/after_run/test_shrinkage.py",
        "client_app/after_run/test_tuned_place.py",
        "client_app/training/test_client_level_parts.py",
    ),
    "hdpfl_flower/models/parts.py": ("hdpfl_flower/models/test_parts.py",),
    "client_app/after_run/held_out.py": (
        "client_app/test_app.py",
        "client_app/test_beyond_approval.py",
        "client_app/test_in_process.py",
        "client_app/after_run/test_held_out.py",
        "client_app/after_run/test_personal_model.py",
    ),
    "client_app/approval/fab.py": (
        "client_app/approval/test_fab.py",
        "client_app/commands/test_approve.py",
    ),
    "client_app/site/consent.py": (
        "client_app/site/test_consent.py",
        "client_app/test_app.py",
    ),
    "client_app/site/inbox.py": (
        "client_app/site/test_consent.py",
        "client_app/commands/test_requests.py",
    ),
    "hdpfl_flower/privacy/pld.py": (
        "hdpfl_flower/privacy/test_pld.py",
        "hdpfl_flower/privacy/test_trade_off.py",
    ),
    "hdpfl_flower/privacy/plan_table.py": ("hdpfl_flower/privacy/test_plan_table.py",),
    "hdpfl_flower/quantize.py": (
        "hdpfl_flower/test_quantize.py",
        "client_app/training/test_upload.py",
        "test_formats.py",
    ),
    "client_app/site/reply_time.py": ("client_app/site/test_reply_time.py",),
    "client_app/training/trainer.py": (
        "client_app/test_app.py",
        "client_app/training/test_private_choice.py",
        "client_app/training/test_last_step.py",
        "client_app/site/test_model_bounds.py",
    ),
}
"""Source file → test files, below ``tests/``. A test that starts a process of its own sees no
change: what it alone covers survives here."""

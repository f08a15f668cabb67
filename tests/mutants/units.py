"""Bugs of the unit: what a run protects, who may choose it, and what the reports say of it."""

from __future__ import annotations

from tests.mutants.runner import Mutant

_BOUND = "client_app/training/test_client_bound.py::test_"
_CLIENT = "client_app/training/test_client_level.py::test_"
_PARTS = "client_app/training/test_client_level_parts.py::test_"
_GUARDS = "client_app/site/test_guards_by_noise.py::test_"
_FORBIDS = _GUARDS + "what_the_site_forbids_is_declined_and_nothing_is_released"
_SUMS = "client_app/training/test_unit_sums.py::test_"
_UNIT = "hdpfl_flower/privacy/test_unit.py::test_"
_BITS = "strategies/fedhdp/test_bit_noise.py::test_"
_REPORT = "client_app/commands/test_report_units.py::test_"
_PAGE = "client_app/commands/test_report_page.py::test_"
_POWER = "hdpfl_flower/privacy/test_trade_off.py::test_"
_RUN = "server_app/run/test_unit_of_run.py::test_"

MUTANTS = (
    # Noise of a client's update.
    Mutant(
        "noise for a client against nothing",
        "hdpfl_flower/privacy/plan.py",
        "        sensitivity = OF_AN_UPDATE\n",
        "        sensitivity = OF_A_RECORD\n",
        _BOUND + "an_attacker_learns_no_more_than_the_claim",
    ),
    Mutant(
        "a sensitivity that is planned and not used",
        "hdpfl_flower/privacy/plan.py",
        "return self.noise_multiplier * steps.noise_factor * (self.sensitivity * clip_norm)",
        "return self.noise_multiplier * clip_norm",
        _CLIENT + "the_noise_a_client_adds_is_that_of_its_plan",
    ),
    Mutant(
        "a client's update that is not clipped",
        "client_app/training/client_level.py",
        "update = clip_update(moved, terms.clip_norm)",
        "update = moved",
        _BOUND + "one_record_turns_the_clipped_update_round",
    ),
    Mutant(
        "a real site's part that trains without noise",
        "client_app/work/base.py",
        '        if terms.noise != "records" and not site.simulated:\n',
        "        if False:\n",
        _PARTS + "a_real_site_declines_a_part_that_trains_without_noise[digits-client]",
    ),
    Mutant(
        "a personal model of a part without noise shown as a private one",
        "client_app/after_run/personal_model.py",
        '"private" if terms.noise == "records" and not plain else "kept"',
        '"private" if not plain else "kept"',
        _PARTS + "tuning_steps_are_plain_and_stay_at_home[server]",
    ),
    Mutant(
        "the noise of a client's update read as that of steps",
        "hdpfl_flower/privacy/plan.py",
        "        if self.sensitivity != OF_A_RECORD:\n",
        "        if False:\n",
        _CLIENT + "the_plan_of_a_client_that_noises_itself_claims_no_sampling",
    ),
    Mutant(
        "a plan with less sensitivity than a record's",
        "hdpfl_flower/privacy/plan.py",
        "        if self.sensitivity not in (OF_A_RECORD, OF_AN_UPDATE):\n",
        "        if not self.sensitivity > 0:\n",
        _UNIT + "a_plan_without_a_sensitivity_is_none[0.5]",
    ),
    # Who may choose the mode of noise, and what is asked in each.
    Mutant(
        "noise = client at every site",
        "hdpfl_flower/privacy/policy.py",
        'if terms.noise != "client" or profile',
        "if True or profile",
        _FORBIDS + "[client-noise-client-dp-fedavg]",
    ),
    Mutant(
        "noise = client not asked where levels are given",
        "hdpfl_flower/privacy/policy.py",
        'if terms.noise != "client" or profile',
        'if terms.noise != "client" or terms.strategy == "fedhdp" or profile',
        _FORBIDS + "[client-noise-client-fedhdp]",
    ),
    Mutant(
        "trust not asked where levels are given",
        "hdpfl_flower/privacy/policy.py",
        '    if terms.noise != "server":\n',
        '    if terms.noise != "server" or terms.strategy == "fedhdp":\n',
        _FORBIDS + "[trust-server-server-fedhdp]",
    ),
    Mutant(
        "delta not asked where levels are given",
        "hdpfl_flower/privacy/policy.py",
        "    if terms.delta > profile.run.delta:\n",
        "    if terms.delta > profile.run.delta and terms.strategy != 'fedhdp':\n",
        _FORBIDS + "[delta-server-fedhdp]",
    ),
    Mutant(
        "no policy under a trusted server",
        "hdpfl_flower/privacy/policy.py",
        "    _check_extras(profile, terms)\n    if policy",
        '    if terms.noise == "server":\n        return\n    _check_extras(profile, terms)\n    if policy',
        _FORBIDS + "[max-clip-norm-server-dp-fedavg]",
    ),
    Mutant(
        "no policy where a client noises its update",
        "hdpfl_flower/privacy/policy.py",
        "    _check_extras(profile, terms)\n    if policy",
        '    if terms.noise == "client":\n        return\n    _check_extras(profile, terms)\n    if policy',
        _FORBIDS + "[strategies-client-dp-fedavg]",
    ),
    Mutant(
        "no policy where levels are given",
        "hdpfl_flower/privacy/policy.py",
        "    _check_extras(profile, terms)\n    if policy",
        "    if terms.strategy == 'fedhdp':\n        return\n    _check_extras(profile, terms)\n    if policy",
        _FORBIDS + "[max-rounds-records-fedhdp]",
    ),
    Mutant(
        "metrics disclosed wherever the server is trusted",
        "client_app/app.py",
        '    if "metrics" not in site.profile.disclose:\n',
        '    if "metrics" not in site.profile.disclose and instructions.terms.noise != "server":\n',
        _GUARDS + "metrics_leave_only_where_they_are_disclosed[server-dp-fedavg]",
    ),
    Mutant(
        "rounds of a client's own noise that nobody paid for",
        "hdpfl_flower/privacy/policy.py",
        "    if not first <= server_round <= last:\n",
        '    if terms.noise != "client" and not first <= server_round <= last:\n',
        _GUARDS + "a_round_that_is_not_paid_for_is_declined[client-dp-fedavg]",
    ),
    # The trusted server's own noise.
    Mutant(
        "half the noise on the clipping bits",
        "strategies/fedhdp/level_averaging.py",
        "drawn = plan.bit_noise * float(noise.normal(1)[0])",
        "drawn = plan.bit_noise / 2 * float(noise.normal(1)[0])",
        _BITS + "the_sum_of_the_clipping_bits_has_the_noise_that_is_paid_for[levels]",
    ),
    Mutant(
        "no noise on the clipping bits where levels are given",
        "strategies/fedhdp/level_averaging.py",
        "drawn = plan.bit_noise * float(noise.normal(1)[0])",
        "drawn = (len(plan.levels) == 1) * plan.bit_noise * float(noise.normal(1)[0])",
        _BITS + "the_sum_of_the_clipping_bits_has_the_noise_that_is_paid_for[levels]",
    ),
    Mutant(
        "clipping bits with the noise that was asked for, not what the level needs",
        "hdpfl_flower/privacy/central_dp.py",
        "    noise = enough_bit_noise(bit_noise, max(joint)) if bit_noise else 0.0\n",
        "    noise = enough_bit_noise(bit_noise, min(joint)) if bit_noise else 0.0\n",
        "hdpfl_flower/privacy/test_central_dp.py::test_the_bits_have_noise_for_the_strictest_of_all_levels",
    ),
    Mutant(
        "all levels with the noise of the loosest",
        "strategies/fedhdp/level_averaging.py",
        "means[j] = noisy_mean(total, level, clip_norm, noise)\n",
        "means[j] = noisy_mean(\n"
        "                    total, [e for e in plan.levels if e.private][0], clip_norm, noise\n"
        "                )\n",
        _BITS + "a_levels_update_and_bits_together_cost_its_epsilon[levels]",
    ),
    # The unit.
    Mutant(
        "an id from the server where the profile has none",
        "hdpfl_flower/privacy/unit.py",
        "    if id_of(terms.schema_text) != own:\n",
        "    if own and id_of(terms.schema_text) != own:\n",
        _SUMS + "a_server_that_names_an_id_gets_nothing[none]",
    ),
    Mutant(
        "an id asked of runs on the sites' own data alone",
        "hdpfl_flower/privacy/unit.py",
        "    if id_of(terms.schema_text) != own:\n",
        '    if terms.dataset == "site" and id_of(terms.schema_text) != own:\n',
        _UNIT + "a_site_without_data_of_its_own_has_no_id",
    ),
    Mutant(
        "a reader that takes any id",
        "hdpfl_flower/data/site_data.py",
        "    if schema.id != source.id:\n",
        "    if source.id and schema.id != source.id:\n",
        "hdpfl_flower/data/test_site_data.py::test_a_schema_of_another_unit_than_the_sites_is_refused",
    ),
    Mutant(
        "an id of images that nobody reads",
        "hdpfl_flower/config/data_source.py",
        "        if self.id and self.format not in TABLES:\n",
        '        if self.id and self.format == "npz":\n',
        _UNIT + "an_id_where_records_have_no_columns_is_refused[images]",
    ),
    Mutant(
        "a holdout by the record where an id is the unit",
        "hdpfl_flower/data/site_data.py",
        "    if ids is not None:\n        yield from ids",
        "    if False:\n        yield from ids",
        _SUMS + "which_side_of_the_holdout_is_a_units_own_affair[patient]",
    ),
    # What is said of it.
    Mutant(
        "units added up as one record",
        "client_app/reports/units.py",
        '    for unit in dict.fromkeys(run["unit"] for run in runs):\n'
        '        yield unit, [run for run in runs if run["unit"] == unit]\n',
        "    if runs:\n        yield RECORD, list(runs)\n",
        _REPORT + "a_mixed_ledger_has_a_sum_for_each_unit_and_none_over_them",
    ),
    Mutant(
        "a sum of all records' runs under the name of a record",
        "client_app/reports/units.py",
        "            **_amount(own),\n",
        "            **_amount([*own, *(whole if unit == RECORD else [])]),\n",
        _REPORT + "a_mixed_ledger_has_a_sum_for_each_unit_and_none_over_them",
    ),
    Mutant(
        "a report before the first run that forgets the id",
        "client_app/reports/units.py",
        "or [unit_of_profile(site)]",
        "or [RECORD]",
        _REPORT + "before_the_first_run_the_unit_is_the_profiles",
    ),
    Mutant(
        "a run's summary that calls a person a record",
        "hdpfl_flower/privacy/unit.py",
        "    if column:\n",
        "    if False:\n",
        _RUN + "the_unit_is_that_of_the_schema_everywhere[id]",
    ),
    Mutant(
        "a simulation's budget shown as the site's",
        "client_app/commands/model.py",
        "        if key not in FOR_SITES:\n",
        "        if False:\n",
        "client_app/commands/test_model.py::"
        "test_show_leaves_out_what_a_site_would_read_as_its_own[{}]",
    ),
    # What an attacker gains.
    Mutant(
        "an attacker who sees the last run alone",
        "client_app/reports/facts.py",
        'for run_id in each["runs"]]\n        each["attacker-finds"]',
        'for run_id in each["runs"][-1:]]\n        each["attacker-finds"]',
        _PAGE + "the_attackers_rates_are_those_of_all_runs_together",
    ),
    Mutant(
        "an attacker's rate rounded to the nearest",
        "client_app/reports/attack.py",
        "math.ceil(100 * share - 1e-9)",
        "round(100 * share)",
        _PAGE + "rates_are_rounded_up",
    ),
    Mutant(
        "the weaker of two tests for a member",
        "hdpfl_flower/privacy/trade_off.py",
        "max(*both, false_positive_rate)",
        "max(min(both), false_positive_rate)",
        _POWER + "a_test_on_a_sampled_step_does_not_exceed_it",
    ),
)
"""As ``table.MUTANTS``."""

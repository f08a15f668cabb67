"""Bugs of client-level privacy, each with the test that finds it."""

from __future__ import annotations

from tests.mutants.runner import Mutant

_CLIPPING = "hdpfl_flower/privacy/test_adaptive_clipping.py::test_"
_CENTRAL = "hdpfl_flower/privacy/test_central_dp.py::test_"
_LEVELS = "strategies/fedhdp/test_levels.py::test_"
_DRIFT = "strategies/fedhdp/test_level_gaps.py::test_"
_FEDHDP = "strategies/fedhdp/test_fedhdp.py::test_"
_CLIENT = "client_app/training/test_client_level.py::test_"
_PERSONAL = "client_app/after_run/test_personal_model.py::test_"

MUTANTS = (
    Mutant(
        "adaptive clipping the wrong way",
        "hdpfl_flower/privacy/adaptive_clipping.py",
        "math.exp(-rate * (share - quantile))",
        "math.exp(rate * (share - quantile))",
        _CLIPPING + "flowers_own_bit_moves_away_from_it",
    ),
    Mutant(
        "clipping bits that cost nothing",
        "hdpfl_flower/privacy/central_dp.py",
        "noise_multiplier=update_multiplier(z, noise) if noise else z,",
        "noise_multiplier=z,",
        _CENTRAL + "every_level_gets_its_epsilon_with_the_bits_paid",
    ),
    Mutant(
        "half the noise at the server",
        "hdpfl_flower/privacy/central_dp.py",
        "    std = level.noise_multiplier * clip_norm\n",
        "    std = level.noise_multiplier * clip_norm / 2\n",
        _CENTRAL + "the_noise_has_its_std_also_where_nobody_came[0]",
    ),
    Mutant(
        "clients trusted to have clipped",
        "hdpfl_flower/privacy/central_dp.py",
        "    scales = np.minimum(1.0, bound / np.maximum(norms[kept], bound))\n",
        "    scales = np.ones(int(kept.sum()))\n",
        _CENTRAL + "one_update_counts_for_no_more_than_the_clip_norm[row0]",
    ),
    Mutant(
        "clipping by another row's norm",
        "strategies/core/round_messages.py",
        "            squares=squares[stay],\n            projected",
        "            squares=squares[: len(stay)],\n            projected",
        "strategies/core/test_guard.py::test_the_squares_stay_with_their_rows",
    ),
    Mutant(
        "an empty level without noise",
        "strategies/fedhdp/level_averaging.py",
        "            if level.private and level.clients:\n",
        "            if level.private and (levels == j).any():\n",
        _FEDHDP + "a_private_level_that_did_not_come_releases_its_noise",
    ),
    Mutant(
        "division by the clients that came",
        "strategies/fedhdp/level_averaging.py",
        "                means[j] = noisy_mean(total, level, clip_norm, noise)\n",
        "                means[j] = noisy_mean(total, level, clip_norm, noise)\n"
        "                means[j] *= level.expected / max(1, int((levels == j).sum()))\n",
        _FEDHDP + "the_noise_does_not_depend_on_who_came",
    ),
    Mutant(
        "clients drawn by a public seed",
        "strategies/core/base.py",
        "self.streams.sampling.bernoulli(len(sites), self.server.fraction)",
        "np.flatnonzero(np.random.default_rng(server_round).random(len(sites)) < 0.5)",
        _FEDHDP + "who_is_asked_is_a_secret_toss_and_no_number_of_the_terms",
    ),
    Mutant(
        "a quorum that tells who came",
        "strategies/core/checks.py",
        '"quorum": server.quorum,',
        '"quorum": 0,',
        _FEDHDP + "whom_the_server_hears_depends_on_its_tosses_alone[quorum-3]",
    ),
    Mutant(
        "a level promised what its strictest site has",
        "strategies/core/privacy_statement.py",
        "held = max(finite,",
        "held = min(finite,",
        _FEDHDP + "where_sites_account_a_level_has_the_largest_epsilon_that_one_of_them_spends",
    ),
    Mutant(
        "a level that changes in mid-run",
        "strategies/fedhdp/level_averaging.py",
        "joined = level_of.setdefault(site, now)",
        "joined = now",
        _FEDHDP + "a_site_that_comes_back_with_another_level_is_not_asked",
    ),
    Mutant(
        "a looser level than a site allows",
        "strategies/fedhdp/levels.py",
        "<= epsilons[:, None]",
        "<= 2 * epsilons[:, None]",
        _LEVELS + "nobody_is_put_into_a_looser_level_than_it_asked_for",
    ),
    Mutant(
        "no noise for any server that asks",
        "hdpfl_flower/privacy/policy.py",
        "    if not profile.trust_server:\n",
        "    if False:\n",
        _CLIENT + "nothing_leaves_without_noise_unless_the_profile_trusts_the_server",
    ),
    Mutant(
        "updates for a server that was told another epsilon",
        "hdpfl_flower/ledger/ledger.py",
        "                    self._account.check_declared(request)\n",
        "",
        _CLIENT
        + "an_epsilon_changed_in_mid_run_sends_nothing_more_to_a_server_that_was_told_another",
    ),
    Mutant(
        "a personal model that costs a round",
        "client_app/training/ditto.py",
        '        log.error("no personal model in this round: %s", reason)\n',
        "        raise\n",
        _PERSONAL + "a_damaged_personal_model_costs_no_round",
    ),
    Mutant(
        "a personal model trained before the seal",
        "client_app/app.py",
        "        lambda: trainer.run(plan), rounds_asked",
        "        lambda: _train_personal(site, instructions, trainer.start) or trainer.run(plan), rounds_asked",
        _PERSONAL + "a_site_that_dies_over_its_personal_model_has_sealed_its_update",
    ),
    Mutant(
        "half the noise of a client's update",
        "client_app/training/client_level.py",
        "terms.clip_norm).noise_std",
        "terms.clip_norm).noise_std / 2",
        _CLIENT + "the_noise_a_client_adds_is_that_of_its_plan",
    ),
    Mutant(
        "sampling claimed where the server sees it",
        "hdpfl_flower/privacy/plan.py",
        "Steps(sampling_prob=1.0, count=1), 1.0",
        "Steps(sampling_prob=0.1, count=1), 1.0",
        _CLIENT + "the_plan_of_a_client_that_noises_itself_claims_no_sampling",
    ),
    Mutant(
        "updates without noise for a rule that adds none",
        "strategies/__init__.py",
        '    if terms.noise == "server" and not issubclass(strategy, LevelAveraging):\n',
        "    if False:\n",
        _FEDHDP + "a_trusted_server_adds_noise_or_the_rule_is_refused[fedavg]",
    ),
    Mutant(
        "a trusted server that refuses one client for another's update",
        "strategies/guards/guard.py",
        'self._screens = config.terms.noise != "server"',
        "self._screens = True",
        _FEDHDP + "a_trusted_server_counts_copies_too",
    ),
    Mutant(
        "auto reads private updates without their noise",
        "strategies/fedhdp/level_averaging.py",
        "for j in np.flatnonzero(np.isnan(constant)).tolist()",
        "for j in range(len(sizes))",
        _FEDHDP + "auto_reads_nothing_of_private_clients_but_their_noisy_sum",
    ),
    Mutant(
        "a gap between levels that nobody sees",
        "strategies/fedhdp/level_gaps.py",
        "gaps: Floats = np.maximum(found - MARGIN * errors, 0.0)",
        "gaps: Floats = np.zeros(shape)",
        _DRIFT + "the_gap_is_free_of_noise_on_average_and_noise_alone_is_no_gap",
    ),
    Mutant(
        "a gap between levels that is noise",
        "strategies/fedhdp/level_gaps.py",
        "found - MARGIN * errors",
        "found",
        _DRIFT + "what_may_be_noise_alone_is_no_gap",
    ),
    Mutant(
        "the level with the least variance takes it all",
        "strategies/fedhdp/auto_weights.py",
        "    if by_noise_alone:\n",
        "    if True:\n",
        _FEDHDP + "opted_out_sites_that_are_all_alike_look_noiseless_to_precision_weights",
    ),
    Mutant(
        "one weight for where updates vary and where they do not",
        "strategies/fedhdp/auto_weights.py",
        "    if not span.rank:\n",
        "    if True:\n",
        _FEDHDP + "auto_leaves_the_noise_out_where_nobody_moves",
    ),
    Mutant(
        "metrics of the personal model that nobody disclosed",
        "client_app/after_run/held_out.py",
        'shows_own = "personal-metrics" in site.profile.disclose',
        "shows_own = True",
        _PERSONAL + "its_metrics_leave_only_where_the_profile_discloses_them[listed0]",
    ),
)
"""As ``table.MUTANTS``."""

"""Bugs of clients in groups: their data, their clusters, what their choices cost."""

from __future__ import annotations

from tests.mutants.runner import Mutant

CLUSTERS = "hdpfl_flower/clustering/test_clusters.py::test_"
CHOICE = "hdpfl_flower/privacy/test_noisy_max.py::test_"
GUMBEL = "hdpfl_flower/privacy/test_exponential_mechanism.py::test_"
PULL = "client_app/training/test_dpsgd_pull.py::test_"
GROUPS = "hdpfl_flower/scenarios/test_groups.py::test_"
PERSONAL = "client_app/after_run/test_private_ditto.py::test_"

SITE = "client_app/training/test_private_choice.py::test_"
PLAN = "hdpfl_flower/privacy/test_plan_extras.py::test_"

MUTANTS = (
    Mutant(
        "more choices than the plan pays for",
        "client_app/app.py",
        "choose_privately(site, instructions.server_round, models, choices), choices.count,",
        "choose_privately(site, instructions.server_round, models, choices), 0,",
        SITE + "no_more_choices_than_the_plan_pays_for",
    ),
    Mutant(
        "a choice that nothing pays for",
        "client_app/app.py",
        "    if choices is None or not choices.count:\n"
        "        raise Declined(Reason.TERMS, \"no 'choice' is planned, and the server asks for one\")\n",
        "    from hdpfl_flower.privacy.accounting import Gaussians\n\n"
        "    choices = choices or Gaussians(1.0, 0)\n",
        SITE + "a_choice_that_nothing_pays_for_is_declined",
    ),
    Mutant(
        "a choice without its noise",
        "client_app/training/private_choice.py",
        "    noise_std = selection_noise_std(choices.noise_multiplier, len(models))\n",
        "    noise_std = 0.0\n",
        SITE + "counts_are_of_all_records_and_the_noise_is_the_plans",
    ),
    Mutant(
        "a choice that is not sealed",
        "client_app/app.py",
        '    return _release(\n        site, instructions, "choice", charged,\n'
        "        lambda: choose_privately(site, instructions.server_round, models, choices), "
        "choices.count,\n    ).payload  # fmt: skip\n",
        "    return choose_privately(site, instructions.server_round, models, choices)\n",
        SITE + "choice_and_update_are_two_releases_and_a_replay_gives_the_same",
    ),
    Mutant(
        "choices that cost nothing beside the steps",
        "hdpfl_flower/privacy/plan.py",
        "for one in (choices, counts, scores) if one and",
        "for one in (counts, scores) if one and",
        PLAN + "choices_are_charged_beside_the_steps",
    ),
    Mutant(
        "two models for the price of one",
        "hdpfl_flower/privacy/plan.py",
        "paid = (*schedule * models, *",
        "paid = (*schedule, *",
        PLAN + "a_private_personal_model_is_charged_like_the_update",
    ),
    Mutant(
        "a choice of one record's worth under client-level noise",
        "hdpfl_flower/privacy/policy.py",
        "        check_up_front(terms)\n",
        "        pass\n",
        PLAN + "what_counts_equal_steps_alone_is_declined_with_more",
    ),
    Mutant(
        "other models that the request's digest leaves out",
        "hdpfl_flower/wire.py",
        "    for other in others:\n"
        '        asked.update(f"\\n{use}\\n{model_digest(other)}".encode())\n',
        "",
        SITE + "another_set_of_models_is_another_request",
    ),
    Mutant(
        "a private personal model without its noise",
        "client_app/training/ditto.py",
        "        engine, own, records, plan, learning_rate,",
        "        engine, own, records, type(plan)(plan.steps, plan.clip_norm, 0.0, plan.divisor),"
        " learning_rate,",
        PERSONAL + "every_step_has_the_noise_of_the_plan",
    ),
    Mutant(
        "a pull inside the clipped gradient",
        "client_app/training/dpsgd.py",
        "                        engine.theta[place].lerp_(anchor[place], share)\n",
        "                        drag = (share / learning_rate) * (engine.theta - anchor)\n"
        "                        drag *= min(1.0, plan.clip_norm / float(drag.norm()))\n"
        "                        engine.theta.sub_(drag, alpha=learning_rate)\n",
        PULL + "clipping_and_noise_do_not_touch_the_pull",
    ),
    Mutant(
        "every group is tested as the first one sees it",
        "hdpfl_flower/scenarios/groups.py",
        "views[group] = seen_by(records, groups, group, task)",
        "views[group] = seen_by(records, groups, 0, task)",
        GROUPS + "the_test_weighs_groups_by_their_sites_and_names_the_smallest",
    ),
    Mutant(
        "groups count alike in the test, whatever their size",
        "hdpfl_flower/scenarios/groups.py",
        '"accuracy": float(np.average(accuracies, weights=groups.sizes)),',
        '"accuracy": float(np.average(accuracies)),',
        GROUPS + "the_test_weighs_groups_by_their_sites_and_names_the_smallest",
    ),
    Mutant(
        "every site takes its records from the start",
        "client_app/site/simulated.py",
        "self._data.train.take(self.rows[site])",
        "self._data.train.take(self.rows[site] - self.rows[site][0])",
        GROUPS + "every_record_is_at_one_site_as_its_group_sees_it[rotation]",
    ),
    Mutant(
        "a choice without noise",
        "hdpfl_flower/privacy/noisy_max.py",
        "np.argmax(correct + noise_std * noise)",
        "np.argmax(correct + 0 * noise)",
        CHOICE + "choices_come_as_often_as_their_noise_says",
    ),
    Mutant(
        "a choice with half the noise",
        "hdpfl_flower/privacy/noisy_max.py",
        "math.sqrt(models**2 // 4 / models)",
        "math.sqrt(models**2 // 4 / models) / 2",
        CHOICE + "the_sensitivity_is_the_largest_of_all_records[4]",
    ),
    Mutant(
        "choices that nobody charges",
        "hdpfl_flower/privacy/accounting.py",
        "epsilon_of(event_of(schedule, z, beside), delta, interval)",
        "epsilon_of(event_of(schedule, z), delta, interval)",
        CHOICE + "full_batches_and_choices_cost_what_the_analytic_gaussian_says",
    ),
    Mutant(
        "a Gumbel choice with half the noise",
        "hdpfl_flower/privacy/exponential_mechanism.py",
        "stream.gumbel(len(correct)) / epsilon",
        "stream.gumbel(len(correct)) / (2 * epsilon)",
        GUMBEL + "choices_come_as_often_as_their_epsilon_says",
    ),
    Mutant(
        "a Gumbel choice charged half of its ε",
        "hdpfl_flower/privacy/accounting.py",
        "DiscreteLaplaceDpEvent(one.epsilon, sensitivity=1)",
        "DiscreteLaplaceDpEvent(one.epsilon / 2, sensitivity=1)",
        GUMBEL + "one_choice_costs_its_epsilon[0.37]",
    ),
    Mutant(
        "the first round's large batches taken for small ones",
        "hdpfl_flower/privacy/noisy_max.py",
        "return (first, *(later,) * (rounds - 1))",
        "return (later,) * rounds",
        CHOICE + "a_client_takes_whole_steps",
    ),
    Mutant(
        "a picture of the standardised updates",
        "hdpfl_flower/clustering/clusters.py",
        "mixed += block @ centred.T",
        "mixed += centred @ centred.T",
        CLUSTERS + "the_picture_is_the_authors_own_made_by_the_library",
    ),
    Mutant(
        "a client alone makes a trusted cluster",
        "hdpfl_flower/clustering/clusters.py",
        "and int(self.sizes.min()) > 1",
        "and int(self.sizes.min()) > 0",
        CLUSTERS + "a_large_separation_may_be_one_client",
    ),
    Mutant(
        "clusters in what is noise alone",
        "hdpfl_flower/clustering/clusters.py",
        "apart = self.above_noise and self.mss",
        "apart = self.mss",
        CLUSTERS + "clusters_buried_in_noise_are_not_trusted",
    ),
    Mutant(
        "all clients weigh the same in the picture",
        "hdpfl_flower/clustering/noise_mixture.py",
        "roots = np.sqrt(variances)",
        "roots = np.sqrt(np.full(n, variances.mean()))",
        CLUSTERS + "unequal_noise_hides_the_minority_from_the_papers_map_alone[4]",
    ),
    Mutant(
        "all clients are equally noisy to the mixture",
        "hdpfl_flower/clustering/noise_mixture.py",
        "noise = variances[:, None] * scales[:kept]",
        "noise = np.full((len(gram), 1), variances.mean()) * scales[:kept]",
        CLUSTERS + "unequal_noise_hides_the_minority_from_the_papers_map_alone[0]",
    ),
    Mutant(
        "a picture not drawn in to the size of its signal",
        "hdpfl_flower/clustering/noise_mixture.py",
        "signal = np.maximum(values - dimension,",
        "signal = np.maximum(values,",
        CLUSTERS + "the_pictures_noise_is_what_the_mixture_is_told",
    ),
)

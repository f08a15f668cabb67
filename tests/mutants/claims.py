"""Bugs of what is claimed of clusters, and of who counts as public."""

from __future__ import annotations

from tests.mutants.runner import Mutant

CLAIMS = "hdpfl_flower/clustering/test_claims.py::test_"
RULES = "strategies/multi_model/test_cluster_claims.py::test_"
PUBLIC = "strategies/core/test_public_sites.py::test_"

MUTANTS = (
    Mutant(
        "clusters that one cluster explains",
        "hdpfl_flower/clustering/claims.py",
        "return replace(found, claim=ONE if one else claim)",
        "return replace(found, claim=claim)",
        CLAIMS + "a_cloud_that_the_map_parts_is_claimed_as_one_cluster",
    ),
    Mutant(
        "clusters that labels explain",
        "hdpfl_flower/clustering/claims.py",
        "left = joined(found, explained_pairs(means))",
        "left = joined(found, explained_pairs(means) & False)",
        "hdpfl_flower/clustering/test_claims.py::test_clients_that_differ_by_their_labels_alone_are_no_clusters",
    ),
    Mutant(
        "a split that one site's leaving moves",
        "strategies/core/public_split.py",
        "return public if stands(epsilons, public) else np.zeros(len(epsilons), dtype=np.bool_)",
        "return public",
        "strategies/core/test_public_split.py::test_under_auto_no_sites_leaving_moves_the_others",
    ),
    Mutant(
        "a public split of those asked alone",
        "strategies/core/sampler.py",
        "known = {**others, **self.state.known}\n        mask",
        "known = dict(others)\n        mask",
        "strategies/projection/test_projected.py::test_who_is_public_does_not_follow_from_who_is_asked",
    ),
    Mutant(
        "one cluster that is no candidate",
        "hdpfl_flower/clustering/one_cluster.py",
        "            if np.any(gains(drawn, noise, models) >= reached):\n",
        "            if False:\n",
        CLAIMS + "one_cloud_is_seldom_called_several_and_the_maps_separation_calls_it_often",
    ),
    Mutant(
        "a null of noise without width",
        "hdpfl_flower/clustering/one_cluster.py",
        "        spread = np.sqrt(noise + width)\n",
        "        spread = np.sqrt(noise)\n",
        CLAIMS + "a_cloud_wider_than_its_noise_is_one_cluster",
    ),
    Mutant(
        "labels that explain any distance",
        "hdpfl_flower/clustering/label_skew.py",
        "    if whole > inputs * square:",
        "    if whole > 1e9 * inputs * square:",
        CLAIMS + "labels_move_the_weights_by_no_more_than_the_root_of_the_inputs[1.01-False]",
    ),
    Mutant(
        "labels that explain any direction",
        "hdpfl_flower/clustering/label_skew.py",
        "    explains = moved >= ALONG * reliable * whole\n",
        "    explains = True\n",
        CLAIMS + "weights_that_move_across_the_biases_are_no_matter_of_labels",
    ),
    Mutant(
        "clusters without evidence against labels",
        "hdpfl_flower/clustering/label_skew.py",
        "    if explained.any():\n        explained = np.tril(~ruled_out, -1)\n",
        "",
        CLAIMS + "where_labels_explain_some_they_count_for_all_that_the_head_leaves_open",
    ),
    Mutant(
        "joined clusters farther apart than their nearest parts",
        "hdpfl_flower/clustering/label_skew.py",
        "apart[one, other] = min(apart[one, other], found.separations[i, j])",
        "apart[one, other] = found.separations.max(where=np.isfinite(found.separations), initial=0)",
        CLAIMS + "joined_clusters_add_up",
    ),
    Mutant(
        "several models without certain clusters",
        "strategies/multi_model/r_dpcfl.py",
        "        if not trusted and not self.settings.clusters:\n"
        "            return self._no_clusters(state, updates, claim)\n",
        "",
        RULES + "r_dpcfl_has_one_model_where_there_are_no_groups[labels-1-mixture]",
    ),
    Mutant(
        "clusters trusted where labels were not looked at",
        "strategies/multi_model/groups.py",
        "    return found.separated and (found.claim != UNCHECKED or settings.clusters > 0)\n",
        "    return found.separated\n",
        RULES + "without_a_head_only_a_given_number_is_trusted",
    ),
    Mutant(
        "late clusters that take the map's word",
        "strategies/multi_model/late_clusters.py",
        "        found = self._claimed(found, sums, variances, updates.head)\n",
        "",
        RULES + "labels_alone_do_not_part_the_sites",
    ),
    Mutant(
        "the rule that weighs has public sites of its own",
        "strategies/projection/base.py",
        "        self._weighting.sampler = self.sampler  # one set of public sites for both\n",
        "",
        PUBLIC + "the_rule_that_weighs_has_the_same_public_sites",
    ),
    Mutant(
        "a rule within clusters has public sites of its own",
        "strategies/multi_model/base.py",
        "        self._weighting.sampler = self.sampler\n",
        "",
        PUBLIC + "a_rule_within_clusters_has_the_same_public_sites",
    ),
    Mutant(
        "a direction counted where nothing is projected",
        "strategies/projection/pfa_plus.py",
        '"subspace_rank": float(not public.all()),',
        '"subspace_rank": 1.0,',
        "strategies/projection/test_pfa_plus.py::test_without_public_or_private_sites_all_send_all[top:1]",
    ),
)

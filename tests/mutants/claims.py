"""Bugs of what is claimed of clusters, and of who counts as public."""

from __future__ import annotations

from tests.mutants.runner import Mutant

MUTANTS = (
    Mutant(
        "clusters that one cluster explains",
        "hdpfl_flower/claims.py",
        "return replace(found, claim=ONE if one else claim)",
        "return replace(found, claim=claim)",
        "hdpfl_flower/test_claims.py::"
        "test_one_cloud_is_seldom_called_several_and_the_maps_separation_calls_it_often",
    ),
    Mutant(
        "clusters that labels explain",
        "hdpfl_flower/claims.py",
        "left = joined(found, explained_pairs(means))",
        "left = joined(found, explained_pairs(means) & False)",
        "hdpfl_flower/test_claims.py::test_clients_that_differ_by_their_labels_alone_are_no_clusters",
    ),
    Mutant(
        "a split that one site's leaving moves",
        "hdpfl_flower/public_split.py",
        "return public if stands(epsilons, public) else np.zeros(len(epsilons), dtype=np.bool_)",
        "return public",
        "hdpfl_flower/test_public_split.py::test_under_auto_no_sites_leaving_moves_the_others",
    ),
    Mutant(
        "a public split of those asked alone",
        "strategies/sampler.py",
        "known = {**others, **self._known}\n        mask",
        "known = dict(others)\n        mask",
        "strategies/test_projected.py::test_who_is_public_does_not_follow_from_who_is_asked",
    ),
)

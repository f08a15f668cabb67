"""Bugs of splittings with a start a client: their duals, what sites are sent, what is reported."""

from __future__ import annotations

from tests.mutants.runner import Mutant

_STARTS = "strategies/splitting/test_starts.py::test_"
_RUNS = "strategies/splitting/test_splittings.py::test_"
_PURE, _OWN = "strategies/splitting/starts.py", "strategies/splitting/own_starts.py"

MUTANTS = (
    Mutant(
        "the duals of present clients stay",
        _OWN,
        "return OwnStartState(starts, weighting), outcome",
        "return OwnStartState(replace(before, answers=starts.answers), weighting), outcome",
        _RUNS + "each_site_trains_from_its_own_start_and_all_get_the_same_end",
    ),
    Mutant(
        "every site trains from the broadcast model",
        _OWN,
        "return SiteRequest(own=site, start=start.astype(np.float32))",
        "return SiteRequest(own=site)",
        _RUNS + "each_site_trains_from_its_own_start_and_all_get_the_same_end",
    ),
    Mutant(
        "the broadcast model is reported",
        _OWN,
        "reported=(move.agreed / rate).astype(np.float32)",
        "reported=(move.mean / rate).astype(np.float32)",
        _RUNS + "each_site_trains_from_its_own_start_and_all_get_the_same_end",
    ),
    Mutant(
        "an absent client's dual is forgotten",
        _PURE,
        "duals = {s: dual if left == 1 else left * dual for s, dual in starts.duals.items()}",
        "duals = {s: 0 * dual for s, dual in starts.duals.items()}",
        _STARTS + "absent_clients_do_not_move_the_solution",
    ),
    Mutant(
        "the mean of those present, without their duals",
        _PURE,
        "mean += weight * starts.duals[site]",
        "pass",
        _STARTS + "absent_clients_do_not_move_the_solution",
    ),
    Mutant(
        "the last answer of an absent client moves with the mean",
        _PURE,
        "(answer - mean).astype(np.float32)",
        "answer.astype(np.float32)",
        _STARTS + "who_is_stale_counts_with_its_last_answer",
    ),
    Mutant(
        "weights of a round in place of those that are given",
        _PURE,
        "return {**new, **shares}",
        "return {**shares, **new}",
        _STARTS + "a_share_that_was_given_stays",
    ),
    Mutant(
        "the server's rate moves the mean and leaves the starts behind",
        _OWN,
        "scheme = replace(self.scheme, gamma=rate * self.scheme.gamma)",
        "scheme, rate = self.scheme, 1.0",
        _RUNS + "the_servers_rate_multiplies_gamma",
    ),
    Mutant(
        "sites that join later take any memory",
        _OWN,
        "return RoundSetup(state, terms, refused=dict.fromkeys(new[room:], why))",
        "return RoundSetup(state, terms)",
        _RUNS + "memory_is_refused_before_round_1_and_to_sites_that_join_later",
    ),
    Mutant(
        "a pull that grows too long late in the run",
        "strategies/splitting/pulls.py",
        "if pull * terms.learning_rate > 1:",
        "if False:",
        _RUNS + "what_cannot_be_is_refused_by_name_before_any_site_is_asked",
    ),
    Mutant(
        "a site that declines another pull in the middle of a run",
        "hdpfl_flower/privacy/policy.py",
        'terms.work.model_copy(update={"pull": AUTO}).to_text()',
        "terms.work.to_text()",
        _RUNS + "a_deployed_site_takes_a_pull_that_changes_between_rounds",
    ),
    Mutant(
        "no pull where a client is the unit",
        "client_app/training/client_level.py",
        "return replace(job, pull=(pull, job.first)) if pull else job",
        "return job",
        _RUNS + "the_pull_shortens_the_updates_of_every_unit",
    ),
)

"""Checks of a run's terms against a site's profile, and against those that its plan froze.

Clipped updates without noise leave for a server that the site trusts alone, and updates that the
site noises as a whole only where its policy says so: their unit is another one.
"""

from __future__ import annotations

from hdpfl_flower.config.feasibility import (
    check_personal,
    check_upload,
    reasons_for_equal_rounds,
    unlike_rounds,
)
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import Declined, Reason, TermsError
from hdpfl_flower.models.networks import check_name, is_user_code
from hdpfl_flower.privacy.plan import OF_AN_UPDATE, Plan, check_work
from hdpfl_flower.privacy.unit import check_unit

FREE_TERMS = frozenset({"clip-norm", "prox-lambda"})
"""Terms that may change within a run: the clip norm, for the noise is a multiple of it, and the
pull, on which neither a bound nor the noise depends."""
CLIPPED_UPDATE = "clipped-update"
"""The kind of release, in a site's ledger, that no plan of the site's pays for: the server adds the
noise and keeps the account."""
COUNTS, TUNING = "counts", "tuning"
"""The kinds of what is sealed for the site alone: noisy counts of its labels, and its model after
the steps that follow the last round. A plan pays for one of each; neither is sent."""
SCORES = "scores"
"""The kind of the one noisy histogram of scores a run, which a plan pays for and which is sent."""
STAYS = frozenset({COUNTS, TUNING})
"""Kinds of release that are sealed and never sent."""


def check_policy(profile: Profile, terms: RunTerms) -> None:
    """Refuse terms that the site's policy forbids.

    Raises:
        Declined: names the term, for the site's own log.
        DataError: the run's ``schema`` is none.
        ModelError: 'model' is no name of a model.
    """
    policy = profile.policy
    # Whose noise and which unit first: these decide what the site promises at all.
    check_trust(profile, terms)
    check_client_noise(profile, terms)
    check_unit(profile, terms)
    _check_equal_steps(terms)
    _check_upload(terms)
    _check_personal(profile, terms)
    if policy.strategies and terms.strategy not in policy.strategies:
        raise Declined(Reason.POLICY, "'strategy' is not in 'policy.strategies'")
    # A user's function is code that runs at the site, beside its records.
    if is_user_code(terms.model) and terms.model not in policy.models:
        raise Declined(Reason.POLICY, "'model' names code that 'policy.models' does not list")
    if terms.rounds > policy.max_rounds:
        raise Declined(Reason.POLICY, "'rounds' is above 'policy.max-rounds'")
    if not policy.min_clip_norm <= terms.clip_norm <= policy.max_clip_norm:
        raise Declined(Reason.POLICY, "'clip-norm' is outside the policy's bounds")
    if terms.local_epochs > policy.max_local_epochs or terms.local_steps > policy.max_local_steps:
        raise Declined(
            Reason.POLICY,
            "the local work is above 'policy.max-local-epochs' or 'policy.max-local-steps'",
        )
    check_work(profile, terms)
    check_name(terms.model)


def _check_equal_steps(terms: RunTerms) -> None:
    """Refuse unequal steps where the accounting is of equal ones alone."""
    if unlike_rounds(terms) and reasons_for_equal_rounds(terms):
        raise Declined(
            Reason.TERMS,
            "'first-batch', 'selections', 'personal-noise', 'personal-prior', 'score-share' and "
            "'tuning-steps' go with noise = 'records', noise of the site's own and all rounds "
            "alone",
        )


def _check_personal(profile: Profile, terms: RunTerms) -> None:
    """Refuse personal parts that contradict the terms, and what the policy forbids of them."""
    try:
        check_personal(terms)
    except TermsError as reason:
        raise Declined(Reason.TERMS, str(reason)) from None
    if terms.shared_mask == "published" and not profile.simulated:
        raise Declined(
            Reason.TERMS, "'shared-mask' = 'published' releases a function of clean weights"
        )
    extra = {
        "personal-prior": terms.personal_prior > 0,
        "score-share": terms.score_share > 0,
        "tuning-steps": terms.tuning_steps > 0,
        "selections": terms.selections > 0 and terms.selection_share > 0,
    }
    asked = [key for key, is_asked in extra.items() if is_asked]
    if asked and not profile.policy.extra_releases:
        raise Declined(
            Reason.POLICY,
            f"'{asked[0]}' asks for more than noisy steps of rounds, and "
            "'policy.extra-releases' is false",
        )


def _check_upload(terms: RunTerms) -> None:
    """Refuse to round updates that leave without noise: the server's rests on their length."""
    try:
        check_upload(terms)
    except TermsError as reason:
        raise Declined(Reason.TERMS, str(reason)) from None


def check_unchanged(frozen: RunTerms, proposed: RunTerms, plan: Plan) -> None:
    """Refuse terms that differ from those the plan was frozen with, but for free ones.

    Raises:
        Declined: names the changed term, for the site's own log; or the plan is of a version that
            made the noise of a client's update for one C.
    """
    # A change of all records moves a clipped update by 2C; a plan made for C has half the noise.
    if frozen.noise == "client" and plan.sensitivity != OF_AN_UPDATE:
        raise Declined(
            Reason.TERMS,
            "the run was charged by an earlier version, whose noise for a client's update "
            "was half of what a changed record asks for; start a new run",
        )
    old, new = frozen.as_config(), proposed.as_config()
    changed = sorted(key for key in old if old[key] != new[key] and key not in FREE_TERMS)
    if changed:
        raise Declined(Reason.TERMS, f"'{changed[0]}' changed after the plan was frozen")
    if not plan.min_clip_norm <= proposed.clip_norm <= plan.max_clip_norm:
        raise Declined(Reason.TERMS, "'clip-norm' is outside the bounds frozen with the plan")


def check_trust(profile: Profile, terms: RunTerms) -> None:
    """Refuse terms under which updates leave without noise, unless the profile says otherwise.

    Raises:
        Declined: ``noise = server`` and no ``trust-server``, or a looser δ than the site's own.
    """
    if terms.noise != "server":
        return
    if not profile.trust_server:
        raise Declined(
            Reason.PROFILE,
            "'trust-server' is not set, and noise = 'server' asks for updates without "
            "noise; set 'trust-server = true' to send them to this server, or ask the coordinator "
            "for noise = 'records' or 'client'",
        )
    if terms.delta > profile.run.delta:
        raise Declined(Reason.POLICY, "'delta' is above 'run.delta'")


def check_client_noise(profile: Profile, terms: RunTerms) -> None:
    """Refuse terms whose unit is all of the site's records, unless the policy allows them.

    Raises:
        Declined: ``noise = client`` without ``policy.client-noise``; a simulated site may.
    """
    if terms.noise != "client" or profile.policy.client_noise or profile.simulated:
        return
    raise Declined(
        Reason.POLICY,
        "'client-noise' is not set, and noise = 'client' makes the whole update the unit "
        "in place of a record; set 'policy.client-noise = true' to allow it, or ask the "
        "coordinator for noise = 'records'",
    )

"""Checks of terms against profile and frozen plan.

Un-noised updates go only to a trusted server; client-level noise needs ``policy.client-noise``, as
it protects another unit.
"""

from __future__ import annotations

from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.settings import Value
from hdpfl_flower.config.terms import AUTO, RunTerms
from hdpfl_flower.errors import Declined, Reason, TermsError
from hdpfl_flower.models.networks import check_name, is_user_code
from hdpfl_flower.privacy.plan import Plan, check_work
from hdpfl_flower.privacy.unit import check_unit
from hdpfl_flower.releases.feasibility import check_up_front
from hdpfl_flower.releases.of_run import charged_words
from hdpfl_flower.system.fingerprints import listed
from hdpfl_flower.system.weight_files import weight_file
from hdpfl_flower.work.backbone import Backbone

FREE_TERMS = frozenset({"clip-norm"})
"""Terms that may change within a run, for the noise is a multiple of them; so may the ``pull`` of
``work``, on which neither a bound nor the noise depends (:func:`lasting_terms`)."""
CLIPPED_UPDATE = "clipped-update"
"""The kind of release, in a site's ledger, that no plan of the site's pays for: the server adds the
noise and keeps the account."""


def check_policy(profile: Profile, terms: RunTerms) -> None:
    """Refuse terms that the site's policy forbids.

    Raises:
        Declined: names the term, for the site's own log.
        DataError: the run's ``schema`` is none.
        ModelError: 'model' is no name of a model.
    """
    policy = profile.policy
    if policy.only_named and policy.only_named not in listed(terms.sites):
        raise Declined(Reason.POLICY, "'sites' does not list this node, see 'policy.only-named'")
    # The source of the noise and the unit first: these decide the site's promise.
    check_trust(profile, terms)
    check_client_noise(profile, terms)
    check_unit(profile, terms)
    try:
        check_up_front(terms)
    except TermsError as reason:
        raise Declined(Reason.TERMS, str(reason)) from None
    _check_extras(profile, terms)
    if policy.strategies and terms.strategy not in policy.strategies:
        raise Declined(Reason.POLICY, "'strategy' is not in 'policy.strategies'")
    # A user's function is code that runs at the site, beside its records.
    if is_user_code(terms.model) and terms.model not in policy.models:
        raise Declined(Reason.POLICY, "'model' names code that 'policy.models' does not list")
    if terms.backbone:
        _check_backbone(profile, terms.backbone)
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


def _check_backbone(profile: Profile, backbone: Backbone) -> None:
    """Refuse weights and code of a backbone that the site's operator has not put here."""
    if profile.simulated:
        return
    if backbone.code and backbone.code not in profile.policy.models:
        raise Declined(Reason.POLICY, "'backbone' names code that 'policy.models' does not list")
    if backbone.weights and backbone.weights not in profile.policy.weights:
        raise Declined(
            Reason.POLICY,
            f"'backbone' needs weights that 'policy.weights' does not list: {backbone.weights}; "
            "look at what they are, then: hdpfl-site approve FILE",
        )
    if backbone.weights and not weight_file(backbone.weights).is_file():
        raise Declined(
            Reason.POLICY,
            f"'backbone': the file of {backbone.weights} is not here: hdpfl-site approve FILE",
        )


def check_round(terms: RunTerms, server_round: int, *, joins: bool = False) -> None:
    """Refuse a round outside of the run.

    Args:
        terms: the run's public terms.
        server_round: of the message.
        joins: whether it asks the site to join, which is round 0 and no other.

    Raises:
        Declined: it is not one of 1 to ``rounds``.
    """
    first, last = (0, 0) if joins else (1, terms.rounds)
    if not first <= server_round <= last:
        raise Declined(Reason.TERMS, "the round is not one of the run's")


def _check_extras(profile: Profile, terms: RunTerms) -> None:
    """Refuse policy breaches beside the rounds, and clean weights."""
    if terms.work.reads_clean_weights and not profile.simulated:
        raise Declined(
            Reason.TERMS, "'work' with 'mask=published' releases a function of clean weights"
        )
    asked = charged_words(terms)
    if asked and not profile.policy.extra_releases:
        raise Declined(
            Reason.POLICY,
            f"{asked[0]} asks for more than noisy steps of rounds, and "
            "'policy.extra-releases' is false",
        )


def check_unchanged(frozen: RunTerms, proposed: RunTerms, plan: Plan) -> None:
    """Refuse terms that differ from the frozen plan's.

    Raises:
        Declined: names the changed term, for the site's own log.
    """
    if changed := changed_terms(frozen, proposed):
        raise Declined(Reason.TERMS, f"'{changed[0]}' changed after the plan was frozen")
    if not plan.min_clip_norm <= proposed.clip_norm <= plan.max_clip_norm:
        raise Declined(Reason.TERMS, "'clip-norm' is outside the bounds frozen with the plan")


def changed_terms(before: RunTerms, now: RunTerms) -> list[str]:
    """Return the terms that differ, free ones left out, by name."""
    old, new = lasting_terms(before), lasting_terms(now)
    # A kind of release has keys only where it is asked for.
    return sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))


def lasting_terms(terms: RunTerms) -> dict[str, Value]:
    """Return the terms fixed within a run, by name."""
    work = terms.work.model_copy(update={"pull": AUTO}).to_text()
    lasting = {**terms.as_config(), "work": work}
    return {key: value for key, value in lasting.items() if key not in FREE_TERMS}


def check_trust(profile: Profile, terms: RunTerms) -> None:
    """Refuse terms without noise, unless the profile allows them.

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
    """Refuse the client as unit, unless the policy allows it.

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

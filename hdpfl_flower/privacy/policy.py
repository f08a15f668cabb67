"""Checks of terms against profile and frozen plan.

Un-noised updates go only to a trusted server; client-level noise needs ``policy.client-noise``, as
it protects another unit.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import chain
from operator import attrgetter

from hdpfl_flower.config.profile import Policy, Profile
from hdpfl_flower.config.settings import Value
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import Declined, Reason, TermsError
from hdpfl_flower.models.networks import check_name, is_user_code
from hdpfl_flower.privacy.plan import Plan, work_refusals
from hdpfl_flower.releases.feasibility import check_up_front
from hdpfl_flower.releases.of_run import charged_words
from hdpfl_flower.system.fingerprints import listed
from hdpfl_flower.system.weight_files import weight_file
from hdpfl_flower.work.backbone import Backbone

FREE_TERMS = frozenset({"clip-norm", "work.pull", "scales"})
"""Terms that may change within a run: the noise is a multiple of the bound on gradients, and no
bound or noise depends on the pull, nor on what columns are scaled by."""
Refusal = tuple[Reason, str]
"""Reason of a decline, and its sentence for the site's own log: the keys, and the remedy."""


def check_policy(profile: Profile, terms: RunTerms) -> None:
    """Refuse terms that the site's policy forbids.

    Raises:
        Declined: names the term, for the site's own log.
        DataError: the run's ``schema`` is none.
        ModelError: 'model' is no name of a model.
    """
    for refusal in chain(_refusals(profile, terms), _bounds(profile, terms)):
        raise Declined(*refusal)
    check_name(terms.model)


def _refusals(profile: Profile, terms: RunTerms) -> Iterator[Refusal]:
    """Yield why the policy forbids the terms; later checks rely on earlier ones."""
    policy, backbone = profile.policy, terms.backbone
    if policy.only_named and policy.only_named not in listed(terms.sites):
        yield Reason.POLICY, "'sites' does not list this node, see 'policy.only-named'"
    # The source of the noise and the unit first: these decide the site's promise.
    yield from noise_refusals(profile, terms)
    yield from unit_refusals(profile, terms)
    try:
        check_up_front(terms)
    except TermsError as error:
        yield Reason.TERMS, str(error)
    if terms.work.reads_clean_weights and not profile.simulated:
        yield Reason.TERMS, "'work.mask' = 'published' releases a function of clean weights"
    charged = charged_words(terms)
    if charged and not policy.extra_releases:
        yield (
            Reason.POLICY,
            f"{charged[0]} asks for more than noisy steps of rounds, and "
            "'policy.extra-releases' is false",
        )
    if policy.strategies and terms.strategy not in policy.strategies:
        yield Reason.POLICY, "'strategy' is not in 'policy.strategies'"
    # A user's function is code that runs at the site, beside its records.
    if is_user_code(terms.model) and terms.model not in policy.models:
        yield Reason.POLICY, "'model' names code that 'policy.models' does not list"
    if backbone and not profile.simulated:
        yield from _backbone_refusals(policy, backbone)


def _bounds(profile: Profile, terms: RunTerms) -> Iterator[Refusal]:
    """Yield numbers of the terms beyond the policy's."""
    policy = profile.policy
    if terms.last_round > policy.max_rounds:
        yield Reason.POLICY, "'rounds' is above 'policy.max-rounds'"
    if not policy.min_clip_norm <= terms.clip_norm <= policy.max_clip_norm:
        yield Reason.POLICY, "'clip-norm' is outside the policy's bounds"
    if terms.local_epochs > policy.max_local_epochs or terms.local_steps > policy.max_local_steps:
        yield (
            Reason.POLICY,
            "the local work is above 'policy.max-local-epochs' or 'policy.max-local-steps'",
        )
    yield from work_refusals(profile, terms)


def _backbone_refusals(policy: Policy, backbone: Backbone) -> Iterator[Refusal]:
    """Yield weights and code of a backbone that the site's operator has not put here."""
    if backbone.code and backbone.code not in policy.models:
        yield Reason.POLICY, "'backbone.function' names code that 'policy.models' does not list"
    if backbone.weights and backbone.weights not in policy.weights:
        yield (
            Reason.POLICY,
            f"'backbone.weights' is not in 'policy.weights': {backbone.weights}; check what the "
            "file is, then: hdpfl-site approve FILE",
        )
    if backbone.weights and not weight_file(backbone.weights).is_file():
        yield (
            Reason.POLICY,
            f"'backbone.weights': this site does not have {backbone.weights}; add it: hdpfl-site "
            "approve FILE",
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
    first, last = (0, 0) if joins else (1, terms.last_round)
    if not first <= server_round <= last:
        raise Declined(Reason.TERMS, "the round is not a round of the run")


def check_unchanged(frozen: RunTerms, proposed: RunTerms, plan: Plan) -> None:
    """Refuse terms that differ from the frozen plan's.

    Raises:
        Declined: names the changed term, for the site's own log.
    """
    changed = changed_terms(frozen, proposed)
    faults = [f"'{key}' changed after the plan was frozen" for key in changed]
    if not plan.min_clip_norm <= proposed.clip_norm <= plan.max_clip_norm:
        faults.append("'clip-norm' is outside the bounds frozen with the plan")
    if faults:
        raise Declined(Reason.TERMS, faults[0])


def changed_terms(before: RunTerms, now: RunTerms) -> list[str]:
    """Return the terms that differ, free ones left out, by name."""
    old, new = lasting_terms(before), lasting_terms(now)
    # A kind has keys only where it is asked for.
    return sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))


def lasting_terms(terms: RunTerms) -> dict[str, Value]:
    """Return the terms fixed within a run, by name."""
    return {key: value for key, value in terms.as_config().items() if key not in FREE_TERMS}


def noise_refusals(profile: Profile, terms: RunTerms) -> Iterator[Refusal]:
    """Yield why the profile does not allow the source of the run's noise.

    A source may need a key of the profile, but at simulated sites, whose trust in a server alone
    is drawn. Updates without noise go at the site's own δ at most.
    """
    source, key = terms.source, terms.source.permission
    allowed = profile.simulated and source.site_plans
    if key and not allowed and not attrgetter(key.replace("-", "_"))(profile):
        reason = Reason.POLICY if "." in key else Reason.PROFILE
        yield reason, f"'{key.split('.')[-1]}' is not set, and {source.asks}"
    if not source.site_plans and terms.delta > profile.run.delta:
        yield Reason.POLICY, "'delta' is above 'run.delta'"


@lru_cache(maxsize=64)
def id_of(schema_text: str) -> str:
    """Return the id column of a run's ``schema``, or empty.

    Raises:
        DataError: the schema is none.

    >>> id_of(""), id_of("heart")
    ('', '')
    """
    if not schema_text:
        return ""
    from hdpfl_flower.data.schema import Schema

    return Schema.load(schema_text).id


def unit_refusals(profile: Profile, terms: RunTerms) -> Iterator[tuple[Reason, str]]:
    """Yield a schema or task with another id than the profile's.

    Guarantees:
        Decided by profile and terms alone, before a record is read.

    Raises:
        DataError: the schema is none.
    """
    column = profile.data.column if profile.data else ""
    folder = profile.data.id if profile.data and not column else ""
    asked = id_of(terms.schema_text), terms.task.id if terms.task else ""
    if asked != (column, folder):
        yield (
            Reason.POLICY,
            "the 'id' of the run's 'schema' is not the profile's 'data.id', so that the "
            "run would protect another unit than this site; "
            "write the schema's id as 'data.id', and its name in this table into "
            "[data.columns.ID]; or ask the coordinator to name this site's id (or to drop it where "
            "the table has none); of images in folders it is the run's 'task.id' = 'folder'",
        )

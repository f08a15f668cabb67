"""What a run's terms show to be impossible: refused by the server before it asks any site.

Sites check the same things, for they trust no server; but a site's refusal stays in its own log,
and all that the coordinator would learn is that rounds have no quorum.
"""

from __future__ import annotations

from hdpfl_flower.config.personal_lambda import check_lambdas
from hdpfl_flower.config.terms import FLOAT32, RunTerms
from hdpfl_flower.errors import TermsError


def check_up_front(terms: RunTerms) -> None:
    """Refuse terms that every site would fail or decline under.

    Args:
        terms: with what the rule sets, see ``Rule.completed``.

    Raises:
        TermsError: names the keys, and what to change.
    """
    check_lambdas(terms)
    check_unit(terms)
    check_upload(terms)
    _check_pull(terms)
    check_personal(terms)
    if terms.score_share and terms.sent_part:
        raise TermsError(
            "run config: 'score-share' is of a model that all sites share, and 'personal-part' "
            "keeps a part of it at each site; leave one of them out"
        )
    if terms.shared_mask == "published" and terms.dataset == "site":
        raise TermsError(
            "run config: 'shared-mask' = 'published' releases a function of clean weights, so it "
            "runs on simulated sites alone: take 'noisy-updates', or a named 'dataset'"
        )
    # Rules with choices refuse 'selections' themselves, and nobody else has any.
    extras = [key for key in unlike_rounds(terms) if key != "selections"]
    reasons = reasons_for_equal_rounds(terms)
    if extras and reasons:
        raise TermsError(
            f"run config: {_listed(extras)} does not go with {_listed(reasons)}: a site can plan "
            "for equal rounds alone then, and every one would decline; leave one of them out"
        )


def check_personal(terms: RunTerms) -> None:
    """Refuse personal parts that contradict each other or the rest of the terms.

    Args:
        terms: with what the strategy sets.

    Raises:
        TermsError: names the keys, and what to change.
    """
    training, part = terms.personal_training, terms.personal_part
    own_state = terms.has_phases or terms.has_personal_state
    steps, first = terms.local_steps, max(1, terms.personal_steps)
    wrong = {
        f"'personal-training' = '{training}' has no part to tell apart: set 'personal-part'": (
            training in ("alternate", "frozen") and not part
        ),
        f"'shared-mask' = '{terms.shared_mask}' selects among the coordinates beside a personal "
        "part: set 'personal-part', or leave it out": terms.shared_mask != "none" and not part,
        f"'shared-mask' = '{terms.shared_mask}' does not go with 'personal-training' = 'offset', "
        "which shares everything: leave one of them out": (
            terms.shared_mask != "none" and training == "offset"
        ),
        f"'personal-training' = 'alternate' with 'local-steps' = {steps} leaves no step for the "
        "shared part: raise 'local-steps', or lower 'personal-steps'": (
            training == "alternate" and 0 < steps <= first
        ),
        "'personal-shrink' does not go with 'personal-training' = 'offset', which adds the same "
        "updates already: leave one of them out": (
            terms.personal_shrink > 0 and training == "offset"
        ),
        f"'noise' = '{terms.noise}' trains a personal part or an offset without noise, which is "
        "for simulated sites alone: leave 'noise' at 'records', or take a named 'dataset'": (
            own_state and terms.noise != "records" and terms.dataset == "site"
        ),
        "'personal-lambda' trains a personal model beside the whole global one: leave it out, or "
        "leave out personal parts, 'personal-shrink' and 'tuning-steps'": (
            bool(terms.personal_lambda) and bool(own_state or terms.tuning_steps)
        ),
    }
    for words, is_wrong in wrong.items():
        if is_wrong:
            raise TermsError(f"run config: {words}")


def check_unit(terms: RunTerms) -> None:
    """Refuse what is made of the noise of single steps where no step has any.

    Raises:
        TermsError: names the keys.
    """
    asked = {
        f"'shared-mask' = '{terms.shared_mask}'": terms.shared_mask
        in {"noisy-updates", "charged-top-k"},
        "'personal-shrink'": terms.personal_shrink > 0,
    }
    found = [key for key, is_asked in asked.items() if is_asked]
    if found and terms.noise != "records":
        raise TermsError(
            f"run config: {' and '.join(found)} follows the noise of a site's steps, and under "
            f"'noise' = '{terms.noise}' they have none; leave it out"
        )


def check_upload(terms: RunTerms) -> None:
    """Refuse to round what leaves a site without noise.

    Raises:
        TermsError: names the keys.
    """
    # Rounding may lengthen an update beyond the S that the server's noise is made for.
    if terms.upload != FLOAT32 and terms.noise == "server":
        raise TermsError(
            f"run config: 'upload' = '{terms.upload}' rounds noisy updates, and under 'noise' = "
            "'server' they leave without noise and no longer than 'clip-norm', which rounding "
            "would exceed; set 'upload' to 'float32', or take 'noise' = 'records' or 'client'"
        )


def unlike_rounds(terms: RunTerms) -> list[str]:
    """Return the keys by which a site's rounds hold more than equal steps."""
    asked = {
        "first-batch": terms.first_batch == "full",
        "selections": terms.selections > 0 and terms.selection_share > 0,
        "personal-noise": terms.personal_noise == "records" and bool(terms.personal_lambda),
        "personal-prior": terms.personal_prior > 0,
        "score-share": terms.score_share > 0,
        # Elsewhere the steps are plain SGD that stays at home: no plan pays for them.
        "tuning-steps": terms.tuning_steps > 0 and terms.noise == "records",
    }
    return [key for key, is_asked in asked.items() if is_asked]


def reasons_for_equal_rounds(terms: RunTerms) -> list[str]:
    """Return the keys under which a site's account covers equal rounds alone."""
    asked = {
        "noise": terms.noise != "records",
        "calibration": terms.calibration != "pld",
        "noise-multiplier": bool(terms.noise_multiplier),
        "participations": bool(terms.participations),
    }
    return [key for key, is_asked in asked.items() if is_asked]


def _check_pull(terms: RunTerms) -> None:
    """Refuse a ``prox-lambda`` with which a step goes beyond the model that it is pulled to."""
    if terms.pull * terms.learning_rate > 1:
        raise TermsError(
            f"run config: 'prox-lambda' is {terms.pull:g} and 'learning-rate' "
            f"{terms.learning_rate:g}: their product is above 1, and a step would go beyond the "
            "model that it is pulled to; lower one of them"
        )


def _listed(keys: list[str]) -> str:
    return " and ".join(f"'{key}'" for key in keys)

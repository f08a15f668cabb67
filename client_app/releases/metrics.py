"""Metrics of models on held-out records, sent only if disclosed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from flwr.app import RecordDict

from client_app.site.site import Site
from client_app.training.trainer import read_model
from hdpfl_flower import wire
from hdpfl_flower.errors import Declined, Reason
from hdpfl_flower.models.evaluation import evaluate
from hdpfl_flower.models.networks import Arrays, flatten, unflatten
from hdpfl_flower.models.task import Records
from hdpfl_flower.releases import is_update
from hdpfl_flower.releases.of_run import makes_personal_model
from hdpfl_flower.releases.rounds import Metrics
from hdpfl_flower.wire import Instructions


def answer(site: Site, instructions: Instructions) -> RecordDict:
    """Answer with metrics on the site's test records, if disclosed.

    They are not covered by ε: the ledger counts each of them, over all runs, against the bound
    that the profile states, and the site's report says so.
    """
    if Metrics.release not in site.profile.disclose:
        raise Declined(Reason.PROFILE, "'disclose' does not list 'metrics'")
    check_may_test(site, instructions.server_round)
    tests = local_metrics(site, instructions)
    sealed = site.release(instructions, Metrics(), tests, models_tested(site))
    return wire.write_metrics(sealed.payload)


def check_may_test(site: Site, server_round: int) -> None:
    """Decline a test outside of the rounds the site took part in.

    Whether the message's model is the one of that round, a site cannot know.

    Raises:
        Declined: the terms, which the operator approved, ask for no test at the sites, or changed
            since the run's plan was frozen; or no update of that round left this deployed site.
        LedgerError: the ledger cannot be used.
    """
    if site.terms.evaluation != "sites":
        raise Declined(Reason.TERMS, "the server asks for a test, but 'evaluation' is not 'sites'")
    if site.simulated:
        return  # those that were not drawn for the round are measured, too
    if site.ledger.frozen_plan(site.terms.run_id) is not None:
        _ = site.paid_plan  # declines terms that changed
    releases = site.ledger.account().releases
    if not any(
        key[:2] == (site.terms.run_id, server_round)
        and is_update(key[2])
        and release.status in ("sealed", "sent")
        for key, release in releases.items()
    ):
        raise Declined(Reason.TERMS, "this site sent no update in the round that is to be tested")


def models_tested(site: Site) -> int:
    """Return the most models that one answer of the site covers."""
    if "personal-metrics" not in site.profile.disclose:
        return 1
    terms = site.terms
    return max(
        1, (not terms.work.sent_part) + makes_personal_model(terms) + (terms.second is not None)
    )


def local_metrics(site: Site, instructions: Instructions) -> Callable[[], bytes]:
    """Return the work that encodes the models' metrics on test records.

    Beside them stand those of its personal model, where its profile discloses ``personal-metrics``
    and the run has made one here. A model or records that cannot be read fail here, before the
    answer is counted.

    Raises:
        Declined: no record is held out.
        WireError, ModelError: the model is not the one that the terms name.
        DataError: the records cannot be read; from the work, the personal model is damaged.
    """
    arrays, records = read_model(site, instructions), site.test_records()
    if records is None:
        raise Declined(Reason.PROFILE, "'data.holdout' is 0, so there is no record to test on")
    return partial(_metrics, site, instructions, arrays, records)


def _metrics(site: Site, instructions: Instructions, arrays: Arrays, records: Records) -> bytes:
    spec, task, device = instructions.terms.model, site.task, site.profile.training.device
    # Where a part of the model stays here, the whole is this site's own.
    metrics = {} if site.terms.work.sent_part else evaluate(spec, task, arrays, records, device)
    shows_own = "personal-metrics" in site.profile.disclose
    if shows_own and makes_personal_model(site.terms):
        from client_app.after_run.personal_model import assemble

        own_model = assemble(site, arrays, instructions.server_round)
        values = evaluate(spec, task, own_model, records, device)
        metrics |= {f"personal-{name}": value for name, value in values.items()}
    personal = None
    if shows_own and site.terms.second is not None and not site.terms.work.sent_part:
        from client_app.training.ditto import load_personal_model, personal_path

        path = personal_path(site)
        personal = load_personal_model(path, len(flatten(arrays))) if path else None
    if personal is not None:
        values = evaluate(spec, task, unflatten(personal, arrays), records, device)
        metrics |= {f"personal-{name}": value for name, value in values.items()}
    # Concordance is of pairs of records, and no message has a place for it.
    return wire.encode_metrics({k: v for k, v in metrics.items() if k in wire.METRIC_KEYS})

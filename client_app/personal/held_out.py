"""Metrics of models on the records that a site holds out; sent only where its profile says so."""

from __future__ import annotations

from client_app.personal.ditto import load_personal_model, personal_path
from client_app.personal.personal_model import assemble, has_personal_model
from client_app.site.site import Site
from client_app.training.trainer import read_model
from hdpfl_flower import wire
from hdpfl_flower.errors import Declined, Reason
from hdpfl_flower.models.evaluation import evaluate
from hdpfl_flower.models.networks import flatten, unflatten
from hdpfl_flower.wire import Instructions


def local_metrics(site: Site, instructions: Instructions) -> bytes:
    """Return the encoded metrics of the message's model on the site's own test records.

    Beside them stand those of its personal model, where its profile discloses ``personal-metrics``
    and the run has made one here.

    Raises:
        Declined: no record is held out.
        DataError: the personal model that is kept is damaged.
    """
    arrays, records = read_model(site, instructions), site.test_records()
    if records is None:
        raise Declined(Reason.PROFILE, "'data.holdout' is 0, there is nothing to test on")
    spec, task = instructions.terms.model, site.task
    # Where a part of the model stays here, the whole is this site's own.
    metrics = {} if site.terms.sent_part else evaluate(spec, task, arrays, records)
    shows_own = "personal-metrics" in site.profile.disclose
    if shows_own and has_personal_model(site.terms):
        own_model = assemble(site, arrays, instructions.server_round)
        found = evaluate(spec, task, own_model, records)
        metrics |= {f"personal-{name}": value for name, value in found.items()}
    path = personal_path(site) if shows_own and not site.terms.sent_part else None
    own = load_personal_model(path, len(flatten(arrays))) if path else None
    if own is not None:
        found = evaluate(spec, task, unflatten(own, arrays), records)
        metrics |= {f"personal-{name}": value for name, value in found.items()}
    # Concordance is of pairs of records, and no message has a place for it.
    return wire.encode_metrics({k: v for k, v in metrics.items() if k in wire.METRIC_KEYS})

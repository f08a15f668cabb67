"""Final model of a run, in the site's state folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from client_app.site.site import Site
from hdpfl_flower import formats
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import DataError, Declined, LedgerError, Reason, TermsError
from hdpfl_flower.ledger.account import Account
from hdpfl_flower.ledger.locks import alone_in
from hdpfl_flower.models.networks import Arrays
from hdpfl_flower.privacy.policy import changed_terms
from hdpfl_flower.releases import is_covered, is_update
from hdpfl_flower.system.files import replace_file
from hdpfl_flower.system.printable import site_log
from hdpfl_flower.wire import Instructions

log = site_log()
_PATIENCE = 30.0
"""Seconds to wait for another message of the same end."""


@dataclass(frozen=True)
class FinalModel:
    """Last global model of a run, as received."""

    terms: RunTerms
    arrays: Arrays


def keep_final_model(site: Site, instructions: Instructions, folder: Path) -> None:
    """Check the message's model and write it to the state folder.

    Raises:
        Declined: as :func:`check_may_keep`.
        WireError, ModelError: the model is not the one that the terms name.
        DataError: the folder cannot be written.
        LedgerError: another process holds the folder, or the ledger cannot be used.
    """
    from client_app.training.trainer import read_model

    model = FinalModel(instructions.terms, read_model(site, instructions))
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # One message at a time: of two at once, the second finds the model of the first.
        with alone_in(folder, _PATIENCE):
            check_may_keep(site, folder, model)
            write_final_model(folder, model)
    except OSError as error:
        raise DataError(
            f"state: {folder} cannot be written: {error.strerror}; the final model is not kept"
        ) from None


def write_final_model(folder: Path, model: FinalModel) -> None:
    """Write ``model`` to an existing folder; raises ``OSError``."""
    from safetensors.numpy import save

    # In memory first: the file is replaced in one step, and a full disk leaves the old one.
    content = save(model.arrays, metadata_of(model.terms))
    replace_file(folder / "model.safetensors", content)


def check_may_keep(site: Site, folder: Path, model: FinalModel) -> None:
    """Decline the final model of a run the site did not end.

    A run is the site's where its plan was charged, or where a clipped update was released to a
    server that the site trusts. The model kept in ``folder`` is replaced by that of later runs
    alone, by the runs' first entries in the ledger: a server cannot put the model of an old run, of
    none, or another one of the same run in the place of the last one. A damaged model, or one of a
    run that the ledger does not know, is replaced by any.

    Raises:
        Declined: as said; or the terms are not those that the run's plan was frozen with.
        LedgerError: the ledger cannot be used.
    """
    ledger, run = site.ledger, site.terms.run_id
    begun = _first_entries(ledger.account())
    if run not in begun:
        raise Declined(
            Reason.TERMS, "the server sent the final model of a run in which this site took no part"
        )
    if ledger.frozen_plan(run) is not None:
        _ = site.paid_plan  # declines terms that changed
    try:
        stored = load_final_model(folder)
    except (DataError, TermsError):
        return
    if stored.terms.run_id == run and not _is_same(stored, model):
        raise Declined(Reason.REPLAY, "[state] already keeps another final model of this run")
    if begun.get(stored.terms.run_id, 0) > begun[run]:
        raise Declined(
            Reason.TERMS, "the model kept in [state] is that of a later run of this site"
        )


def _is_same(stored: FinalModel, sent: FinalModel) -> bool:
    """Return whether two final models and terms are equal, bit by bit."""
    return not changed_terms(stored.terms, sent.terms) and (
        {name: (a.shape, a.tobytes()) for name, a in stored.arrays.items()}
        == {name: (a.shape, a.tobytes()) for name, a in sent.arrays.items()}
    )


def took_part(site: Site) -> bool:
    """Return whether the site has sent a release in its run."""
    return site.terms.run_id in _first_entries(site.ledger.account())


def is_closed(site: Site) -> bool:
    """Return whether the site's run ended: its model was sent before."""
    return not site.simulated and site.terms.run_id in site.ledger.account().ended


def close_run(site: Site) -> None:
    """Close the run at its end; a Rényi filter then counts its releases alone.

    Raises:
        Declined: the terms are not those that the run's plan was frozen with.
        LedgerError: the ledger cannot be used.
    """
    if site.simulated or site.profile.ledger is None or not took_part(site) or is_closed(site):
        return
    if site.ledger.frozen_plan(site.terms.run_id) is not None:
        _ = site.paid_plan
    try:
        site.ledger.close_run(site.terms.run_id)
    except LedgerError as reason:
        # Safe: an open run stays charged whole; `hdpfl-site requests --refuse` closes it later.
        log.warning("the run is not closed: %s", reason)


def _first_entries(account: Account) -> dict[str, int]:
    """Return each joined run with its first entry in the ledger."""
    first: dict[str, int] = {}
    for (run, _, kind), release in account.releases.items():
        # A clipped update has no plan in the ledger: the seal shows that it may have left.
        covered = is_covered(kind)
        clipped = is_update(kind) and not covered and release.status in ("sealed", "sent")
        if clipped or (run in account.plans and covered):
            first[run] = min(release.seq, first.get(run, release.seq))
    return first


def load_final_model(folder: Path) -> FinalModel:
    """Return the final model kept in ``folder``.

    Raises:
        DataError: there is none yet, it is damaged, or of a newer version.
    """
    from safetensors import SafetensorError, safe_open

    path = folder / "model.safetensors"
    if not path.is_file():
        raise DataError(f"{folder} holds no final model: the site has not finished a run yet")
    try:
        with safe_open(path, framework="numpy") as file:
            terms = terms_in(file.metadata())
            return FinalModel(terms, {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    except (SafetensorError, KeyError, TypeError, ValueError, AttributeError):
        raise DataError(f"the model in {path} is damaged; the next run replaces it") from None


def metadata_of(terms: RunTerms) -> dict[str, str]:
    """Return a model file's metadata: format and the run's terms."""
    return {"format": str(formats.FINAL_MODEL.newest), "terms": terms.to_json()}


def terms_in(metadata: Mapping[str, str]) -> RunTerms:
    """Return the terms that :func:`metadata_of` wrote."""
    formats.FINAL_MODEL.check(int(metadata["format"]))
    return RunTerms.from_json(metadata["terms"])

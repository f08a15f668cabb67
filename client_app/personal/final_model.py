"""The final model of a run, stored in the site's state folder for its own use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from client_app.site.site import Site
from hdpfl_flower import formats
from hdpfl_flower.config.recorded_terms import recorded_terms
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import DataError, Declined, Reason, TermsError
from hdpfl_flower.ledger.account import Account
from hdpfl_flower.models.networks import Arrays
from hdpfl_flower.privacy.policy import CLIPPED_UPDATE
from hdpfl_flower.system.files import replace_file
from hdpfl_flower.wire import Instructions


@dataclass(frozen=True)
class FinalModel:
    """The last global model of a run, as this site received it."""

    terms: RunTerms
    arrays: Arrays


def keep_final_model(site: Site, instructions: Instructions) -> None:
    """Write the message's model, checked, to the state folder; it replaces the one kept there.

    Whether the run may leave one is for :func:`check_may_keep`, before this.

    Raises:
        Declined, WireError, ModelError: the model is not the one that the terms name.
        DataError: the folder cannot be written.
    """
    from safetensors.numpy import save

    from client_app.training.trainer import read_model

    arrays, state = read_model(site, instructions), site.profile.state
    if state is None:
        return
    # In memory first: the file is replaced in one step, and a full disk leaves the old one.
    content = save(arrays, metadata_of(instructions.terms))
    try:
        state.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_file(state.path / "model.safetensors", content)
    except OSError as error:
        raise DataError(
            f"state: {state.path} cannot be written: {error.strerror}; the final model is not kept"
        ) from None


def check_may_keep(site: Site, folder: Path) -> None:
    """Decline the final model of a run that this site took no part in, or not as its last.

    A run is the site's where its plan was charged, or where a clipped update was released to a
    server that the site trusts. The model kept in ``folder`` is replaced by that of the same run
    and of later ones, by the runs' first entries in the ledger: a server cannot put the model of an
    old run, or of none, in the place of the last one. One that is damaged, or whose run the ledger
    does not know, is replaced by any.

    Raises:
        Declined: as said; or the terms are not those that the run's plan was frozen with.
        LedgerError: the ledger cannot be used.
    """
    ledger, run = site.ledger, site.terms.run_id
    begun = _first_entries(ledger.account())
    if run not in begun:
        raise Declined(Reason.TERMS, "this site took no part in the run whose final model is sent")
    if ledger.frozen_plan(run) is not None:
        _ = site.plan  # declines terms that changed
    try:
        kept = load_final_model(folder).terms.run_id
    except (DataError, TermsError):
        return
    if begun.get(kept, 0) > begun[run]:
        raise Declined(
            Reason.TERMS, "the model kept in [state] is that of a later run of this site's"
        )


def took_part(site: Site) -> bool:
    """Return whether the site has sent anything in the run of its terms."""
    return site.terms.run_id in _first_entries(site.ledger.account())


def _first_entries(account: Account) -> dict[str, int]:
    """Return each run that the site took part in, and its first entry in the ledger."""
    first: dict[str, int] = {}
    for (run, _, kind), release in account.releases.items():
        # A clipped update has no plan in the ledger: the seal shows that it may have left.
        clipped = kind == CLIPPED_UPDATE and release.status in ("sealed", "sent")
        if clipped or (run in account.plans and kind != "metrics"):
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
        raise DataError(f"no final model in {folder}; the site has finished no run yet")
    try:
        with safe_open(path, framework="numpy") as file:
            terms = terms_in(file.metadata())
            return FinalModel(terms, {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    except (SafetensorError, KeyError, TypeError, ValueError, AttributeError):
        raise DataError(f"the model in {path} is damaged; the next run replaces it") from None


def metadata_of(terms: RunTerms) -> dict[str, str]:
    """Return what a model's file holds beside its arrays: its format and the run's terms."""
    return {"format": str(formats.FINAL_MODEL.newest), "terms": terms.to_json()}


def terms_in(metadata: Mapping[str, str]) -> RunTerms:
    """Return the terms that :func:`metadata_of` wrote, in this version or an earlier one."""
    number = metadata.get("format")
    known = formats.FINAL_MODEL.check(int(number) if number is not None else None)
    return recorded_terms(metadata["terms"], known)

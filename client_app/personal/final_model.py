"""What a site keeps for itself: the final model of each run, in its state folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from client_app.site.site import Site
from hdpfl_flower.ledger.account import Account
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import DataError, Declined, TermsError
from hdpfl_flower.system.files import replace_file
from hdpfl_flower.models.networks import Arrays
from hdpfl_flower.privacy.trust import CLIPPED_UPDATE
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
    content = save(arrays, {"terms": instructions.terms.to_json()})
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
        raise Declined("terms: this site took no part in the run whose final model is sent")
    if ledger.frozen_plan(run) is not None:
        site.plan(ledger)  # declines terms that changed
    try:
        kept = load_final_model(folder).terms.run_id
    except (DataError, TermsError):
        return
    if begun.get(kept, 0) > begun[run]:
        raise Declined("terms: the model kept in [state] is that of a later run of this site's")


def _first_entries(account: Account) -> dict[str, int]:
    """Return each run that the site took part in, and its first entry in the ledger."""
    first: dict[str, int] = {}
    for (run, _, kind), release in account.releases.items():
        clipped = kind == CLIPPED_UPDATE and release.status in ("sealed", "sent")
        if clipped or (run in account.plans and kind != "metrics"):
            first[run] = min(release.seq, first.get(run, release.seq))
    return first


def load_final_model(folder: Path) -> FinalModel:
    """Return the final model kept in ``folder``.

    Raises:
        DataError: there is none yet, or it is damaged.
    """
    from safetensors import SafetensorError, safe_open

    path = folder / "model.safetensors"
    if not path.is_file():
        raise DataError(f"no final model in {folder}; the site has finished no run yet")
    try:
        with safe_open(path, framework="numpy") as file:
            terms = RunTerms.from_json(file.metadata()["terms"])
            return FinalModel(terms, {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    except (SafetensorError, KeyError, TypeError, json.JSONDecodeError):
        raise DataError(
            f"the model in {path} is damaged; it comes anew with the next run"
        ) from None

"""What a site keeps for itself: the final model of each run, in its state folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from client_app.site import Site
from hdpfl_flower.config import RunTerms
from hdpfl_flower.errors import DataError
from hdpfl_flower.files import replace_file
from hdpfl_flower.models import Arrays
from hdpfl_flower.wire import Instructions


@dataclass(frozen=True)
class FinalModel:
    """The last global model of a run, as this site received it."""

    terms: RunTerms
    arrays: Arrays


def keep_final_model(site: Site, instructions: Instructions) -> None:
    """Write the message's model, checked, to the state folder; a later one replaces it.

    Raises:
        Declined, WireError, ModelError: the model is not the one that the terms name.
        DataError: the folder cannot be written.
    """
    from safetensors.numpy import save

    from client_app.training import read_model

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

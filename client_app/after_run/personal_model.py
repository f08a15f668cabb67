"""Personal model of a run with parts, tuning or a prior.

A personal model is *private* or *kept*. A private one is a function of noisy releases and of the
server's messages: it may be shown to whoever may see an update. A kept one was tuned at home
without noise; treat it as the records. Both stay at the site.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from client_app.after_run.final_model import metadata_of, terms_in
from client_app.site.personal_state import load_state, personal_state_path
from client_app.site.site import Site
from client_app.work import local_work
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.errors import DataError
from hdpfl_flower.models.evaluation import predict
from hdpfl_flower.models.networks import Arrays, flatten, layout_of, unflatten
from hdpfl_flower.models.task import Task
from hdpfl_flower.releases import asked_kind
from hdpfl_flower.releases.of_run import (
    has_personal_state,
    personal_is_private,
)
from hdpfl_flower.releases.shrink import Shrink
from hdpfl_flower.system.files import replace_file

Vector = npt.NDArray[np.float32]
Kind = Literal["private", "kept"]
_OUTPUTS, _KIND = "outputs", "kind"


@dataclass(frozen=True, repr=False)
class PersonalModel:
    """A site's own model of a run.

    Attributes:
        terms: the run's.
        arrays: the parameters of the whole model.
        added: added to the outputs of every record, shape ``(outputs,)``; zeros without a prior.
        kind: ``private`` or ``kept``.
    """

    terms: RunTerms
    arrays: Arrays
    added: Vector
    kind: Kind

    def outputs(self, task: Task, features: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the model's outputs, float32, shape ``(n, task.outputs)``."""
        outputs = predict(self.terms.model, task, self.arrays, features)
        return np.asarray(outputs + self.added, np.float32)


def kind_of(terms: RunTerms) -> Kind:
    """Return the kind of a site's own model: private if noised throughout.

    At the level of a client the part that stays is trained without noise. So is a second model
    that is not private, whatever is added to it.
    """
    return "private" if personal_is_private(terms) else "kept"


def personal_model_path(site: Site) -> Path:
    """Return the path of a personal model; raises ``Declined`` without folder."""
    return personal_model_file(personal_state_path(site).parent, site.terms.run_id)


def personal_model_file(folder: Path, run_id: str) -> Path:
    """Return the path of a run's personal model in a folder."""
    return folder / f"own-model-{hashlib.sha256(run_id.encode()).hexdigest()[:32]}.safetensors"


def assemble(site: Site, shared: Arrays, last_round: int) -> Arrays:
    """Return the site's whole model: the sent part and its own.

    Args:
        site: owner of the model.
        shared: arrays of the server.
        last_round: that ``shared`` is the model after.

    Raises:
        Declined: no folder for the site's own part.
        DataError: the part is damaged.
    """
    terms = site.terms
    vector = flatten(shared)
    if has_personal_state(terms):
        work = local_work(terms, site.task, len(vector))
        state = load_state(personal_state_path(site))
        if shrink := asked_kind(terms, Shrink):
            from client_app.releases.shrink import shrunk_deviation

            sizes = [array.size for array in shared.values()]
            deviation = shrunk_deviation(state, vector, sizes, last_round)
            vector = vector + np.float32(shrink.scale) * deviation
        vector = work.whole(vector, work.first() if state.part is None else state.part)
    return unflatten(vector, layout_of(terms.model, site.task))


def untuned_model(site: Site, whole: Arrays) -> PersonalModel:
    """Return the site's model at the end of a run, before any kind of release changes it.

    Raises:
        DataError: the site's model by Ditto is damaged.
    """
    # A second model of the same run takes the place of the shared one.
    personal = None
    if site.terms.second is not None:
        from client_app.training.ditto import load_personal_model, personal_path

        path, size = personal_path(site), sum(array.size for array in whole.values())
        personal = load_personal_model(path, size) if path is not None else None
    arrays = whole if personal is None else unflatten(personal, whole)
    added = np.zeros(site.task.outputs, np.float32)
    return PersonalModel(site.terms, arrays, added, kind_of(site.terms))


def save_personal_model(path: Path, model: PersonalModel) -> None:
    """Write ``model`` to ``path`` atomically; raises ``OSError``."""
    from safetensors.numpy import save

    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    arrays = {f"model.{name}": array for name, array in model.arrays.items()}
    metadata = {**metadata_of(model.terms), _KIND: model.kind}
    replace_file(path, save({**arrays, _OUTPUTS: model.added}, metadata))


def read_personal_model(path: Path) -> PersonalModel | None:
    """Return the personal model at ``path``; None where there is none.

    Raises:
        DataError: the file is damaged, or of a newer version.
    """
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            terms = terms_in(metadata)
            arrays = {
                name.removeprefix("model."): file.get_tensor(name)
                for name in file.keys()  # noqa: SIM118
                if name.startswith("model.")
            }
            order = layout_of(terms.model, task_for(terms))
            kind: Kind = "private" if metadata[_KIND] == "private" else "kept"
            return PersonalModel(
                terms, {name: arrays[name] for name in order}, file.get_tensor(_OUTPUTS), kind
            )
    except (SafetensorError, KeyError, TypeError, ValueError, AttributeError, OSError):
        raise DataError(
            f"the personal model {path} is damaged; the next run makes a new one"
        ) from None

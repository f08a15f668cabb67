"""Models in the record that Flower passes between rounds.

Before round 1 the record holds one model, from which all sites start. A strategy with several
models packs all of them into the record from then on, by number (``server_wire.pack_models``).
"""

from __future__ import annotations

import numpy as np
from flwr.app import ArrayRecord, RecordDict

from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.estimators.softmax_head import Head, head_of
from hdpfl_flower.models.networks import Arrays, arrays_of, build_model, flatten, unflatten
from hdpfl_flower.models.parts import parts_of, select
from hdpfl_flower.models.public_weights import checked, read_weights
from hdpfl_flower.updates import Outcome
from strategies.core.interface import SiteRequest


class ModelRecord:
    """The models of a round, decoded once.

    Attributes:
        models: in their order.
    """

    def __init__(self, seed: int) -> None:
        """Prepare an empty record; ``seed`` is that of the initial model."""
        self._seed = seed
        self.models: tuple[ArrayRecord, ...] = ()
        self._arrays: ArrayRecord | None = None
        self._mean: ArrayRecord | None = None
        self._template: Arrays = {}

    @property
    def template(self) -> Arrays:
        """Arrays of one model, in the order of an update's coordinates."""
        return self._template

    @property
    def size(self) -> int:
        """The numbers of one model."""
        return sum(array.size for array in self._template.values())

    def head(self, terms: RunTerms) -> Head | None:
        """Return the round's softmax head; None if unknown."""
        # Without all coordinates of the head there are no silent sums, and the last layer of a body
        # may look like a head.
        if terms.work.sent_part == "body" or not terms.work.sends_every_coordinate:
            return None
        shapes = {name: array.shape for name, array in self._template.items()}
        return head_of(terms.model, task_for(terms), shapes)

    def begin_round(self, arrays: ArrayRecord, *, packed: bool) -> None:
        """Decode the round's record; ``packed``: several models by number."""
        self.open(arrays, packed=packed)
        self._template = server_wire.read_own(self.models[0])

    def open(self, arrays: ArrayRecord, *, packed: bool) -> None:
        """Decode ``arrays``, unless they are the last ones."""
        if arrays is not self._arrays:
            self._arrays, self._mean = arrays, None
            self.models = wire.unpack_models(arrays) if packed else (arrays,)

    def message(
        self, terms: RunTerms, server_round: int, request: SiteRequest, kind: str = wire.TRAIN
    ) -> RecordDict:
        """Return the message content for the sites of ``request``."""
        models = self.models
        model = (
            models[request.model]
            if request.model < len(models)
            else initial_model(terms, self._seed)
        )
        if request.apart is not None:
            start = flatten(self._template) + request.apart
            model = self.record(start.astype(np.float32))
        others: tuple[ArrayRecord, ...] = ()
        if request.use == wire.CHOOSE:
            model, *rest = models
            others = tuple(rest)
        elif request.use == wire.PULL:
            self._mean = self._mean or mean_model(models)
            others = (self._mean,)
        elif request.use == wire.OFFSET and request.offset is not None:
            others = (self.record(request.offset),)
        return server_wire.write_instructions(
            terms,
            server_round,
            model,
            request.project,
            others=others,
            use=request.use if others else "",
            of_noise=request.of_noise,
        )

    def moved(self, outcome: Outcome, terms: RunTerms) -> ArrayRecord:
        """Return the next record: models plus rows of the outcome."""
        if outcome.group is None:
            return self._plus(self.models[0], outcome.update)
        models = []
        for i, step in enumerate(outcome.update):
            if i < len(self.models):
                start = self.models[i]
            else:
                start = self.models[0] if outcome.from_first else initial_model(terms, self._seed)
            models.append(self._plus(start, step))
        record = server_wire.pack_models(models)
        self._arrays, self.models, self._mean = record, tuple(models), None
        return record

    def record(self, vector: np.ndarray) -> ArrayRecord:
        """Return the record of a model, from shape ``(d,)``."""
        return server_wire.write_model(unflatten(vector, self._template))

    def _plus(self, model: ArrayRecord, step: np.ndarray) -> ArrayRecord:
        vector = flatten(self._template if model is self.models[0] else server_wire.read_own(model))
        # `flatten` made a copy: the arrays of the last round are read-only.
        vector += step
        return self.record(vector)


def initial_model(terms: RunTerms, seed: int) -> ArrayRecord:
    """Return the sent part of the initial model, as a record."""
    return server_wire.write_model(initial_arrays(terms, seed))


def initial_arrays(terms: RunTerms, seed: int) -> Arrays:
    """Return the sent part of the model that ``seed`` draws, or of the run's public ``start``.

    Raises:
        DataError, ModelError: the file of ``start`` is not there, or holds another model.
    """
    task = task_for(terms)
    whole = arrays_of(build_model(terms.model, task, seed))
    if terms.start:
        new = parts_of(terms.model, task).names if terms.start_parts == "body" else frozenset()
        whole = start_arrays(terms.start, whole, new)
    return select(whole, terms.model, task, terms.work.sent_part)


def mean_model(models: tuple[ArrayRecord, ...]) -> ArrayRecord:
    """Return the mean of the models, summed in float64."""
    # One float64 copy for all models; they are added one after another.
    total = {
        name: array.astype(np.float64) for name, array in server_wire.read_own(models[0]).items()
    }
    for model in models[1:]:
        for name, array in server_wire.read_own(model).items():
            total[name] += array
    return server_wire.write_model(
        {name: (array / len(models)).astype(np.float32) for name, array in total.items()}
    )


def start_arrays(digest: str, drawn: Arrays, new: frozenset[str]) -> Arrays:
    """Return the arrays of a public start, in the order of ``drawn``.

    Args:
        digest: of the file.
        drawn: the model as its seed draws it.
        new: names that stay as drawn, whatever the file holds of them.

    Raises:
        DataError, ModelError: the file is not there, or holds another model.
    """
    given = {key: value for key, value in read_weights(digest).items() if key not in new}
    shapes = {key: array.shape for key, array in drawn.items() if key not in new}
    checked(given, shapes, digest)
    return {
        key: array if key in new else np.asarray(given[key].float().numpy(), np.float32).copy()
        for key, array in drawn.items()
    }

"""Head and body of a model, to be trained or sent separately.

A part is computed from the model's public spec alone. The head is the layer that returns the
outputs, the body is the rest; both are ranges of the model's flat vector, so that either can be
trained, noised and sent by itself. (FedPer: Arivazhagan et al. 2019, arXiv:1912.00818; FedRep:
Collins et al., ICML 2021; LG-FedAvg: Liang et al. 2020, arXiv:2001.01523.)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from hdpfl_flower.errors import ModelError
from hdpfl_flower.models.networks import Arrays, layout_of
from hdpfl_flower.models.task import Task


@dataclass(frozen=True)
class Parts:
    """Head and body as ranges of the model's flat vector.

    Attributes:
        size: d, the numbers of the whole model.
        head: of the layer that returns the outputs.
        body: of the rest.
        names: the parameters of the head.
    """

    size: int
    head: slice
    body: slice
    names: frozenset[str]

    def of(self, part: str) -> slice:
        """Return the range of ``head`` or ``body``; empty name: whole model."""
        return {"head": self.head, "body": self.body}.get(part, slice(0, self.size))


@lru_cache(maxsize=32)
def parts_of(spec: str, task: Task) -> Parts:
    """Return the head and body of the model ``spec``.

    The head is the last layer, or the first one, with a weight of a row for each output and a bias,
    if any, of a number for each. In built-in networks it is the last linear layer.

    Raises:
        ModelError: no layer is a head, or it is the whole model; parameters are listed by name.
    """
    layout = layout_of(spec, task)
    layers: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, array in layout.items():
        layers.setdefault(name.rpartition(".")[0], {})[name] = array.shape
    size = sum(array.size for array in layout.values())
    ordered = list(layers.values())
    for names, at_end in ((ordered[-1], True), (ordered[0], False)):
        if len(ordered) > 1 and _returns(task.outputs, names) and _adjacent(layout, names, at_end):
            length = sum(layout[name].size for name in names)
            head = slice(size - length, size) if at_end else slice(0, length)
            body = slice(0, size - length) if at_end else slice(length, size)
            return Parts(size, head, body, frozenset(names))
    if len(ordered) == 1:
        raise ModelError(
            f"'model' = '{spec}' is one layer ({', '.join(layout)}): a personal part would leave "
            "nothing to share; take one with other layers, such as mlp:32, or leave out "
            "a personal part and tuning of a head"
        )
    raise ModelError(
        f"'model' = '{spec}' has no head apart from a body: a first or last layer with a weight of "
        f"{task.outputs} rows, and other layers beside it. Its parameters: {', '.join(layout)}; "
        "leave out a personal part and tuning of a head, or take another model"
    )


def _returns(outputs: int, names: dict[str, tuple[int, ...]]) -> bool:
    shapes = list(names.values())
    return (
        len(shapes) in (1, 2)
        and len(shapes[0]) == 2
        and {shape[0] for shape in shapes} == {outputs}
    )


def _adjacent(layout: Arrays, names: dict[str, tuple[int, ...]], at_end: bool) -> bool:
    """Return whether the parameters are last in the layout, or first."""
    order = list(layout)
    return set(order[-len(names) :] if at_end else order[: len(names)]) == set(names)


def select(arrays: Arrays, spec: str, task: Task, part: str) -> Arrays:
    """Return the arrays of ``part``; raises as :func:`parts_of`."""
    if not part:
        return arrays
    names = parts_of(spec, task).names
    return {name: a for name, a in arrays.items() if (name in names) == (part == "head")}

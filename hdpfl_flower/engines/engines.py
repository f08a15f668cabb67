"""Clipped sums of per-record gradients, by the fastest way.

Every engine computes the same thing: Σⱼ gⱼ · min(1, C/‖gⱼ‖) over the records of a batch, where gⱼ
is the gradient of record j's own loss. A record without a finite gradient contributes zero,
alone. They agree with Opacus' hooks to 1e-5 (``tests/hdpfl_flower/engines/test_engines.py``).

The contribution of a record has the same bits whatever the other records are, however many, and
whatever its place among them: batches have only numbers of rows for which that is proven on this
machine (:mod:`hdpfl_flower.models.row_batches`).
"""

from __future__ import annotations

import contextlib
import math
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from hdpfl_flower.errors import ModelError, is_ctrl_c
from hdpfl_flower.models.losses import output_gradient, training_loss
from hdpfl_flower.models.row_batches import TYPICAL, RowProof, align, aligned, blank, draws, pool
from hdpfl_flower.models.task import Task
from hdpfl_flower.privacy.noise import RandomStream, add_noise
from hdpfl_flower.system.printable import site_log

log = site_log()

_BLOCK = 1024
"""Squares that are added one after another, in eight lanes or more: an error of at most
128 · 2⁻²⁴ of their sum, 4e-6 of the norm."""
_WANTED, _LARGEST, _NUMBERS = 4, 256, 2**26
"""Before :meth:`Engine.settle`: rows that batches are multiples of, rows in memory, and the
numbers of their gradients (256 MB)."""

_UNLIKE = ((0, 3), (4, 12), (20, 28))
"""Rows of the trial's pool: ordinary, of all magnitudes, denormal, zero, huge, not a number."""
_COSTLY = 2**31
"""Operations of a record from which the CPU gains little by batches."""

_SHAPES = (nn.Sequential, nn.Flatten, nn.Identity, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d)
_ACTIVATIONS = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU)
_DRAWLESS = frozenset((*_SHAPES, *_ACTIVATIONS, nn.Linear, nn.Conv2d, nn.GroupNorm, nn.LayerNorm))
"""Modules without random numbers; subclasses are not trusted."""


RecordLoss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Scalar loss of one record, of outputs ``(1, outputs)`` and target ``(1,)``."""


class Engine(ABC):
    """A model with all trainable parameters as views of one vector.

    Attributes:
        theta: the parameters, float32, shape ``(d,)``; write to it to set them.
        proof: the numbers of rows that are proven.
        draws: whether the model may draw from torch's own generator, as dropout does.
        place: the coordinates that are trained, a range of whole parameters; see :meth:`only`.
        operations: of a record's products and convolutions in the forward pass, where counted.
    """

    operations = 0

    def __init__(self, model: nn.Module, task: Task, device: torch.device) -> None:
        """Move ``model`` to ``device``; make its parameters views of ``theta``."""
        self.draws = may_draw(model)
        self.model, self.task = align(model.to(device).train()), task
        named = [(n, p) for n, p in self.model.named_parameters() if p.requires_grad]
        self.theta = torch.cat([p.detach().reshape(-1) for _, p in named])
        self.parameters: dict[str, torch.Tensor] = {}
        start = 0
        for name, parameter in named:
            view = self.theta[start : start + parameter.numel()].view_as(parameter)
            # Each parameter is a view: one copy into theta sets them all, and theta shows every
            # step.
            parameter.data = view
            self.parameters[name] = view
            start += parameter.numel()
        self.place = slice(0, len(self.theta))
        self._drawn = draws(self.theta)
        self._pool: tuple[torch.Tensor, torch.Tensor] | None = None
        self._raised: set[type[BaseException]] = set()
        self.proof = RowProof(self._trial)
        self._wanted = _WANTED, min(_LARGEST, max(_WANTED, _NUMBERS // len(self.theta)))

    @contextlib.contextmanager
    def only(self, place: slice) -> Iterator[None]:
        """Restrict gradients, norms and sums to ``place``.

        Raises:
            ModelError: a bound of ``place`` is none of a parameter's.
        """
        bounds = {0}
        for parameter in self.parameters.values():
            bounds.add(max(bounds) + parameter.numel())
        if not {place.start, place.stop} <= bounds or place.start >= place.stop:
            raise ModelError("a part of a model is a range of whole parameters")
        before, self.place = self.place, place
        try:
            yield
        finally:
            self.place = before

    @property
    def one_by_one(self) -> bool:
        """Whether a record takes so long on the CPU that it is computed alone."""
        return self.theta.device.type == "cpu" and self.operations > _COSTLY

    def settle(self, wanted: int, largest: int) -> int:
        """Choose and return the number of rows that batches are multiples of.

        Args:
            wanted: rows, a power of two, from public numbers alone.
            largest: rows in memory at once.
        """
        if self.one_by_one:  # a trial of some hundred rows would take longer than batches save
            wanted = largest = 1
        self._wanted = wanted, largest
        return self.proof.granule(wanted, largest)

    def attempt(self) -> None:
        """Run a few unlike rows in pairs, so that the fault of a layer raises here."""
        for pair in _UNLIKE:
            self._trial(TYPICAL, torch.tensor(pair))
        x, y = self.blank(2)
        self._add(torch.zeros_like(self.theta), x, y, 2, math.inf)

    def add_clipped_sum(
        self,
        total: torch.Tensor,
        x: torch.Tensor,
        y: torch.Tensor,
        count: int,
        clip_norm: float,
        *,
        raising: bool = False,
    ) -> None:
        """Add the batch's clipped gradient sum to ``total``.

        Args:
            total: float32, or float64 for a sum without float32's rounding, shape ``(d,)``;
                changed in place.
            x: features, shape ``(b, *input_shape)``, b ≥ 1.
            y: targets, shape ``(b,)``.
            count: records that count; the rows after them only fill the batch up.
            clip_norm: C, the bound on each record's l2 norm.
            raising: let the model's exceptions pass: in a rehearsal, which has no record.

        Guarantees:
            The sum is Σⱼ cⱼ with ‖cⱼ‖ ≤ C·(1 + 1e-5), whatever record j's values are (NaN and
            infinities included), and cⱼ is a function of record j and of ``theta`` alone, to the
            last bit of its outputs, gates, gradient and clip factor. So one record more or less
            moves the sum by at most C·(1 + 1e-5), but for the rounding of the sum itself: float32
            of b terms, none above C, at worst b²·2⁻²⁴·C, in practice up to 2·b·2⁻²⁴·C; float64 2⁻²⁹
            of it. So physical batches are summed in float64 (``dpsgd.py``).

            A model that raises on a record's values changes nothing of that: where a batch raises,
            each of its records is computed alone, in a batch of its own copies, and adds zero if
            that raises. So cⱼ is the same whether the batch raised or not, and whoever raised in
            it. Zero for the whole batch would let one record take away b·C. Not covered: an
            exception that depends on the model's own random draws, or on how many rows are alike,
            a process that is killed, and a GPU after an assertion of a kernel ended its context.
        """
        granule = self.proof.granule(*self._wanted)
        # The batch is filled up with copies of its first row: `count` keeps their clip factor at 0.
        missing = -len(x) % granule
        if missing:
            x, y = (
                torch.cat([tensor, tensor[:1].expand(missing, *tensor.shape[1:])])
                for tensor in (x, y)
            )
        # The whole batch at once where its size is proven, else in parts of the proven granule: an
        # unproven size could let one record's presence change the last bits of another's gradient.
        rows = len(x) if self.proof.holds(granule, len(x)) else granule
        for first in range(0, -(-count // granule) * granule, rows):
            some = _placed(x[first : first + rows]), _placed(y[first : first + rows])
            counted = min(count - first, rows)
            if raising:
                self._add(total, *some, counted, clip_norm)
                continue
            if self._is_added(total, *some, counted, clip_norm):
                continue
            # Alone even where one record counts: a row that fills up may be the one that raised.
            for row in range(counted):
                features, target = (_copies(tensor[row], granule) for tensor in some)
                self._is_added(total, features, target, 1, clip_norm)

    def _is_added(
        self, total: torch.Tensor, x: torch.Tensor, y: torch.Tensor, count: int, clip_norm: float
    ) -> bool:
        """Add by :meth:`_add`; return False, with the sum unchanged, if the model raises."""
        version = total._version
        try:
            self._add(total, x, y, count, clip_norm)
        except BaseException as reason:
            # After the model's work a second try would add a record twice.
            if is_ctrl_c(reason) or total._version != version:
                raise
            if type(reason) not in self._raised:
                self._raised.add(type(reason))
                log.warning(
                    "the model raised %s in training; a record on which it does adds nothing",
                    type(reason).__name__,
                )
            return False
        return True

    def blank(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ``count`` records of zeros, on the device: features and targets."""
        return blank(self.task, count, self.theta.device)

    @abstractmethod
    def _add(
        self, total: torch.Tensor, x: torch.Tensor, y: torch.Tensor, count: int, clip_norm: float
    ) -> None:
        """Do :meth:`add_clipped_sum` for a proven number of rows."""

    @abstractmethod
    def _parts(self, x: torch.Tensor, y: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return the outputs, then all else that a row's contribution is made of, a row each."""

    def _trial_rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rows of trials, features and targets."""
        return pool(self.model, self.task)

    def _trial(self, kind: int, rows: torch.Tensor) -> Sequence[torch.Tensor]:
        """Try rows in a batch (:data:`~hdpfl_flower.models.row_batches.Trial`), without dropout.

        Dropout's masks follow the place of a row in its batch.
        """
        if self._pool is None:
            x, y = self._trial_rows()
            self._pool = x.to(self.theta.device), y.to(self.theta.device)
        # The trial's weights are drawn; the real ones come back even where it fails.
        before = self.theta.clone()
        self.theta.copy_(self._drawn[kind])
        try:
            with _no_dropout(self.model):
                x, y = (tensor[rows % len(tensor)] for tensor in self._pool)
                return self._parts(x, y)
        finally:
            self.theta.copy_(before)


class LinearEngine(Engine):
    """Closed form for a linear layer: ‖gⱼ‖² = ‖rⱼ‖²·(‖xⱼ‖² + 1).

    r is the gradient of the loss in the layer's outputs (Goodfellow 2015, arXiv:1510.01799).
    """

    def __init__(self, model: nn.Module, task: Task, device: torch.device) -> None:
        """Take a model for which :func:`is_linear` holds."""
        super().__init__(model, task, device)
        self._weight, self._bias = self.parameters.values()

    @contextlib.contextmanager
    def only(self, place: slice) -> Iterator[None]:
        """Refuse any place but the whole: one layer has no parts; raises ``ModelError``."""
        if place != self.place:
            raise ModelError("a model of one layer has no parts")
        yield

    def _rows(
        self, x: torch.Tensor, y: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return each record's outputs, residual and squared norm."""
        outputs = torch.addmm(self._bias, aligned(x), aligned(self._weight).t())
        residual = output_gradient(self.task, outputs, y)
        return outputs, residual, outer_squared_norms(residual, x, bias=True)

    def _parts(self, x: torch.Tensor, y: torch.Tensor) -> Sequence[torch.Tensor]:
        outputs, residual, squared_norm = self._rows(x.flatten(1), y)
        return outputs, residual, squared_norm.unsqueeze(1)

    def _add(
        self, total: torch.Tensor, x: torch.Tensor, y: torch.Tensor, count: int, clip_norm: float
    ) -> None:
        x = x.flatten(1)
        _, residual, squared_norm = self._rows(x, y)
        finite, factor = clip_factor(squared_norm, count, clip_norm)
        if not all_known(finite):
            # Zero before the product, in both factors: a clip factor of 0 would leave 0 · NaN =
            # NaN.
            residual = torch.where(finite.unsqueeze(1), residual, 0.0)
            x = torch.where(finite.unsqueeze(1), x, 0.0)
        residual = residual * factor.unsqueeze(1)
        # theta is the weights, row by row, then the biases.
        size = self._weight.numel()
        residual, x = residual.to(total.dtype), x.to(total.dtype)
        # Σⱼ factorⱼ·rⱼ ⊗ xⱼ as one product, (outputs, b) by (b, inputs).
        total[:size].view_as(self._weight).addmm_(residual.t(), x)
        total[size:] += residual.sum(0)


class RowEngine(Engine):
    """An engine that holds every record's gradient at once."""

    @abstractmethod
    def _rows(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return each record's outputs and gradients, ``(b, *shape)`` a parameter."""

    def _parts(self, x: torch.Tensor, y: torch.Tensor) -> Sequence[torch.Tensor]:
        return _parts_of(*self._rows(x, y))

    def _add(
        self, total: torch.Tensor, x: torch.Tensor, y: torch.Tensor, count: int, clip_norm: float
    ) -> None:
        _add_clipped(total, self._rows(x, y)[1], count, clip_norm, self.place)


class VmapEngine(RowEngine):
    """Per-record gradients by ``torch.func``: any model without state across records."""

    def __init__(
        self, model: nn.Module, task: Task, device: torch.device, loss: RecordLoss | None = None
    ) -> None:
        """Prepare the vectorised gradient of one record's loss, by default the task's."""
        super().__init__(model, task, device)
        self._record_loss = loss or partial(training_loss, task)
        # has_aux: the outputs are returned too, since the proof of rows compares them.
        gradient = grad(self._loss, has_aux=True)
        # Each record has a dropout mask of its own, as in a batch.
        self._gradients = vmap(gradient, in_dims=(None, 0, 0), randomness="different")
        # LSTM's: it is slower, without a remedy here.
        warnings.filterwarnings("ignore", "There is a performance drop")

    def _loss(
        self, parameters: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss of one record, and its outputs."""
        outputs = functional_call(self.model, parameters, (x.unsqueeze(0),))
        return self._record_loss(outputs, y.unsqueeze(0)), outputs[0]

    def _rows(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return them by one vectorised call of ``torch.func``."""
        gradients, outputs = self._gradients(self.parameters, x, y)
        return outputs, list(gradients.values())


def _add_clipped(
    total: torch.Tensor,
    gradients: list[torch.Tensor],
    count: int,
    clip_norm: float,
    place: slice,
) -> None:
    """Add Σⱼ of clipped per-record gradients, each ``(b, *shape)``."""
    ends = list(accumulate(gradient[0].numel() for gradient in gradients))
    flat = [
        gradient.flatten(1)
        for gradient, end in zip(gradients, ends, strict=True)
        if place.start < end <= place.stop
    ]
    squared_norm = _squared_norm_of(flat)
    finite, factor = clip_factor(squared_norm, count, clip_norm)
    if not all_known(finite):  # a factor of 0 would not do: 0 · NaN = NaN
        flat = [torch.where(finite.unsqueeze(1), g, 0.0) for g in flat]
    start = place.start
    for g in flat:
        total[start : start + g.shape[1]].addmv_(g.to(total.dtype).t(), factor.to(total.dtype))
        start += g.shape[1]


def _squared_norm_of(flat: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack([squared_norms(g) for g in flat]).sum(0)


def _parts_of(outputs: torch.Tensor, gradients: list[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Return the parts of a row with its gradient itself at hand."""
    flat = [gradient.flatten(1) for gradient in gradients]
    return outputs, *flat, _squared_norm_of(flat).unsqueeze(1)


def _copies(row: torch.Tensor, count: int) -> torch.Tensor:
    """Return ``count`` copies of a row, in memory of their own."""
    return row.expand(count, *row.shape).clone(memory_format=torch.contiguous_format)


def _placed(rows: torch.Tensor) -> torch.Tensor:
    """Return ``rows`` aligned to 64 bytes, for a fixed order of sums."""
    return rows.contiguous() if rows.data_ptr() % 64 == 0 else rows.clone()


@contextlib.contextmanager
def _no_dropout(model: nn.Module) -> Iterator[None]:
    layers = [m for m in model.modules() if isinstance(m, nn.modules.dropout._DropoutNd)]
    before = [layer.p for layer in layers]
    for layer in layers:
        layer.p = 0.0
    try:
        yield
    finally:
        for layer, p in zip(layers, before, strict=True):
            layer.p = p


def clip_factor(
    squared_norm: torch.Tensor, count: int, clip_norm: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return which gradients are finite, and min(1, C/‖gⱼ‖); each of shape ``(b,)``.

    The factor is 0 for records that are not finite, and for all after the first ``count``.
    """
    # The norm of a gradient with NaN or ∞ in it is not finite either: one test a record. A gradient
    # with a squared norm that overflows counts as zero, too.
    finite = torch.isfinite(squared_norm)
    # A squared norm of 0 has rsqrt = ∞, which the clamp makes 1: a gradient of zeros stays as it
    # is.
    factor = torch.where(finite, (clip_norm * squared_norm.rsqrt()).clamp(max=1.0), 0.0)
    # The rows that fill the batch up.
    factor[count:] = 0
    return finite, factor


def all_known(finite: torch.Tensor) -> bool:
    """Return True if all are, on the CPU; on another device False, unasked.

    Another device would have to finish all that is queued before it could say so.
    """
    return finite.device.type == "cpu" and bool(finite.all())


def squared_norms(rows: torch.Tensor) -> torch.Tensor:
    """Return the squared l2 norm of each row, shape ``(b,)``.

    In blocks, and blocks of blocks: torch adds a whole row one after another, and of 10⁷ equal
    squares float32 loses 4e-3, so that a record's gradient passes with more than the bound.
    """
    return _norms(rows).square()


def _norms(rows: torch.Tensor) -> torch.Tensor:
    if rows.shape[1] > _BLOCK:
        # Norms of blocks, then the norm of these norms: at each level at most _BLOCK squares add
        # up.
        whole = rows.shape[1] // _BLOCK * _BLOCK
        blocks = torch.linalg.vector_norm(rows[:, :whole].view(len(rows), -1, _BLOCK), dim=2)
        rest = torch.linalg.vector_norm(rows[:, whole:], dim=1, keepdim=True)
        return _norms(torch.cat([blocks, rest], dim=1))
    norms: torch.Tensor = torch.linalg.vector_norm(rows, dim=1)
    return norms


def outer_squared_norms(delta: torch.Tensor, a: torch.Tensor, bias: bool) -> torch.Tensor:
    """Return ‖δⱼ ⊗ [aⱼ, 1]‖² of each record, rounded up.

    float32 loses squares below 1e-38, which count when they meet a huge one: hence + 1e-34.
    """
    deltas, inputs = squared_norms(delta).add_(1e-34), squared_norms(a)
    return torch.addcmul(deltas, deltas, inputs) if bias else deltas * inputs.add_(1e-34)


def is_linear(model: nn.Module) -> bool:
    """Return whether ``model`` is one linear layer with a bias."""
    leaves = [m for m in model.modules() if not list(m.children())]
    *before, last = leaves
    return (
        type(model) is nn.Sequential
        and type(last) is nn.Linear
        and last.bias is not None
        and all(p.requires_grad for p in last.parameters())
        and all(type(m) in (nn.Flatten, nn.Identity) for m in before)
    )


def may_draw(model: nn.Module) -> bool:
    """Return whether ``model`` may draw random numbers."""
    return any(
        type(module) not in _DRAWLESS
        or "forward" in vars(module)
        or module._forward_hooks
        or module._forward_pre_hooks
        for module in model.modules()
    )


def rehearse(engine: Engine, batch: int) -> None:
    """Run two steps on made-up rows, or on one where rows go one by one, before data is touched.

    The second, of two rows, shows what the first left in the model. On another device their noise,
    too, of as many steps at once as there ever are.
    """
    x, y = engine.blank(batch)
    count, total = 1 if engine.one_by_one else batch, torch.zeros_like(engine.theta)
    engine.add_clipped_sum(total, x, y, count, math.inf, raising=True)
    # Ones, which an embedding can read, too.
    few = min(count, 2)
    engine.add_clipped_sum(total, torch.ones_like(x[:few]), y[:few], few, math.inf, raising=True)
    if total.device.type != "cpu":
        stream = RandomStream(bytes(32))  # its noise is dropped
        stream.draw_ahead(len(total), sys.maxsize)
        add_noise(total.double(), 1.0, stream)

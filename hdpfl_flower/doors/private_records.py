"""Record-level privacy for any Flower ClientApp: DP-SGD, plan of all rounds, ledger.

:class:`PrivateRecords` answers ``@app.train()``. An app gives its model, data set, loss and
optimizer; batches, clipping, noise and account are ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from flwr.app import ArrayRecord, Context, Message
from torch import nn
from torch.func import grad, vmap
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Dataset

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.doors.charged_updates import ChargedUpdates, LedgerPath, Release, log, moved
from hdpfl_flower.doors.dp_sgd import TrainedLoss, read_records, task_of
from hdpfl_flower.engines.dpsgd import train
from hdpfl_flower.engines.engine_choice import choose_engine
from hdpfl_flower.engines.engines import RecordLoss
from hdpfl_flower.errors import HDPFLError, ModelError, TermsError, WireError, is_ctrl_c, log_text
from hdpfl_flower.models.networks import refuse_mixing_layers
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.privacy.noise import ReleaseStreams
from hdpfl_flower.privacy.plan import Plan
from hdpfl_flower.system.devices import pick_device

Floats = npt.NDArray[np.float32]
MakeOptimizer = Callable[[list[nn.Parameter], int], Optimizer]
"""Function of the parameters and the round, from 1: the optimizer of that round."""

_MOST_TRIED = 500
"""Steps of a round that are tried out before any message."""


class PrivateRecords(ChargedUpdates):
    """Handler of ``@app.train()`` that trains an app's own model privately.

    Use ``app.train()(PrivateRecords(ledger, Net, load, epsilon=1.0, delta=1e-5, rounds=20,
    records=1000, batch_size=50, steps=20))``. Make the ledger once with :meth:`create_ledger`.

    Guarantees:
        All updates that leave in a run are (ε, δ)-DP for one record more or less, by DP-SGD (Abadi
        et al., CCS 2016, Algorithm 1) with Poisson batches, calibrated by PLD for all rounds. All
        runs together stay within the ledger's promise. A round is answered only once: the same
        request gets the same bytes. Every update is sealed in the ledger before it leaves.

        The records decide nothing except the sums to which noise is added. A record does not count,
        and changes nothing for the other records, if its item cannot be read (it raises, has
        another shape, is not finite, or has a target that does not fit the loss), or if the model
        or the loss raises on it. Nothing else leaves: no metric and no number of records. Messages
        other than for training are declined.

        Not covered are what the app's own code sends, or reads from the records, beside this
        handler; a ``dataset`` that raises, or has no length, because of single records: the update
        is then only noise and is charged, and such a record removes the sum of all other records,
        which changes the sum by b·C and not by C; a model, loss, optimizer or schedule that depends
        on the records; the time of a reply without ``reply_after``; and a process that is killed,
        whose round is lost and charged. Ctrl-C ends a simulation. In a SuperNode's own process a
        ``KeyboardInterrupt`` comes from the app.
    """

    def __init__(  # noqa: PLR0913 - the last by name
        self,
        ledger: LedgerPath,
        model: Callable[[], nn.Module],
        dataset: Callable[[Context], Dataset[Any]],
        *,
        epsilon: float,
        delta: float,
        rounds: int,
        records: int,
        batch_size: int,
        steps: int,
        loss: TrainedLoss | RecordLoss = "cross-entropy",
        targets: Literal["classes", "numbers"] = "classes",
        shape: tuple[int, ...] | None = None,
        optimizer: MakeOptimizer | None = None,
        schedule: Callable[[Optimizer], LRScheduler] | None = None,
        learning_rate: float = 0.1,
        clip_norm: float = 1.0,
        physical_batch: int = 256,
        device: str = "auto",
        weight_key: str = "num-examples",
        reply_after: float = 0.0,
        anchor: LedgerPath | None = None,
    ) -> None:
        """Set the client's terms, without reading or charging.

        Args:
            ledger: the file, or a function of a node's context that returns it.
            model: returns the network of the run; the server sends its ``state_dict``. No layer may
                mix records (BatchNorm).
            dataset: returns the client's map-style data set of pairs (features, target); a record
                must fail in its ``__getitem__`` alone.
            epsilon: ε of one run.
            delta: δ of one run, at least 1e-10.
            rounds: rounds of a run that are paid for.
            records: declared number of records N, a constant that counts as public.
            batch_size: expected size b of a batch: a step takes each record with probability b/N.
            steps: noisy steps of a round.
            loss: ``cross-entropy``, ``squared``, or a function of the outputs ``(1, outputs)`` and
                the target ``(1,)`` of one record that returns its loss, a scalar, as
                ``nn.CrossEntropyLoss()`` does. One that wants both in one shape gets ``(1,)`` by
                ``lambda outputs, target: nn.functional.mse_loss(outputs[:, 0], target)``.
            targets: of an own loss: ``classes`` (int64, below the number of outputs, at least 2)
                or ``numbers`` (float32).
            shape: of a record's features; None: ``(inputs,)`` of a model that begins with a linear
                layer.
            optimizer: makes the optimizer of a round; its gradients are the noisy means of the
                clipped ones. None: SGD at ``learning_rate``.
            schedule: makes the scheduler of an ``optimizer``, which steps after each of its steps.
                Both are tried out on gradients of ones: all optimizers are made, those of the first
                and the last round take up to 500 of their steps.
            learning_rate: η, without an ``optimizer``.
            clip_norm: C, the bound on a record's gradient (l2).
            physical_batch: records in memory at once.
            device: ``auto``, or a torch device.
            weight_key: key of the constant 1 that stands for the number of examples.
            reply_after: as of ``PrivateUpdates``.
            anchor: the ledger's anchor, as ``ledger``, if it was made with one.

        Raises:
            ProfileError, TermsError: a number is out of range, or a schedule has no optimizer.
            ModelError: the model cannot be trained record by record, or has two parameters in one
                memory; ``shape`` is missing; loss, optimizer or schedule raise.
        """
        if schedule is not None and optimizer is None:
            raise TermsError("PrivateRecords: 'schedule' needs an 'optimizer'")
        budget = {"epsilon": float(epsilon), "delta": float(delta)}
        profile = {
            "budget": budget,
            "run": budget,
            "training": {"batch-size": batch_size, "declared-records": records},
            "reply-after": float(reply_after),
        }
        terms = RunTerms().updated(
            strategy="fedavg",
            rounds=rounds,
            local_steps=steps,
            clip_norm=float(clip_norm),
            learning_rate=float(learning_rate),
        )
        super().__init__(ledger, profile, terms, weight_key, anchor)
        self._dataset, self._physical_batch = dataset, physical_batch
        self._optimizer, self._schedule = optimizer, schedule
        network = model()
        refuse_mixing_layers(network)
        self._parameter_of = _parameters_of(network)
        self._task = _task_of(network, loss, targets, shape)
        if callable(loss):
            _check_loss(loss, self._task, pick_device(device))
        self._engine = choose_engine(
            model,
            type(network).__name__,
            self._task,
            "auto",
            pick_device(device),
            loss=loss if callable(loss) else None,
        )
        self._rehearse()

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a round with a noisy update, other messages with a constant code."""

        def prepare(arrays: ArrayRecord) -> Release:
            start = self._start(arrays)

            def release(plan: Plan, server_round: int) -> Floats:
                return self._update(start, self._records(context), plan, server_round)

            return release

        return self._reply(message, context, prepare)

    def _moved(self, arrays: ArrayRecord, update: Floats) -> ArrayRecord:
        names = _names(arrays, self._engine.model)
        trained = {names[name]: name for name in arrays if names[name] in self._engine.parameters}
        by_name, position = dict[str, Floats](), 0
        for name, parameter in self._engine.parameters.items():
            by_name[trained[name]] = update[position : position + parameter.numel()]
            position += parameter.numel()
        # In the order of the message, which need not be the model's.
        parts = [by_name[name] for name in arrays if name in by_name]
        result = moved(arrays, np.concatenate(parts), frozenset(by_name))
        for name in arrays:  # every name of a tied parameter has its numbers
            if (tied := self._parameter_of.get(names[name])) in trained:
                result[name] = result[trained[tied]]
        return result

    def _start(self, arrays: ArrayRecord) -> Floats:
        """Return the message's trained numbers, in the model's order; set its other numbers."""
        names = _names(arrays, self._engine.model)
        values = {
            names[name]: torch.from_numpy(array.numpy().copy()) for name, array in arrays.items()
        }
        if any(values[names[key]].shape != tuple(arrays[key].shape) for key in arrays):
            raise WireError(
                "message: the data of an array have another shape than the array states"
            )
        for name, value in self._engine.model.state_dict().items():
            if self._parameter_of.get(name) not in self._engine.parameters:
                value.copy_(values[name])
        trained = [values[name].reshape(-1).float() for name in self._engine.parameters]
        start: Floats = torch.cat(trained).numpy()
        return start

    def _records(self, context: Context) -> Records:
        """Return the records that can be read; none where the data set fails."""
        try:
            return read_records(self._dataset(context), self._task, "PrivateRecords")
        except BaseException as reason:
            if is_ctrl_c(reason):
                raise
            log.error("the data set cannot be read: %s; the update is only noise", log_text(reason))
            return read_records(_Nothing(), self._task, "PrivateRecords")

    def _update(self, start: Floats, records: Records, plan: Plan, server_round: int) -> Floats:
        return train(
            self._engine,
            start,
            records,
            plan.round(server_round, self._terms.clip_norm),
            self._terms.learning_rate,
            ReleaseStreams.fresh(),
            self._physical_batch,
            step=self._steps(server_round),
        )

    def _steps(self, server_round: int) -> Callable[[torch.Tensor], None] | None:
        """Return a round's step by the app's own optimizer; None: plain SGD."""
        if self._optimizer is None:
            return None
        # Parameters that share the memory of theta, so that the optimizer moves it.
        parameters = [nn.Parameter(view) for view in self._engine.parameters.values()]
        optimizer = self._optimizer(parameters, server_round)
        schedule = self._schedule(optimizer) if self._schedule else None

        def step(gradient: torch.Tensor) -> None:
            parts = torch.split(gradient, [parameter.numel() for parameter in parameters])
            for parameter, part in zip(parameters, parts, strict=True):
                parameter.grad = part.view_as(parameter).clone()
            optimizer.step()
            if schedule is not None:
                schedule.step()

        return step

    def _rehearse(self) -> None:
        """Step all optimizers by gradients of ones; raise ``ModelError`` if a step fails."""
        theta, last = self._engine.theta, self._terms.rounds
        before, server_round, taken = theta.clone(), 1, 0
        try:
            for server_round in range(1, last + 1 if self._optimizer else 1):
                theta.copy_(before)
                taken, step = 0, self._steps(server_round)
                count = self._terms.local_steps if server_round in (1, last) else 0
                while step is not None and taken < min(count, _MOST_TRIED):
                    step(torch.ones_like(theta))
                    taken += 1
                if server_round == 1 and torch.equal(theta, before):
                    raise ModelError(
                        "PrivateRecords: the steps of the optimizer do not move the model; "
                        "give the optimizer the parameters with which 'optimizer' is called"
                    )
        except HDPFLError:
            raise
        except Exception as error:
            raise ModelError(
                f"PrivateRecords: the optimizer or schedule of round {server_round} raises "
                f"{type(error).__name__} after {taken} steps ({error}); it must take "
                "all 'steps' of each of the 'rounds', without a closure"
            ) from error
        finally:
            theta.copy_(before)


class _Nothing(Dataset[Any]):
    """Data set without records."""

    def __len__(self) -> int:
        return 0

    def __getitem__(self, row: int) -> Any:
        raise IndexError(row)


def _task_of(
    network: nn.Module,
    loss: TrainedLoss | RecordLoss,
    targets: str,
    shape: tuple[int, ...] | None,
) -> Task:
    """Return shapes and targets, by the loss or, of an own one, by ``targets``."""
    if not callable(loss):
        return task_of(network, loss, shape)
    if targets not in ("classes", "numbers"):
        raise TermsError("PrivateRecords: 'targets' must be 'classes' or 'numbers'")
    task = task_of(network, "cross-entropy", shape)
    if targets == "classes" and task.outputs == 1:
        raise TermsError(
            "PrivateRecords: a model of one output has no classes for an own 'loss'; set "
            "targets='numbers', which may be 0 and 1"
        )
    kind: Literal["squared", "softmax"] = "squared" if targets == "numbers" else "softmax"
    return Task(task.input_shape, task.outputs, kind)


def _parameters_of(network: nn.Module) -> dict[str, str]:
    """Return name → the first name of the same parameter, of which tied ones have several.

    Raises:
        ModelError: another tensor shares a parameter's memory: it would come untied.
    """
    parameters = list(network.named_parameters(remove_duplicate=False))
    first = {id(value): name for name, value in reversed(parameters)}
    places = {value.data_ptr(): name for name, value in parameters if value.numel()}
    by_name = {name: first[id(value)] for name, value in parameters}
    for name, value in network.state_dict().items():
        other = places.get(value.data_ptr(), name)
        if by_name.get(other) != by_name.get(name):
            raise ModelError(
                f"PrivateRecords: '{name}' and '{other}' of the model share memory, but are not "
                "one parameter; tie them by assigning the parameter: self.b.weight = "
                "self.a.weight"
            )
    return by_name


def _check_loss(loss: RecordLoss, task: Task, device: str) -> None:
    """Compute an own loss of zeros, as training does; raise ``ModelError`` where it fails."""
    kind = torch.float32 if task.loss == "squared" else torch.int64
    outputs = torch.zeros(2, 1, task.outputs, device=device)
    target = torch.zeros(2, 1, dtype=kind, device=device)
    called = f"outputs of shape (1, {task.outputs}) and a target of shape (1,), {kind}"
    try:
        with torch.random.fork_rng():
            value = loss(outputs[0], target[0])
            if value.ndim == 0:
                vmap(grad(loss), randomness="different")(outputs, target)
    except Exception as error:
        raise ModelError(
            f"PrivateRecords: 'loss' raises {type(error).__name__}; torch.func calls it with "
            f"{called}: reshape them in a function of your own, without .item() or numpy"
        ) from error
    if value.ndim:
        raise ModelError(
            f"PrivateRecords: 'loss' returns a value of shape {tuple(value.shape)} for {called}; "
            "it must be a scalar: reduction='mean', or .sum()"
        )


def _names(arrays: ArrayRecord, model: nn.Module) -> dict[str, str]:
    """Return array → name in the model's ``state_dict``: the same, or by the order of both.

    Raises:
        WireError: the arrays are of another model.
    """
    state = model.state_dict()
    names = {name: name for name in arrays}
    if names.keys() != state.keys():  # of a server that sends a list of arrays
        names = dict(zip(arrays, state, strict=False))
    shapes = {names.get(name): tuple(array.shape) for name, array in arrays.items()}
    if shapes != {name: tuple(value.shape) for name, value in state.items()}:
        raise WireError(
            "message: its arrays differ from those of the model; the server must send "
            "ArrayRecord(model.state_dict()) of the same model"
        )
    return names

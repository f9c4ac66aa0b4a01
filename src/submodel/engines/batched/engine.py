"""The batched engine: clients whose sub-models have equal shapes train together, step by step.

For a small sub-model, operator overhead dominates; a stack of sub-models has this overhead once.
Results are those of the serial engine up to the order of floating-point sums.

Clients with different numbers of examples stay exact, including batch statistics, as every step is
computed for clients with batches of one size only. Clients are independent, so all take batch b of
pass e before any takes the next. They are sorted by their number of examples; those with equal
batches are then always neighbours in the stack, and their slice of it is a view.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, groupby
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from submodel.algorithm.execution import Bundle
from submodel.algorithm.types import Assignment, Setup, Task, Update
from submodel.engines.batched.forward import Forward, UnstackableError, WideForward
from submodel.engines.batched.layers import TORCH_KERNELS, LayerKernels
from submodel.engines.batched.recording import Fuse
from submodel.engines.batched.replay import Replays, StepKind
from submodel.engines.batched.stack import Stack, StackedLoss, StackSlice, step_in_pieces
from submodel.engines.batched.vmap import MappedForward
from submodel.engines.device import move, move_examples, place_examples, take_batch
from submodel.engines.estimate import TORCH_COSTS, Estimate, StepCosts
from submodel.engines.serial import SerialEngine
from submodel.engines.single_examples import FAILURES, explain_failure
from submodel.model.build import build_module, sharing, tensors_of, to_device
from submodel.model.cut import WHOLE, Cut
from submodel.model.inputs import Inputs, first_column, map_inputs
from submodel.model.norm import has_scaler, set_rate
from submodel.tasks.loss import LossSums
from submodel.tasks.training import batches, batches_per_pass, count_steps, forward_context

_log = logging.getLogger(__name__)

COLLECTED_VALUES = 1 << 25
"""The number of values in tensors of tasks to collect at a time: 128 MB of float32."""
STACKED_BYTES = 1 << 20
"""The largest size of one activation of a stack in bytes, so that it stays in a core's cache.

Measured in `benchmarks/results/stacking.json`: up to this size a larger stack costs less per
client, as overhead is shared; beyond, it costs the same or more, as memory access dominates. The
rule depends on shapes alone, never on a clock, so a resumed run forms the same stacks.
"""
_KEPT_SHAPES = 16


class StackTraining(Protocol):
    """All steps of the clients of a stack in one call."""

    def can_train(self, task: Task, loss: StackedLoss) -> bool:
        """Return whether clients with this task can be trained; depends on shapes and settings."""

    def train(self, stack: Stack, clients: Sequence[StackedClient], loss: StackedLoss) -> LossSums:
        """Take all steps of all clients, in the order of the stack; return their losses."""


class Backend(Protocol):
    """A replacement of torch for computing stacks."""

    costs: StepCosts
    kernels: LayerKernels
    fuse: Fuse
    """Fuses operators of a recorded step."""

    def forward(self, wide: WideForward) -> Forward:
        """The forward pass of a net; raise `UnstackableError` if the net is not supported."""

    def training(self, forward: Forward, setup: Setup) -> StackTraining | None:
        """The training of nets of a forward pass in one call, if supported."""


@dataclass(frozen=True)
class StackedClient:
    """A task with its batches, as positions in the training set."""

    task: Task
    total: int
    batches: list[NDArray[np.int64]]
    per_pass: int  # batches in one pass over the examples

    @classmethod
    def of(cls, setup: Setup, task: Task) -> StackedClient:
        """The batches of a task."""
        where = task.assignment
        indices = setup.clients.indices(where.client)
        order = batches(len(indices), task.work, setup.seed, where.round, where.client)
        per_pass = batches_per_pass(len(indices), task.work)
        return cls(task, len(indices), [indices[b] for b in order], per_pass)

    @property
    def largest_batch(self) -> int:
        """The number of examples in the largest batch."""
        return max(map(len, self.batches), default=0)

    def batch(self, number: int, step: int) -> NDArray[np.int64] | None:
        """Batch ``step`` of pass ``number``, if there is one."""
        position = number * self.per_pass + step
        if step >= self.per_pass or position >= len(self.batches):
            return None
        return self.batches[position]


@dataclass(frozen=True)
class JointStep:
    """A joint step of neighbouring clients with batches of one size."""

    start: int
    stop: int
    positions: NDArray[np.int64]  # of all their examples, example by example
    steps: list[int]  # the number of the step for each client


def schedule(clients: Sequence[StackedClient]) -> Iterator[JointStep]:
    """All steps of all clients: all take a batch of a pass before any takes the next."""
    longest = max(client.per_pass for client in clients)
    for number in count():
        has_batches = False
        for step in range(longest):
            now = [client.batch(number, step) for client in clients]
            sizes = [0 if batch is None else len(batch) for batch in now]
            for size, members in groupby(range(len(clients)), key=sizes.__getitem__):
                if size:
                    has_batches = True
                    group = list(members)
                    together = np.stack([b for i in group if (b := now[i]) is not None], 1)
                    steps = [number * clients[i].per_pass + step for i in group]
                    yield JointStep(group[0], group[-1] + 1, together.ravel(), steps)
        if not has_batches:
            return


class BatchedEngine:
    """Trains tasks in stacks; tasks that cannot be stacked go to the serial engine."""

    def __init__(
        self,
        setup: Setup,
        device: torch.device | str = "cpu",
        always: bool = False,
        backend: Backend | None = None,
    ) -> None:
        """Make an engine for one setup.

        ``always``: stacks are as large as memory allows, not as large as is fastest.
        """
        self._setup = setup
        self._device = torch.device(device)
        self._always = always
        self._serial = SerialEngine(setup, device)
        self._backend = backend
        self._kernels = TORCH_KERNELS if backend is None else backend.kernels
        self._estimate = Estimate(setup, TORCH_COSTS if backend is None else backend.costs)
        self._tensors = {n: t.to("meta") for n, t in tensors_of(setup.module).items()}
        self._name = type(setup.module).__name__
        self._has_scaler = has_scaler(setup.module)
        self._examples = place_examples(setup.clients.dataset.train, self._device)
        self._example = move_examples(self._examples.take(slice(2)), self._device).x
        self._mapped_shapes: dict[object, MappedForward] = {}
        self._refusal: str | None = None  # the reason why the module cannot be stacked at all
        self._wide = self._make_wide()
        self._replays = Replays(None if backend is None else backend.fuse)
        self._training: StackTraining | None = None
        if backend is not None and self._wide is not None:
            self._training = backend.training(self._wide, setup)

    def bundles(self, assignments: Sequence[Assignment]) -> list[Bundle]:
        """Stacks of clients of one capacity with similar numbers of examples."""
        bundles = []
        for capacity in dict.fromkeys(a.capacity for a in assignments):
            equal = [a for a in assignments if a.capacity == capacity]
            equal.sort(key=lambda a: self._setup.clients.size(a.client))
            cut = self._estimate.cut(capacity)
            size = self._stack_size(cut, self._estimate.batch(equal[-1].client))
            if self._setup.scheme.step_rule(capacity) is not None:
                size = 1  # a step rule applies to single clients
            for part in np.array_split(np.arange(len(equal)), -(-len(equal) // size)):
                bundles.append(self._estimate.bundle([equal[i] for i in part]))
        return bundles

    def _stack_size(self, cut: Cut, batch: int) -> int:
        """The number of clients of one shape that train together."""
        forward = self._wide or self._mapped_forward(cut)
        if forward is None:
            return 1
        shapes = {n: cut.shape(n, t.shape) for n, t in self._tensors.items()}
        values = sum(map(math.prod, shapes.values()))
        memory = max(1, COLLECTED_VALUES // values)
        if self._always:
            return memory
        activation = forward.largest({n: s[0] if s else 1 for n, s in shapes.items()}) * batch
        width = next(iter(self._tensors.values())).element_size()
        return min(memory, max(1, STACKED_BYTES // max(activation * width, 1)))

    def run(self, tasks: Iterable[Task]) -> Iterator[Update]:
        """Train every task; updates are returned stack by stack."""
        waiting = iter(tasks)
        while window := list(_collect(waiting)):
            for key in dict.fromkeys(map(self._key, window)):
                yield from self._train_equal([t for t in window if self._key(t) == key])

    def _key(self, task: Task) -> tuple[object, ...]:
        """A key that is equal for tasks that may share a stack."""
        classes = None if task.classes is None else len(task.classes)
        capacity = task.assignment.capacity if self._has_scaler else None
        plain = task.step_rule is None
        steps = self._steps(task) if task.work.rates.vary else None
        return task.cut.shape_key, classes, task.work, capacity, tuple(task.scales), plain, steps

    def _steps(self, task: Task) -> tuple[int, int]:
        """Batches per pass, and steps: clients in a stack must have the same learning rates."""
        total = self._setup.clients.size(task.assignment.client)
        return batches_per_pass(total, task.work), count_steps(total, task.work)

    def _train_equal(self, tasks: Sequence[Task]) -> Iterator[Update]:
        """Train tasks of one shape in stacks of bounded size."""
        forward = self._wide or self._mapped_forward(tasks[0].cut)
        if forward is None or tasks[0].step_rule is not None:
            yield from self._serial.run(tasks)
            return
        clients = [StackedClient.of(self._setup, task) for task in tasks]
        clients.sort(key=lambda c: c.total)
        size = self._stack_size(tasks[0].cut, clients[-1].largest_batch)
        stacks = -(-len(clients) // size)
        if forward is not self._wide and stacks == len(clients):
            yield from self._serial.run(tasks)  # vmap over one client only adds overhead
            return
        for part in np.array_split(np.arange(len(clients)), stacks):  # stacks of even size
            yield from self._train_stack(forward, [clients[i] for i in part])

    def _make_wide(self) -> Forward | None:
        try:
            module = to_device(self._whole(), self._device).train()
            wide = WideForward(module, self._example)
            forward = wide if self._backend is None else self._backend.forward(wide)
        except UnstackableError as error:
            _log.info("%s is not stacked by channels: %s", self._name, error)
            return None
        module.to("meta")  # the graph needs its layers' settings, not their weights
        return forward

    def _whole(self) -> nn.Module:
        """A copy of the whole module, which shares its weights if they have values."""
        module = self._setup.module
        if any(parameter.is_meta for parameter in module.parameters()):
            return build_module(module, WHOLE)
        return sharing(module, tensors_of(module))

    def _mapped_forward(self, cut: Cut) -> MappedForward | None:
        """The mapped forward for stacks of this shape; None if clients must train one by one."""
        key = cut.shape_key
        if self._refusal is None and key not in self._mapped_shapes:
            while len(self._mapped_shapes) >= _KEPT_SHAPES:
                self._mapped_shapes.pop(next(iter(self._mapped_shapes)))
            module = to_device(build_module(self._setup.module, cut), self._device).train()
            try:
                self._mapped_shapes[key] = MappedForward(
                    module, self._setup.module, self._example, self._kernels
                )
            except UnstackableError as error:
                self._refusal = str(error)
                _log.warning("%s trains one client after another: %s", self._name, error)
        return None if self._refusal is not None else self._mapped_shapes[key]

    def _train_stack(self, forward: Forward, clients: Sequence[StackedClient]) -> Iterator[Update]:
        tasks = [client.task for client in clients]
        loss = StackedLoss(self._setup, tasks, self._device, self._kernels)
        shared_names = self._setup.travel.base_names if forward is not self._wide else ()
        local_names = forward.local_names if isinstance(forward, MappedForward) else ()
        stack = Stack(self._setup.module, tasks, self._device, shared_names, local_names)
        set_rate(forward.module, tasks[0].assignment.capacity)
        if self._training is not None and self._training.can_train(tasks[0], loss):
            loss_sums = self._training.train(stack, clients, loss)
        else:
            loss_sums = self._train_by_steps(forward, clients, stack, loss)
        losses = zip(loss_sums.means(), loss_sums.counts, strict=True)
        results = zip(clients, losses, stack.unstack(), stack.unstack_slots(), strict=True)
        for client, (mean, weight), tensors, slots in results:
            where, cut, total = client.task.assignment, client.task.cut, client.total
            example_count = sum(map(len, client.batches))
            updated = self._setup.travel.of_update(tensors)
            yield Update(where, cut, updated, total, example_count, mean, (), weight, slots)

    def _train_by_steps(
        self, forward: Forward, clients: Sequence[StackedClient], stack: Stack, loss: StackedLoss
    ) -> LossSums:
        """Train all clients step by step; return their losses."""
        tasks = [client.task for client in clients]
        loss_sums = LossSums(len(clients), self._device)
        work, total_steps = tasks[0].work, count_steps(clients[0].total, tasks[0].work)
        kind = None
        if loss.is_own and self._device.type == "cpu":
            kind = StepKind.of(forward, tasks[0], self._has_scaler)
        for joint in schedule(clients):
            x, y = self._batch(joint, tasks)
            part = stack.select(joint.start, joint.stop)
            present = loss.present(joint.start, joint.stop)

            def compute(
                x: Inputs, y: Tensor, part: StackSlice = part, present: Tensor | None = present
            ) -> tuple[Tensor, Tensor | list[float]]:
                with forward_context(y.device, work.precision):
                    try:
                        outputs = forward(part.effective_tensors(), part.clients, x)
                        return loss(outputs, y, present)
                    except FAILURES as error:
                        explain_failure(self._setup, tasks, error)
                        raise

            lr = work.lr * work.rates.factor(joint.steps[0], total_steps)
            if work.pieces == 1:
                outcome = self._replays.of_slice(kind, part, compute, x, y, present)
                values, counts = part.step(outcome, work, lr)
                del outcome  # free the gradients before the next are computed
            else:
                values, counts = step_in_pieces(part, x, y, compute, work, lr)
            loss_sums.add(values, counts, joint.start)
        return loss_sums

    def _batch(self, joint: JointStep, tasks: Sequence[Task]) -> tuple[Inputs, Tensor]:
        """Inputs and targets of shape (batch, clients, ...), augmented separately per client."""
        rows = move(torch.from_numpy(joint.positions), self._examples.y.device)
        clients = joint.stop - joint.start

        def batch(tensor: Tensor) -> Tensor:
            return take_batch(tensor, rows, self._device).view(-1, clients, *tensor.shape[1:])

        x = map_inputs(batch, self._examples.x)
        if augment := self._setup.augment:
            apart = zip(tasks[joint.start : joint.stop], joint.steps, first_column(x).unbind(1),
                        strict=True)  # fmt: skip
            x = torch.stack(
                [augment(images, t.assignment.round, t.assignment.client, step)
                 for t, step, images in apart], dim=1,
            )  # fmt: skip
        return x, batch(self._examples.y)


def _collect(tasks: Iterator[Task]) -> Iterator[Task]:
    """Tasks up to the limit on their values, at least one."""
    values = 0
    for task in tasks:
        values += sum(tensor.numel() for tensor in task.tensors.values())
        yield task
        if values >= COLLECTED_VALUES:
            return

"""The serial engine, which runs one task after another in this process."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import nn

from submodel.algorithm.execution import Bundle
from submodel.algorithm.types import Assignment, Setup, Task, Update
from submodel.core.randomness import default_generators, key, seeded
from submodel.engines.device import move, place_examples
from submodel.engines.estimate import Estimate
from submodel.engines.single_examples import FAILURES, explain_failure
from submodel.model.build import build_module, fill_local, load, load_local, tensors_of, to_device
from submodel.model.cut import Cut
from submodel.model.norm import set_rate
from submodel.schemes.scheme import Client
from submodel.schemes.unbiased import scaled_step
from submodel.tasks.loss import CountingLoss, MaskedCrossEntropy, smoothing_of
from submodel.tasks.training import Step, batches, plain_step, train_module

_KEPT_MODULES, _KEPT_VALUES = 16, 1 << 24


class SerialEngine:
    """Trains tasks one by one; caches the small modules of recent shapes."""

    def __init__(self, setup: Setup, device: torch.device | str = "cpu") -> None:
        self._setup = setup
        self._device = torch.device(device)
        self._estimate = Estimate(setup)
        self._modules: OrderedDict[tuple[tuple[str, int], ...], nn.Module] = OrderedDict()

    def bundles(self, assignments: Sequence[Assignment]) -> list[Bundle]:
        """One bundle per assignment."""
        return [self._estimate.bundle([assignment]) for assignment in assignments]

    def run(self, tasks: Iterable[Task]) -> Iterator[Update]:
        """Train every task, in the order given."""
        for task in tasks:
            yield self._train(task)

    def _module(self, cut: Cut) -> nn.Module:
        shapes = cut.shape_key
        if shapes not in self._modules:
            self._modules[shapes] = to_device(build_module(self._setup.module, cut), self._device)
            sizes = [sum(p.numel() for p in m.parameters()) for m in self._modules.values()]
            while len(sizes) > 1 and (len(sizes) > _KEPT_MODULES or sum(sizes) > _KEPT_VALUES):
                self._modules.popitem(last=False)
                sizes.pop(0)
        self._modules.move_to_end(shapes)
        return self._modules[shapes]

    def _train(self, task: Task) -> Update:
        setup, where = self._setup, task.assignment
        client_examples = setup.clients.examples(where.client)
        examples = place_examples(client_examples, self._device)
        client_loss = setup.loss
        if task.classes is not None and setup.clients.dataset.classes is not None:
            present = torch.from_numpy(task.classes).to(self._device)
            classes = setup.clients.dataset.classes
            smoothing = smoothing_of(setup.loss)
            client_loss = MaskedCrossEntropy(present, classes, setup.absent_labels, smoothing)
        loss = CountingLoss(client_loss)
        module = self._module(task.cut)
        load(module, {n: move(t, self._device, copy=True) for n, t in task.tensors.items()})
        if task.local is None:
            load_local(module, setup.module, task.cut)
        else:
            fill_local(module, task.local)
        set_rate(module, where.capacity)  # capacities may share a shape
        masks = {
            name: mask.to(self._device)
            for name in task.tensors
            if (mask := task.cut.mask(name)) is not None
        }
        client_step = None
        if task.step_rule is not None:
            key_of = (setup.seed, where.round, where.client)
            client = Client(module, task.cut, self._module, task.work, loss, setup.least, key_of)
            client_step = task.step_rule.begin(client)
        step: Step = client_step or plain_step(module, task.work, loss)
        if task.scales:
            factors = {name: factor.to(self._device) for name, factor in task.scales.items()}
            step = scaled_step(step, module, factors)
        seed = key(setup.seed, "torch", where.round, where.client) % 2**63
        with seeded(seed, default_generators(self._device)):  # dropout draws from the task's key
            order = batches(len(examples), task.work, setup.seed, where.round, where.client)
            augment = setup.augment.of_client(where.round, where.client)
            earlier = None
            if task.slots is not None:
                earlier = {n: move(t, self._device) for n, t in task.slots.items()}
            try:
                result = train_module(
                    module, examples, order, task.work, loss, masks, step, augment, earlier
                )
            except FAILURES as error:
                explain_failure(setup, [task], error)
                raise
        own_memory = dict(module.named_parameters()).keys()  # the next task reuses buffers
        tensors = {
            name: tensor.to("cpu", copy=name not in own_memory)
            for name, tensor in setup.travel.of_update(tensors_of(module)).items()
        }
        passes = () if client_step is None else client_step.passes
        counts = len(examples), result.examples_used
        slots = None if result.slots is None else {n: t.cpu() for n, t in result.slots.items()}
        return Update(
            where, task.cut, tensors, *counts, result.loss, passes, result.examples_counted, slots
        )

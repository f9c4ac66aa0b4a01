"""Ordered dropout: nested prefixes, with a width drawn for every local step (FjORD).

A step at width q loads the prefix of the client's weights into a small module of that width, and
copies the gradient back: it is zero outside the prefix. No tensor of a module is exchanged during
its forward pass, so tied weights and layers used twice need no special treatment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Self

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from submodel.core.options import Capacity, Section
from submodel.core.randomness import generator
from submodel.model.axes import CLASSES, Axes
from submodel.model.axes.declare import prefix, units_held
from submodel.model.axes.layout import Indices
from submodel.model.cut import Cut, Plan, PlannedCut, Tensors, UnitCut, copy_part
from submodel.model.inputs import Inputs, call, count_rows
from submodel.model.norm import set_rate
from submodel.schemes.draw import ModelKnowledge, draw_units
from submodel.schemes.rolling import Static
from submodel.schemes.scheme import (
    Client,
    Draw,
    Key,
    Mask,
    Passes,
    RunFacts,
    Scheme,
    SchemeContext,
)
from submodel.tasks.loss import CountingLoss, Loss, MaskedCrossEntropy
from submodel.tasks.optimisers import Gradients
from submodel.tasks.training import forward_context, trainable_parameters

_BY_PLACE = Static()


def narrower(
    cut: Cut, width: float, least: Mapping[str, float], masks: Scheme = _BY_PLACE
) -> UnitCut:
    """Return the nested cut of a width, by default a prefix, with the classes of ``cut``."""
    assert isinstance(cut, UnitCut)  # `Ordered.problems` refuses others
    return draw_units(masks, cut.axes, width, Draw(0, 0, 0), cut.units.get(CLASSES), least)


def within(inner: Plan, outer: Plan) -> PlannedCut:
    """Return the positions of ``inner`` within ``outer``, both of which select from the whole.

    >>> outer = {"w": ((0, np.array([1, 4, 5, 7])),)}
    >>> within({"w": ((0, np.array([1, 5])), (1, np.array([0])))}, outer).plan["w"]
    ((0, array([0, 2])), (1, array([0])))
    """
    plan = {}
    for name, entries in inner.items():
        outer_indices = dict(outer.get(name, ()))
        plan[name] = tuple(
            (d, np.searchsorted(outer_indices[d], k) if d in outer_indices else k)
            for d, k in entries
        )
    return PlannedCut(plan)


def drawn_width(widths: Sequence[float], key: Key, step: int) -> float:
    """Draw the width q of a client's step, uniformly from its widths."""
    seed, round_, client = key
    return widths[int(generator(seed, "width", round_, client, step).integers(len(widths)))]


@dataclass(frozen=True)
class NestedSteps:
    """Steps at widths that are drawn uniformly."""

    widths: tuple[float, ...]  # ascending; the last is the client's capacity
    distill: float = 0.0  # the weight of distillation from the widest to narrower widths
    masks: Scheme = field(default=_BY_PLACE, repr=False)  # draws the units of a width; cuts nest

    def begin(self, client: Client) -> NestedStep:
        """Return the steps of a client."""
        return NestedStep(self, client)

    def cut(self, cut: Cut, width: float, least: Mapping[str, float]) -> Cut:
        """Return the nested cut of a width."""
        return narrower(cut, width, least, self.masks)

    def plan_passes(
        self, cut: Cut, lengths: Sequence[int], least: Mapping[str, float], key: Key
    ) -> Passes:
        """Predict the passes of steps on batches of these lengths."""
        shapes = {w: narrower(cut, w, least, self.masks).shape_key for w in self.widths}
        whole = [w for w in self.widths if shapes[w] == cut.shape_key]
        examples: Counter[float] = Counter()
        for step, length in enumerate(lengths):
            width = drawn_width(self.widths, key, step)
            examples[width] += length
            if self.distill and width not in whole:
                examples[self.widths[-1]] += length
        return tuple(sorted(examples.items()))


def nested_steps(
    widths: Sequence[float], capacity: float, distill: float, masks: Scheme = _BY_PLACE
) -> NestedSteps | None:
    """Return steps at the widths up to a capacity; None if there is one width, for plain steps."""
    own_widths = tuple(sorted({w for w in widths if w <= capacity}))
    return NestedSteps(own_widths, distill, masks) if len(own_widths) > 1 else None


def divergence(loss: Loss, student: Tensor, teacher: Tensor) -> Tensor:
    """Return KL(teacher || student) of the distributions over classes, the mean over the batch.

    >>> same = torch.tensor([[1.0, 2.0]])
    >>> float(divergence(functional.cross_entropy, same, same))
    0.0
    """
    loss = loss.loss if isinstance(loss, CountingLoss) else loss
    if isinstance(loss, MaskedCrossEntropy):
        student, teacher = loss.logits(student), loss.logits(teacher)
    return functional.kl_div(
        student.log_softmax(1), teacher.log_softmax(1), reduction="none", log_target=True
    ).sum(1).mean()  # fmt: skip


@dataclass(frozen=True)
class _Narrow:
    """A small module, and its cut of the client's tensors."""

    module: nn.Module
    cut: PlannedCut

    def load(self, parameters: Tensors, buffers: Tensors) -> None:
        for name, parameter in self.module.named_parameters():
            parameter.data = copy_part(self.cut, name, parameters[name].detach())
        for name, buffer in self.module.named_buffers():
            buffer.copy_(self.cut.part(name, buffers[name]))

    def store(self, buffers: Tensors) -> None:
        """Write running statistics back; a difference of equal numbers is exactly zero."""
        for name, buffer in self.module.named_buffers():
            before = self.cut.part(name, buffers[name])
            if not torch.equal(before, buffer):
                self.cut.add(name, buffers[name], -before)
                self.cut.add(name, buffers[name], buffer)

    def widen(self, name: str, gradient: Tensor, like: Tensor) -> Tensor:
        """Return the gradient in the shape of the client's tensor."""
        whole = torch.zeros_like(like)
        self.cut.add(name, whole, gradient)
        return whole


class NestedStep:
    """The loss of a batch and its gradient, at a width that is drawn for every step.

    Without distillation the loss is that of the prefix of width q. With weight alpha it is
    (1 - alpha) CE(q) + alpha KL(widest || q) + CE(widest), where the widest is the client's whole
    sub-model, detached in the divergence. A step that draws the widest is plain.
    """

    def __init__(self, rule: NestedSteps, client: Client) -> None:
        module, cut = client.module, client.cut
        self._rule, self._module, self._loss, self._key = rule, module, client.loss, client.key
        self._precision = client.work.precision
        self._parameters = trainable_parameters(module)
        self._buffers = dict(module.named_buffers())
        self._all = dict(module.named_parameters())
        self._narrow: dict[float, _Narrow] = {}
        assert isinstance(cut, UnitCut)
        for width in rule.widths:
            inner = narrower(cut, width, client.least, rule.masks)
            if inner.shape_key != cut.shape_key:  # otherwise the whole sub-model, by rounding
                small = client.build(inner).train()
                self._narrow[width] = _Narrow(small, within(inner.plan, cut.plan))
        self._examples: Counter[float] = Counter()

    @property
    def passes(self) -> Passes:
        """Training passes so far."""
        return tuple(sorted(self._examples.items()))

    def width(self, number: int) -> float:
        """Draw the width q of a step, uniformly from the client's widths."""
        return drawn_width(self._rule.widths, self._key, number)

    def __call__(self, number: int, x: Inputs, y: Tensor) -> tuple[Tensor, Gradients]:
        """Return the loss, and the gradient in the shapes of the client's tensors."""
        width = self.width(number)
        narrow = self._narrow.get(width)
        with forward_context(y.device, self._precision):
            value = self._value(narrow, width, x, y)
        wide = list(self._parameters.values())
        inner = [] if narrow is None else list(trainable_parameters(narrow.module).values())
        gradients: Gradients = torch.autograd.grad(value, [*wide, *inner], allow_unused=True)
        if narrow is not None:
            narrow.store(self._buffers)  # now that the widest's graph needs the old ones no more
            whole = self._widen_all(narrow, gradients[len(wide) :])
            gradients = [b if a is None else a if b is None else a + b
                         for a, b in zip(gradients[: len(wide)], whole, strict=True)]  # fmt: skip
        return value.detach(), gradients

    def _value(self, narrow: _Narrow | None, width: float, x: Inputs, y: Tensor) -> Tensor:
        if narrow is None:
            return self._loss(self._outputs(self._module, width, x), y)
        alpha, widest = self._rule.distill, self._rule.widths[-1]
        if not alpha:
            return self._loss(self._of_prefix(narrow, width, x), y)
        teacher = self._outputs(self._module, widest, x)
        student = self._of_prefix(narrow, width, x)
        value = self._loss(teacher, y) + alpha * divergence(self._loss, student, teacher.detach())
        return value if alpha == 1 else value + (1 - alpha) * self._loss(student, y)

    def _outputs(self, module: nn.Module, width: float, x: Inputs) -> Tensor:
        self._examples[width] += count_rows(x)
        set_rate(module, width)
        outputs: Tensor = call(module, x)
        return outputs

    def _of_prefix(self, narrow: _Narrow, width: float, x: Inputs) -> Tensor:
        narrow.load(self._all, self._buffers)
        return self._outputs(narrow.module, width, x)

    def _widen_all(self, narrow: _Narrow, gradients: Gradients) -> list[Tensor | None]:
        return [
            None if gradient is None else narrow.widen(name, gradient, like)
            for (name, like), gradient in zip(self._parameters.items(), gradients, strict=True)
        ]


@dataclass(frozen=True)
class Ordered(Scheme):
    """FjORD (Horvath, Laskaridis, Almeida, Leontiadis, Venieris, Lane 2021).

    "FjORD: Fair and accurate federated learning under heterogeneous targets with Ordered Dropout".
    A client of capacity c holds the prefix of c. For every batch it draws q uniformly from the
    ``widths`` up to c and takes the step of the prefix of width q of its own sub-model; all other
    weights have gradient zero in that step. With 0 < ``distill`` = alpha <= 1 the loss is

        (1 - alpha) CE(q) + alpha KL(softmax(widest) || softmax(q)) + CE(widest),

    at temperature 1, with the widest output detached in KL; the paper found alpha = 1 best.
    The paper averages a weight over the clients that hold it, which is the merge rule `selective`.
    """

    widths: tuple[float, ...]
    distill: float = 0.0

    class Options(Section):
        """The keys of ``ordered``."""

        widths: list[Capacity] | None = Field(
            None, min_length=1, description="widths that steps draw from (default: the capacities)"
        )
        distill: Annotated[float, Field(ge=0, le=1)] = Field(
            0.0, description="alpha, the weight of distillation from the widest width; 0: none"
        )

    @classmethod
    def configured(cls, options: Options, context: SchemeContext) -> Self:
        """Make the scheme; ``widths`` are by default the clients' capacities."""
        return cls(tuple(options.widths or context.capacities), options.distill)

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:  # noqa: ARG002
        """Select the first units, as `Static` does.

        >>> Ordered((0.5, 1.0)).select("hidden", 4, 0.5, Draw(0, 0, 0))
        array([ True,  True, False, False])
        """
        return prefix(size, units_held(capacity, size))

    def step_rule(self, capacity: float) -> NestedSteps | None:
        """Return steps at widths up to the capacity; with one width they are plain.

        >>> Ordered((1.0, 0.25, 0.5)).step_rule(0.5)
        NestedSteps(widths=(0.25, 0.5), distill=0.0)
        """
        return nested_steps(self.widths, capacity, self.distill)

    def problems(self, run: RunFacts) -> list[str]:
        """Return the reasons why prefixes, or distillation between them, are not defined."""
        problems = []
        if run.granularity == "coordinate":
            problems.append(
                "scheme.granularity: 'ordered' nests units; a prefix of the flat vector of all "
                "weights is not a narrower net; use 'unit'"
            )
        problems += [
            f"scheme.widths: lacks the capacity {c:g}: its clients would hold units that no step "
            "trains"
            for c in sorted(set(run.capacities) - set(self.widths))
        ]
        if self.distill and not run.has_labels:
            problems.append("scheme.distill: needs class labels and the cross-entropy loss")
        if run.output_step:
            problems.append(
                "train.output_step: the step of Algorithms 1 and 2 has one cut per client, "
                "'ordered' draws a width in every step"
            )
        return problems


UnitRanking = Mapping[str, Indices]
"""Units of every axis, in the order in which they are held."""


@dataclass(frozen=True, eq=False)
class RankedUnits(Scheme):
    """The first units of a ranking, so that smaller cuts nest in larger ones.

    It is not a component: a ranking belongs to one trained model, and cannot be configured.
    """

    ranking: UnitRanking
    sends_masks = True  # clients do not have the ranking

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:  # noqa: ARG002
        """Select the first units of the ranking.

        >>> RankedUnits({"hidden": np.array([2, 0, 1, 3])}).select("hidden", 4, 0.5, Draw(0, 0, 0))
        array([ True, False,  True, False])
        """
        mask = np.zeros(size, dtype=np.bool_)
        mask[self.ranking[axis][: units_held(capacity, size)]] = True
        return mask


@dataclass(frozen=True, eq=False)
class FinishingCuts(RankedUnits):
    """The scheme at the end of a run with ``train.finish``: `ordered`, by rank, not position."""

    widths: tuple[float, ...] = ()
    distill: float = 0.0

    def step_rule(self, capacity: float) -> NestedSteps | None:
        """Return steps at widths up to the capacity; with one width they are plain."""
        return nested_steps(self.widths, capacity, self.distill, RankedUnits(self.ranking))


def rank_by_size(axes: Axes, parameters: Mapping[str, Tensor]) -> dict[str, Indices]:
    """Rank the units of every axis by the mean |w| of their weights, as `importance` does."""
    knowledge = ModelKnowledge(axes, parameters, {})
    return {
        axis: np.argsort(-knowledge.magnitudes(axis), kind="stable")
        for axis in axes.cut_by_capacity
    }


def rank_first(sizes: Mapping[str, int], units: Mapping[str, Indices]) -> dict[str, Indices]:
    """Return the ranking with these units first; other axes are ranked by position.

    >>> rank_first({"a": 4, "b": 2}, {"a": np.array([1, 3])})
    {'a': array([1, 3, 0, 2]), 'b': array([0, 1])}
    """
    return {
        axis: np.concatenate([first, np.setdiff1d(np.arange(size), first)])
        for axis, size in sizes.items()
        for first in [np.asarray(units.get(axis, np.arange(size)), dtype=np.int64)]
    }

"""Steps of stacks that are repeated by their operators alone, once they came up often enough.

What autograd, vmap and Python do around the operators of a small step takes longer than these, and
comes to the same operators every time. So a kind of step that came up a few times is recorded,
tried against the usual way bit for bit, and repeated from then on. What a module does in Python
alone, such as counting its own calls, is done for recorded steps no more.
"""

from __future__ import annotations

import logging
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from submodel.algorithm.types import Task
from submodel.engines.batched.pieces import Compute
from submodel.engines.batched.program import Program, make_program
from submodel.engines.batched.recording import record
from submodel.engines.batched.stack import Share, StepOutcome
from submodel.model.inputs import Inputs, columns

_log = logging.getLogger(__name__)

USUAL_STEPS = 8
"""So many steps of a kind are computed the usual way; the last of them is recorded.

Recording takes what some ten repeated steps save (small GPT-2: 40 ms against 4). How many are to
come is not known here: a kind that was met so often is taken to be met as often again.
"""
_KEPT_KINDS = 128
_MOST_VALUES = 1 << 22
"""Of all inputs of a step: beyond, operators take so long that the rest hardly counts."""
_MOST_MISSES = 8


@dataclass(frozen=True)
class _Form:
    """An outcome without its tensors."""

    counts: list[float] | None
    has_gradient: tuple[bool, ...]

    @classmethod
    def of(cls, outcome: StepOutcome) -> _Form:
        counts = None if isinstance(outcome.counts, Tensor) else outcome.counts
        return cls(counts, tuple(gradient is not None for gradient in outcome.gradients))

    def fill(self, tensors: Sequence[Tensor]) -> StepOutcome:
        rest = iter(tensors)
        losses = next(rest)
        counts = next(rest) if self.counts is None else self.counts
        return StepOutcome(
            losses, counts, [next(rest) if has else None for has in self.has_gradient]
        )


@dataclass
class _Kind:
    """A kind of step, and what is known of it."""

    steps: int = 0
    misses: int = 0
    form: _Form | None = None
    program: Program | None = None
    is_proved: bool = False


class Replays:
    """The steps that an engine repeats.

    >>> replays, x = Replays(), torch.ones(3)
    >>> for _ in range(USUAL_STEPS + 2):
    ...     outcome = replays.outcome("double", [x], lambda: StepOutcome(x + x, [1.0], []))
    >>> replays.programs, outcome.losses
    (1, tensor([2., 2., 2.]))
    """

    def __init__(self) -> None:
        self._kinds: OrderedDict[Hashable, _Kind] = OrderedDict()

    @property
    def programs(self) -> int:
        """How many kinds of steps are repeated by their operators."""
        return sum(kind.is_proved for kind in self._kinds.values())

    def of_share(
        self,
        kind: Hashable,
        share: Share,
        compute: Compute,
        x: Inputs,
        y: Tensor,
        present: Tensor | None,
    ) -> StepOutcome:
        """What a step of a share computes.

        Args:
            kind: of `kind_of_steps`; None: it is not to be repeated.
            share: the clients that take it.
            compute: their losses.
            x: inputs of their batches.
            y: targets.
            present: the classes that each has, where the loss needs them.
        """
        if kind is None:
            return share.outcome(*compute(x, y))
        batch = [*columns(x).values(), y, *([] if present is None else [present])]
        shapes = tuple((t.shape, t.stride(), t.dtype) for t in batch)
        inputs = [*share.tensors.values(), *share.scales.values(), *batch]
        key = kind, share.clients, shapes
        return self.outcome(key, inputs, lambda: share.outcome(*compute(x, y)))

    def outcome(
        self, key: Hashable, inputs: Sequence[Tensor], compute: Callable[[], StepOutcome]
    ) -> StepOutcome:
        """What a step computes.

        Args:
            key: equal for steps that run the same operators on tensors of the same shapes.
            inputs: all tensors that differ between such steps.
            compute: the usual way.
        """
        kind = self._kinds.setdefault(key, _Kind())
        self._kinds.move_to_end(key)
        if len(self._kinds) > _KEPT_KINDS:
            self._kinds.popitem(last=False)
        kind.steps += 1
        if kind.is_proved:
            outcome = _repeat(kind, inputs)
            return compute() if outcome is None else outcome
        usual = compute()
        if kind.program is not None:
            _prove(kind, inputs, usual)
        elif kind.steps == USUAL_STEPS and sum(t.numel() for t in inputs) <= _MOST_VALUES:
            _record(kind, inputs, compute, usual)
        return usual


def kind_of_steps(task: Task, has_scaler: bool) -> Hashable:
    """Equal for tasks whose steps come to the same operators, if batches are of one shape.

    Args:
        task: one of a stack.
        has_scaler: whether the module's code knows the client's capacity.
    """
    capacity = task.assignment.capacity if has_scaler else None
    return task.cut.shape_key, capacity, tuple(task.scales), task.work.precision


def _repeat(kind: _Kind, inputs: Sequence[Tensor]) -> StepOutcome | None:
    """The recorded operators; None if the step must be computed the usual way."""
    assert kind.program is not None
    assert kind.form is not None
    try:
        with torch.no_grad():
            return kind.form.fill(kind.program(inputs))
    except Exception:  # another way through the code; or an error, which the usual way explains
        kind.misses += 1
        if kind.misses == _MOST_MISSES:
            kind.program, kind.is_proved = None, False
        return None


def _record(
    kind: _Kind, inputs: Sequence[Tensor], compute: Callable[[], StepOutcome], usual: StepOutcome
) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            recording = record(lambda: compute().tensors, inputs)
            kind.program, kind.form = make_program(recording), _Form.of(usual)
    except Exception as error:  # the usual way has done without it
        _log.info("steps of %d tensors are not repeated by operators: %s", len(inputs), error)


def _prove(kind: _Kind, inputs: Sequence[Tensor], usual: StepOutcome) -> None:
    """Try the program on a step other than the recorded one."""
    outcome = _repeat(kind, inputs)
    if outcome is not None and kind.form == _Form.of(usual):
        kind.is_proved = all(map(_is_same, outcome.tensors, usual.tensors))
    if not kind.is_proved:
        kind.program = None
        _log.info("a step of %d tensors, repeated by its operators, has other bits", len(inputs))


def _is_same(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors have the same bits and lie in memory in the same way."""
    looks = [(t.dtype, t.shape, t.stride()) for t in (first, second)]
    if looks[0] != looks[1]:
        return False
    flat = [t.detach().contiguous().view(-1).view(torch.uint8) for t in (first, second)]
    return torch.equal(*flat)

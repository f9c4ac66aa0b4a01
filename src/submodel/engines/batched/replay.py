"""Replay of frequent steps of stacks by their recorded operators.

For small steps, the overhead of autograd, vmap and Python takes longer than the operators, which
are the same every time. So a kind of step that has occurred several times is recorded, checked
against the usual computation bit for bit, and replayed from then on. Python side effects of a
module, such as counting its calls, do not happen in replayed steps.
"""

from __future__ import annotations

import logging
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from submodel.algorithm.types import Task
from submodel.engines.batched.forward import HOOKS, Forward, WideForward
from submodel.engines.batched.recording import Fuse, Program, make_program, record
from submodel.engines.batched.stack import Compute, StackSlice, StepOutcome
from submodel.engines.batched.vmap import MappedForward
from submodel.model.inputs import Inputs, columns

_log = logging.getLogger(__name__)

USUAL_STEPS, USUAL_WIDE_STEPS = 8, 32
"""The number of steps of a kind to compute the usual way; the last of them is recorded.

Recording costs the savings of about ten replayed steps (small GPT-2: 40 ms against 4), and more if
clients are folded into channels, which has less overhead (20 ms against 0.5). The number of future
steps is not known here; a kind is assumed to occur as often again.
"""
_KEPT_KINDS = 128
_MOST_VALUES, _MOST_WIDE_VALUES = 1 << 22, 1 << 19
"""Largest numbers of values in the inputs of a step; beyond, overhead hardly matters."""
_MOST_MISSES = 8


@dataclass(frozen=True)
class StepKind:
    """A key of steps with equal operators for equal batch shapes, and the limits for recording."""

    key: Hashable
    usual_steps: int = USUAL_STEPS
    most_values: int = _MOST_VALUES

    @classmethod
    def of(cls, forward: Forward, task: Task, has_scaler: bool) -> StepKind | None:
        """The kind of a stack's steps; None if it uses other code than torch's, or hooks."""
        capacity = task.assignment.capacity if has_scaler else None
        key = task.cut.shape_key, capacity, tuple(task.scales), task.work.precision
        if isinstance(forward, WideForward):
            return cls(("wide", *key), USUAL_WIDE_STEPS, _MOST_WIDE_VALUES)
        if not isinstance(forward, MappedForward) or _has_hooks(forward.module):
            return None
        return cls(key, USUAL_STEPS)


@dataclass(frozen=True)
class _Structure:
    """The structure of an outcome without its tensors."""

    counts: list[float] | None
    has_gradient: tuple[bool, ...]

    @classmethod
    def of(cls, outcome: StepOutcome) -> _Structure:
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
class _History:
    """The state of a kind of steps."""

    steps: int = 0
    misses: int = 0
    structure: _Structure | None = None
    program: Program | None = None
    is_verified: bool = False


class Replays:
    """The recorded steps of an engine.

    >>> replays, x = Replays(), torch.ones(3)
    >>> for _ in range(USUAL_STEPS + 2):
    ...     outcome = replays.outcome(StepKind("+"), [x], lambda: StepOutcome(x + x, [1.0], []))
    >>> replays.programs, outcome.losses
    (1, tensor([2., 2., 2.]))
    """

    def __init__(self, fuse: Fuse | None = None) -> None:
        self._fuse = fuse
        self._histories: OrderedDict[Hashable, _History] = OrderedDict()

    @property
    def programs(self) -> int:
        """The number of kinds of steps that are replayed."""
        return sum(history.is_verified for history in self._histories.values())

    def of_slice(
        self,
        kind: StepKind | None,
        part: StackSlice,
        compute: Compute,
        x: Inputs,
        y: Tensor,
        present: Tensor | None,
    ) -> StepOutcome:
        """Compute a step of a slice of a stack."""
        if kind is None:
            return part.outcome(*compute(x, y))
        batch = [*columns(x).values(), y, *([] if present is None else [present])]
        shapes = tuple((t.shape, t.stride(), t.dtype) for t in batch)
        inputs = [*part.tensors.values(), *part.scales.values(), *batch]
        kind = replace(kind, key=(kind.key, part.clients, shapes))
        return self.outcome(kind, inputs, lambda: part.outcome(*compute(x, y)))

    def outcome(
        self, kind: StepKind, inputs: Sequence[Tensor], compute: Callable[[], StepOutcome]
    ) -> StepOutcome:
        """Compute a step by replay if possible.

        ``kind`` has a key for the operators and the shapes of all tensors; ``inputs`` are all
        tensors that differ between such steps.
        """
        history = self._histories.setdefault(kind.key, _History())
        self._histories.move_to_end(kind.key)
        if len(self._histories) > _KEPT_KINDS:
            self._histories.popitem(last=False)
        history.steps += 1
        if history.is_verified:
            outcome = _repeat(history, inputs)
            return compute() if outcome is None else outcome
        usual = compute()
        is_small = sum(tensor.numel() for tensor in inputs) <= kind.most_values
        if history.program is not None:
            _verify(history, inputs, usual)
        elif history.steps == kind.usual_steps and is_small:
            _record(history, inputs, compute, usual, self._fuse)
        return usual


def _has_hooks(module: nn.Module) -> bool:
    """Return whether layers have hooks of the user; our own hooks select outputs."""
    hooks = (hook for layer in module.modules() for place in HOOKS
             for hook in getattr(layer, place).values())  # fmt: skip
    return any(type(hook).__module__.partition(".")[0] != "submodel" for hook in hooks)


def _repeat(history: _History, inputs: Sequence[Tensor]) -> StepOutcome | None:
    """Run the recorded operators; None if the step must be computed the usual way."""
    assert history.program is not None
    assert history.structure is not None
    try:
        with torch.no_grad():
            return history.structure.fill(history.program(inputs))
    except Exception:  # another branch, or an error that the usual computation raises again
        history.misses += 1
        if history.misses == _MOST_MISSES:
            history.program, history.is_verified = None, False
        return None


def _record(
    history: _History,
    inputs: Sequence[Tensor],
    compute: Callable[[], StepOutcome],
    usual: StepOutcome,
    fuse: Fuse | None,
) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            recording = record(lambda: compute().tensors, inputs)
            history.program, history.structure = make_program(recording, fuse), _Structure.of(usual)
    except Exception as error:  # steps are computed the usual way
        _log.info("steps of %d tensors are not replayed: %s", len(inputs), error)


def _verify(history: _History, inputs: Sequence[Tensor], usual: StepOutcome) -> None:
    """Compare the program with the usual computation of another step."""
    outcome = _repeat(history, inputs)
    if outcome is not None and history.structure == _Structure.of(usual):
        history.is_verified = all(map(_is_same, outcome.tensors, usual.tensors))
    if not history.is_verified:
        history.program = None
        _log.info("a replayed step of %d tensors has other bits", len(inputs))


def _is_same(first: Tensor, second: Tensor) -> bool:
    """Return whether two tensors have the same bits and strides."""
    looks = [(t.dtype, t.shape, t.stride()) for t in (first, second)]
    if looks[0] != looks[1]:
        return False
    flat = [t.detach().contiguous().view(-1).view(torch.uint8) for t in (first, second)]
    return torch.equal(*flat)

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
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from submodel.algorithm.types import Task
from submodel.engines.batched.forward import HOOKS, Forward, WideForward
from submodel.engines.batched.recording import Fuse, Program, make_program, record
from submodel.engines.batched.stack import Compute, Share, StepOutcome
from submodel.engines.batched.vmap import MappedForward
from submodel.model.inputs import Inputs, columns

_log = logging.getLogger(__name__)

USUAL_STEPS, USUAL_WIDE_STEPS = 8, 32
"""So many steps of a kind are computed the usual way; the last of them is recorded.

Recording takes what some ten repeated steps save (small GPT-2: 40 ms against 4), and more where
clients are folded into channels, which leaves less around the operators (20 ms against 0.5). How
many are to come is not known here: a kind that was met so often is taken to be met as often again.
"""
_KEPT_KINDS = 128
_MOST_VALUES, _MOST_WIDE_VALUES = 1 << 22, 1 << 19
"""Of all inputs of a step: beyond, operators take so long that the rest hardly counts."""
_MOST_MISSES = 8


@dataclass(frozen=True)
class StepKind:
    """What makes the steps of stacks alike, if batches are of one shape; and when to record one."""

    key: Hashable
    usual_steps: int = USUAL_STEPS
    most_values: int = _MOST_VALUES

    @classmethod
    def of(cls, forward: Forward, task: Task, has_scaler: bool) -> StepKind | None:
        """The kind of a stack's steps; None: not operators of torch alone, or hooks watch them."""
        capacity = task.assignment.capacity if has_scaler else None
        key = task.cut.shape_key, capacity, tuple(task.scales), task.work.precision
        if isinstance(forward, WideForward):
            return cls(("wide", *key), USUAL_WIDE_STEPS, _MOST_WIDE_VALUES)
        if not isinstance(forward, MappedForward) or _has_hooks(forward.module):
            return None
        return cls(key, USUAL_STEPS)


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
class _Book:
    """What is known of a kind of steps."""

    steps: int = 0
    misses: int = 0
    form: _Form | None = None
    program: Program | None = None
    is_proved: bool = False


class Replays:
    """The steps that an engine repeats.

    >>> replays, x = Replays(), torch.ones(3)
    >>> for _ in range(USUAL_STEPS + 2):
    ...     outcome = replays.outcome(StepKind("+"), [x], lambda: StepOutcome(x + x, [1.0], []))
    >>> replays.programs, outcome.losses
    (1, tensor([2., 2., 2.]))
    """

    def __init__(self, fuse: Fuse | None = None) -> None:
        """No steps yet."""
        self._fuse = fuse
        self._books: OrderedDict[Hashable, _Book] = OrderedDict()

    @property
    def programs(self) -> int:
        """How many kinds of steps are repeated by their operators."""
        return sum(book.is_proved for book in self._books.values())

    def of_share(
        self,
        kind: StepKind | None,
        share: Share,
        compute: Compute,
        x: Inputs,
        y: Tensor,
        present: Tensor | None,
    ) -> StepOutcome:
        """What a step of a share computes."""
        if kind is None:
            return share.outcome(*compute(x, y))
        batch = [*columns(x).values(), y, *([] if present is None else [present])]
        shapes = tuple((t.shape, t.stride(), t.dtype) for t in batch)
        inputs = [*share.tensors.values(), *share.scales.values(), *batch]
        kind = replace(kind, key=(kind.key, share.clients, shapes))
        return self.outcome(kind, inputs, lambda: share.outcome(*compute(x, y)))

    def outcome(
        self, kind: StepKind, inputs: Sequence[Tensor], compute: Callable[[], StepOutcome]
    ) -> StepOutcome:
        """What a step computes.

        ``kind`` has a key for the operators that run and the shapes of all tensors; ``inputs`` are
        all tensors that differ between such steps.
        """
        book = self._books.setdefault(kind.key, _Book())
        self._books.move_to_end(kind.key)
        if len(self._books) > _KEPT_KINDS:
            self._books.popitem(last=False)
        book.steps += 1
        if book.is_proved:
            outcome = _repeat(book, inputs)
            return compute() if outcome is None else outcome
        usual = compute()
        if book.program is not None:
            _prove(book, inputs, usual)
        elif book.steps == kind.usual_steps and _count(inputs) <= kind.most_values:
            _record(book, inputs, compute, usual, self._fuse)
        return usual


def _has_hooks(module: nn.Module) -> bool:
    """Whether code of the user's is to be called with a layer; our own hooks select outputs."""
    hooks = (hook for layer in module.modules() for place in HOOKS
             for hook in getattr(layer, place).values())  # fmt: skip
    return any(type(hook).__module__.partition(".")[0] != "submodel" for hook in hooks)


def _count(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _repeat(book: _Book, inputs: Sequence[Tensor]) -> StepOutcome | None:
    """The recorded operators; None if the step must be computed the usual way."""
    assert book.program is not None
    assert book.form is not None
    try:
        with torch.no_grad():
            return book.form.fill(book.program(inputs))
    except Exception:  # another way through the code; or an error, which the usual way explains
        book.misses += 1
        if book.misses == _MOST_MISSES:
            book.program, book.is_proved = None, False
        return None


def _record(
    book: _Book,
    inputs: Sequence[Tensor],
    compute: Callable[[], StepOutcome],
    usual: StepOutcome,
    fuse: Fuse | None,
) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            recording = record(lambda: compute().tensors, inputs)
            book.program, book.form = make_program(recording, fuse), _Form.of(usual)
    except Exception as error:  # the usual way has done without it
        _log.info("steps of %d tensors are not repeated by operators: %s", len(inputs), error)


def _prove(book: _Book, inputs: Sequence[Tensor], usual: StepOutcome) -> None:
    """Try the program on a step other than the recorded one."""
    outcome = _repeat(book, inputs)
    if outcome is not None and book.form == _Form.of(usual):
        book.is_proved = all(map(_is_same, outcome.tensors, usual.tensors))
    if not book.is_proved:
        book.program = None
        _log.info("a step of %d tensors, repeated by its operators, has other bits", len(inputs))


def _is_same(first: Tensor, second: Tensor) -> bool:
    """Return whether two tensors have the same bits and lie in memory in the same way."""
    looks = [(t.dtype, t.shape, t.stride()) for t in (first, second)]
    if looks[0] != looks[1]:
        return False
    flat = [t.detach().contiguous().view(-1).view(torch.uint8) for t in (first, second)]
    return torch.equal(*flat)

"""Finding the axes of any module: one ordinary forward, watched operator by operator.

Every dimension of every parameter and buffer starts as an axis of its own. Each operator that runs
tells which of them are the same, which are products or concatenations of others, and which must
keep their order (see `rules`). Inputs and outputs are fixed. What no rule describes freezes what it
touches: too little is cut rather than something wrong.

Only what runs is seen: give a net with branches inputs that take the branch you train. Modules of a
list that the forward passes by, such as experts that no example chose, are run as a sibling was: of
the same list, the same type and the same shapes. A loop over the steps of a short input is also
watched on a longer one (see `longer_inputs`), and a module that keeps a state is called twice.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from submodel.core.errors import ConfigError, refuse
from submodel.model.axes.assemble import Overrides, assemble, unify_equal_sizes
from submodel.model.axes.declare import Axes
from submodel.model.axes.forward import (
    isolate,
    outputs_of,
    refuse_kinds,
    run,
    tensors_in,
    weights_of,
)
from submodel.model.axes.keep import Memory, is_large
from submodel.model.axes.layout import Along, FixedPart, Layout
from submodel.model.axes.number import NumberLog
from submodel.model.axes.number_watch import watch_numbers
from submodel.model.axes.reach import alias_problem, copied_aliases
from submodel.model.axes.record import Reason, Record, is_natural, source_line
from submodel.model.axes.rules.call import OperatorWatch
from submodel.model.axes.verify import Example, verify_on
from submodel.model.inputs import Inputs, as_tensors, map_leaves

ModuleCall = tuple[tuple[Any, ...], dict[str, Any], Any]
"""The arguments of a call, those by name, and the result."""
Calls = dict[nn.Module, ModuleCall]
"""The first call of each module of a list."""


@contextmanager
def watch_calls(module: nn.Module) -> Iterator[Calls]:
    """Collect the calls of all modules that lie in lists or dictionaries of modules."""
    calls: Calls = {}

    def note(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        calls.setdefault(layer, (args, kwargs, result))

    with ExitStack() as undo:
        for layer in {child: None for siblings in _lists(module) for child in siblings}:
            undo.callback(layer.register_forward_hook(note, with_kwargs=True).remove)
        yield calls


def passed_by(
    module: nn.Module, calls: Calls, is_read: Callable[[nn.Module], bool]
) -> Iterator[tuple[nn.Module, ModuleCall]]:
    """The modules of lists that the forward has not run, each with the call of a sibling."""
    for siblings in _lists(module):
        for child in siblings:
            if child not in calls and not is_read(child):
                alike = (s for s in siblings if s in calls and _form(s) == _form(child))
                if (sibling := next(alike, None)) is not None:
                    yield child, calls[sibling]


def _lists(module: nn.Module) -> Iterator[list[nn.Module]]:
    for layer in module.modules():
        if isinstance(layer, nn.ModuleList | nn.ModuleDict):
            yield list(layer.children())


def _form(layer: nn.Module) -> tuple[object, ...]:
    """What siblings have in common: their type, and the names and shapes of their parameters."""
    return type(layer), tuple((name, p.shape) for name, p in layer.named_parameters())


SHORT = 4
"""Up to this size, a dimension of an input may be too few steps: it is tried with more."""


def longer_inputs(
    module: nn.Module,
    inputs: Inputs,
    steps: Collection[int],
    outputs: Callable[[Any], Any] | None = None,
) -> Iterator[Inputs]:
    """The example with more steps along each short dimension along which the module runs then.

    The first dimension counts examples, unless single positions were taken out of a dimension of
    its size, of which ``steps`` tells. Whole numbers that say how many steps there are say so.

    >>> [x.shape for x in longer_inputs(nn.ReLU(), torch.ones(9, 1, 5), ())]
    [torch.Size([9, 3, 5])]
    """
    tensors = {id(t): t for t in tensors_in(inputs, strict=False)}
    depth = max((t.dim() for t in tensors.values()), default=0)
    for d in range(depth):
        sizes = {t.shape[d] for t in tensors.values() if t.dim() > d}
        for size in sorted(n for n in sizes if 0 < n <= SHORT and (d > 0 or n in steps)):
            short = [t for t in tensors.values() if t.dim() > d and t.shape[d] == size]
            for longer in _lengthen(inputs, short, d, size):
                if _runs(module, longer, outputs):
                    yield longer
                    break


def _lengthen(inputs: Inputs, short: list[Tensor], d: int, size: int) -> Iterator[Inputs]:
    """All inputs of this size with twice as many steps and one; or each on its own."""
    more = 2 * size + 1

    def repeat(tensor: Tensor) -> Tensor:
        return tensor.index_select(d, torch.arange(more, device=tensor.device) % size)

    def recount(value: Any) -> Any:
        if isinstance(value, Tensor):
            whole = not (value.is_floating_point() or value.is_complex() or value.is_meta)
            lengths = whole and value.dim() < 2 and value.numel() and int(value.max()) == size
            return value.masked_fill(value == size, more) if lengths else value
        return more if type(value) is int and value == size else value

    def exchange(new: Mapping[int, Tensor]) -> Inputs:
        exchanged: Inputs = map_leaves(lambda leaf: new.get(id(leaf), leaf), inputs)
        return exchanged

    longer = {id(t): repeat(t) for t in short}
    yield map_leaves(lambda leaf: longer[id(leaf)] if id(leaf) in longer else recount(leaf), inputs)
    yield exchange(longer)
    for tensor in short if len(short) > 1 else ():
        yield exchange({id(tensor): repeat(tensor)})


def _runs(module: nn.Module, inputs: Inputs, outputs: Callable[[Any], Any] | None) -> bool:
    """Return whether the module takes the inputs and says something to them."""
    with isolate(module) as running, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            results = outputs_of(run(running, inputs), outputs)
            return all(t.is_meta or bool(t.isfinite().all()) for t in results)
        except Exception:  # whatever a module says to an input that it is not made for
            return False


def trace(
    module: nn.Module,
    example_inputs: Any,
    *,
    outputs: Callable[[Any], Any] | None = None,
    classes: bool = False,
    freeze: Sequence[str] = (),
    tie: Sequence[tuple[str, str]] = (),
    whole: Sequence[str] = (),
    cut: Sequence[str] = (),
    verify: bool = True,
    capacities: Sequence[float] = (0.5, 0.25),
    least: Mapping[str, float] = MappingProxyType({}),
) -> Axes:
    """The axes of ``module``, found by watching one forward on ``example_inputs``.

    Numbers in the code count too: dimensions that one stored number makes stay equal, and what a
    number written in the code makes (``view(-1, 4, 6)``) is kept whole.

    Where a dimension is a product of free axes (heads x size of a head, groups x channels of a
    group), cutting both would square the fraction, so one factor is cut: the groups of a group
    norm, because cutting whole groups is exact, and otherwise the innermost factor.

    Args:
        module: the model; it is left as it was.
        example_inputs: one tensor, a tuple of positional or a dictionary of named arguments; NumPy
            arrays will do.
        outputs: selects from what the forward returns the tensors whose dimensions must stay; by
            default all of them.
        classes: make the last dimension of the one output the axis `CLASSES`, which a capacity
            never cuts.
        freeze: axes or dimensions (``"fc.weight[1]"``) to fix.
        tie: pairs of axes to cut alike.
        whole: axes to keep whole.
        cut: factors of products to cut instead of those above.
        verify: permute all axes found and require the same outputs (see `verify`), and measure
            whether a sub-model is the masked model (see `measure`); tensors on the meta device
            have no values to verify.
        capacities: those at which that is measured.
        least: the least share of an axis that is held then, whatever the capacity.

    >>> import torch
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> trace(net, torch.ones(1, 4)).sizes
    {'0': 8}
    """
    example_inputs = as_tensors(example_inputs)
    refuse(list(_kinds(module, example_inputs, outputs)))
    overrides = Overrides(freeze, tie, whole, cut)
    refuse_kinds(module)
    record, log = Record(), NumberLog()
    weights = weights_of(module)
    for tensor in weights.values():
        record.add_weight(tensor)
    runs = _watch_forward(module, example_inputs, outputs, record, log)
    examples = [example_inputs, *longer_inputs(module, example_inputs, record.steps, outputs)]
    for longer in examples[1:]:
        runs += _watch_forward(module, longer, outputs, record, log)
    notes = unify_equal_sizes(record, log, module)
    for dimension in log.scales():
        record.mix(dimension, "the code computes a value from its size")
    of_classes = _freeze_outputs(record, runs, classes)
    axes = replace(assemble(record, weights, of_classes, overrides, log), notes=tuple(notes))
    if is_large(module):
        gc.collect()  # what was watched refers to itself, and holds every layer's outputs
    if verify and not any(t.is_meta for t in (*weights.values(), *runs[0])):
        if not any(t.numel() for t in runs[0]):
            raise ConfigError("example_inputs: no output has a value on them; give an example")
        from submodel.model.axes.measure import measure  # which needs axes itself

        all_examples = [Example(module, example, outputs) for example in examples]
        for example in all_examples:
            verify_on(example, axes)
        axes = measure(all_examples, axes, capacities, least)
    return axes


def _add_line(reason: str) -> str:
    """A reason to freeze with the line of the model's code that is running."""
    if isinstance(reason, Reason) or is_natural(reason):
        return reason
    return Reason(reason, source_line())


def _watch_forward(
    module: nn.Module,
    inputs: Inputs,
    outputs: Callable[[Any], Any] | None,
    record: Record,
    log: NumberLog,
) -> list[list[Tensor]]:
    """The outputs of a forward, and of a second one if the first left a state that it may read."""
    for tensor in tensors_in(inputs, strict=False):
        if id(tensor) not in record.tensors:
            record.add_fixed(tensor, "it meets an input")
    with isolate(module) as running:
        for one, original in zip(_tensors(running), _tensors(module), strict=True):
            record.add_copy(one, original)
        memory, second = Memory(running), copied_aliases(module, running)
        with (
            OperatorWatch(record),
            watch_numbers(running, record.dimensions_of, log),
            watch_calls(running) as calls,
        ):  # what ``outputs`` computes is watched as well
            record.algebra.locate = _add_line
            runs = [outputs_of(run(running, inputs), outputs)]
            if late := [n for n, p in running.named_parameters() if id(p) not in record.weights]:
                problem = "made by the forward; run the module once before"
                raise ConfigError([f"{name}: {problem}" for name in late])
            _run_passed_by(record, running, calls)
            if any(record.dimensions_of(tensor) is not None for tensor in memory.new_tensors()):
                runs.append(outputs_of(run(running, inputs), outputs))
        # a second tensor in the memory of a weight would be neither cut nor trained
        if read := [names for one, names in second.items() if one in record.read]:
            raise ConfigError([alias_problem(path, weight) for path, weight, _ in read])
    record.algebra.locate = str
    return runs


def _run_passed_by(record: Record, module: nn.Module, calls: Calls) -> None:
    """Run what a list of modules holds and the forward passed by; its outputs are its sibling's."""

    def is_read(layer: nn.Module) -> bool:
        return any(map(record.is_read, layer.parameters()))

    for layer, (args, kwargs, of_sibling) in list(passed_by(module, calls, is_read)):
        try:
            result = layer(*args, **kwargs)
        except Exception:  # it cannot stand in for its sibling after all
            for tensor in layer.parameters():
                for dimension in record.of(tensor).dimensions:
                    record.algebra.freeze(dimension, "the forward passes it by")
            continue
        pairs = zip(
            tensors_in(result, strict=False), tensors_in(of_sibling, strict=False), strict=False
        )
        for one, other in pairs:
            for d, e in zip(record.of(one).dimensions, record.of(other).dimensions, strict=True):
                record.algebra.unify(d, e, "another module of its list makes it")


def _kinds(module: object, example_inputs: object, outputs: object) -> Iterator[str]:
    """What is not of the kind that a trace needs."""
    if not isinstance(module, nn.Module):
        yield f"module: a {type(module).__name__} is not an nn.Module"
    if not isinstance(example_inputs, Tensor | tuple | Mapping):
        yield (
            f"example_inputs: a {type(example_inputs).__name__} is neither a tensor nor a tuple of "
            "arguments nor a dictionary of named ones"
        )
    elif next(tensors_in(example_inputs, strict=False), None) is None:
        yield "example_inputs: there is no tensor in them; for a shape, give torch.ones(shape)"
    if outputs is not None and not callable(outputs):
        yield f"outputs: {outputs!r} is not a function of what the forward returns"


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


def _freeze_outputs(
    record: Record, runs: Sequence[Sequence[Tensor]], classes: bool
) -> Along | None:
    """Fix the outputs of all runs; with ``classes``, not the last dimension of the one output."""
    if classes and (len(runs[0]) != 1 or runs[0][0].dim() == 0):
        raise ConfigError(
            f"classes: needs one output tensor with a last dimension, there are {len(runs[0])}"
        )
    last: Layout | None = None
    for result in (result for results in runs for result in results):
        dimensions = list(record.of(result).dimensions)
        if classes and dimensions:
            along = dimensions.pop()
            if last is None:
                last = along
            elif along.size == last.size:
                record.algebra.unify(last, along, "it meets an output")
        for dimension in dimensions:
            record.algebra.freeze(dimension, "it meets an output")
    if last is None:
        return None
    classes_axis = record.algebra.resolve(last)
    if not isinstance(classes_axis, Along):
        why = (
            classes_axis.reason
            if isinstance(classes_axis, FixedPart)
            else "it is made of several axes"
        )
        raise ConfigError(f"classes: the last dimension of the output is no axis: {why}")
    return classes_axis

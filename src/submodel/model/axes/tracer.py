"""Finding the axes of a module by tracing one ordinary forward pass, operator by operator.

Every dimension of every parameter and buffer starts as a separate axis. For each operator that
runs, a rule determines which of them are equal, which are products or concatenations of others, and
which must keep their order (see `rules`). Inputs and outputs are fixed. Operators without a rule
freeze the dimensions of their operands: too little is cut rather than something wrong.

Only executed operators are traced: for a net with branches, choose inputs that take the branch to
train. Modules in a list that the forward pass skips, such as experts that no example selects, are
run on the inputs of a sibling: a module of the same list, type and shapes. A loop over the steps of
a short input is also traced on a longer one (see `longer_inputs`), and a module with a state is
called twice.
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
from submodel.model.axes.keep import StateSnapshot, is_large
from submodel.model.axes.layout import Along, FixedPart, Layout
from submodel.model.axes.number import NumberLog
from submodel.model.axes.number_watch import watch_numbers
from submodel.model.axes.reach import alias_problem, copied_aliases
from submodel.model.axes.record import Reason, Record, is_natural, source_line
from submodel.model.axes.rules.call import OperatorWatch
from submodel.model.axes.verify import Example, verify_on
from submodel.model.inputs import Inputs, as_tensors, map_leaves

ModuleCall = tuple[tuple[Any, ...], dict[str, Any], Any]
"""The positional arguments of a call, its named arguments, and its result."""
Calls = dict[nn.Module, ModuleCall]
"""The first call of each module of a list."""


@contextmanager
def watch_calls(module: nn.Module) -> Iterator[Calls]:
    """Collect the calls of all modules in lists or dictionaries of modules."""
    calls: Calls = {}

    def note(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        calls.setdefault(layer, (args, kwargs, result))

    with ExitStack() as undo:
        for layer in {child: None for siblings in _lists(module) for child in siblings}:
            undo.callback(layer.register_forward_hook(note, with_kwargs=True).remove)
        yield calls


def skipped_modules(
    module: nn.Module, calls: Calls, is_read: Callable[[nn.Module], bool]
) -> Iterator[tuple[nn.Module, ModuleCall]]:
    """The modules in lists that the forward pass did not run, each with the call of a sibling."""
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
    """A key that is equal for siblings: type, and names and shapes of parameters."""
    return type(layer), tuple((name, p.shape) for name, p in layer.named_parameters())


SHORT = 4
"""Input dimensions up to this size are also traced with more steps."""


def longer_inputs(
    module: nn.Module,
    inputs: Inputs,
    steps: Collection[int],
    outputs: Callable[[Any], Any] | None = None,
) -> Iterator[Inputs]:
    """The example with more steps along each short dimension, if the module runs on it.

    The first dimension counts examples, unless ``steps`` contains its size: the sizes of dimensions
    from which single positions were taken. Integers equal to the number of steps are adapted.

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
    """All inputs of this size with 2 size + 1 steps; then each of them alone."""
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
    """Return whether the module runs on the inputs and gives finite outputs."""
    with isolate(module) as running, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            results = outputs_of(run(running, inputs), outputs)
            return all(t.is_meta or bool(t.isfinite().all()) for t in results)
        except Exception:  # a module may raise any exception for an unsuitable input
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
    """Find the axes of ``module`` by tracing one forward pass on ``example_inputs``.

    Numbers in the code count too: dimensions whose size is the same stored number stay equal, and
    dimensions whose size is written in the code (``view(-1, 4, 6)``) are kept whole.

    If a dimension is a product of free axes (heads x size of a head, groups x channels of a group),
    cutting both would square the fraction, so one factor is cut: the groups of a group norm,
    because cutting whole groups is exact, and otherwise the innermost factor.

    Args:
        module: the model; it is not changed.
        example_inputs: one tensor, a tuple of positional or a dictionary of named arguments; NumPy
            arrays are accepted.
        outputs: selects from the result of the forward pass the tensors whose dimensions must stay;
            by default all tensors.
        classes: make the last dimension of the one output the axis `CLASSES`, which a capacity
            never cuts.
        freeze: axes or dimensions (``"fc.weight[1]"``) to fix.
        tie: pairs of axes to cut together.
        whole: axes to keep whole.
        cut: factors of products to cut instead of those above.
        verify: permute all axes found and require the same outputs (see `verify`), and measure
            whether a sub-model is the masked model (see `measure`); tensors on the meta device
            have no values to verify.
        capacities: the capacities for that measurement.
        least: the least fraction of an axis that is kept in that measurement.

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
        gc.collect()  # the trace contains reference cycles with every layer's outputs
    if verify and not any(t.is_meta for t in (*weights.values(), *runs[0])):
        if not any(t.numel() for t in runs[0]):
            raise ConfigError("example_inputs: no output has a value; give at least one example")
        from submodel.model.axes.measure import measure  # it imports axes

        all_examples = [Example(module, example, outputs) for example in examples]
        for example in all_examples:
            verify_on(example, axes)
        axes = measure(all_examples, axes, capacities, least)
    return axes


def _add_line(reason: str) -> str:
    """A reason to freeze, with the line of the model's code that is running."""
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
    """The outputs of a traced forward pass, and of a second one if the first changed the state."""
    for tensor in tensors_in(inputs, strict=False):
        if id(tensor) not in record.tensors:
            record.add_fixed(tensor, "it meets an input")
    with isolate(module) as running:
        for one, original in zip(_tensors(running), _tensors(module), strict=True):
            record.add_copy(one, original)
        snapshot, second = StateSnapshot(running), copied_aliases(module, running)
        with (
            OperatorWatch(record),
            watch_numbers(running, record.dimensions_of, log),
            watch_calls(running) as calls,
        ):  # operators in ``outputs`` are traced too
            record.algebra.locate = _add_line
            runs = [outputs_of(run(running, inputs), outputs)]
            if late := [n for n, p in running.named_parameters() if id(p) not in record.weights]:
                problem = "it is made by the forward; run the module once first"
                raise ConfigError([f"{name}: {problem}" for name in late])
            _run_skipped(record, running, calls)
            if any(record.dimensions_of(tensor) is not None for tensor in snapshot.new_tensors()):
                runs.append(outputs_of(run(running, inputs), outputs))
        # a second tensor in the memory of a weight would be neither cut nor trained
        if read := [names for one, names in second.items() if one in record.read]:
            raise ConfigError([alias_problem(path, weight) for path, weight, _ in read])
    record.algebra.locate = str
    return runs


def _run_skipped(record: Record, module: nn.Module, calls: Calls) -> None:
    """Run the skipped modules of lists; their outputs get the dimensions of a sibling's."""

    def is_read(layer: nn.Module) -> bool:
        return any(map(record.is_read, layer.parameters()))

    for layer, (args, kwargs, of_sibling) in list(skipped_modules(module, calls, is_read)):
        try:
            result = layer(*args, **kwargs)
        except Exception:  # it does not run on the sibling's inputs
            for tensor in layer.parameters():
                for dimension in record.of(tensor).dimensions:
                    record.algebra.freeze(dimension, "the forward does not run it")
            continue
        pairs = zip(
            tensors_in(result, strict=False), tensors_in(of_sibling, strict=False), strict=False
        )
        for one, other in pairs:
            for d, e in zip(record.of(one).dimensions, record.of(other).dimensions, strict=True):
                record.algebra.unify(d, e, "another module of its list makes it")


def _kinds(module: object, example_inputs: object, outputs: object) -> Iterator[str]:
    """Problems with the types of the arguments of a trace."""
    if not isinstance(module, nn.Module):
        yield f"module: a {type(module).__name__} is not an nn.Module"
    if not isinstance(example_inputs, Tensor | tuple | Mapping):
        yield (
            f"example_inputs: a {type(example_inputs).__name__} is neither a tensor nor a tuple of "
            "arguments nor a dictionary of named ones"
        )
    elif next(tensors_in(example_inputs, strict=False), None) is None:
        yield "example_inputs: they contain no tensor; for a shape, give torch.ones(shape)"
    if outputs is not None and not callable(outputs):
        yield f"outputs: {outputs!r} is not a function of the forward's result"


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


def _freeze_outputs(
    record: Record, runs: Sequence[Sequence[Tensor]], classes: bool
) -> Along | None:
    """Fix the outputs of all runs; with ``classes``, not the last dimension of the one output."""
    if classes and (len(runs[0]) != 1 or runs[0][0].dim() == 0):
        raise ConfigError(
            f"classes: needs one output tensor with a last dimension, not {len(runs[0])}"
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
        raise ConfigError(f"classes: the last dimension of the output is not an axis: {why}")
    return classes_axis

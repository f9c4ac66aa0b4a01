"""Whether a sub-model gives outputs of the full model's shapes, and keeps to its own tensors.

Both models run once. A constant in a view, such as `x.view(-1, 12, 2)`, can swallow a change of
width into the batch: the sub-model runs, and computes something else.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import cached_property

from torch import nn

from submodel.errors import SubmodelError
from submodel.model.axes import CLASSES
from submodel.model.axes.failure import ForwardError, innermost
from submodel.model.axes.forward import isolate, outputs_of, run
from submodel.model.axes.keep import preserve
from submodel.model.axes.source import failing_line
from submodel.model.axes.trial import Outputs
from submodel.model.build.foreign import refuse_aliases, refuse_reads
from submodel.model.cut import Cut, UnitCut
from submodel.model.inputs import Inputs


class OutputCheck:
    """Tries sub-models of one model on an example; the full model runs once for all of them.

    Args:
        module: the full model.
        example_inputs: what both are run on.
        outputs: what of the results counts; None: all of it.
    """

    def __init__(
        self, module: nn.Module, example_inputs: Inputs, outputs: Outputs | None = None
    ) -> None:
        self._module, self._inputs, self._outputs = module, example_inputs, outputs

    @cached_property
    def _full(self) -> list[tuple[int, ...]]:
        try:
            return _shapes(self._module, self._inputs, self._outputs)
        except _FailedInsideError as problem:
            raise problem.error from problem.__cause__

    def check(self, small: nn.Module, cut: Cut) -> None:
        """Raise unless ``small`` runs and its outputs have the shapes that the full model's have.

        Where the classes are cut, a dimension of all classes may shrink to those kept. What
        ``small`` reads must be its own (see `foreign`).
        """
        allowed_changes = set()
        if isinstance(cut, UnitCut) and CLASSES in cut.units:
            allowed_changes.add((cut.axes.sizes[CLASSES], len(cut.units[CLASSES])))
        full = self._full
        try:
            cut_shapes = _shapes(small, self._inputs, self._outputs, self._module)
        except _FailedInsideError as problem:
            raise SubmodelError(
                f"cannot build the sub-model: {problem.path or 'the model'} "
                f"({type(small.get_submodule(problem.path)).__name__}) does not run with the cut "
                f"tensors: {problem.__cause__}{_where(problem.__cause__)}. A size is computed or "
                "written out there; make it an attribute or read it from a shape, register "
                "`resizes`, give `factory` or `resize`, or keep the axis whole"
            ) from problem.__cause__
        for before, after in zip(full, cut_shapes, strict=True):
            same = len(before) == len(after) and all(
                b == a or (b, a) in allowed_changes for b, a in zip(before, after, strict=True)
            )
            if not same:
                raise SubmodelError(
                    f"cannot build the sub-model: it gives an output of shape {after}, the full "
                    f"model {before}. A size is written out in a view somewhere, which took the "
                    "change of width for another batch; or a hidden width is part of the outputs: "
                    "name the ones that count by `outputs`"
                )


def _where(problem: BaseException | None) -> str:
    line = "" if problem is None else failing_line(problem)
    return f", at {line}" if line else ""


class _FailedInsideError(Exception):
    """Carries the innermost module that was running."""

    def __init__(self, path: str, error: ForwardError) -> None:
        self.path, self.error = path, error
        super().__init__(path)


def _shapes(
    module: nn.Module,
    inputs: Inputs,
    outputs: Outputs | None,
    original: nn.Module | None = None,
) -> list[tuple[int, ...]]:
    """The shapes of what a forward returns; nothing of ``original`` may be read."""
    running: list[str] = []
    with ExitStack() as around, isolate(module), ExitStack() as hooks:
        if original is None:
            hooks.enter_context(refuse_aliases(module))
        else:
            around.enter_context(preserve(original))
            hooks.enter_context(refuse_reads(original, module, running))
        for path, layer in module.named_modules():

            def enter(*_: object, path: str = path) -> None:
                running.append(path)

            def leave(*_: object) -> None:
                running.pop()

            hooks.callback(layer.register_forward_pre_hook(enter, prepend=True).remove)
            hooks.callback(layer.register_forward_hook(leave, always_call=True).remove)
        try:
            result = run(module, inputs)
        except ForwardError as problem:
            cause = problem.__cause__ or problem
            path, _ = innermost(module, cause.__traceback__)
            raise _FailedInsideError(path, problem) from problem.__cause__
    return [tuple(tensor.shape) for tensor in outputs_of(result, outputs)]

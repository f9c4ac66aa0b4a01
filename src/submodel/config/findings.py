"""Facts about a model that preparation finds: its outputs, its context, and caches of both.

A built-in model's findings are looked for once in a process, as comparisons, repetitions and
devices in one process ask again and again, and a trace takes longer than a small round: they follow
from keys of the configuration and the shape of an example. Of anybody else's code nothing is taken
for granted. Those of a large model are passed on to the processes that share its run; processes
that will map the model of the first need no values of their own.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from submodel.algorithm.types import Setup
from submodel.config import Config
from submodel.core.errors import ConfigError, SubmodelError
from submodel.data import Dataset
from submodel.model.axes import Axes
from submodel.model.axes.declare import from_json, to_json
from submodel.model.axes.forward import isolate, run
from submodel.model.axes.keep import LARGE_MODEL
from submodel.model.build import can_release
from submodel.model.build.copying import copy_module
from submodel.model.builtin_models import MODELS
from submodel.model.inputs import Inputs, first_column
from submodel.model.zoo import ModelContext
from submodel.schemes.scheme import defines
from submodel.tasks.task import is_whole, task_for

Selector = Callable[[Any], Tensor]
"""From what a forward returns to the tensor of outputs that counts."""
_Finding = TypeVar("_Finding")
_VARIABLE = "SUBMODEL_FINDINGS"
_MOST = 1000
_findings: dict[Hashable, Any] = {}


@dataclass(frozen=True)
class Selection:
    """A forward hook: lets a module return what ``outputs`` selects from what it returns."""

    outputs: Selector

    def __call__(self, module: nn.Module, inputs: object, result: Any) -> Tensor:  # noqa: ARG002
        """The selected tensor."""
        kind = type(result).__name__
        try:
            tensor = self.outputs(result)
        except Exception as error:  # whatever the user's own code raises
            raise ConfigError(
                f"outputs: fails on what the model returns, a {kind}: {error!r}"
            ) from error
        if not isinstance(tensor, Tensor):
            raise ConfigError(
                f"outputs: returns a {type(tensor).__name__} of what the model returns, a "
                f"{kind}; want one tensor, as lambda returned: returned.logits"
            )
        return tensor


def select_outputs(module: nn.Module, outputs: Selector) -> nn.Module:
    """A copy of the module that returns what counts; it has the same weights, not copies.

    >>> pair = nn.LSTM(2, 3)
    >>> select_outputs(pair, lambda returned: returned[0])(torch.ones(1, 2)).shape
    torch.Size([1, 3])
    """
    copy = copy_module(module, {**dict(module.named_parameters()), **dict(module.named_buffers())})
    copy.register_forward_hook(Selection(outputs))
    return copy


def selection_of(module: nn.Module) -> Selection | None:
    """The hook that `select_outputs` added to the module, if any."""
    hooks = module._forward_hooks.values()
    return next((hook for hook in hooks if isinstance(hook, Selection)), None)


def without_selection(module: nn.Module) -> nn.Module:
    """The module itself, which from now on returns all that its forward does."""
    for number, hook in list(module._forward_hooks.items()):
        if isinstance(hook, Selection):
            del module._forward_hooks[number]
    return module


def logits_of(result: Any) -> Tensor:
    """The logits among what models of `transformers` return."""
    logits: Tensor = result.logits
    return logits


def returns_logits(module: nn.Module, example: Inputs) -> bool:
    """Whether the module returns an object that has logits, and not a tensor.

    A batch of inputs that the module does not run on is left for others to refuse.

    >>> returns_logits(nn.Identity(), torch.ones(1))
    False
    """
    try:
        with isolate(module) as running:
            result = run(running, example)
    except SubmodelError:
        return False
    return not isinstance(result, Tensor) and isinstance(getattr(result, "logits", None), Tensor)


def context_of(data: Dataset) -> ModelContext:
    """The facts of data that a model is made for: shapes, outputs, tokens, the task.

    Whole numbers in rows are tokens, and all are looked at for the largest. The task is `task_for`
    the data, and None where that does not tell how many outputs there must be.

    >>> from submodel.data import dataset
    >>> part = torch.tensor([[0, 1], [1, 5]]), torch.tensor([[1, 2], [5, 6]])
    >>> context_of(dataset(part, part))
    ModelContext(inputs=(2,), classes=7, vocabulary=7, task='language')
    """
    task, tokens = task_for(data), first_column(data.train.x)
    are_tokens = is_whole(tokens) and tokens.dim() == 2
    vocabulary = _count_tokens(data, task) if are_tokens else None
    if task == "language" and vocabulary is not None:
        return ModelContext(data.inputs, vocabulary, vocabulary, task)
    outputs = data.outputs if data.classes is None else data.classes
    is_known = task == "regression" or data.classes is not None
    return ModelContext(data.inputs, outputs, vocabulary, task if is_known else None)


def _count_tokens(data: Dataset, task: str) -> int:
    """One more than the largest token; a target that does not count is negative."""
    if data.text is not None:
        return data.text.vocabulary
    tensors = [first_column(data.train.x), first_column(data.test.x)]
    tensors += [data.train.y, data.test.y] if task == "language" else []
    return 1 + max(0, *(int(tensor.max()) for tensor in tensors if tensor.numel()))


@dataclass(frozen=True)
class BuiltIn:
    """The key of a built-in model in the cache: all that determines its findings."""

    keys: str  # of the model, and of its axes
    inputs: tuple[int, ...]
    classes: int | None
    dtype: torch.dtype
    has_values: bool  # what has none is not verified


def identify(
    config: Config, module: nn.Module, data: Dataset, context: ModelContext | None = None
) -> BuiltIn | None:
    """Which built-in model this is, that was made for the data, or with another ``context``.

    None if somebody else's code makes it.
    """
    if not MODELS.is_ours(config.model.name):
        return None
    return BuiltIn(
        config.model.model_dump_json() + config.axes.model_dump_json(),
        tuple(first_column(data.example).shape),
        (context or context_of(data)).classes,
        first_column(data.example).dtype,
        not any(parameter.is_meta for parameter in module.parameters()),
    )


def find_once(
    subject: BuiltIn | None, question: Hashable, find: Callable[[], _Finding]
) -> _Finding:
    """Return ``find()``; for a built-in model the result is cached in the process.

    The question is the key of the cache: what is asked, and all that the answer depends on beside
    the model.

    >>> find_once(None, "axes", lambda: 1), find_once(None, "axes", lambda: 2)
    (1, 2)
    """
    if subject is None:
        return find()
    place = (subject, question)
    if place not in _findings:
        finding = find()
        while len(_findings) >= _MOST:
            _findings.pop(next(iter(_findings)))  # the oldest
        _findings[place] = finding
    answer: _Finding = _findings[place]
    return answer


@dataclass(frozen=True)
class ModelFindings:
    """What follows from a configuration, and takes long to find for a large model.

    Args:
        axes: of the run.
        selects_logits: whether the module's logits are selected from what it returns.
        is_empty: whether this process needs no values.
        metrics: the names of those that the model's outputs allow; None: all of the task.
        constants: the buffers that never come back from clients.
    """

    axes: Axes
    selects_logits: bool
    is_empty: bool
    metrics: tuple[str, ...] | None = None
    constants: frozenset[str] = frozenset()

    def select_outputs(self, module: nn.Module) -> nn.Module:
        """The module, returning its logits where they are selected."""
        return select_outputs(module, logits_of) if self.selects_logits else module


def is_large(module: nn.Module) -> bool:
    """Whether preparing the model takes so long that only one process should do it.

    >>> is_large(nn.Linear(2, 2))
    False
    """
    return sum(p.numel() * p.element_size() for p in module.parameters()) >= LARGE_MODEL


def findings_of(setup: Setup, config: Config) -> ModelFindings | None:
    """The findings that other processes can use; None for a small model, or if not certain."""
    if not is_large(setup.module) or config.model.share != 1:
        return None
    if from_json(to_json(setup.axes)) != setup.axes:
        return None
    is_plain = not config.model.factorised and config.model.adapters is None
    needs_no_values = is_plain and not defines(setup.scheme, "begin")
    return ModelFindings(
        setup.axes,
        selects_logits=selection_of(setup.module) is not None,
        is_empty=needs_no_values and can_release(setup.module),
        metrics=tuple(setup.metrics),
        constants=setup.constants,
    )


@contextmanager
def pass_on(findings: ModelFindings | None) -> Iterator[None]:
    """Let processes that are started in this context read the findings, if there are any."""
    if findings is None:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="submodel-") as folder:
        path = Path(folder) / "findings.json"
        content = {
            "axes": to_json(findings.axes),
            "selects_logits": findings.selects_logits,
            "is_empty": findings.is_empty,
            "metrics": findings.metrics,
            "constants": sorted(findings.constants),
        }
        path.write_text(json.dumps(content), encoding="utf-8")
        os.environ[_VARIABLE] = str(path)
        try:
            yield
        finally:
            os.environ.pop(_VARIABLE, None)


def passed_findings() -> ModelFindings | None:
    """The findings of the process that started this one; the first of a machine needs values."""
    path = os.environ.pop(_VARIABLE, None)
    if path is None or "LOCAL_RANK" not in os.environ:
        return None
    content = json.loads(Path(path).read_text("utf-8"))
    is_empty = content["is_empty"] and int(os.environ["LOCAL_RANK"]) > 0
    axes, metrics = from_json(content["axes"]), tuple(content["metrics"])
    constants = frozenset(content["constants"])
    return ModelFindings(axes, content["selects_logits"], is_empty, metrics, constants)

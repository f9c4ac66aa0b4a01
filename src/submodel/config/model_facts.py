"""Facts that preparation derives from a model (its outputs, context and axes), and their cache.

The facts of a built-in model follow from configuration keys and the shape of an example, so each is
derived once per process: comparisons, repetitions and devices in one process need them repeatedly,
and a trace takes longer than a small round. Facts of third-party models are never cached. Facts of
a large model are passed to the other processes of its run; a process that maps the model of the
first process needs no values of its own.
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
"""A function that selects the output tensor from the return value of a forward pass."""
_Fact = TypeVar("_Fact")
_VARIABLE = "SUBMODEL_MODEL_FACTS"
_MAX_CACHED = 1000
_facts: dict[Hashable, Any] = {}


@dataclass(frozen=True)
class Selection:
    """Forward hook that replaces a module's return value by the tensor ``outputs`` selects."""

    outputs: Selector

    def __call__(self, module: nn.Module, inputs: object, result: Any) -> Tensor:  # noqa: ARG002
        """Return the selected tensor."""
        kind = type(result).__name__
        try:
            tensor = self.outputs(result)
        except Exception as error:  # any exception of the user's code
            raise ConfigError(
                f"outputs: fails on the model's return value, a {kind}: {error!r}"
            ) from error
        if not isinstance(tensor, Tensor):
            raise ConfigError(
                f"outputs: returns a {type(tensor).__name__} for the model's return value, a "
                f"{kind}; it must return one tensor, as lambda returned: returned.logits"
            )
        return tensor


def select_outputs(module: nn.Module, outputs: Selector) -> nn.Module:
    """Copy the module so that it returns the selected tensor; the copy shares its weights.

    >>> pair = nn.LSTM(2, 3)
    >>> select_outputs(pair, lambda returned: returned[0])(torch.ones(1, 2)).shape
    torch.Size([1, 3])
    """
    copy = copy_module(module, {**dict(module.named_parameters()), **dict(module.named_buffers())})
    copy.register_forward_hook(Selection(outputs))
    return copy


def selection_of(module: nn.Module) -> Selection | None:
    """Return the hook that `select_outputs` added to the module, if any."""
    hooks = module._forward_hooks.values()
    return next((hook for hook in hooks if isinstance(hook, Selection)), None)


def without_selection(module: nn.Module) -> nn.Module:
    """Remove the hook of `select_outputs` from the module, and return the module."""
    for number, hook in list(module._forward_hooks.items()):
        if isinstance(hook, Selection):
            del module._forward_hooks[number]
    return module


def logits_of(result: Any) -> Tensor:
    """Return the logits of an output object of `transformers`."""
    logits: Tensor = result.logits
    return logits


def returns_logits(module: nn.Module, example: Inputs) -> bool:
    """Whether the module returns an object with logits instead of a tensor.

    False if the module fails on the inputs; later checks report that failure.

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
    """Derive from data the shapes, outputs, vocabulary and task of a model.

    Rows of integers are tokens; the largest token over all rows gives the vocabulary. The task is
    `task_for` the data, or None if it does not determine the number of outputs.

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
    """Return one more than the largest token; ignored targets are negative."""
    if data.text is not None:
        return data.text.vocabulary
    tensors = [first_column(data.train.x), first_column(data.test.x)]
    tensors += [data.train.y, data.test.y] if task == "language" else []
    return 1 + max(0, *(int(tensor.max()) for tensor in tensors if tensor.numel()))


@dataclass(frozen=True)
class ModelKey:
    """Cache key of a built-in model: everything that determines its facts."""

    keys: str  # the sections model and axes
    inputs: tuple[int, ...]
    classes: int | None
    dtype: torch.dtype
    has_values: bool  # axes are not verified without values


def identify(
    config: Config, module: nn.Module, data: Dataset, context: ModelContext | None = None
) -> ModelKey | None:
    """Return the cache key of a built-in model made for the data, or for another ``context``.

    None if the model's code is not part of this package.
    """
    if not MODELS.is_builtin(config.model.name):
        return None
    return ModelKey(
        config.model.model_dump_json() + config.axes.model_dump_json(),
        tuple(first_column(data.example).shape),
        (context or context_of(data)).classes,
        first_column(data.example).dtype,
        not any(parameter.is_meta for parameter in module.parameters()),
    )


def find_once(model: ModelKey | None, name: Hashable, find: Callable[[], _Fact]) -> _Fact:
    """Return ``find()``; for a built-in model the result is cached in the process.

    The cache key is the model and the name of the fact, with everything else that it depends on.

    >>> find_once(None, "axes", lambda: 1), find_once(None, "axes", lambda: 2)
    (1, 2)
    """
    if model is None:
        return find()
    key = (model, name)
    if key not in _facts:
        fact = find()
        while len(_facts) >= _MAX_CACHED:
            _facts.pop(next(iter(_facts)))  # the oldest
        _facts[key] = fact
    cached: _Fact = _facts[key]
    return cached


@dataclass(frozen=True)
class ModelFacts:
    """Facts that follow from a configuration and take long to derive for a large model.

    Args:
        axes: axes of the run.
        selects_logits: whether the logits are selected from the module's return value.
        is_empty: whether this process needs no weight values.
        metrics: names of the metrics that the model's outputs allow; None: all of the task.
        constants: names of the buffers that clients never send back.
    """

    axes: Axes
    selects_logits: bool
    is_empty: bool
    metrics: tuple[str, ...] | None = None
    constants: frozenset[str] = frozenset()

    def select_outputs(self, module: nn.Module) -> nn.Module:
        """Return the module, with its logits selected if ``selects_logits``."""
        return select_outputs(module, logits_of) if self.selects_logits else module


def is_large(module: nn.Module) -> bool:
    """Whether preparing the model takes so long that only one process should do it.

    >>> is_large(nn.Linear(2, 2))
    False
    """
    return sum(p.numel() * p.element_size() for p in module.parameters()) >= LARGE_MODEL


def facts_of(setup: Setup, config: Config) -> ModelFacts | None:
    """Return the facts for other processes; None for a small model or if they may differ there."""
    if not is_large(setup.module) or config.model.share != 1:
        return None
    if from_json(to_json(setup.axes)) != setup.axes:
        return None
    is_plain = not config.model.factorised and config.model.adapters is None
    needs_no_values = is_plain and not defines(setup.scheme, "begin")
    return ModelFacts(
        setup.axes,
        selects_logits=selection_of(setup.module) is not None,
        is_empty=needs_no_values and can_release(setup.module),
        metrics=tuple(setup.metrics),
        constants=setup.constants,
    )


@contextmanager
def pass_on(facts: ModelFacts | None) -> Iterator[None]:
    """Pass the facts, if any, to processes started within this context."""
    if facts is None:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="submodel-") as folder:
        path = Path(folder) / "facts.json"
        content = {
            "axes": to_json(facts.axes),
            "selects_logits": facts.selects_logits,
            "is_empty": facts.is_empty,
            "metrics": facts.metrics,
            "constants": sorted(facts.constants),
        }
        path.write_text(json.dumps(content), encoding="utf-8")
        os.environ[_VARIABLE] = str(path)
        try:
            yield
        finally:
            os.environ.pop(_VARIABLE, None)


def passed_facts() -> ModelFacts | None:
    """Read the facts from the parent process; the first process of a machine needs values."""
    path = os.environ.pop(_VARIABLE, None)
    if path is None or "LOCAL_RANK" not in os.environ:
        return None
    content = json.loads(Path(path).read_text("utf-8"))
    is_empty = content["is_empty"] and int(os.environ["LOCAL_RANK"]) > 0
    axes, metrics = from_json(content["axes"]), tuple(content["metrics"])
    constants = frozenset(content["constants"])
    return ModelFacts(axes, content["selects_logits"], is_empty, metrics, constants)

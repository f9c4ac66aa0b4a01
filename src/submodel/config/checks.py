"""Trials of whether model, data, loss and scheme work together, before a run starts.

The trials use a few examples and every capacity once; third-party schemes must draw masks.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parameter import is_lazy

from submodel.algorithm.dispatch import knowledge_of
from submodel.algorithm.rounds import initial_state
from submodel.algorithm.types import Setup
from submodel.config import Config
from submodel.config.model_facts import ModelKey, find_once, is_large
from submodel.config.parts import capacity_shares
from submodel.core.errors import ConfigError, DataError, SubmodelError, refuse, wrap_errors
from submodel.core.randomness import seed_torch
from submodel.data import Dataset, Examples
from submodel.model.axes import Axes
from submodel.model.axes.forward import ForwardError, innermost, isolate, refuse_kinds, run
from submodel.model.axes.record import failing_line
from submodel.model.build import build_module
from submodel.model.build.checks import OutputCheck
from submodel.model.cut import WHOLE, Cut
from submodel.model.inputs import Inputs, call, columns, from_columns, take_rows
from submodel.model.travel import constant_names
from submodel.schemes import Draw, Random, Scheme, Static, draw_mask
from submodel.schemes.draw import draw_units
from submodel.schemes.scheme import check_members
from submodel.tasks.loss import NO_LABEL, Loss, TokenCrossEntropy, smoothing_of, value_of
from submodel.tasks.metrics import BatchMetric

_FEW = 2  # examples of a trial
_MOST = 64  # examples of a trial for which two are too few
_ROWS = 1 << 16
_CERTAINTY = 30.0
"""Expected number of held units over all draws; e^-30 is the chance of none if independent."""


def check_kinds(module: object, data: object, loss: object) -> None:
    """Raise `ConfigError` unless the arguments are a module or None, a dataset or None, a loss."""
    problems = []
    if isinstance(module, type) and issubclass(module, nn.Module):
        problems.append(f"model: {module.__name__} is a class; give an instance of it")
    elif module is not None and not isinstance(module, nn.Module):
        problems.append(f"model: a {type(module).__name__} is not an nn.Module")
    if data is not None and not isinstance(data, Dataset):
        description = repr(data) if isinstance(data, str) else f"a {type(data).__name__}"
        problems.append(
            f"data: {description} is not a dataset; make one with submodel.dataset((x, y), "
            "(test_x, test_y)), or use submodel.digits()"
        )
    if isinstance(loss, type) and issubclass(loss, nn.Module):
        problems.append(f"loss: {loss.__name__} is a class; give an instance, {loss.__name__}()")
    elif not callable(loss):
        problems.append(f"loss: {loss!r} is not a function of (outputs, targets)")
    elif getattr(loss, "reduction", "mean") in ("none", "sum"):
        problems.append(
            f"loss: {type(loss).__name__} has reduction = {loss.reduction!r}; "  # type: ignore[attr-defined]
            "it must be the mean over the batch"
        )
    refuse(problems)


def simplify(loss: Loss, data: Dataset) -> Loss:
    """Replace a loss that equals the plain cross-entropy by `functional.cross_entropy`.

    >>> from submodel.data import digits
    >>> simplify(nn.CrossEntropyLoss(), digits()) is functional.cross_entropy
    True
    """
    plain = not cross_entropy_options(loss, data) and not smoothing_of(loss)
    return functional.cross_entropy if plain else loss


def cross_entropy_options(loss: Loss, data: Dataset) -> list[str]:
    """List how a loss differs from a cross-entropy of labels, smoothed or not."""
    if loss is functional.cross_entropy:
        return []
    if type(loss) is not nn.CrossEntropyLoss:
        return [getattr(loss, "__name__", type(loss).__name__)]
    options = []
    if loss.weight is not None:
        options.append("weight")
    never = data.classes is not None and not 0 <= loss.ignore_index < data.classes
    if loss.ignore_index != nn.CrossEntropyLoss().ignore_index and not never:
        options.append(f"ignore_index = {loss.ignore_index}")
    return options


def check_model(module: nn.Module) -> None:
    """Raise unless the model has trainable, finite parameters on the CPU and can be copied."""
    refuse_kinds(module)
    parameters = dict(module.named_parameters())
    if lazy := [name for name, p in parameters.items() if is_lazy(p)]:
        raise ConfigError(
            f"model: {lazy[0]} has no shape yet; run the module once before, as model(x[:2])"
        )
    problems = []
    if not parameters:
        problems.append(f"model: {type(module).__name__} has no parameters to train")
    elif not any(p.requires_grad for p in parameters.values()):
        problems.append(
            "model: all its parameters are frozen (requires_grad is False), so there is nothing to "
            "train; model.requires_grad_(True) makes them trainable"
        )
    for name, tensor in (*parameters.items(), *module.named_buffers()):
        if tensor.device.type == "meta":
            problems.append(f"model: {name} is on the meta device, which holds no values")
        elif tensor.device.type != "cpu":
            problems.append(
                f"model: {name} is on {tensor.device}; give the model on the cpu: engine.device "
                "sets the device for training"
            )
        elif tensor.is_inference():
            problems.append(f"model: {name} was created in inference mode and cannot be trained")
        elif name in parameters and tensor.is_complex():
            problems.append(
                f"model: {name} is complex, but weights are averaged as real numbers; store "
                "torch.view_as_real of it and use torch.view_as_complex in the forward"
            )
        elif name in parameters and not bool(tensor.isfinite().all()):
            problems.append(f"model: {name} contains a value that is not finite")
        if problems:
            break  # the other tensors probably have the same problem
    refuse(problems)


def check_fit(module: nn.Module, data: Dataset, loss: Loss) -> None:
    """Raise unless the model accepts the inputs and the loss accepts its outputs and targets."""
    with torch.inference_mode(False), torch.enable_grad():  # whatever the caller's mode
        _check_part(module, data, data.train, loss, "training")
        _check_part(module, data, data.test, loss, "test")


def _check_step(
    small: nn.Module, data: Dataset, loss: Loss, batch_size: int | None, axes: Axes
) -> None:
    """Raise unless a sub-model can take a training step: forward and backward, in training mode.

    Some models fail only there: a layer that evaluation never runs was not traced, so its weights
    are uncut. If two examples are too few, a training batch is tried. The step changes the
    sub-model.
    """
    if any(p.is_meta for p in small.parameters()) or len(data.train) < _FEW:
        return
    small.train()
    constants = {name: small.get_buffer(name).clone() for name in constant_names(small)}
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.random.fork_rng(devices=[]),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        if (error := _step_error(small, data.train.take(slice(_FEW)), loss)) is not None:
            batch = data.train.take(slice(min(batch_size or _MOST, _MOST)))
            if _step_error(small, batch, loss) is not None:
                raise ConfigError(_step_problem(small, error, axes)) from error
    for name, before in constants.items():
        if not torch.equal(small.get_buffer(name), before):
            raise ConfigError(
                f"model: {name} contains a value that is not finite and changes in training, so "
                "the clients' values have no mean; initialise it with a finite value"
            )


def _step_error(small: nn.Module, examples: Examples, loss: Loss) -> Exception | None:
    seed_torch(0)
    try:
        outputs = call(small, examples.x)
        if not isinstance(outputs, Tensor):
            raise TypeError(f"its forward returns a {type(outputs).__name__}, not a tensor")
        value = loss(outputs, examples.y)
        parameters = [p for p in small.parameters() if p.requires_grad]
        torch.autograd.grad(value, parameters, allow_unused=True)
    except SubmodelError:
        raise
    except Exception as error:  # any exception of the model's code
        return error
    return None


def _step_problem(small: nn.Module, error: Exception, axes: Axes) -> str:
    """Explain why a sub-model cannot be trained, with a remedy."""
    path, layer = innermost(small, error.__traceback__)
    where = f" in {path!r} ({type(layer).__name__})" if path else ""
    reason = next(iter(str(error).splitlines()), "")
    reason = reason.partition(" Hint: ")[0].partition(". To resolve")[0]
    text = f"model: a training step fails: {type(error).__name__}{where}: {reason}"
    if "use_reentrant" in reason:
        return f"{text}; give torch.utils.checkpoint use_reentrant=False"
    if isinstance(error, TypeError) and "forward returns" in reason:
        return f"{text}; outputs=lambda returned: ... selects the tensor, in both modes"
    unseen = sorted(axes.unused_tensors)
    if unseen and "inplace operation" not in reason:
        names = ", ".join(unseen[:4]) + (", ..." if len(unseen) > 4 else "")
        return (
            f"{text}; axes are traced in evaluation mode, which never reads {names}: compute "
            "with them in both modes (and use the result in training), or list the axes before "
            f"them in axes.whole; the axes are {', '.join(axes.cut_by_capacity)}"
        )
    line = failing_line(error)
    return f"{text}, at {line}" if line else text


def _check_part(module: nn.Module, data: Dataset, part: Examples, loss: Loss, name: str) -> None:
    few = part.take(slice(_FEW))
    y = few.y
    outputs = _outputs(module, few.x, name)
    if not cross_entropy_options(loss, data):
        _check_labels(outputs, part.y, data, name)
    if isinstance(loss, TokenCrossEntropy):
        _check_tokens(outputs, part.y, name)
    value = _loss(loss, outputs, y, name)
    if not bool(value.isfinite()):
        counting = value_of(loss, outputs, y)
        if counting.is_count_known and counting.count > 0:  # else later targets may count
            raise DataError(
                f"{name} data: the loss of the first {len(y)} examples is {value.item()} before "
                "training"
            )
    if not value.requires_grad:
        raise ConfigError(
            "loss: it does not depend on the model's parameters; a tensor is detached, "
            "converted to a number, or computed under no_grad"
        )
    _check_extremes(module, part.x, name)


def metric_problems(
    module: nn.Module, examples: Examples, metrics: Mapping[str, BatchMetric], count: int = _FEW
) -> dict[str, str]:
    """Map each metric that fails on the model's outputs to the reason.

    The first ``count`` examples are tried, with the one that has the largest label.
    """
    y, places = examples.y, [*range(min(count, len(examples)))]
    if y.dim() == 1 and not y.is_floating_point():
        places.append(int(y.argmax()))
    few = examples.take(torch.tensor(places))
    outputs = _outputs(module, few.x, "test").detach()
    problems = {}
    for name, metric in metrics.items():
        try:
            metric.sums(outputs, few.y)
        except ConfigError as error:
            problems[name] = error.problems[0].removeprefix("task: ")
        except Exception as error:  # any exception of a user's metric
            problems[name] = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
    return problems


def _outputs(module: nn.Module, x: Inputs, name: str) -> Tensor:
    try:
        with isolate(module) as running, torch.enable_grad():
            outputs: Any = run(running, x)
    except ForwardError as error:
        raise ForwardError(f"{name} data: {error}") from error.__cause__
    if not isinstance(outputs, Tensor):
        raise ConfigError(
            f"model: its forward returns a {type(outputs).__name__}; training needs one output "
            "tensor: outputs=lambda returned: ... selects it"
        )
    return outputs


def _check_labels(outputs: Tensor, y: Tensor, data: Dataset, name: str) -> None:
    """Raise unless the model has an output for every class label, as the cross-entropy needs."""
    if data.classes == 1:
        raise DataError("class labels: all are 0; the cross-entropy needs at least two classes")
    if data.classes is not None and outputs.dim() != 2:
        raise ConfigError(
            f"model: its outputs have the shape {tuple(outputs.shape)} for {_FEW} examples; "
            "class labels need one output per class: (examples, classes)"
        )
    if y.is_floating_point() or outputs.dim() < 2:
        return  # probabilities, or outputs that the loss itself will refuse
    no_label = -100  # the default of functional.cross_entropy
    labels = y[y != no_label]
    if not labels.numel():
        return
    least, most, count = int(labels.min()), int(labels.max()), outputs.shape[1]
    if least >= 0 and most < count:
        return
    begin = "; the labels begin at 1: give y - 1" if least == 1 and most == count else ""
    raise DataError(
        f"{name} data: labels range from {least} to {most}, but the model has {count} outputs, "
        f"for labels 0 to {count - 1}{begin}"
    )


def _check_tokens(outputs: Tensor, y: Tensor, name: str) -> None:
    """Raise unless the model has an output for every token among the targets."""
    if y.is_floating_point() or outputs.dim() < 2:
        return  # the loss itself will refuse these
    count = outputs.shape[-1]
    for start in range(0, len(y), _ROWS):  # the targets may exceed the memory
        rows = y[start : start + _ROWS]
        wrong = (rows != NO_LABEL) & ((rows < 0) | (rows >= count))
        if bool(wrong.any()):
            place = wrong.nonzero()[0].tolist()
            raise DataError(
                f"{name} data: example {start + place[0]}: target {int(rows[tuple(place)])} is not "
                f"one of the tokens 0 to {count - 1} that the model predicts; {NO_LABEL} marks an "
                "ignored target"
            )


def _loss(loss: Loss, outputs: Tensor, y: Tensor, name: str) -> Tensor:
    """Compute the loss of some examples; raise unless it is one number."""
    try:
        with warnings.catch_warnings():
            # outputs broadcast against targets: every pair would count
            warnings.filterwarnings("error", message="Using a target size", category=UserWarning)
            value: object = loss(outputs, y)
    except SubmodelError:
        raise
    except Exception as error:  # any exception of the loss's code
        reason = next(iter(str(error).splitlines()), "")
        text = (
            f"loss: it rejects outputs of shape {tuple(outputs.shape)} with targets of shape "
            f"{tuple(y.shape)} and type {str(y.dtype).removeprefix('torch.')} ({name} data): "
            f"{type(error).__name__}: {reason.partition(' This will likely')[0]}"
        )
        for change, targets in _changes(outputs, y):
            if _is_accepted(loss, outputs, targets):
                text += f"; it accepts {change}"
                break
        else:
            whole = y.is_floating_point() and bool((y == y.round()).all())
            if y.dim() == 1 and whole and outputs.dim() == 2 and outputs.shape[1] > 1:
                text += "; regression needs one output per number; for class labels, use y.long()"
        raise ConfigError([text]) from error
    if not isinstance(value, Tensor) or value.dim():
        description = f"a {type(value).__name__}"
        if isinstance(value, Tensor):
            description = f"a tensor of shape {tuple(value.shape)}"
        raise ConfigError(f"loss: it returns {description}; it must return a scalar tensor, a mean")
    return value


def _changes(outputs: Tensor, y: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield common corrections of targets, each with the corrected targets."""
    if y.dtype != torch.int64:
        yield "y.long()", y.long()
    if y.dim() == 2 and y.shape == outputs.shape:
        yield "y.argmax(1)", y.argmax(1)
    if y.dim() >= 2 and y.shape[1] == 1:
        yield "y.squeeze(1)", y.squeeze(1)
    if y.dtype != outputs.dtype:
        yield f"y.to({outputs.dtype})", y.to(outputs.dtype)
    yield "y.unsqueeze(1)", y.unsqueeze(1)


def _is_accepted(loss: Loss, outputs: Tensor, y: Tensor) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            value = loss(outputs, y)
    except Exception:
        return False
    return isinstance(value, Tensor) and value.dim() == 0


def _check_extremes(module: nn.Module, inputs: Inputs, name: str) -> None:
    """Raise unless the model accepts the largest and the smallest integer inputs, such as tokens.

    A synthetic pair of examples is tried first. The data may not contain it (a text of only
    padding), so an error is raised only if an example of the data fails too.
    """
    tensors = columns(inputs)
    whole = {key: tensor for key, tensor in tensors.items() if _holds_tokens(tensor)}
    if not whole:
        return
    pair = {key: tensor[:1].repeat_interleave(2, 0) for key, tensor in tensors.items()}
    pair |= {key: torch.stack([tensor.amin(0), tensor.amax(0)]) for key, tensor in whole.items()}
    if _takes(module, from_columns(pair)) is None:
        return
    flat = [tensor.flatten(1) for tensor in whole.values()]
    rows = [row for x in flat for row in (*x.argmax(0).tolist(), *x.argmin(0).tolist())]
    for row in dict.fromkeys(rows):
        if (error := _takes(module, take_rows(inputs, torch.tensor([row, row])))) is not None:
            raise DataError(f"{name} data: example {row}: {error}") from error.__cause__


def _holds_tokens(x: Tensor) -> bool:
    whole = not (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool)
    return whole and x.dim() >= 2


def _takes(module: nn.Module, x: Inputs) -> ForwardError | None:
    try:
        with isolate(module) as running:
            run(running, x)
    except ForwardError as error:
        return error
    return None


def check_builds(
    module: nn.Module,
    axes: Axes,
    scheme: Scheme,
    config: Config,
    data: Dataset,
    loss: Loss,
    built_in: ModelKey | None,
) -> None:
    """Raise unless the sub-model of every capacity can be built, and the smallest can train.

    The full model is built, too: its copy must be independent. A scheme may keep unequal numbers
    of units, so a few of its own cuts are built as well: sizes that suit other schemes need not
    suit these. A built-in model of one shape is built once per process.
    """
    outputs = OutputCheck(module, data.example)

    def check(cut: Cut, *, trains: bool = False) -> None:
        small = build_module(module, cut)
        outputs.check(small, cut)
        if trains:
            _check_step(small, data, loss, config.local.batch_size, axes)

    shares = sorted(capacity_shares(config) - {1.0})
    is_cut = config.scheme.granularity == "unit" and bool(shares)
    find_once(built_in, "whole", lambda: check(WHOLE, trains=not is_cut and not is_large(module)))
    if not is_cut:
        return
    shape_keys: set[object] = set()
    plain = [(Static(), capacity, 0) for capacity in shares]
    for rule, capacity, client in [*plain, *((scheme, shares[0], n) for n in range(3))]:
        draw = Draw(config.seed, 0, client)
        try:
            cut = draw_units(rule, axes, capacity, draw, least=config.axes.least)
        except LookupError:  # the scheme looks at the model, so it may draw any cut
            cut = draw_units(Random("bernoulli"), axes, capacity, draw, least=config.axes.least)
        if cut.shape_key not in shape_keys:
            is_first = not shape_keys
            shape_keys.add(cut.shape_key)
            find_once(built_in, ("cut", cut.shape_key), partial(check, cut, trains=is_first))


def try_scheme(setup: Setup) -> None:
    """Raise unless ``select`` returns a mask for every axis and capacity, and some mask is True.

    A single draw may be empty, as Bernoulli draws are; enough draws are made that an empty result
    is not due to chance. The package's own schemes are not tried. A scheme must define all or none
    of the members that belong together.
    """
    scheme = setup.scheme
    check_members(scheme)
    if type(scheme).__module__.partition(".")[0] == __name__.partition(".")[0]:
        return
    name = f"scheme {type(scheme).__name__}"
    with wrap_errors(f"{name}: it fails to draw a mask", SubmodelError):
        model = knowledge_of(setup, initial_state(setup))
        clients = setup.population.sample(0)
        for capacity in sorted(set(setup.population.capacities)):
            for axis, size in setup.sizes.items():
                share = max(capacity, setup.least.get(axis, 0.0))
                for round_ in range(math.ceil(_CERTAINTY / (size * share))):
                    draw = Draw(setup.seed, round_, clients[0], 0, model)
                    if draw_mask(scheme, axis, size, share, draw).any():
                        break
                else:
                    raise SubmodelError(
                        f"{name}: at capacity {share:g} it never selects a unit of axis {axis!r}; "
                        "select must return a mask that is True somewhere"
                    )

"""Whether model, data, loss and scheme fit together: tried before anything runs.

A few examples, every capacity once; a scheme of somebody else is asked for masks.
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
from submodel.config.findings import BuiltIn, find_once, is_large
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

_FEW = 2  # examples that a trial takes
_MOST = 64  # where two are too few
_ROWS = 1 << 16
_CERTAINTY = 30.0
"""Units that are expected over the draws: e^-30 is the chance of none if each is independent."""


def check_kinds(module: object, data: object, loss: object) -> None:
    """Raise unless these are a module (or none), data (or none) and a loss."""
    problems = []
    if isinstance(module, type) and issubclass(module, nn.Module):
        problems.append(f"model: {module.__name__} is a class; give an instance of it")
    elif module is not None and not isinstance(module, nn.Module):
        problems.append(f"model: a {type(module).__name__} is not an nn.Module")
    if data is not None and not isinstance(data, Dataset):
        description = repr(data) if isinstance(data, str) else f"a {type(data).__name__}"
        problems.append(
            f"data: {description} is not a dataset; make one by submodel.dataset((x, y), (test_x, "
            "test_y)), or take submodel.digits()"
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
    """The plain cross-entropy where ``loss`` is nothing else.

    >>> from submodel.data import digits
    >>> simplify(nn.CrossEntropyLoss(), digits()) is functional.cross_entropy
    True
    """
    plain = not cross_entropy_options(loss, data) and not smoothing_of(loss)
    return functional.cross_entropy if plain else loss


def cross_entropy_options(loss: Loss, data: Dataset) -> list[str]:
    """The options by which a loss differs from a cross-entropy of labels, smoothed or not."""
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
    """Raise unless the model has something to train, with values, on the CPU, and can be copied."""
    refuse_kinds(module)
    parameters = dict(module.named_parameters())
    if lazy := [name for name, p in parameters.items() if is_lazy(p)]:
        raise ConfigError(
            f"model: {lazy[0]} has no shape yet; run the module once, as model(x[:2]), before"
        )
    problems = []
    if not parameters:
        problems.append(f"model: {type(module).__name__} has no parameters to train")
    elif not any(p.requires_grad for p in parameters.values()):
        problems.append(
            "model: all its parameters are frozen (requires_grad is False), so there is nothing to "
            "train; model.requires_grad_(True) thaws them"
        )
    for name, tensor in (*parameters.items(), *module.named_buffers()):
        if tensor.device.type == "meta":
            problems.append(f"model: {name} is on the meta device, which holds no values")
        elif tensor.device.type != "cpu":
            problems.append(
                f"model: {name} is on {tensor.device}; give the model on the cpu: engine.device "
                "says where to train"
            )
        elif tensor.is_inference():
            problems.append(f"model: {name} was made in inference mode and cannot be trained")
        elif name in parameters and tensor.is_complex():
            problems.append(
                f"model: {name} is complex, and weights are averaged as real numbers; hold "
                "torch.view_as_real of it, and use torch.view_as_complex in the forward"
            )
        elif name in parameters and not bool(tensor.isfinite().all()):
            problems.append(f"model: {name} holds a value that is not finite")
        if problems:
            break  # the others are likely to be alike
    refuse(problems)


def check_fit(module: nn.Module, data: Dataset, loss: Loss) -> None:
    """Raise unless the model runs on the inputs and the loss takes its outputs and the targets."""
    with torch.inference_mode(False), torch.enable_grad():  # wherever it is called
        _check_part(module, data, data.train, loss, "training")
        _check_part(module, data, data.test, loss, "test")


def _check_step(
    small: nn.Module, data: Dataset, loss: Loss, batch_size: int | None, axes: Axes
) -> None:
    """Raise unless a sub-model takes a training step: forward and backward, in training mode.

    Code may fail there alone: a layer that evaluation never runs was not traced, so that its
    weights are whole. Where two examples are too few, a batch of training is tried. The sub-model
    is not the same afterwards.
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
                f"model: {name} holds a value that is not finite, and training changes it, so "
                "that clients' values have no mean; let it begin with a finite value"
            )


def _step_error(small: nn.Module, examples: Examples, loss: Loss) -> Exception | None:
    seed_torch(0)
    try:
        outputs = call(small, examples.x)
        if not isinstance(outputs, Tensor):
            raise TypeError(f"its forward returns a {type(outputs).__name__}, and not a tensor")
        value = loss(outputs, examples.y)
        parameters = [p for p in small.parameters() if p.requires_grad]
        torch.autograd.grad(value, parameters, allow_unused=True)
    except SubmodelError:
        raise
    except Exception as error:  # whatever the model's own code raises
        return error
    return None


def _step_problem(small: nn.Module, error: Exception, axes: Axes) -> str:
    """Why a sub-model cannot be trained, and what to do about it."""
    path, layer = innermost(small, error.__traceback__)
    where = f" in {path!r} ({type(layer).__name__})" if path else ""
    reason = next(iter(str(error).splitlines()), "")
    reason = reason.partition(" Hint: ")[0].partition(". To resolve")[0]
    text = (
        f"model: in training mode it does not take a step: {type(error).__name__}{where}: {reason}"
    )
    if "use_reentrant" in reason:
        return f"{text}; give torch.utils.checkpoint use_reentrant=False"
    if isinstance(error, TypeError) and "forward returns" in reason:
        return f"{text}; outputs=lambda returned: ... selects the tensor, in both modes"
    unseen = sorted(axes.unused_tensors)
    if unseen and "inplace operation" not in reason:
        names = ", ".join(unseen[:4]) + (", ..." if len(unseen) > 4 else "")
        return (
            f"{text}; evaluation mode, in which the axes are found, never reads {names}: compute "
            "with them in both modes (and use the result in training), or keep the axes before "
            f"them whole, by axes.whole; there are {', '.join(axes.cut_by_capacity)}"
        )
    return f"{text}{_line(error)}"


def _line(error: Exception) -> str:
    return f", at {line}" if (line := failing_line(error)) else ""


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
        if counting.is_count_known and counting.count > 0:  # else other targets may count
            raise DataError(
                f"{name} data: the loss of the first {len(y)} examples is {value.item()} before "
                "anything is trained"
            )
    if not value.requires_grad:
        raise ConfigError(
            "loss: it does not depend on the model's parameters; something is detached, "
            "turned into a number, or computed under no_grad"
        )
    _check_extremes(module, part.x, name)


def metric_problems(
    module: nn.Module, examples: Examples, metrics: Mapping[str, BatchMetric], count: int = _FEW
) -> dict[str, str]:
    """Why metrics cannot be had from the model's outputs, by name; those that can are not named.

    So many examples of the test part are tried, beside the one with the largest label.
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
        except Exception as error:  # of a metric of the user's own
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
            f"model: its forward returns a {type(outputs).__name__}; training needs one tensor "
            "of outputs: outputs=lambda returned: ... selects it"
        )
    return outputs


def _check_labels(outputs: Tensor, y: Tensor, data: Dataset, name: str) -> None:
    """Raise unless there is an output for every label, for the cross-entropy."""
    if data.classes == 1:
        raise DataError("class labels: all are 0; the cross-entropy needs at least two classes")
    if data.classes is not None and outputs.dim() != 2:
        raise ConfigError(
            f"model: its outputs have the shape {tuple(outputs.shape)} for {_FEW} examples; "
            "class labels need one output for each class, (examples, classes)"
        )
    if y.is_floating_point() or outputs.dim() < 2:
        return  # probabilities, or something that the loss itself will refuse
    no_label = -100  # as functional.cross_entropy
    labels = y[y != no_label]
    if not labels.numel():
        return
    least, most, count = int(labels.min()), int(labels.max()), outputs.shape[1]
    if least >= 0 and most < count:
        return
    begin = "; the labels begin at 1: give y - 1" if least == 1 and most == count else ""
    raise DataError(
        f"{name} data: labels go from {least} to {most}, but the model has {count} outputs, for "
        f"labels 0 to {count - 1}{begin}"
    )


def _check_tokens(outputs: Tensor, y: Tensor, name: str) -> None:
    """Raise unless there is an output for every token among the targets."""
    if y.is_floating_point() or outputs.dim() < 2:
        return  # which the loss itself will refuse
    count = outputs.shape[-1]
    for start in range(0, len(y), _ROWS):  # targets may be more than memory holds
        rows = y[start : start + _ROWS]
        wrong = (rows != NO_LABEL) & ((rows < 0) | (rows >= count))
        if bool(wrong.any()):
            place = wrong.nonzero()[0].tolist()
            raise DataError(
                f"{name} data: example {start + place[0]}: target {int(rows[tuple(place)])} is not "
                f"one of the tokens 0 to {count - 1} that the model tells; {NO_LABEL} stands for "
                "none"
            )


def _loss(loss: Loss, outputs: Tensor, y: Tensor, name: str) -> Tensor:
    """The loss of some examples; raises unless it is one number."""
    try:
        with warnings.catch_warnings():
            # of a broadcast of outputs against targets: every pair would count
            warnings.filterwarnings("error", message="Using a target size", category=UserWarning)
            value: object = loss(outputs, y)
    except SubmodelError:
        raise
    except Exception as error:  # whatever the loss's own code raises
        reason = next(iter(str(error).splitlines()), "")
        text = (
            f"loss: it does not take outputs of shape {tuple(outputs.shape)} and targets of shape "
            f"{tuple(y.shape)} and type {str(y.dtype).removeprefix('torch.')} ({name} data): "
            f"{type(error).__name__}: {reason.partition(' This will likely')[0]}"
        )
        for change, targets in _changes(outputs, y):
            if _is_taken(loss, outputs, targets):
                text += f"; it would take {change}"
                break
        else:
            whole = y.is_floating_point() and bool((y == y.round()).all())
            if y.dim() == 1 and whole and outputs.dim() == 2 and outputs.shape[1] > 1:
                text += "; numbers are told by one output each: if these are class labels, y.long()"
        raise ConfigError([text]) from error
    if not isinstance(value, Tensor) or value.dim():
        description = f"a {type(value).__name__}"
        if isinstance(value, Tensor):
            description = f"a tensor of shape {tuple(value.shape)}"
        raise ConfigError(f"loss: it returns {description}; want a tensor of one number, the mean")
    return value


def _changes(outputs: Tensor, y: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Common corrections of targets, each with the corrected targets."""
    if y.dtype != torch.int64:
        yield "y.long()", y.long()
    if y.dim() == 2 and y.shape == outputs.shape:
        yield "y.argmax(1)", y.argmax(1)
    if y.dim() >= 2 and y.shape[1] == 1:
        yield "y.squeeze(1)", y.squeeze(1)
    if y.dtype != outputs.dtype:
        yield f"y.to({outputs.dtype})", y.to(outputs.dtype)
    yield "y.unsqueeze(1)", y.unsqueeze(1)


def _is_taken(loss: Loss, outputs: Tensor, y: Tensor) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            value = loss(outputs, y)
    except Exception:
        return False
    return isinstance(value, Tensor) and value.dim() == 0


def _check_extremes(module: nn.Module, inputs: Inputs, name: str) -> None:
    """Raise unless the model takes the largest and the smallest whole numbers: tokens, categories.

    A made-up pair of examples is tried first. It may be one that the data never hold (a text of
    nothing but padding), so an error is raised only if an example of the data fails too.
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
    built_in: BuiltIn | None,
) -> None:
    """Raise unless the sub-model of every capacity can be built; the smallest takes a step, too.

    The whole is built, too: its copy must be a model of its own. A scheme that keeps unequal
    numbers of units is asked for some of its own cuts, as sizes that fit the others need not fit
    those. Of a built-in model, what was built once in this process is not built again.
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
        except LookupError:  # it looks at the model; then it may draw anything
            cut = draw_units(Random("bernoulli"), axes, capacity, draw, least=config.axes.least)
        if cut.shape_key not in shape_keys:
            is_first = not shape_keys
            shape_keys.add(cut.shape_key)
            find_once(built_in, ("cut", cut.shape_key), partial(check, cut, trains=is_first))


def try_scheme(setup: Setup) -> None:
    """Raise unless ``select`` returns a mask for every axis and capacity, and ever holds a unit.

    A single draw may be empty, as Bernoulli draws are; so many are made that none would hold a
    unit by chance. The package's own schemes are not tried. Of members that belong together a
    scheme defines all or none.
    """
    scheme = setup.scheme
    check_members(scheme)
    if type(scheme).__module__.partition(".")[0] == __name__.partition(".")[0]:
        return
    name = f"scheme {type(scheme).__name__}"
    with wrap_errors(f"{name}: it fails when it is asked for a mask", SubmodelError):
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
                        f"{name}: capacity {share:g} never holds anything of axis {axis!r}; select "
                        "must return a mask that is True somewhere"
                    )

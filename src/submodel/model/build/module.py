"""Construction of the small module of a unit cut from the full one.

The copy shares no storage with the original: every parameter is replaced by its cut while the
module is copied, so weight tying survives and the full weights are never duplicated. Then layers
that store their sizes as plain numbers are corrected from the shapes of their weights. The second
half of the file concerns tensors: the exchanged ones, the local ones, and loading them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.parametrize import ParametrizationList
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.overrides import TorchFunctionMode

from submodel.core.errors import SubmodelError
from submodel.model.axes.forward import refuse_kinds
from submodel.model.axes.verify import Outputs
from submodel.model.build.checks import OutputCheck, refuse_parts
from submodel.model.build.copying import copy_module
from submodel.model.build.integers import Sizes, follow_integers, misfits, narrow_values
from submodel.model.build.layers import LayerCut, fix_of
from submodel.model.cut import WHOLE, Cut, PlannedCut, UnitCut, copy_part, lay_out
from submodel.model.inputs import Inputs

Factory = Callable[[Mapping[str, int]], nn.Module]
"""The kept size of every axis -> an empty module of those sizes."""
Resize = Callable[[nn.Module, Mapping[str, int]], None]
"""Corrects the copied module in place, given the kept size of every axis."""


def build_module(
    module: nn.Module,
    cut: Cut,
    *,
    factory: Factory | None = None,
    resize: Resize | None = None,
    example_inputs: Inputs | None = None,
    outputs: Outputs | None = None,
) -> nn.Module:
    """Build the sub-model of ``module`` that ``cut`` keeps.

    By default layers of torch are corrected by `resizes`, and plain integers of other modules if
    their new values are unambiguous; otherwise an error is raised. Floats stay: a stored scale such
    as 1/sqrt(size of a head) is that of the full model (see `integers`). ``resize(module, sizes)``
    runs last and may settle ambiguous integers. ``factory(sizes)`` replaces all corrections: it
    makes a module with its own scales, into which the cut tensors are put by name.

    The result does not refer to ``module``. With ``example_inputs`` both run once to check this;
    the shapes of their ``outputs`` must agree.

    >>> from submodel.model.axes import declare
    >>> import numpy as np
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> table = {"0.weight": ("hidden",), "0.bias": ("hidden",), "2.weight": (None, "hidden")}
    >>> axes = declare(dict(net.named_parameters()), table)
    >>> build_module(net, UnitCut(axes, {"hidden": np.array([1, 5])}))[0]
    Linear(in_features=4, out_features=2, bias=True)
    """
    refuse_kinds(module)
    tensors = _map_tensors(module, partial(copy_part, cut))
    if isinstance(cut, PlannedCut) and cut.like is not None:
        cut = cut.like  # below, only shapes matter
    if not isinstance(cut, UnitCut):
        small = copy_module(module, tensors)
    else:
        sizes = Sizes(module, cut)
        if factory is not None:
            small = _fill(factory(sizes.kept_counts), module, tensors)
        else:
            small = copy_module(module, tensors)
            _correct(module, small, cut, sizes, allow_doubt=resize is not None)
            if resize is not None:
                resize(small, sizes.kept_counts)
            if cut.axes.code_numbers is not None:
                _refuse(misfits(small, sizes, cut.axes.code_numbers))
                _pad_groups(module, small, cut.axes.code_numbers.grouping_modules)
    pairs = zip(small.buffers(), module.buffers(), strict=True)
    if any(buffer.shape != whole.shape for buffer, whole in pairs):
        settle_spectral_norms(small)
    refuse_parts(module, small)
    if example_inputs is not None:
        OutputCheck(module, example_inputs, outputs).check(small, cut)
    return small


def skeleton(module: nn.Module) -> nn.Module:
    """A copy on the meta device; tied weights stay tied, unlike after ``.to``.

    >>> skeleton(nn.Linear(2, 3)).weight.device
    device(type='meta')
    """
    return copy_module(module, _map_tensors(module, lambda _, tensor: tensor.to("meta")))


def sharing(module: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    """A copy that uses these tensors without copying those with the module's memory order.

    Buffers are copied, as a forward pass may write to them.

    >>> net, weights = nn.Linear(2, 3), {"weight": torch.ones(3, 2), "bias": torch.ones(3)}
    >>> sharing(net, weights).weight.data_ptr() == weights["weight"].data_ptr()
    True
    """
    refuse_kinds(module)
    parameters = dict(module.named_parameters())

    def own(name: str, whole: Tensor) -> Tensor:
        tensor = tensors.get(name, whole)
        if name not in parameters:
            return copy_part(WHOLE, name, tensor)
        is_alike = tensor.stride() == whole.stride() or tensor.dim() < 2
        return tensor if is_alike else lay_out(tensor, whole)

    copy = copy_module(module, _map_tensors(module, own))
    settle_spectral_norms(copy)
    refuse_parts(module, copy)
    return copy


def to_device(module: nn.Module, device: torch.device | str) -> nn.Module:
    """The module on a device; tensors without values become zero, to be filled by `load`.

    >>> to_device(skeleton(nn.Linear(2, 3)), "cpu").weight.shape
    torch.Size([3, 2])
    """
    if not any(p.is_meta for p in module.parameters()):
        return module.to(device)

    def allocate(_: str, tensor: Tensor) -> Tensor:
        if not tensor.is_meta:
            return tensor.to(device)
        shape, strides = tensor.shape, tensor.stride()  # `empty_like` loads torch's compiler
        return torch.empty_strided(shape, strides, dtype=tensor.dtype, device=device).zero_()

    return copy_module(module, _map_tensors(module, allocate))


def _map_tensors(module: nn.Module, make: Callable[[str, Tensor], Tensor]) -> dict[str, Tensor]:
    """Apply ``make`` to every parameter and buffer; ``requires_grad`` is kept."""
    tensors: dict[str, Tensor] = {
        name: nn.Parameter(make(name, parameter.detach()), parameter.requires_grad)
        for name, parameter in module.named_parameters()
    }
    return tensors | {name: make(name, buffer) for name, buffer in module.named_buffers()}


def _correct(
    module: nn.Module, small: nn.Module, cut: UnitCut, sizes: Sizes, *, allow_doubt: bool
) -> None:
    """Correct the plain numbers that the copy has from the full model."""
    names = {id(p): name for name, p in module.named_parameters()}
    names |= {id(b): name for name, b in module.named_buffers()}
    doubts = []
    numbers = cut.axes.code_numbers
    allowed_values = {} if numbers is None else narrow_values(numbers, sizes)
    pairs = list(zip(module.named_modules(), small.modules(), strict=True))
    with _computed_weights(module, small):
        for (path, original), layer in reversed(pairs):  # layers before those that contain them
            if (fix := fix_of(original)) is not None:
                fix(layer, LayerCut(path, original, cut, sizes, names))
            elif not type(layer).__module__.startswith("torch."):
                where = f"{path or 'the model'} ({type(layer).__name__})"
                layer_doubts = follow_integers(layer, path, sizes, numbers, allowed_values)
                doubts += [f"{where}: {doubt}" for doubt in layer_doubts]
    if not allow_doubt:
        _refuse(doubts)


@contextmanager
def _computed_weights(module: nn.Module, small: nn.Module) -> Iterator[None]:
    """Context in which reading a computed weight does not change the state of its layer.

    Spectral norm, for example, takes a step of its power iteration at every read while training.
    Weights that torch's hooks compute before a forward pass are recomputed from the cut tensors.
    """
    computing_parts = [
        part
        for one in (module, small)
        for layer in one.modules()
        if isinstance(layer, ParametrizationList) or _weight_hooks(layer)
        for part in layer.modules()
    ]
    modes = [(part, part.training) for part in computing_parts]
    try:
        for part in computing_parts:
            part.training = False
        with torch.no_grad():
            for layer in small.modules() if computing_parts else ():
                for hook in _weight_hooks(layer):
                    hook(layer, ())
            yield
    finally:
        for part, mode in modes:
            part.training = mode


def _weight_hooks(layer: nn.Module) -> list[Callable[..., Any]]:
    """The hooks of weight norm, spectral norm and pruning that run before a forward pass."""
    hooks = layer._forward_pre_hooks.values()
    return [hook for hook in hooks if type(hook).__module__.startswith("torch.nn.utils.")]


def _refuse(problems: Sequence[str]) -> None:
    if problems:
        raise SubmodelError(
            "cannot build the sub-model: " + "; ".join(problems) + ". Register a correction for "
            "this type with `resizes`, pass `resize` or `factory`, or keep the axis whole"
        )


def _fill(small: nn.Module, module: nn.Module, cut_tensors: Mapping[str, Tensor]) -> nn.Module:
    """Put the cut tensors into a module from a factory; names and shapes must agree."""
    factory_tensors: dict[str, Tensor] = dict(small.named_parameters())
    factory_tensors |= dict(small.named_buffers())
    problems = [
        f"{name}: only the full model has it"
        for name in cut_tensors.keys() - factory_tensors.keys()
    ]
    problems += [
        f"{name}: only the factory's module has it"
        for name in factory_tensors.keys() - cut_tensors.keys()
    ]
    problems += [
        f"{name}: the factory's module has {tuple(there.shape)}, the cut {tuple(tensor.shape)}"
        for name, tensor in cut_tensors.items()
        if (there := factory_tensors.get(name)) is not None and there.shape != tensor.shape
    ]
    if problems:
        raise SubmodelError("the factory's module does not fit the cut: " + "; ".join(problems))
    replacements: dict[int, Any] = {
        id(factory_tensors[name]): tensor for name, tensor in cut_tensors.items()
    }
    _exchange(small, replacements)
    for layer in small.modules():
        if isinstance(layer, nn.RNNBase):
            layer._init_flat_weights()
    return small.train(module.training)


def _exchange(module: nn.Module, new: Mapping[int, Any]) -> None:
    """Replace parameters and buffers of a module; ``new`` is keyed by the ids of the old ones."""
    for layer in module.modules():
        tables: tuple[dict[str, Any], ...] = (layer._parameters, layer._buffers)
        for table in tables:
            table |= {name: new.get(id(t), t) for name, t in table.items() if t is not None}


_BYTES = 16


def _pad_groups(module: nn.Module, small: nn.Module, paths: Iterable[str]) -> None:
    """Make the modules of ``small`` at ``paths`` pad grouped products if their tensors are cut.

    They multiply each group of rows by its own matrix, as experts do. Torch's kernel needs rows of
    a multiple of 16 bytes, which widths of the full model satisfy and those of a cut may not. So
    both operands are padded with zeros, which do not change the sums, and the result is trimmed.
    """
    for path in paths:
        layer, whole = small.get_submodule(path), module.get_submodule(path)
        pairs = zip(layer.parameters(), whole.parameters(), strict=True)
        if any(p.shape != q.shape for p, q in pairs):
            layer.forward = PaddedForward(layer)


class PaddedForward:
    """The forward of a module, with products of groups padded."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module with padding."""
        with _Padding():
            return type(self.layer).forward(self.layer, *args, **kwargs)


class _Padding(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        is_grouped_product = func is torch._grouped_mm
        return (_padded_product if is_grouped_product else func)(*args, **(kwargs or {}))


def _padded_product(rows: Tensor, matrices: Tensor, **options: Any) -> Tensor:
    """``torch._grouped_mm`` of operands of any width."""
    step = _BYTES // rows.element_size()
    width = matrices.shape[-1]
    inner, outer = -rows.shape[-1] % step, -width % step
    if inner or outer:
        rows = functional.pad(rows, (0, inner))
        matrices = functional.pad(matrices, (0, outer, 0, inner))
    product: Tensor = torch._grouped_mm(rows, matrices, **options)
    return product[..., :width]


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """The exchanged tensors: the parameters and the persistent floating-point buffers.

    Such buffers (running statistics) are cut and merged like weights; integer buffers stay local.
    """
    tensors: dict[str, Tensor] = {n: p.detach() for n, p in module.named_parameters()}
    persistent = module.state_dict().keys()
    for name, buffer in module.named_buffers():
        if name in persistent and buffer.is_floating_point():
            tensors[name] = buffer
    return tensors


def can_release(module: nn.Module) -> bool:
    """Return whether only the tables of its layers refer to the module's tensors.

    This holds for layers of torch, `transformers` and this library. Other code may store tensors in
    lists and closures, as recurrent layers of torch do.

    >>> can_release(nn.Sequential(nn.Linear(2, 2))), can_release(nn.LSTM(2, 2))
    (True, False)
    """
    return all(
        type(layer).__module__.partition(".")[0] in _OPEN_CODE and not isinstance(layer, nn.RNNBase)
        for layer in module.modules()
    )


_OPEN_CODE = {"torch", "transformers", "submodel"}


def release(module: nn.Module) -> dict[str, Tensor]:
    """Move the exchanged tensors out of ``module``, which keeps only their shapes.

    >>> net = nn.Linear(2, 3)
    >>> release(net)["weight"].shape, net.weight.device
    (torch.Size([3, 2]), device(type='meta'))
    """
    tensors = tensors_of(module)
    meta: dict[int, Tensor] = {
        id(p): nn.Parameter(p.detach().to("meta"), p.requires_grad) for p in module.parameters()
    }
    meta |= {id(b): b.to("meta") for name, b in module.named_buffers() if name in tensors}
    _exchange(module, meta)
    return tensors


@contextmanager
def without_values() -> Iterator[None]:
    """Context in which new modules have parameters without values, and buffers with values.

    It serves large models whose values are in another process's memory.

    >>> with without_values():
    ...     layer = nn.Linear(64, 64)
    >>> layer.weight.device
    device(type='meta')
    """
    register = nn.Module.register_parameter

    def register_empty(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and not param.is_meta:
            param = nn.Parameter(param.detach().to("meta"), param.requires_grad)
        register(self, name, param)

    nn.Module.register_parameter = register_empty  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def load(module: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Put these tensors into ``module`` without copying those with the same memory order."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            tensor = tensors[name]
            same = tensor.stride() == parameter.stride() or tensor.dim() < 2
            parameter.data = tensor if same else lay_out(tensor, parameter)
        for name, buffer in module.named_buffers():
            if name in tensors:
                buffer.copy_(tensors[name])
    settle_spectral_norms(module)


@torch.no_grad()
def settle_spectral_norms(module: nn.Module) -> None:
    """Update every spectral norm of ``module`` to the largest singular value of its own matrix.

    Spectral norm estimates that value from two vectors, which it iterates in training. Parts of
    vectors, and the mean of several clients' vectors, do not belong to the matrix at hand.

    >>> net = torch.nn.utils.parametrizations.spectral_norm(nn.Linear(2, 2))
    >>> load(net, {name: torch.ones_like(t) for name, t in tensors_of(net).items()})
    >>> round(net.eval().weight.norm().item(), 5)
    1.0
    """
    for layer in module.modules():
        steps: list[Callable[[], object]] = []
        parts: list[nn.Module] = []  # each of them iterates while it is in training mode
        if isinstance(layer, ParametrizationList):
            steps, parts = [layer], [part for part in layer if isinstance(part, _SpectralNorm)]
        elif hooks := [h for h in layer._forward_pre_hooks.values() if isinstance(h, SpectralNorm)]:
            steps, parts = [partial(hook, layer, ()) for hook in hooks], [layer]
        if not parts or any(parameter.is_meta for parameter in layer.parameters()):
            continue
        modes = [(part, part.training) for part in (*parts, *layer.modules())]
        for part, _ in modes:
            part.training = part in parts  # others may draw random numbers, or update statistics
        for step in steps * _ITERATIONS:
            step()
        for part, mode in modes:
            part.training = mode


_ITERATIONS = 15
"""The number that torch uses for a new layer."""


@torch.no_grad()
def load_local(small: nn.Module, module: nn.Module, cut: Cut) -> None:
    """Put the cut of the local buffers, which `tensors_of` omits, into ``small``.

    After `load` and this function, a module built for one cut serves another one of equal shapes.
    Rotary frequencies, for example, are no weights but belong to units.

    >>> from submodel.model.build import build_module
    >>> from submodel.model.cut import WHOLE
    >>> net = nn.Linear(2, 2)
    >>> net.register_buffer("scale", torch.tensor([1.0, 2.0]), persistent=False)
    >>> small = build_module(net, WHOLE)
    >>> _ = small.scale.zero_()
    >>> load_local(small, net, WHOLE)
    >>> small.scale
    tensor([1., 2.])
    """
    if next(small.buffers(), None) is None:
        return
    fill_local(small, {name: cut.part(name, whole) for name, whole in local_of(module).items()})


def local_of(module: nn.Module) -> dict[str, Tensor]:
    """The buffers that are never exchanged."""
    exchanged_names = tensors_of(module).keys()
    return {name: buffer for name, buffer in module.named_buffers() if name not in exchanged_names}


@torch.no_grad()
def fill_local(small: nn.Module, local: Mapping[str, Tensor]) -> None:
    """Copy these buffers into ``small``."""
    for name, buffer in small.named_buffers():
        if name in local:
            buffer.copy_(local[name])

"""Rules for operators that compute: contractions, normalisations, reductions."""

from __future__ import annotations

import re
from collections.abc import Iterable

from submodel.model.axes.layout import ONE, FixedPart, Layout, atoms, product
from submodel.model.axes.record import TensorFacts
from submodel.model.axes.rules.call import Call, Results, rule


def contract(call: Call, one: TensorFacts, d: int, other: TensorFacts, e: int) -> None:
    """Sum over dimension ``d`` of one operand and ``e`` of the other.

    Masked weights contribute zero to the sum. For two activations the contribution of a dropped
    unit may differ from zero, so the sum is noted. The same holds for a weight repeated along the
    dimension.
    """
    for weight, read in ((one, other), (other, one)):
        if weight.weight and read.constant:
            call.record.starts.append(weight.dimensions[d if weight is one else e])
    is_masked = _is_masked(call, one, d) or _is_masked(call, other, e)
    common = call.unify(one.dimensions[d], other.dimensions[e])
    if not is_masked:
        call.mix(common, "multiplies two activations")


def _is_masked(call: Call, facts: TensorFacts, d: int) -> bool:
    """Return whether an operand is a weight that is zero where a unit along ``d`` is masked."""
    copies = call.record.copies
    return facts.weight and not (copies and copies.intersection(atoms(facts.dimensions[d])))


def join(call: Call, result: list[Layout], summand: str) -> list[Layout]:
    """The dimensions of the result after adding an argument by broadcasting."""
    return call.broadcast([result, call.dimensions(summand)])


@rule("mm", "bmm", "mv", "dot", "vdot")
@rule("addmm", "baddbmm", "addmv", "_addmm_activation", "_sparse_addmm")
def matrix_product(call: Call) -> Results:
    """Rows are multiplied by columns, per batch; a bias may be added."""
    first = next(n for n in ("mat1", "batch1", "mat", "self") if n in call.arguments)
    second = ("mat2", "batch2", "vec", "tensor", "other")
    one = call.facts(first)
    other = call.facts(next(n for n in second if n in call.arguments))
    a, b = one.dimensions, other.dimensions
    batch = [call.unify(a[0], b[0])] if len(a) == len(b) == 3 else []
    contract(call, one, -1, other, -2 if len(b) > 1 else -1)
    result = [*batch, *a[len(batch) : -1], *b[len(b) - 1 if len(b) > 1 else len(b) :]]
    return [result if first == "self" else join(call, result, "self")]


@rule("_grouped_mm")
def grouped_matrix_product(call: Call) -> Results:
    """Runs of rows are multiplied by one matrix each, as for experts; the data give the runs."""
    one, other = call.facts("self"), call.facts("mat2")
    if (len(one.dimensions), len(other.dimensions)) != (2, 3):
        raise ValueError("runs of columns")
    call.freeze(one.dimensions[0], "in runs")
    call.freeze(other.dimensions[0], "in runs")
    contract(call, one, 1, other, 1)
    result: list[Layout] = [one.dimensions[0], other.dimensions[2]]
    return [result if call["bias"] is None else join(call, result, "bias")]


@rule("_trilinear")
def trilinear(call: Call) -> Results:
    """Three operands, with dimensions of one inserted, are multiplied and summed over some."""
    operands = [call.facts(f"i{n}") for n in (1, 2, 3)]
    operand_dimensions = [list(operand.dimensions) for operand in operands]
    for n, dimensions in enumerate(operand_dimensions, start=1):
        for d in sorted(call[f"expand{n}"]):
            dimensions.insert(d, ONE)
    common = call.broadcast(operand_dimensions)
    for d in call["sumdim"]:
        if not any(
            o.weight and e[d].size > 1 for o, e in zip(operands, operand_dimensions, strict=True)
        ):
            call.mix(common[d], "multiplies activations")
    sum_dimensions = set(call["sumdim"])
    return [[e for d, e in enumerate(common) if d not in sum_dimensions]]


@rule("_cdist_forward", "_euclidean_dist")
def distances(call: Call) -> Results:
    """Distances between all pairs of rows, over the last dimension."""
    *lead, rows, width = call.dimensions("x1")
    *others, columns, width_other = call.dimensions("x2")
    call.mix(call.unify(width, width_other), "takes distances over it")
    return [[*call.broadcast([lead, others]), rows, columns]]


@rule("convolution", "_convolution", "convolution_overrideable")
def convolution(call: Call) -> Results:
    """Channels are contracted within each group; kernels and image positions keep their order."""
    image, weight, groups = call.facts("input"), call.facts("weight"), call["groups"]
    batch, channels, *space = image.dimensions
    first, second, *kernel = weight.dimensions
    for dimension in kernel:
        call.freeze(dimension, "as a kernel")
    if call["transposed"]:
        call.unify(channels, first)
        into, per_group = channels, second
        whole = product([call.factor(into, [groups, into.size // groups])[0], per_group])
    else:
        outer, inner = call.factor(channels, [groups, channels.size // groups])
        call.unify(inner, second)
        per_output = call.factor(first, [groups, first.size // groups])
        call.unify(outer, per_output[0])
        into, whole = inner, first
    if not weight.weight:
        call.mix(into, "multiplies two activations")
    elif image.constant:
        call.record.starts.append(into)
    if call["bias"] is not None:
        call.unify(whole, call.dimensions("bias")[0])
    plain = (
        all(k.size == 1 for k in kernel)
        and all(s == 1 for s in call["stride"])
        and not any(call["padding"])
        and not any(call["output_padding"])
    )
    if not plain:
        for dimension in space:
            call.freeze(dimension, "as a position in space")
        space = [FixedPart(n, f"positions made by {call.name}") for n in call.results[0].shape[2:]]
    return [[batch, call.record.algebra.resolve(whole), *space]]


@rule(
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
)
def attention(call: Call) -> Results:
    """Scaled dot-product attention; the scale depends on the head's size.

    With fewer key heads than query heads, each key head serves a run of query heads.
    """
    *lead, rows, width = call.dimensions("query")
    *lead_k, columns, width_k = call.dimensions("key")
    *lead_v, columns_v, width_v = call.dimensions("value")
    call.unify(width, width_k)
    call.unify(columns, columns_v)
    for d, (k, v) in enumerate(zip(lead_k, lead_v, strict=True)):
        key_heads = call.factor(lead[d], [k.size, lead[d].size // k.size])[0]
        call.unify(call.unify(k, v), key_heads)
    mask = call.get("attn_mask", call.get("attn_bias"))
    if mask is not None:
        call.broadcast([[*lead, rows, columns], call.record.of(mask).dimensions])
    if call.get("is_causal"):
        call.freeze(rows)
        call.freeze(columns)
    call.mix(width, "scales by the size of a head")
    call.mix(columns, "takes a softmax")
    return [[*map(call.record.algebra.resolve, (*lead, rows, width_v))]]


def unify_arguments(call: Call, dimensions: list[Layout], *names: str) -> None:
    """Unify weight, bias and running statistics with the normalised dimensions."""
    for name in names:
        if call.get(name) is not None:
            for one, other in zip(dimensions, call.dimensions(name), strict=True):
                call.unify(one, other)


@rule(
    "native_batch_norm",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_no_training",
    "_batch_norm_with_update",
    "_batch_norm_no_update",
    "cudnn_batch_norm",
    "miopen_batch_norm",
)
def batch_norm(call: Call) -> Results:
    """Statistics per channel over the other dimensions; in evaluation they are given."""
    dimensions = call.dimensions("input")
    unify_arguments(call, [dimensions[1]], "weight", "bias", "running_mean", "running_var")
    for dimension in (dimensions[0], *dimensions[2:]):
        call.mix(dimension, "takes statistics over it in training")
    return [dimensions]


@rule("native_layer_norm", "_fused_rms_norm")
def layer_norm(call: Call) -> Results:
    """Statistics over the last dimensions."""
    dimensions = call.dimensions("input")
    last = list(dimensions[len(dimensions) - len(call["normalized_shape"]) :])
    unify_arguments(call, last, "weight", "bias")
    for dimension in last:
        call.mix(dimension, "takes statistics over it")
    return [dimensions]


@rule("native_group_norm")
def group_norm(call: Call) -> Results:
    """Statistics per group of channels: groups are independent, channels within one mix."""
    batch, channels, *space = call.dimensions("input")
    unify_arguments(call, [channels], "weight", "bias")
    groups, within = call.factor(channels, [call["group"], channels.size // call["group"]])
    call.record.groups.append(groups)
    for dimension in (within, *space):
        call.mix(dimension, "takes statistics over it")
    return [[batch, call.record.algebra.resolve(channels), *space]]


@rule("_weight_norm_interface")
def weight_norm(call: Call) -> Results:
    """One norm per unit of one dimension scales a direction."""
    dimensions = list(call.dimensions("v"))
    dim = call["dim"] % len(dimensions)
    dimensions[dim] = call.unify(dimensions[dim], call.dimensions("g")[dim])
    for d, dimension in enumerate(dimensions):
        if d != dim:
            call.mix(dimension, "takes a norm over it")
    return [dimensions]


@rule("_softmax", "_log_softmax", "_safe_softmax")
def softmax(call: Call) -> Results:
    """Values are normalised to the sum one along a dimension."""
    dimensions = call.dimensions("self")
    if dimensions:
        call.mix(dimensions[call["dim"]], "takes a softmax over it")
    return [dimensions]


def dimension_numbers(call: Call, argument: str, count: int) -> set[int]:
    """The dimensions that an argument gives; all dimensions if it gives none."""
    dims = call.get(argument)
    numbers = [dims] if isinstance(dims, int) else list(dims or ())
    return {d % max(count, 1) for d in numbers} or set(range(count))


@rule("sum", "nansum", "mean", "prod", "amax", "amin", "aminmax", "all", "any", "count_nonzero")
@rule("var", "std", "var_mean", "std_mean", "norm", "linalg_vector_norm", "logsumexp")
@rule("max.default", "min.default")
def reduction(call: Call) -> Results:
    """The order along reduced dimensions does not matter; masked units may still contribute."""
    dimensions = call.dimensions("input" if "input" in call.arguments else "self")
    reduced_dimensions = dimension_numbers(call, "dim", len(dimensions))
    for d in reduced_dimensions & set(range(len(dimensions))):
        call.mix(dimensions[d], "runs over it")
    return [_without(dimensions, reduced_dimensions, len(result.shape)) for result in call.results]


def _without(
    dimensions: Iterable[Layout], shrunk_dimensions: set[int], count: int, size: int = 1
) -> list[Layout]:
    """The dimensions after reducing some to ``size``, or removing them if ``count`` is less."""
    dimensions = list(dimensions)
    keep = count == len(dimensions)
    return [
        FixedPart(size, "positions") if d in shrunk_dimensions else e
        for d, e in enumerate(dimensions)
        if keep or d not in shrunk_dimensions
    ]


@rule("argmax", "argmin", "max.dim", "min.dim", "median.dim", "nanmedian.dim", "mode", "kthvalue")
@rule("cumsum", "cumprod", "cummax", "cummin", "_cummax_helper", "logcumsumexp")
@rule("sort", "argsort", "topk")
def order_dependent(call: Call) -> Results:
    """Results are positions along a dimension, or depend on its order."""
    dimensions = call.dimensions("self")
    places = dimension_numbers(call, "dim", len(dimensions))
    for d in places & set(range(len(dimensions))):
        call.freeze(dimensions[d])
    return [
        _without(
            dimensions,
            places,
            r.dim(),
            r.shape[max(places)] if r.dim() == len(dimensions) and dimensions else 1,
        )
        for r in call.results
    ]


@rule("flip", "roll")
def rearrangement(call: Call) -> Results:
    """Units are moved along some dimensions."""
    dimensions = call.dimensions("self")
    for d in dimension_numbers(call, "dims", len(dimensions)):
        call.freeze(dimensions[d])
    return [dimensions]


@rule("_fft_r2c", "_fft_c2r", "_fft_c2c")
def fourier(call: Call) -> Results:
    """Positions become frequencies along some dimensions; the others stay."""
    dimensions, shape = list(call.dimensions("self")), call.results[0].shape
    for d in dimension_numbers(call, "dim", len(dimensions)):
        call.freeze(dimensions[d], "as positions or frequencies")
        dimensions[d] = FixedPart(shape[d], f"frequencies or positions made by {call.name}")
    return [dimensions]


@rule("triu", "tril")
def triangle(call: Call) -> Results:
    """Rows and columns are compared by position."""
    dimensions = call.dimensions("self")
    for dimension in dimensions[-2:]:
        call.freeze(dimension)
    return [dimensions]


_POOLS = ["max_pool{}_with_indices", "avg_pool{}", "adaptive_max_pool{}", "_adaptive_avg_pool{}"]
_POOLS += ["adaptive_avg_pool{}", "max_pool{}", "reflection_pad{}", "replication_pad{}"]
_POOLS += ["upsample_nearest{}", "_upsample_nearest_exact{}"]
_SPATIAL = [name.format(f"{n}d") for name in _POOLS for n in (1, 2, 3)]
_SPATIAL += ["upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"]
_SPATIAL += ["upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"]


@rule(*_SPATIAL)
def spatial(call: Call) -> Results:
    """The last dimensions are positions in space; the others stay."""
    digits = re.search(r"([123])d", call.name)
    assert digits is not None
    count = int(digits[1])
    dimensions = list(call.dimensions("input" if "input" in call.arguments else "self"))
    for d in range(-count, 0):
        if not _is_untouched(call, d, count):
            call.freeze(dimensions[d], "as a position in space")
            dimensions[d] = FixedPart(call.results[0].shape[d], f"positions made by {call.name}")
    return [dimensions for _ in call.results]


def _is_untouched(call: Call, d: int, count: int) -> bool:
    """Return whether a pooling window has size one along a dimension and moves by one."""

    def along(argument: str, default: int) -> int:
        values = call.get(argument) or [default]
        return int((list(values) * count)[d] if len(values) == 1 else values[d])

    if "kernel_size" not in call.arguments:
        return False
    kernel = along("kernel_size", 1)
    return (kernel, along("stride", kernel), along("padding", 0)) == (1, 1, 0)


@rule("im2col")
def im2col(call: Call) -> Results:
    """The result has channels x kernel positions, and positions of the kernel."""
    *lead, height, columns = dimensions = call.dimensions("self")
    for dimension in (height, columns):
        call.freeze(dimension, "as a position in space")
    result = call.results[0].shape
    within = FixedPart(result[-2] // dimensions[-3].size, "positions in a kernel")
    return [[*lead[:-1], product([lead[-1], within]), FixedPart(result[-1], "positions")]]


@rule("unfold")
def unfold(call: Call) -> Results:
    """Windows are taken along one dimension."""
    dimensions, dim = call.along("dimension")
    call.freeze(dimensions[dim], "in windows")
    dimensions[dim] = FixedPart(call.results[0].shape[dim], "windows")
    return [[*dimensions, FixedPart(call["size"], "positions in a window")]]

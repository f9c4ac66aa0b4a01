"""Rules for reductions, and for operators that depend on the order along some dimensions."""

from __future__ import annotations

import re
from collections.abc import Iterable

from submodel.model.axes.expression import Expression, FixedTerm, product
from submodel.model.axes.rules.call import Call, Results, rule


def dimension_numbers(call: Call, argument: str, count: int) -> set[int]:
    """The dimensions that an argument names; all, if it names none."""
    dims = call.get(argument)
    numbers = [dims] if isinstance(dims, int) else list(dims or ())
    return {d % max(count, 1) for d in numbers} or set(range(count))


@rule("sum", "nansum", "mean", "prod", "amax", "amin", "aminmax", "all", "any", "count_nonzero")
@rule("var", "std", "var_mean", "std_mean", "norm", "linalg_vector_norm", "logsumexp")
@rule("max.default", "min.default")
def reduction(call: Call) -> Results:
    """Any order along the reduced dimensions gives the same; masked units may still count."""
    dimensions = call.dimensions("input" if "input" in call.arguments else "self")
    reduced_dimensions = dimension_numbers(call, "dim", len(dimensions))
    for d in reduced_dimensions & set(range(len(dimensions))):
        call.mix(dimensions[d], "runs over it")
    return [_without(dimensions, reduced_dimensions, len(result.shape)) for result in call.results]


def _without(
    dimensions: Iterable[Expression], shrunk_dimensions: set[int], count: int, size: int = 1
) -> list[Expression]:
    """The dimensions after some have shrunk to ``size``, or gone if so few are left."""
    dimensions = list(dimensions)
    keep = count == len(dimensions)
    return [
        FixedTerm(size, "positions") if d in shrunk_dimensions else e
        for d, e in enumerate(dimensions)
        if keep or d not in shrunk_dimensions
    ]


@rule("argmax", "argmin", "max.dim", "min.dim", "median.dim", "nanmedian.dim", "mode", "kthvalue")
@rule("cumsum", "cumprod", "cummax", "cummin", "_cummax_helper", "logcumsumexp")
@rule("sort", "argsort", "topk")
def order_dependent(call: Call) -> Results:
    """Results tell positions along a dimension, or depend on its order."""
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
    """Units move along some dimensions, the same for all."""
    dimensions = call.dimensions("self")
    for d in dimension_numbers(call, "dims", len(dimensions)):
        call.freeze(dimensions[d])
    return [dimensions]


@rule("_fft_r2c", "_fft_c2r", "_fft_c2c")
def fourier(call: Call) -> Results:
    """Positions become frequencies along some dimensions; the others run along."""
    dimensions, shape = list(call.dimensions("self")), call.results[0].shape
    for d in dimension_numbers(call, "dim", len(dimensions)):
        call.freeze(dimensions[d], "as positions or frequencies")
        dimensions[d] = FixedTerm(shape[d], f"frequencies or positions made by {call.name}")
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
    """The last dimensions are positions in space; the others run along."""
    digits = re.search(r"([123])d", call.name)
    assert digits is not None
    count = int(digits[1])
    dimensions = list(call.dimensions("input" if "input" in call.arguments else "self"))
    for d in range(-count, 0):
        if not _is_untouched(call, d, count):
            call.freeze(dimensions[d], "as a position in space")
            dimensions[d] = FixedTerm(call.results[0].shape[d], f"positions made by {call.name}")
    return [dimensions for _ in call.results]


def _is_untouched(call: Call, d: int, count: int) -> bool:
    """Whether a pooling window has size one along a dimension and moves by one."""

    def along(argument: str, default: int) -> int:
        values = call.get(argument) or [default]
        return int((list(values) * count)[d] if len(values) == 1 else values[d])

    if "kernel_size" not in call.arguments:
        return False
    kernel = along("kernel_size", 1)
    return (kernel, along("stride", kernel), along("padding", 0)) == (1, 1, 0)


@rule("im2col")
def im2col(call: Call) -> Results:
    """Channels x kernel positions, and the places of the kernel."""
    *lead, height, columns = dimensions = call.dimensions("self")
    for dimension in (height, columns):
        call.freeze(dimension, "as a position in space")
    result = call.results[0].shape
    within = FixedTerm(result[-2] // dimensions[-3].size, "positions in a kernel")
    return [[*lead[:-1], product([lead[-1], within]), FixedTerm(result[-1], "positions")]]


@rule("unfold")
def unfold(call: Call) -> Results:
    """Windows along one dimension."""
    dimensions = list(call.dimensions("self"))
    dim = call["dimension"] % len(dimensions)
    call.freeze(dimensions[dim], "in windows")
    dimensions[dim] = FixedTerm(call.results[0].shape[dim], "windows")
    return [[*dimensions, FixedTerm(call["size"], "positions in a window")]]

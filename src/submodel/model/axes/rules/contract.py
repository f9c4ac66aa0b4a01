"""Rules for contractions: matrix products, convolutions, attention."""

from __future__ import annotations

from submodel.model.axes.expression import ONE, Expression, FixedTerm, atoms, product
from submodel.model.axes.record import TensorFacts
from submodel.model.axes.rules.call import Call, Results, rule


def contract(call: Call, one: TensorFacts, d: int, other: TensorFacts, e: int) -> None:
    """Sum over dimension ``d`` of one operand and ``e`` of the other.

    Masked weights drop out of the sum. Two activations need not: what a dropped unit computes may
    differ from zero in both, so the sum over them is noted. Nor do copies of a weight that has no
    such units.
    """
    for weight, read in ((one, other), (other, one)):
        if weight.weight and read.constant:
            call.record.starts.append(weight.dimensions[d if weight is one else e])
    is_masked = _is_masked(call, one, d) or _is_masked(call, other, e)
    common = call.unify(one.dimensions[d], other.dimensions[e])
    if not is_masked:
        call.mix(common, "multiplies two activations")


def _is_masked(call: Call, facts: TensorFacts, d: int) -> bool:
    """Whether an operand is a weight that is zero where a unit along ``d`` is masked."""
    copies = call.record.copies
    return facts.weight and not (copies and copies.intersection(atoms(facts.dimensions[d])))


def join(call: Call, result: list[Expression], summand: str) -> list[Expression]:
    """The result after something was added to it, by broadcasting."""
    return call.broadcast([result, call.dimensions(summand)])


@rule("mm", "bmm", "mv", "dot", "vdot")
def matrix_product(call: Call) -> Results:
    """Rows of one by columns of the other; batches run along."""
    one = call.facts("self")
    other = call.facts(next(n for n in ("mat2", "vec", "tensor", "other") if n in call.arguments))
    return [_product(call, one, other)]


@rule("addmm", "baddbmm", "addmv", "_addmm_activation", "_sparse_addmm")
def added_matrix_product(call: Call) -> Results:
    """A matrix product and a bias."""
    one = call.facts(next(n for n in ("mat1", "batch1", "mat") if n in call.arguments))
    other = call.facts(next(n for n in ("mat2", "batch2", "vec") if n in call.arguments))
    return [join(call, _product(call, one, other), "self")]


def _product(call: Call, one: TensorFacts, other: TensorFacts) -> list[Expression]:
    a, b = one.dimensions, other.dimensions
    batch = [call.unify(a[0], b[0])] if len(a) == len(b) == 3 else []
    contract(call, one, -1, other, -2 if len(b) > 1 else -1)
    return [*batch, *a[len(batch) : -1], *b[len(b) - 1 if len(b) > 1 else len(b) :]]


@rule("_grouped_mm")
def grouped_matrix_product(call: Call) -> Results:
    """Runs of rows, each by a matrix of its own: experts; where runs end is in the data."""
    one, other = call.facts("self"), call.facts("mat2")
    if (len(one.dimensions), len(other.dimensions)) != (2, 3):
        raise ValueError("runs of columns")
    call.freeze(one.dimensions[0], "in runs")
    call.freeze(other.dimensions[0], "in runs")
    contract(call, one, 1, other, 1)
    result: list[Expression] = [one.dimensions[0], other.dimensions[2]]
    return [result if call["bias"] is None else join(call, result, "bias")]


@rule("_trilinear")
def trilinear(call: Call) -> Results:
    """The product of three operands, each with dimensions of one added, summed over some."""
    operands = [call.facts(f"i{n}") for n in (1, 2, 3)]
    operand_dimensions: list[list[Expression]] = []
    for n, operand in enumerate(operands, start=1):
        dimensions = list(operand.dimensions)
        for d in sorted(call[f"expand{n}"]):
            dimensions.insert(d, ONE)
        operand_dimensions.append(dimensions)
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
    """Of every row of one to every row of the other, over the last dimension."""
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
        space = [FixedTerm(n, f"positions made by {call.name}") for n in call.results[0].shape[2:]]
    return [[batch, call.record.algebra.resolve(whole), *space]]


@rule(
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
)
def attention(call: Call) -> Results:
    """Queries by keys, a softmax over positions, by values; the scale depends on the head's size.

    With fewer key heads than query heads, each serves a run of query heads.
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

"""Rules for normalisations: their weights share the axis, their statistics may mix it."""

from __future__ import annotations

from submodel.model.axes.expression import Expression
from submodel.model.axes.rules.call import Call, Results, rule


def share(call: Call, dimensions: list[Expression], *names: str) -> None:
    """Weight, bias and running statistics lie along the normalised dimensions."""
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
    """Statistics of each channel, over everything else; in evaluation they are given."""
    dimensions = call.dimensions("input")
    share(call, [dimensions[1]], "weight", "bias", "running_mean", "running_var")
    for dimension in (dimensions[0], *dimensions[2:]):
        call.mix(dimension, "takes statistics over it in training")
    return [dimensions]


@rule("native_layer_norm", "_fused_rms_norm")
def layer_norm(call: Call) -> Results:
    """Statistics over the last dimensions."""
    dimensions = call.dimensions("input")
    last = list(dimensions[len(dimensions) - len(call["normalized_shape"]) :])
    share(call, last, "weight", "bias")
    for dimension in last:
        call.mix(dimension, "takes statistics over it")
    return [dimensions]


@rule("native_group_norm")
def group_norm(call: Call) -> Results:
    """Statistics of each group of channels: whole groups can go, channels within one mix."""
    batch, channels, *space = call.dimensions("input")
    share(call, [channels], "weight", "bias")
    groups, within = call.factor(channels, [call["group"], channels.size // call["group"]])
    call.record.groups.append(groups)
    for dimension in (within, *space):
        call.mix(dimension, "takes statistics over it")
    return [[batch, call.record.algebra.resolve(channels), *space]]


@rule("_weight_norm_interface")
def weight_norm(call: Call) -> Results:
    """A length and a direction for each unit of one dimension."""
    dimensions = list(call.dimensions("v"))
    dim = call["dim"] % len(dimensions)
    dimensions[dim] = call.unify(dimensions[dim], call.dimensions("g")[dim])
    for d, dimension in enumerate(dimensions):
        if d != dim:
            call.mix(dimension, "takes a norm over it")
    return [dimensions]


@rule("_softmax", "_log_softmax", "_safe_softmax")
def softmax(call: Call) -> Results:
    """Shares that sum to one along a dimension."""
    dimensions = call.dimensions("self")
    if dimensions:
        call.mix(dimensions[call["dim"]], "takes a softmax over it")
    return [dimensions]

"""Built-in merge rules, projections and server steps, as entries of their registries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from submodel.core.registry import Entry, Registry

if TYPE_CHECKING:
    from submodel.algorithm.merge import MergeRule
    from submodel.algorithm.server import Projection, ServerStep

RULES: Registry[MergeRule] = Registry(
    noun="merge rule",
    key="merge.rule",
    group="submodel.merge_rules",
    expected="a merge rule: an object with divisor(holder_weight, total_weight)",
    members=("divisor",),
    entries={
        "selective": Entry(
            "submodel.algorithm.merge.rules:Selective", "divide by the holders of a weight"
        ),
        "fill_in": Entry(
            "submodel.algorithm.merge.rules:FillIn", "divide by all clients (the paper)"
        ),
        "products": Entry(
            "submodel.algorithm.merge.products:Products",
            "low-rank layers by the mean of their products, factorised anew (FlexLoRA)",
        ),
    },
)

PROJECTIONS: Registry[Projection] = Registry(
    noun="projection",
    key="merge.projection",
    group="submodel.projections",
    expected="a projection: a function of tensors by name that returns such tensors",
    is_function=True,
    entries={
        "none": Entry("submodel.algorithm.server:NoProjection", "the whole space"),
        "ball": Entry("submodel.algorithm.server:Ball", "all parameters together"),
        "box": Entry("submodel.algorithm.server:Box", "every weight by itself"),
    },
)

STEPS: Registry[ServerStep] = Registry(
    noun="server step",
    key="server.name",
    group="submodel.server_steps",
    expected="a server step: an object with begin(parameters) and "
    "step(old, target, coverage, memory)",
    members=("begin", "step"),
    entries={
        "plain": Entry("submodel.algorithm.server:Plain", "takes it (FedAvg)"),
        "momentum": Entry("submodel.algorithm.server:Momentum", "FedAvgM"),
        "adam": Entry("submodel.algorithm.server:Adam", "FedAdam"),
        "yogi": Entry("submodel.algorithm.server:Yogi", "FedYogi"),
    },
)

"""Merge rules, projections and server steps by name: ours, and where their code is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from submodel.plugins import Kind, Offer

if TYPE_CHECKING:
    from submodel.algorithm.merge import MergeRule
    from submodel.algorithm.server import Projection, ServerStep

RULES: Kind[MergeRule] = Kind(
    noun="merge rule",
    key="merge.rule",
    group="submodel.merge_rules",
    wants="a merge rule: an object with divisor(holder_weight, total_weight)",
    members=("divisor",),
    offers={
        "selective": Offer(
            "submodel.algorithm.merge.rules:Selective", "divide by those who held a weight"
        ),
        "fill_in": Offer("submodel.algorithm.merge.rules:FillIn", "divide by all (the paper)"),
        "products": Offer(
            "submodel.algorithm.merge.products:Products",
            "low-rank layers by the mean of their products, factorised anew (FlexLoRA)",
        ),
    },
)

PROJECTIONS: Kind[Projection] = Kind(
    noun="projection",
    key="merge.projection",
    group="submodel.projections",
    wants="a projection: a function of tensors by name that returns such tensors",
    is_function=True,
    offers={
        "none": Offer("submodel.algorithm.server:NoProjection", "the whole space"),
        "ball": Offer("submodel.algorithm.server:Ball", "all parameters together"),
        "box": Offer("submodel.algorithm.server:Box", "every weight by itself"),
    },
)

STEPS: Kind[ServerStep] = Kind(
    noun="server step",
    key="server.name",
    group="submodel.server_steps",
    wants="a server step: an object with begin(parameters) and step(old, target, coverage, memory)",
    members=("begin", "step"),
    offers={
        "plain": Offer("submodel.algorithm.server:Plain", "takes it (FedAvg)"),
        "momentum": Offer("submodel.algorithm.server:Momentum", "FedAvgM"),
        "adam": Offer("submodel.algorithm.server:Adam", "FedAdam"),
        "yogi": Offer("submodel.algorithm.server:Yogi", "FedYogi"),
    },
)

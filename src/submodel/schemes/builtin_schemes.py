"""Built-in schemes, as entries of their registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from submodel.core.registry import Entry, Registry

if TYPE_CHECKING:
    from submodel.schemes.scheme import Scheme

GROUP = "submodel.schemes"
"""The entry-point group by which packages add schemes."""


_ADVICE = {
    "heterofl": 'HeteroFL is scheme.name = "static", with model.scaler = true and '
    'local.absent_labels = "zero": see examples/heterofl.toml',
    "fedrolex": 'FedRolex is scheme.name = "rolling", with model.scaler = true and '
    'local.absent_labels = "zero": see examples/fedrolex.toml',
    "fjord": 'FjORD is scheme.name = "ordered": see examples/fjord.toml',
}


SCHEMES: Registry[Scheme] = Registry(
    noun="scheme",
    key="scheme.name",
    group=GROUP,
    expected="a scheme: an object with select(axis, size, capacity, draw)",
    of_class="submodel.schemes.scheme:Scheme",
    adapt="submodel.schemes.scheme:as_scheme",
    advice=_ADVICE,
    checks_made_objects=True,
    entries={
        "full": Entry("submodel.schemes.rolling:Full", "the whole model (FedAvg)"),
        "static": Entry("submodel.schemes.rolling:Static", "the first units (HeteroFL)"),
        "rolling": Entry("submodel.schemes.rolling:Rolling", "windows (Algorithm 2, FedRolex)"),
        "random": Entry("submodel.schemes.random:Random", "fresh draws (Algorithm 1)"),
        "ordered": Entry("submodel.schemes.ordered:Ordered", "prefixes, a width per step (FjORD)"),
        "unbiased": Entry(
            "submodel.schemes.unbiased:Unbiased",
            "fresh draws, divided by their probabilities (MAST)",
        ),
        "masked-sgd": Entry(
            "submodel.schemes.masked_sgd:MaskedSgd",
            "one machine, another scheme's masks (Mohtashami et al.)",
        ),
        "dropout": Entry(
            "submodel.schemes.random:Dropout", "fresh draws of fixed size (Federated Dropout)"
        ),
        "partition": Entry("submodel.schemes.partition:PartitionScheme", "disjoint parts (IST)"),
        "importance": Entry("submodel.schemes.importance:Importance", "the largest (FIARSE)"),
        "hierarchical": Entry(
            "submodel.schemes.hierarchical:Hierarchical",
            "a part of the model for each cell of clients (HIST)",
        ),
        "pruned": Entry(
            "submodel.schemes.pruned:Pruned",
            "one sparse model for all, adapted to gradients (PruneFL)",
        ),
    },
)

"""The registry of models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from submodel.core.registry import Entry, Registry

if TYPE_CHECKING:
    from torch import nn


MODELS: Registry[nn.Module] = Registry(
    noun="model",
    key="model.name",
    group="submodel.models",
    expected="an nn.Module",
    of_class="torch.nn:Module",
    adapt="submodel.model.zoo.hugging_face:as_module",
    wrapper="submodel.model.zoo.hugging_face:as_component",
    takes_objects=False,  # a module is given as the model itself, not as its name
    entries={
        "mlp": Entry("submodel.model.zoo.images:Mlp"),
        "cnn": Entry("submodel.model.zoo.images:Cnn"),
        "preresnet18": Entry("submodel.model.zoo.images:PreResNet18"),
        "preresnet34": Entry("submodel.model.zoo.images:PreResNet34"),
        "gpt": Entry("submodel.model.zoo.gpt:Gpt", "for sequences of tokens"),
        "own": Entry("submodel.model.zoo.hugging_face:OwnModel", is_hidden=True),
    },
)

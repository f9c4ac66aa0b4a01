"""Models by name: ours, and where their code is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from submodel.plugins import Kind, Offer

if TYPE_CHECKING:
    from torch import nn


def _is_module(component: object) -> bool:
    from torch import nn

    return isinstance(component, nn.Module)


def _adapt(component: Any) -> Any:
    from submodel.model.zoo.hugging_face import as_module

    return as_module(component)


def _stand_in(target: Any) -> Any:
    from submodel.model.zoo.hugging_face import as_component

    return as_component(target)


MODELS: Kind[nn.Module] = Kind(
    noun="model",
    key="model.name",
    group="submodel.models",
    wants="an nn.Module",
    is_one=_is_module,
    adapt=_adapt,
    stand_in=_stand_in,
    takes_objects=False,  # a module is given as the model itself, not as its name
    offers={
        "mlp": Offer("submodel.model.zoo.images:Mlp"),
        "cnn": Offer("submodel.model.zoo.images:Cnn"),
        "preresnet18": Offer("submodel.model.zoo.images:PreResNet18"),
        "preresnet34": Offer("submodel.model.zoo.images:PreResNet34"),
        "gpt": Offer("submodel.model.zoo.gpt:Gpt", "for sequences of tokens"),
        "own": Offer("submodel.model.zoo.hugging_face:OwnModel", is_hidden=True),
    },
)

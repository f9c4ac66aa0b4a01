"""A model with its own keys, made for the data's inputs and classes."""

import math

from pydantic import Field
from torch import nn

from submodel.core import Count, Section
from submodel.model.zoo import ModelContext


class Tower:
    class Options(Section):
        floors: Count = Field(2, description="hidden layers")
        rooms: Count = Field(description="units of each")

    @classmethod
    def configured(cls, options: Options, context: ModelContext) -> nn.Module:
        layers: list[nn.Module] = [nn.Flatten()]
        width = math.prod(context.inputs)
        for _ in range(options.floors):
            layers += [nn.Linear(width, options.rooms), nn.Tanh()]
            width = options.rooms
        return nn.Sequential(*layers, nn.Linear(width, context.classes))

"""A projection as a plain function onto non-negative weights."""

from collections.abc import Mapping

from torch import Tensor


def positive(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clamp(min=0) for name, tensor in parameters.items()}

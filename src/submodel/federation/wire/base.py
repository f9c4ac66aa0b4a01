"""The base on the wire: what is never trained nor cut, which a device gets once and keeps.

Every task names the base that it is for by its digest. The first task that a device gets carries
its values, too, each to the bit, in ``half`` transport as well: they are paid for once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from submodel.errors import plain
from submodel.federation.wire.parcel import Parcel, WireError
from submodel.runs.checkpoint import model_sha256

_START = "base/"


@dataclass(frozen=True)
class ModelBase:
    """Tensors that stay the same over a run, and what they are known by."""

    digest: str
    tensors: Mapping[str, Tensor]

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> ModelBase:
        """The base of these tensors.

        >>> import torch
        >>> ModelBase.of({"w": torch.zeros(1)}).digest[:8]
        '94733083'
        """
        return cls(model_sha256(tensors), dict(tensors))

    def to_tensors(self) -> dict[str, Tensor]:
        """As they travel, among the other tensors of a task."""
        return {_START + name: tensor for name, tensor in self.tensors.items()}


def receive_base(parcel: Parcel, digest: str | None, earlier: ModelBase | None) -> ModelBase | None:
    """The base that a task is for: the one that it carries, or the one that the device has.

    Args:
        parcel: the task.
        digest: what its head calls the base; None: the run has none.
        earlier: what the device has from an earlier task.
    """
    if digest is None:
        return None
    tensors = {n.removeprefix(_START): t for n, t in parcel.tensors.items() if n.startswith(_START)}
    base = ModelBase.of(tensors) if tensors else earlier
    if base is None or base.digest != digest:
        what = "is another one" if base is not None else "is not here"
        raise WireError(f"the base {plain(digest, 16)} of the model {what}: it must be sent again")
    return base

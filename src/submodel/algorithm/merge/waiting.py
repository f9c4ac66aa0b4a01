"""The updates of a round while they wait, in the shapes of their own cuts, or as sums.

Up to the size of the model once they wait as they came, those of one cut as their sum where that
takes less memory; what is more is added up in the shape of the model, and if the model is large, in
a file. Processes that see one memory hand their updates to each other here.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from torch import Tensor

from submodel.algorithm.merge.blocks import WholeSums, add_block, blocks_of
from submodel.algorithm.merge.holding import Holding, total_size
from submodel.algorithm.merge.parcels import SharedBytes, describe_updates, fill, read_updates
from submodel.model.cut import Cut, Tensors

_LEAST_WAITING = 1 << 24  # bytes that updates may take before they are added up, in any model


class WaitingUpdates:
    """What came back so far.

    Args:
        whole: the global tensors that come back from clients.
    """

    def __init__(self, whole: Tensors) -> None:
        self._whole = whole
        self.weight = 0.0
        self.count = 0
        self.more: WholeSums | None = None  # of those who wait no longer
        self._holdings: dict[Hashable, Holding] = {}
        self._bytes = 0
        size = sum(tensor.numel() * tensor.element_size() for tensor in whole.values())
        self._most_bytes = max(_LEAST_WAITING, size)

    @property
    def holdings(self) -> list[Holding]:
        """The clients who wait, by what they hold."""
        return list(self._holdings.values())

    @property
    def size(self) -> int:
        """How many bytes they take."""
        return total_size(self.holdings)

    def add(self, cut: Cut, tensors: Tensors, weight: float) -> None:
        """Add one client's tensors, as they came back; they are kept, and must not change.

        Args:
            cut: what the client holds.
            tensors: what it made of that.
            weight: of the client.
        """
        self.weight += weight
        self.count += 1
        if (holding := self._holdings.get(cut.same_key)) is None:
            holding = self._holdings[cut.same_key] = Holding(cut)
        holding.add(tensors, weight)
        self._bytes += sum(t.numel() * t.element_size() for t in tensors.values())
        if self._bytes > self._most_bytes:
            self._make_room()

    def _make_room(self) -> None:
        """Add up what waits: cut by cut where that is enough, else in the shape of the model."""
        self._fold()
        self._bytes = self.size
        if 2 * self._bytes <= self._most_bytes:
            return
        self.more = self.more or WholeSums(self._whole)
        holdings = self.holdings
        for name, tensor in self._whole.items():
            whole = as_rows(tensor)
            for start, stop in blocks_of(whole.shape):
                old = whole[start:stop]
                sums = self.more.read(name, start, old.shape)
                add_block(sums, name, old, start, stop, holdings)
                self.more.write(name, start, sums)
        self._holdings.clear()
        self._bytes = 0

    def _fold(self) -> None:
        """Keep sums instead of updates where they take less memory."""
        for holding in self.holdings:
            if holding.is_worth_folding:
                holding.fold(self._whole)

    def offer(self) -> dict[str, Any] | None:
        """What other processes must know to merge what is here; None where only sums can travel."""
        if self.more is not None:
            return None
        self._fold()
        if (description := describe_updates(self._whole, self.holdings)) is None:
            return None
        parcels, size = description
        return {"weight": self.weight, "count": self.count, "parcels": parcels, "size": size}

    def hand_over(self, offer: Mapping[str, Any], memory: SharedBytes, start: int) -> None:
        """Put what was offered into memory that other processes see, and keep it nowhere else.

        Args:
            offer: what `offer` said.
            memory: of this process.
            start: the first byte.
        """
        fill(self._whole, self.holdings, offer["parcels"], memory, start)
        self._holdings.clear()

    def adopt(self, offers: Sequence[tuple[Mapping[str, Any], SharedBytes, int]]) -> None:
        """Take everyone's updates for one's own.

        Args:
            offers: of every process, what it offered, in which memory, and where it begins.
        """
        self.weight = sum(offer["weight"] for offer, *_ in offers)
        self.count = sum(offer["count"] for offer, *_ in offers)
        self._holdings = read_updates(self._whole, [(one["parcels"], m, n) for one, m, n in offers])


def as_rows(tensor: Tensor) -> Tensor:
    """A tensor with at least one dimension.

    >>> import torch
    >>> as_rows(torch.tensor(2.0))
    tensor([2.])
    """
    return tensor if tensor.dim() else tensor.view(1)

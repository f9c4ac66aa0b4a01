"""One model in memory: a round's result may be written over the model that the round began from.

A model of gigabytes should not be there twice. Tensor by tensor the new values take the place of
the old ones, once all updates of a tensor are summed. Until the round counts there is no model to
go back to then: a run that is stopped in between goes on from its last checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass

from submodel.algorithm.cells import Cells
from submodel.algorithm.server import MayForget
from submodel.algorithm.types import Setup, State


@dataclass
class OneModel:
    """Leave to write over the model of a round.

    Args:
        is_torn: whether that has begun, and the round does not count yet.
        writes: whether this process does; another one may do it for all.
    """

    is_torn: bool = False
    writes: bool = True


def can_overwrite(setup: Setup, state: State, cells: Cells) -> bool:
    """Whether nothing needs the model before the round once updates are summed.

    Args:
        setup: its server step may look back.
        state: what it remembers may lie in the memory of the model.
        cells: those of the round.
    """
    server = setup.server
    if not (isinstance(server, MayForget) and server.forgets_old and cells.can_overwrite):
        return False
    addresses = {t.untyped_storage().data_ptr() for t in state.tensors.values()}
    others = [*state.memory.values(), *state.client_slots.values()]
    return addresses.isdisjoint(t.untyped_storage().data_ptr() for t in others)

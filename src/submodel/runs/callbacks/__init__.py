"""Callbacks around the rounds of a run: the protocol, and the callbacks of every run."""

from submodel.runs.callbacks.callback import (
    Callback,
    CallbackGuard,
    CallbackList,
    OnRound,
    RoundCallback,
)
from submodel.runs.callbacks.standard import callbacks_of

__all__ = [
    "Callback", "CallbackGuard", "CallbackList", "OnRound", "RoundCallback", "callbacks_of",
]  # fmt: skip

"""What happens around the rounds of a run: the protocol, and what a run itself does."""

from submodel.runs.callbacks.callback import Callback, CallbackGuard, OnRound, Several, Tell
from submodel.runs.callbacks.standard import callbacks_of

__all__ = ["Callback", "CallbackGuard", "OnRound", "Several", "Tell", "callbacks_of"]

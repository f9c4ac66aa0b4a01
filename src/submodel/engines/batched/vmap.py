"""The mapped forward: `torch.func.vmap` over a module, for what has no wide form."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from submodel.engines.batched.forward import UnstackableError, Wide
from submodel.model.axes.record import storage
from submodel.model.build import tensors_of
from submodel.model.build.foreign import Reads
from submodel.model.inputs import Inputs, arguments, call, map_inputs


class MappedForward:
    """The module under `torch.func.vmap`; tried once, so that a refusal comes at once."""

    def __init__(self, module: nn.Module, whole: nn.Module, example: Inputs) -> None:
        distinct, all_ = (
            len(list(module.named_modules(remove_duplicate=once))) for once in (True, False)
        )
        if distinct != all_:
            raise UnstackableError("a layer that stands in two places cannot be swapped out")
        exchanged_tensors = tensors_of(module)
        for name, buffer in module.named_buffers():
            if name not in exchanged_tensors and buffer.shape != whole.get_buffer(name).shape:
                raise UnstackableError(f"every client has its own part of the buffer {name!r}")
        if any(isinstance(x, _BatchNorm) and x.momentum is None for x in module.modules()):
            raise UnstackableError("a cumulative average counts the batches of one client")
        for layer in module.modules():
            if isinstance(layer, nn.Embedding) and layer.padding_idx is not None:
                raise UnstackableError("vmap would train the embedding of the padding token, too")
        self.module = module
        self._shapes = {n: t.shape for n, t in tensors_of(module).items()}
        self._largest = 0
        hooks = [layer.register_forward_hook(self._see) for layer in module.modules()]
        try:
            with torch.no_grad():
                call(module, example)
                for hook in hooks:
                    hook.remove()
                two = {n: torch.stack([t, t]).flatten(0, min(t.dim(), 1)) for n, t in
                       tensors_of(module).items()}  # fmt: skip
                captured_names: list[str] = []
                memories = {storage(t): n for n, t in tensors_of(module).items() if t.numel()}
                with Reads(memories, captured_names.append):
                    out = self(two, 2, map_inputs(lambda t: torch.stack([t, t], 1), example))
                if captured_names:
                    raise UnstackableError(
                        f"its code holds {captured_names[0]} itself, which cannot be swapped out"
                    )
                if not isinstance(out, Tensor) or out.dim() < 2:
                    raise UnstackableError("it returns something else than one batch of outputs")
        except UnstackableError:
            raise
        except Exception as error:
            raise UnstackableError(f"vmap refuses it: {str(error).splitlines()[0]}") from error

    def _see(self, _layer: nn.Module, _inputs: object, output: object) -> None:
        if isinstance(output, Tensor):
            self._largest = max(self._largest, math.prod(output.shape[1:]))

    def largest(self, rows: Mapping[str, int]) -> int:  # noqa: ARG002 - one shape only
        """The largest output of a layer."""
        return self._largest

    def __call__(self, wide: Wide, clients: int, x: Inputs) -> Tensor:
        """One call over all clients; what comes in the shape of one client is everybody's."""
        place = {n: None if wide[n].shape == s and clients > 1 else 0
                 for n, s in self._shapes.items()}  # fmt: skip
        tensors_by_client = {
            n: wide[n] if place[n] is None else wide[n].view(clients, *shape)
            for n, shape in self._shapes.items()
        }

        def one(tensors: dict[str, Tensor], inputs: Inputs) -> Tensor:
            positional, by_name = arguments(inputs)
            out: Tensor = torch.func.functional_call(
                self.module, tensors, positional, dict(by_name)
            )
            return out

        run_all = torch.func.vmap(one, in_dims=(place, 1), out_dims=1, randomness="error")
        outputs: Tensor = run_all(tensors_by_client, x)
        return outputs

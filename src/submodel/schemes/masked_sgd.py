"""Masked training on one machine, with any scheme's masks, and how well it is aligned."""

from __future__ import annotations

from dataclasses import dataclass

from submodel.schemes.base import Given
from submodel.schemes.protocols import Observation, Observes
from submodel.schemes.roles import BorrowsMasks


@dataclass(frozen=True)
class MaskedSgd(BorrowsMasks, Observes):
    """Mohtashami, Jaggi, Stich 2022, "Masked training of neural networks with partial gradients".

    One machine, x_{t+1} = x_t - gamma_t m_t (.) g(m_t (.) x_t), with a given sequence of masks:
    those that another scheme draws for the one client. Every round notes the
    alignment of the masked gradient with the full one,

        alpha_t = <m_t (.) grad F(x_t), m_t (.) grad F(m_t (.) x_t)> / ||m_t (.) grad F(m_t (.) x_t)||^2,

    F being the mean loss over all examples; the full mask has alpha_t = 1. With K > 1 local steps
    a round takes K of them with one mask, and alpha_t is that of the first.
    """  # noqa: E501 - a formula

    def problems(self, given: Given) -> list[str]:
        """More than one client; and what the sequence itself is not defined for."""
        several = [
            f"clients.count: {given.clients} given; 'masked-sgd' trains on one machine, so 1"
        ]
        return (several if given.clients > 1 else []) + super().problems(given)

    def observes(self, round_: int) -> bool:  # noqa: ARG002
        """Every round."""
        return True

    def observe(self, now: Observation) -> dict[str, float]:
        """The alignment, but where the masked gradient is zero.

        >>> import torch
        >>> from submodel.schemes import Static
        >>> w = {"w": torch.ones(2)}
        >>> MaskedSgd(Static()).observe(Observation(gradient=w, masked=w))
        {'alignment': 1.0}
        """
        masked = {name: g.double() for name, g in now.masked.items()}
        power = sum(float(g.square().sum()) for g in masked.values())
        inner = sum(float((now.gradient[n].double() * g).sum()) for n, g in masked.items())
        return {"alignment": inner / power} if power else {}

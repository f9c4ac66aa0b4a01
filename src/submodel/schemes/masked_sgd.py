"""Masked training on one machine with any scheme's masks, and the alignment of its gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from submodel.core.options import Section
from submodel.schemes.builtin_schemes import SCHEMES
from submodel.schemes.scheme import BorrowsMasks, Observation, RunFacts, SchemeContext


@dataclass(frozen=True)
class MaskedSgd(BorrowsMasks):
    """Mohtashami, Jaggi, Stich 2022, "Masked training of neural networks with partial gradients".

    One machine, x_{t+1} = x_t - gamma_t m_t (.) g(m_t (.) x_t), with the masks that another scheme
    draws for the one client. Every round logs the alignment of the masked gradient with the full
    one,

        alpha_t = <m_t (.) grad F(x_t), m_t (.) grad F(m_t (.) x_t)> / ||m_t (.) grad F(m_t (.) x_t)||^2,

    with F the mean loss over all examples; the full mask has alpha_t = 1. With K > 1 local steps,
    a round takes K of them with one mask, and alpha_t is that of the first.
    """  # noqa: E501 - a formula

    class Options(Section):
        """The keys of ``masked-sgd``, to which those of the sequence are added."""

        choices = {"sequence": SCHEMES}  # noqa: RUF012

        sequence: str = Field("random", description="the scheme whose masks are used")

        @field_validator("sequence")
        @classmethod
        def _has_masks(cls, name: str) -> str:
            if name == "masked-sgd":
                raise PydanticCustomError("no_masks", "has no masks of its own")
            return name

    @classmethod
    def configured(cls, options: Options, context: SchemeContext) -> Self:
        """Make the scheme; the sequence is made from the same section."""
        return cls(SCHEMES.find(options.sequence).make(options, context))

    def problems(self, run: RunFacts) -> list[str]:
        """Return problems: more than one client, and the problems of the sequence."""
        several = [f"clients.count: {run.clients} given; 'masked-sgd' trains on one machine, so 1"]
        return (several if run.clients > 1 else []) + super().problems(run)

    def observes(self, round_: int) -> bool:  # noqa: ARG002
        """Return True: every round."""
        return True

    def observe(self, now: Observation) -> dict[str, float]:
        """Return the alignment, unless the masked gradient is zero.

        >>> import torch
        >>> from submodel.schemes import Static
        >>> w = {"w": torch.ones(2)}
        >>> MaskedSgd(Static()).observe(Observation(gradient=w, masked_gradient=w))
        {'alignment': 1.0}
        """
        masked_gradient = {name: g.double() for name, g in now.masked_gradient.items()}
        power = sum(float(g.square().sum()) for g in masked_gradient.values())
        inner = sum(float((now.gradient[n].double() * g).sum()) for n, g in masked_gradient.items())
        return {"alignment": inner / power} if power else {}

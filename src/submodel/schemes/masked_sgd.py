"""Masked training on one machine, with any scheme's masks, and how well it is aligned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from submodel.schemes.base import Adaptation, Draw, Given, Mask, Memory, Observation, Scheme


@dataclass(frozen=True)
class MaskedSgd(Scheme):
    """Mohtashami, Jaggi, Stich 2022, "Masked training of neural networks with partial gradients".

    One machine, x_{t+1} = x_t - gamma_t m_t (.) g(m_t (.) x_t), with a given sequence of masks:
    those that another scheme, ``sequence``, draws for the one client. Every round notes the
    alignment of the masked gradient with the full one,

        alpha_t = <m_t (.) grad F(x_t), m_t (.) grad F(m_t (.) x_t)> / ||m_t (.) grad F(m_t (.) x_t)||^2,

    F being the mean loss over all examples; the full mask has alpha_t = 1. With K > 1 local steps
    a round takes K of them with one mask, and alpha_t is that of the first. What the sequence needs
    to draw its masks, and what they cost to send, is passed on; its way of training and averaging
    (`work`, `chance`, cells) is not.
    """  # noqa: E501 - a formula

    sequence: Scheme

    @property
    def sends_masks(self) -> bool:  # type: ignore[override]  # a plain attribute of others
        """Where the sequence does."""
        return self.sequence.sends_masks

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:
        """What the sequence selects.

        >>> from submodel.schemes.static import Static
        >>> MaskedSgd(Static()).select("hidden", 4, 0.5, Draw(0, 0, 0))
        array([ True,  True, False, False])
        """
        return self.sequence.select(axis, size, capacity, draw)

    def problems(self, given: Given) -> list[str]:
        """More than one client; and what the sequence itself is not defined for."""
        several = [
            f"clients.count: {given.clients} given; 'masked-sgd' trains on one machine, so 1"
        ]
        return (several if given.clients > 1 else []) + self.sequence.problems(given)

    def observes(self, round_: int) -> bool:  # noqa: ARG002
        """Every round."""
        return True

    def observe(self, now: Observation) -> dict[str, float]:
        """The alignment, but where the masked gradient is zero; and what the sequence observes."""
        own = self.sequence.observe(now) if self.sequence.observes(now.round) else {}
        masked = {name: g.double() for name, g in now.masked.items()}
        power = sum(float(g.square().sum()) for g in masked.values())
        inner = sum(float((now.gradient[n].double() * g).sum()) for n, g in masked.items())
        return {**own, "alignment": inner / power} if power else own

    def output_passes(self) -> Sequence[Scheme]:
        """Those of the sequence."""
        return [replace(self, sequence=own) for own in self.sequence.output_passes()]

    def begin(self, parameters: Mapping[str, Tensor]) -> Memory:
        """The sequence's memory."""
        return self.sequence.begin(parameters)

    def adapts(self, round_: int) -> bool:
        """When the sequence does."""
        return self.sequence.adapts(round_)

    def adapt(self, now: Adaptation) -> tuple[Mapping[str, Tensor], Memory]:
        """As the sequence does."""
        return self.sequence.adapt(now)

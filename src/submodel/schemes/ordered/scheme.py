"""Ordered dropout: nested prefixes, a width drawn for every local step (FjORD)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import Field

from submodel.model.capacity import prefix, units_held
from submodel.options import Capacity, Section
from submodel.schemes.base import Draw, Mask, RunFacts, Scheme, SchemeContext
from submodel.schemes.ordered.steps import NestedSteps
from submodel.schemes.protocols import HasStepRule


@dataclass(frozen=True)
class Ordered(Scheme, HasStepRule):
    """FjORD (Horvath, Laskaridis, Almeida, Leontiadis, Venieris, Lane 2021).

    "FjORD: Fair and accurate federated learning under heterogeneous targets with Ordered Dropout".
    A client of capacity c holds the prefix of c. For every batch it draws q uniformly from the
    ``widths`` up to c and takes the step of the prefix of width q of its own sub-model; all other
    weights have gradient zero in that step. With 0 < ``distill`` = alpha <= 1 the loss is

        (1 - alpha) CE(q) + alpha KL(softmax(widest) || softmax(q)) + CE(widest),

    at temperature 1, the widest output being detached in KL; the paper found alpha = 1 best.
    The paper averages a weight over the clients that hold it, which is the merge rule `selective`.
    """

    widths: tuple[float, ...]
    distill: float = 0.0

    class Options(Section):
        """The keys of ``ordered``."""

        widths: list[Capacity] | None = Field(
            None, min_length=1, description="what steps draw from (default: the capacities)"
        )
        distill: Annotated[float, Field(ge=0, le=1)] = Field(
            0.0, description="alpha, how much narrower widths learn from the widest; 0: not"
        )

    @classmethod
    def configured(cls, options: Options, context: SchemeContext) -> Self:
        """``widths``, by default the clients' capacities."""
        return cls(tuple(options.widths or context.capacities), options.distill)

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:  # noqa: ARG002
        """The first share of the units, as `Static`.

        >>> Ordered((0.5, 1.0)).select("hidden", 4, 0.5, Draw(0, 0, 0))
        array([ True,  True, False, False])
        """
        return prefix(size, units_held(capacity, size))

    def step_rule(self, capacity: float) -> NestedSteps | None:
        """Steps at widths up to the capacity; with one width they are plain steps.

        >>> Ordered((1.0, 0.25, 0.5)).step_rule(0.5)
        NestedSteps(widths=(0.25, 0.5), distill=0.0)
        """
        widths = tuple(sorted({w for w in self.widths if w <= capacity}))
        return NestedSteps(widths, self.distill) if len(widths) > 1 else None

    def problems(self, run: RunFacts) -> list[str]:
        """Where prefixes, or the distillation between them, are not defined."""
        problems = []
        if run.granularity == "coordinate":
            problems.append(
                "scheme.granularity: 'ordered' nests units; a prefix of the flat vector of all "
                "weights is no narrower net; use 'unit'"
            )
        problems += [
            f"scheme.widths: lacks the capacity {c:g}: its clients would hold units that no step "
            "trains"
            for c in sorted(set(run.capacities) - set(self.widths))
        ]
        if self.distill and not run.has_labels:
            problems.append("scheme.distill: needs class labels and the cross-entropy loss")
        if run.output_step:
            problems.append(
                "train.output_step: the step of Algorithms 1 and 2 has one cut per client, "
                "'ordered' draws a width in every step"
            )
        return problems

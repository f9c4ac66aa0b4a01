"""How it is trained: scheme, merge, server, local work, the length of a run, where it runs."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, WrapValidator, model_validator

from submodel.algorithm.registry import PROJECTIONS, RULES, STEPS
from submodel.config.trackers import TRACKERS
from submodel.engines.registry import ENGINES
from submodel.local.registry import OPTIMISERS, SCHEDULES
from submodel.local.schedule import OptimiserState, Precision, StepSchedule
from submodel.options import LARGEST, Capacity, ChoosingSection, Count, Positive, Section
from submodel.schemes.registry import SCHEMES
from submodel.tasks.registry import AbsentLabels


class SchemeSection(ChoosingSection):
    """The rule that draws the cuts."""

    choices = {"name": SCHEMES}  # noqa: RUF012

    name: str = Field("rolling", description=SCHEMES.describe())
    granularity: Literal["unit", "coordinate"] = Field(
        "unit", description="cut whole units (smaller tensors) or single weights (masks)"
    )


class MergeSection(ChoosingSection):
    """How updates become the next global model."""

    choices = {"rule": RULES, "projection": PROJECTIONS}  # noqa: RUF012

    rule: str = Field("selective", description=RULES.describe())
    weights: Literal["uniform", "examples"] = Field(
        "uniform", description="every client alike, or by its number of examples"
    )
    projection: str = Field(
        "none",
        description=f"the convex set W that the model is projected onto: {PROJECTIONS.describe()}",
    )


class ServerSection(ChoosingSection):
    """What the server does with the merged change."""

    choices = {"name": STEPS}  # noqa: RUF012

    name: str = Field("plain", description=STEPS.describe())


class LocalSection(ChoosingSection):
    """What a client does in a round."""

    choices = {"optimiser": OPTIMISERS, "schedule": SCHEDULES}  # noqa: RUF012

    epochs: Count | None = Field(None, description="passes over the client's examples (default 1)")
    steps: Count | None = Field(None, description="or K, the number of SGD steps")
    batch_size: Annotated[int, Field(ge=0, le=LARGEST)] = Field(
        10, description="examples per step; 0: all"
    )
    drop_last: bool = Field(
        False,
        description="leave out the last batch of a pass where it is smaller than the others (norms "
        "over the batch may fail on one example); a client's only batch stays",
    )
    optimiser: str = Field("sgd", description=OPTIMISERS.describe())
    optimiser_state: OptimiserState = Field(
        "fresh",
        description="momenta and the like: fresh in every round, or kept for every client, weight "
        "by weight, from the last time it held one",
    )
    lr: Positive = Field(0.02, description="learning rate eta")
    schedule: str = Field(
        "constant", description=f"learning rate over the rounds: {SCHEDULES.describe()}"
    )
    clip: Positive | None = Field(None, description="largest norm of a gradient")
    precision: Precision = Field(
        "float32", description="of products and convolutions; bfloat16: mixed precision"
    )
    accumulate: Count = Field(
        1,
        description="compute a batch in so many pieces, one after another: the same step, less "
        "memory (norms over the batch see the pieces)",
    )
    proximal: Annotated[float, Field(ge=0)] = Field(
        0.0, description="mu: add (mu / 2) ||w - w_r||^2 to the client's objective (FedProx)"
    )
    warmup_rounds: Annotated[int, Field(ge=0, le=LARGEST)] = Field(
        0, description="rounds over which the learning rate grows to the schedule's"
    )
    step_schedule: StepSchedule = Field(
        "constant", description="learning rate over the steps of a round"
    )
    warmup_steps: Annotated[int, Field(ge=0, le=LARGEST)] = Field(
        0, description="steps of every round over which it grows"
    )
    absent_labels: Literal["auto", AbsentLabels] = Field(
        "auto",
        description="logits of labels a client lacks: kept, set to zero (HeteroFL), or left out; "
        "the last two also cut the classifier's rows; auto: left out of the cross-entropy of "
        "class labels, else kept",
    )

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.epochs is not None and self.steps is not None:
            raise ValueError("steps: give epochs or steps, not both")
        return self


class TrainSection(Section):
    """The length of a run and what it writes."""

    rounds: Count = Field(200, description="communication rounds")
    evaluate_every: Count = Field(5, description="rounds between evaluations")
    evaluate_capacities: bool = Field(
        True, description="evaluate the sub-model of every capacity as well"
    )
    evaluate_train: bool = Field(
        False, description="score the global model on the training part as well"
    )
    evaluate_train_examples: Count | None = Field(
        None, description="on how many of its examples, evenly spread (default: all)"
    )
    evaluate_clients: Literal["no", "submodel", "global"] = Field(
        "no",
        description="score every client as well, by the sub-model of its capacity or by the global "
        "model: its own test examples, or those of its labels, weighted as it has them",
    )
    statistics: Literal["clients", "test_batch"] = Field(
        "clients",
        description="of static batch norm in evaluation: pooled over the clients' examples, or "
        "(FedRolex's code; its head takes 100) of each batch of 50 scored examples itself; "
        "exports: always clients",
    )
    statistics_examples: Count | None = Field(
        None, description="how many of the clients' examples, evenly spread, to pool (default: all)"
    )
    checkpoint_every: Count = Field(5, description="rounds between checkpoints")
    output_step: Positive | None = Field(
        None, description="L: end with the algorithms' output step of size 1/L over all clients"
    )
    finish: Capacity | None = Field(
        None,
        description="the last share of the rounds, that trains the sub-models which devices will "
        "keep: nested, the largest units first, every step at a width that is drawn, narrower ones "
        "distilled from the widest (default: none)",
    )
    trackers: Annotated[list[str], WrapValidator(TRACKERS.check_names)] = Field(
        [], description=f"where metrics go, too: {TRACKERS.describe()}"
    )


class EngineSection(ChoosingSection):
    """Where and how tasks run."""

    choices = {"name": ENGINES}  # noqa: RUF012

    name: str = Field("auto", description=ENGINES.describe())
    threads: Annotated[int, Field(ge=1, le=1024)] = Field(
        1, description="threads per operator; small models want one"
    )
    device: str = Field("auto", description="cpu, cuda, cuda:1, ...; auto: a GPU if there is one")


class DevicesSection(Section):
    """How rounds go over real devices, with engine.name = flower."""

    least: Count = Field(1, description="devices that must be there for a round to begin")
    deadline: Positive = Field(600.0, description="seconds that a device has to answer in")
    quorum: Capacity = Field(
        1.0,
        description="the share of a round's devices whose answers close it before the deadline; a "
        "device that two rounds in a row closed without is waited for in its next",
    )
    tries: Count = Field(
        3, description="how often a round is tried that nobody answers, before the run stops"
    )
    transport: Literal["exact", "half"] = Field(
        "exact", description="exact: every bit; half: float16, scaled by tensor, of half the bytes"
    )

"""How it is trained: scheme, merge, server, local work, the length of a run, where it runs."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from submodel.algorithm.server import STEPS
from submodel.options import LARGEST, Capacity, Count, Decay, Positive, Section


class Merge(Section):
    """How updates become the next global model."""

    rule: Literal["selective", "fill_in"] = Field(
        "selective", description="divide by those who held a weight, or by all (the paper)"
    )
    weights: Literal["uniform", "examples"] = Field(
        "uniform", description="every client alike, or by its number of examples"
    )
    projection: Literal["none", "ball", "box"] = Field(
        "none", description="the convex set W that the model is projected onto"
    )
    radius: Positive | None = Field(None, description="of the ball, or bound of the box")

    @model_validator(mode="after")
    def _radius(self) -> Self:
        if (self.projection == "none") != (self.radius is None):
            raise ValueError("radius: goes with projection = ball or box, and only with them")
        return self


class Server(Section):
    """What the server does with the merged change."""

    name: Literal["plain", "momentum", "adam", "yogi"] = Field(
        "plain",
        description="plain: takes it (FedAvg); momentum: FedAvgM; adam, yogi: FedAdam, FedYogi",
    )
    lr: Positive | None = Field(
        None, description="how far to go (default: plain, momentum 1; adam, yogi 0.003)"
    )
    momentum: Decay | None = Field(None, description="momentum: of the speed (default 0.9)")
    beta1: Decay | None = Field(None, description="adam, yogi: of the mean (default 0.9)")
    beta2: Decay | None = Field(None, description="adam, yogi: of the squares (default 0.99)")
    tau: Positive | None = Field(
        None, description="adam, yogi: added to the root of the squares (default 0.001)"
    )

    @property
    def given(self) -> dict[str, float]:
        """The keys that are set, but for the name."""
        return self.model_dump(exclude={"name"}, exclude_none=True)

    @model_validator(mode="after")
    def _meaningful(self) -> Self:
        allowed = [field.name for field in fields(STEPS[self.name])]
        for key in self.given:
            if key not in allowed:
                raise ValueError(
                    f"{key}: means nothing for the server step {self.name!r}, "
                    f"which takes {', '.join(allowed)}"
                )
        return self


class Local(Section):
    """What a client does in a round."""

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
    lr: Positive = Field(0.02, description="learning rate eta")
    momentum: Decay = Field(0.9, description="SGD momentum")
    weight_decay: Annotated[float, Field(ge=0)] = Field(0.0, description="L2 decay")
    clip: Positive | None = Field(None, description="largest norm of a gradient")
    precision: Literal["float32", "bfloat16"] = Field(
        "float32", description="of products and convolutions; bfloat16: mixed precision"
    )
    schedule: Literal["constant", "step", "cosine"] = Field(
        "constant", description="learning rate over the rounds"
    )
    milestones: list[Count] = Field([], description="step: rounds at which it decays")
    decay: Positive = Field(0.1, description="step: the factor")
    absent_labels: Literal["keep", "zero", "leave_out"] = Field(
        "leave_out",
        description="logits of labels a client lacks: kept, set to zero (HeteroFL), or left out; "
        "the last two also cut the classifier's rows",
    )

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.epochs is not None and self.steps is not None:
            raise ValueError("steps: give epochs or steps, not both")
        if (self.schedule == "step") != bool(self.milestones):
            raise ValueError("milestones: go with schedule = step, and only with it")
        return self


class Train(Section):
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


class Engine(Section):
    """Where and how tasks run."""

    name: Literal["auto", "local", "torchrun", "flower"] = Field(
        "auto",
        description="local: this process; torchrun: several, here or on many machines; flower: "
        "real devices (submodel serve); auto: several here for more than a minute of work",
    )
    processes: Count | None = Field(
        None, description="torchrun: how many to start here (default: one per core)"
    )
    threads: Annotated[int, Field(ge=1, le=1024)] = Field(
        1, description="threads per operator; small models want one"
    )
    device: str = Field("auto", description="cpu, cuda, cuda:1, ...; auto: a GPU if there is one")
    batching: Literal["auto", "always", "never"] = Field(
        "auto", description="train clients of equal shape together: where it pays, or regardless"
    )


class Devices(Section):
    """How rounds go over real devices, with engine.name = flower."""

    least: Count = Field(1, description="devices that must be there for a round to begin")
    deadline: Positive = Field(600.0, description="seconds that a device has to answer in")
    quorum: Capacity = Field(
        1.0, description="the share of a round's devices whose answers close it before the deadline"
    )
    tries: Count = Field(
        3, description="how often a round is tried that nobody answers, before the run stops"
    )
    transport: Literal["exact", "half"] = Field(
        "exact", description="exact: every bit; half: float16, scaled by tensor, of half the bytes"
    )

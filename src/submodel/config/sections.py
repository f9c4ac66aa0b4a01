"""Sections of the configuration of a run."""

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

_CLIENTS = 50  # default number of clients


TRACKERS: Registry[object] = Registry(
    noun="tracker",
    key="train.trackers",
    group="submodel.trackers",
    expected="a submodel.Callback",
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
            "offline in wandb/, or as WANDB_MODE says",
        ),
        "mlflow": Entry(
            "submodel.runs.callbacks.trackers.mlflow_run:MlflowRun",
            "a database in mlflow/, or at MLFLOW_TRACKING_URI",
        ),
    },
)
"""Trackers, made with a `submodel.runs.callbacks.trackers.TrackerContext` when a run begins."""


class ModelSection(ChoosingSection):
    """The global model."""

    choices = {"name": MODELS}  # noqa: RUF012

    name: str = Field("cnn", description=MODELS.describe())
    weights: PathText | None = Field(
        None,
        description="initial weights instead of random ones: a safetensors file, or a folder with "
        "model.safetensors, of a run or of Hugging Face",
    )
    share: Capacity = Field(
        1.0,
        description="train only the first units of every axis, this fraction of them, as a model "
        "of its own: the sub-model that static gives a client of this capacity",
    )
    factorised: bool = Field(
        False,
        description="replace all layers but the first and the last by products of two low-rank "
        "layers (as FedHM): capacity limits the rank, widths stay whole",
    )
    rank_share: Capacity = Field(
        1.0, description="factorised: rank of the global model as a fraction of the full rank"
    )

    adapters: Literal["lora"] | None = Field(
        None,
        description="lora: train only low-rank layers beside the linear ones (LoRA); "
        "the frozen model is sent once, and capacity limits the rank",
    )
    adapter_rank: Count | None = Field(None, description="lora: rank per layer (default: 8)")
    adapter_alpha: Positive | None = Field(
        None, description="lora: adapter outputs are scaled by alpha / rank (default: 2 rank)"
    )
    adapter_dropout: Decay | None = Field(
        None,
        description="lora: dropout probability of an adapter's inputs (default: 0; with dropout, "
        "clients are not stacked)",
    )
    adapter_layers: list[str] | None = Field(
        None,
        min_length=1,
        description="lora: layers to adapt, by path or its last parts, as "
        '"attention.project" (default: all linear layers but the last)',
    )

    @model_validator(mode="after")
    def _adapters(self) -> Self:
        keys = ("adapter_rank", "adapter_alpha", "adapter_dropout", "adapter_layers")
        set_keys = [key for key in keys if getattr(self, key) is not None]
        if self.adapters is None and set_keys:
            raise ValueError(f'{set_keys[0]}: requires adapters = "lora"')
        if self.adapters is not None and self.factorised:
            raise ValueError("adapters: cannot be combined with factorised = true")
        if self.adapters is not None and getattr(self, "scaler", False):
            raise ValueError("scaler: compensates for dropped units; adapters drop none")
        return self

    @model_validator(mode="after")
    def _ranks(self) -> Self:
        if self.rank_share != 1 and not self.factorised:
            raise ValueError("rank_share: requires factorised = true")
        if self.share != 1 and (self.factorised or self.adapters is not None):
            raise ValueError("share: cuts widths; factorised layers and adapters have ranks")
        if getattr(self, "scaler", False) and self.factorised:
            raise ValueError("scaler: compensates for dropped units; factorised drops none")
        return self


class AxesSection(Section):
    """Changes to the traced axes."""

    freeze: list[str] = Field(
        [], description='axes or dimensions never to cut, as "fc" or "fc.weight[1]"'
    )
    tie: list[tuple[str, str]] = Field([], description="pairs of axes to cut together")
    whole: list[str] = Field([], description="axes that every client holds whole")
    cut: list[str] = Field([], description="factors of products to cut instead of the default ones")
    least: dict[str, Capacity] = Field(
        {}, description="minimum fraction of an axis that every client holds, by axis"
    )


class TaskSection(ChoosingSection):
    """Task, loss and metrics."""

    choices = {"name": TASKS, "loss": LOSSES}  # noqa: RUF012

    name: str = Field("auto", description=TASKS.describe())
    loss: str | None = Field(
        None, description=f"loss (default: that of the task): {LOSSES.describe()}"
    )
    metrics: Annotated[list[str], WrapValidator(METRICS.check_names)] | None = Field(
        None,
        description=f"metrics beside the loss (default: those of the task): {METRICS.describe()}",
    )


class DataSection(ChoosingSection):
    """Dataset and its partition among clients."""

    choices = {"name": SOURCES, "partition": PARTITIONS}  # noqa: RUF012

    name: str = Field("digits", description=SOURCES.describe())
    examples: Count | None = Field(
        None,
        description="limit on training examples, balanced over classes, independent of the seed "
        "(default: all)",
    )
    test_examples: Count | None = Field(None, description="limit on test examples, likewise")
    held_out: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None,
        description="validation split: fraction of the training part that no client trains on, "
        "drawn from the seed, stratified by class (or natural client), and scored beside the test "
        "part",
    )
    partition: str = Field("auto", description=PARTITIONS.describe())
    augment: Annotated[list[str], WrapValidator(AUGMENTATIONS.check_names)] = Field(
        [],
        description=f"random augmentation of training batches: {AUGMENTATIONS.describe()}",
    )


class ClientsSection(Section):
    """Clients, their capacities and their sampling."""

    count: Count | None = Field(
        None,
        description="number of clients (default: the owners that the data names, else 50, or fewer "
        "if the data is too small)",
    )
    per_round: Annotated[float, Field(gt=0)] = Field(
        10,
        description="clients per round; a value below 1 is a fraction of all clients; the default "
        "is limited to the number of clients",
    )
    capacities: list[Capacity] = Field(
        [1.0, 0.5, 0.25, 0.125],
        min_length=1,
        description='fractions of every axis that clients can hold, as 0.0625 or "1/16"',
    )
    proportions: list[Positive] | None = Field(
        None, description="relative frequency of each capacity (default: all equal)"
    )
    least: Capacity | None = Field(
        None, description="clients of smaller capacity take no part (default: all take part)"
    )
    capacity_mode: Literal["fixed", "dynamic"] = Field(
        "fixed", description="fixed: a client keeps its capacity; dynamic: it is redrawn each round"
    )
    sampling: Literal["uniform", "cyclic", "shuffled-cyclic"] = Field(
        "uniform",
        description="uniform: from all clients; cyclic (Cho et al. 2023): from fixed random groups "
        "in turn; shuffled-cyclic: likewise, with the groups reordered every cycle",
    )
    groups: Count | None = Field(
        None,
        description="cyclic, shuffled-cyclic: number of groups (default: count / per_round, "
        "rounded down)",
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
                f"least: no client can hold {self.least:g}; the largest capacity is "
                f"{max(self.capacities):g}"
            )
        if self.groups is None:
            return self
        if self.sampling == "uniform":
            raise ValueError("groups: requires sampling = cyclic or shuffled-cyclic")
        if self.groups > self.client_count:
            raise ValueError(f"groups: {self.groups} is more than the {self.client_count} clients")
        if (least := self.client_count // self.groups) < self.sample_size:
            raise ValueError(
                f"groups: {self.groups} groups of {self.client_count} clients have only {least} "
                f"each, less than the {self.sample_size} per round; at most "
                f"{self.client_count // self.sample_size} groups are possible"
            )
        return self

    @property
    def client_count(self) -> int:
        """Number of clients, if the data does not name them."""
        return _CLIENTS if self.count is None else self.count

    @property
    def sample_size(self) -> int:
        """Number of clients per round."""
        if self.per_round >= 1:
            return int(self.per_round)
        return max(1, round(self.per_round * self.client_count))

    @property
    def group_count(self) -> int:
        """Number of groups that rounds visit in turn; one if sampling is uniform."""
        if self.sampling == "uniform":
            return 1
        return self.groups or self.client_count // self.sample_size


class SchemeSection(ChoosingSection):
    """Scheme that draws the cuts."""

    choices = {"name": SCHEMES}  # noqa: RUF012

    name: str = Field("rolling", description=SCHEMES.describe())
    granularity: Literal["unit", "coordinate"] = Field(
        "unit", description="cut whole units (smaller tensors) or single weights (masks)"
    )


class MergeSection(ChoosingSection):
    """Merge of the updates into the next global model."""

    choices = {"rule": RULES, "projection": PROJECTIONS}  # noqa: RUF012

    rule: str = Field("selective", description=RULES.describe())
    weights: Literal["uniform", "examples"] = Field(
        "uniform", description="weight of a client: the same for all, or its number of examples"
    )
    projection: str = Field(
        "none",
        description=f"projection of the model onto a convex set W: {PROJECTIONS.describe()}",
    )


class ServerSection(ChoosingSection):
    """Server step that applies the merged change."""

    choices = {"name": STEPS}  # noqa: RUF012

    name: str = Field("plain", description=STEPS.describe())


class LocalSection(ChoosingSection):
    """Training of a client in a round."""

    choices = {"optimiser": OPTIMISERS, "schedule": SCHEDULES}  # noqa: RUF012

    epochs: Count | None = Field(None, description="passes over the client's examples (default 1)")
    steps: Count | None = Field(None, description="K, the number of SGD steps, instead of epochs")
    batch_size: Annotated[int, Field(ge=0, le=LARGEST)] = Field(
        10, description="examples per step; 0: all"
    )
    drop_last: bool = Field(
        False,
        description="leave out the last batch of a pass if it is smaller than the others (norms "
        "over the batch may fail on one example); a client's only batch is kept",
    )
    optimiser: str = Field("sgd", description=OPTIMISERS.describe())
    optimiser_state: OptimiserState = Field(
        "fresh",
        description="momenta and similar state: fresh in every round, or kept per client and "
        "weight since the client last held it",
    )
    lr: Positive = Field(0.02, description="learning rate eta")
    schedule: str = Field(
        "constant", description=f"learning rate over the rounds: {SCHEDULES.describe()}"
    )
    clip: Positive | None = Field(None, description="maximum norm of a gradient (default: none)")
    precision: Precision = Field(
        "float32",
        description="precision of products and convolutions; bfloat16: mixed precision",
    )
    accumulate: Count = Field(
        1,
        description="number of pieces in which a batch is computed, one after another: the same "
        "step with less memory (norms over the batch see the pieces)",
    )
    proximal: Annotated[float, Field(ge=0)] = Field(
        0.0, description="mu: add (mu / 2) ||w - w_r||^2 to the client's objective (FedProx)"
    )
    warmup_rounds: Annotated[int, Field(ge=0, le=LARGEST)] = Field(
        0, description="first rounds, over which the learning rate grows to that of the schedule"
    )
    step_schedule: StepSchedule = Field(
        "constant", description="learning rate over the steps of a round"
    )
    warmup_steps: Annotated[int, Field(ge=0, le=LARGEST)] = Field(
        0, description="first steps of every round, over which the learning rate grows"
    )
    absent_labels: Literal["auto", AbsentLabels] = Field(
        "auto",
        description="logits of labels that a client lacks: kept, set to zero (HeteroFL), or left "
        "out; the last two also cut the classifier's rows; auto: leave_out for the cross-entropy "
        "of class labels, else keep",
    )

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.epochs is not None and self.steps is not None:
            raise ValueError("steps: give epochs or steps, not both")
        return self


class TrainSection(Section):
    """Rounds, evaluation, checkpoints and trackers."""

    rounds: Count = Field(200, description="communication rounds")
    evaluate_every: Count = Field(5, description="rounds between evaluations")
    evaluate_capacities: bool = Field(
        True, description="also evaluate the sub-model of every capacity"
    )
    evaluate_train: bool = Field(
        False, description="also score the global model on the training part"
    )
    evaluate_train_examples: Count | None = Field(
        None, description="number of training examples to score, evenly spread (default: all)"
    )
    evaluate_clients: Literal["no", "submodel", "global"] = Field(
        "no",
        description="also score every client, with the sub-model of its capacity or the global "
        "model, on its own test examples, or on those of its labels, weighted as in its data",
    )
    statistics: Literal["clients", "test_batch"] = Field(
        "clients",
        description="statistics of static batch norm in evaluation: pooled over the clients' "
        "examples, or those of each scored batch of 50 examples (as in FedRolex's code, whose head "
        "takes 100); exports always use clients",
    )
    statistics_examples: Count | None = Field(
        None, description="number of the clients' examples to pool, evenly spread (default: all)"
    )
    checkpoint_every: Count = Field(5, description="rounds between checkpoints")
    output_step: Positive | None = Field(
        None, description="L: end with the algorithms' output step of size 1/L over all clients"
    )
    finish: Capacity | None = Field(
        None,
        description="final fraction of the rounds, spent on the sub-models that devices keep: "
        "nested, largest units first, every step at a random width, narrower widths distilled from "
        "the widest (default: none)",
    )
    trackers: Annotated[list[str], WrapValidator(TRACKERS.check_names)] = Field(
        [], description=f"further destinations of metrics: {TRACKERS.describe()}"
    )

    @property
    def finishing_round(self) -> int | None:
        """First round of the finishing phase, counted from 0; None without such a phase.

        >>> TrainSection(rounds=10, finish="1/4").finishing_round, TrainSection().finishing_round
        (7, None)
        """
        if self.finish is None:
            return None
        share = Fraction(self.finish).limit_denominator(1 << 20)
        return self.rounds - math.ceil(share * self.rounds)


class EngineSection(ChoosingSection):
    """Engine that runs the tasks of clients."""

    choices = {"name": ENGINES}  # noqa: RUF012

    name: str = Field("auto", description=ENGINES.describe())
    threads: Annotated[int, Field(ge=1, le=1024)] = Field(
        1, description="threads per operator; one is best for small models"
    )
    device: str = Field("auto", description="cpu, cuda, cuda:1, ...; auto: a GPU if there is one")


class DevicesSection(Section):
    """Rounds on real devices, with engine.name = flower."""

    least: Count = Field(1, description="minimum number of connected devices to begin a round")
    deadline: Positive = Field(600.0, description="seconds in which a device must answer")
    quorum: Capacity = Field(
        1.0,
        description="fraction of a round's devices whose answers close the round before the "
        "deadline; a device missing from two rounds in a row is waited for in its next",
    )
    tries: Count = Field(
        3, description="attempts at a round that no device answers, before the run stops"
    )
    transport: Literal["exact", "half"] = Field(
        "exact",
        description="exact: all bits; half: float16, scaled per tensor, at half the traffic",
    )


class Config(Section):
    """Configuration of a run."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$", max_length=100)] = Field(
        "digits", description="name of the run's folder"
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(0, description="seed of all randomness")
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
            raise PydanticCustomError("reserved", "is not a valid name of a folder")
        return name

    @model_validator(mode="after")
    def _devices_are_served(self) -> Self:
        if self.engine.name != "flower":
            for key, field in DevicesSection.model_fields.items():
                if getattr(self.devices, key) != field.default:
                    raise ValueError(f"devices.{key}: requires engine.name = flower (serve)")
        return self
